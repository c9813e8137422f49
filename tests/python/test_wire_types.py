"""AMQP types of replies. Go's SDK refuses other integer types, plain filters and lists in place of arrays; most clients do not
look. `python-qpid-proton` shows the types as they are on the wire."""

import datetime
import itertools
import uuid

import pytest
from azure.servicebus import ServiceBusMessage
from proton import UNDESCRIBED, Array, Data, Described, Message, int32, symbol, timestamp, uint, ulong
from proton.reactor import Filter, ReceiverOption
from proton.utils import BlockingConnection, LinkDetached

NUMBERS = itertools.count()
SESSION_FILTER = symbol("com.microsoft:session-filter")


@pytest.fixture
def connection(broker):
    connection = BlockingConnection(f"amqp://{broker.address}", timeout=30, allowed_mechs="ANONYMOUS")
    yield connection
    connection.close()


class ReplyTo(ReceiverOption):
    def __init__(self, address):
        self.address = address

    def apply(self, receiver):
        receiver.target.address = self.address


class Response:
    """A copy: binary values of proton point into its message."""

    def __init__(self, message):
        self.properties, self.body = message.properties, owned(message.body)


def owned(value):
    if isinstance(value, memoryview):
        return bytes(value)
    if isinstance(value, dict):
        return {owned(key): owned(inner) for key, inner in value.items()}
    return [owned(inner) for inner in value] if isinstance(value, list) else value


def call(connection, node, operation, body, **properties):
    """One request, and its response."""
    reply_to = f"reply-{next(NUMBERS)}"
    receiver = connection.create_receiver(node, name=reply_to, options=ReplyTo(reply_to))
    sender = connection.create_sender(node, name=f"{reply_to}-sender")
    request = uuid.uuid4()
    sender.send(Message(body, id=request, reply_to=reply_to, properties={"operation": operation, **properties}))
    response = receiver.receive(timeout=30)
    assert response.correlation_id == request, "the value, and its type"
    copy = Response(response)
    sender.close()
    receiver.close()
    return copy


def manage(connection, entity, operation, **fields):
    body = {name.replace("_", "-"): value for name, value in fields.items()}
    return call(connection, f"{entity}/$management", f"com.microsoft:{operation}", body)


def longs(*numbers):
    return Array(UNDESCRIBED, Data.LONG, *numbers)


def is_array(value, kind):
    return isinstance(value, Array) and value.type == kind


def long(value):
    """A plain `int` is an AMQP long; the others have types of their own."""
    return type(value) is int


def test_status_codes_are_ints(connection, broker, make_queue):
    queue = make_queue()
    put = call(connection, "$cbs", "put-token", "any", type="servicebus.windows.net:sastoken",
               name=f"sb://{broker.address}/{queue}")
    assert type(put.properties["status-code"]) is int32 and put.properties["status-code"] == 202
    failed = manage(connection, queue, "peek-message", from_sequence_number=1, message_count=int32(1))
    assert type(failed.properties["statusCode"]) is int32 and failed.properties["statusCode"] == 204
    assert type(failed.properties["errorCondition"]) is symbol


def test_annotations_have_the_right_types(connection, client, make_queue):
    queue = make_queue()
    with client.get_queue_sender(queue) as sender:
        sender.send_messages(ServiceBusMessage("a", message_id="m"))
    receiver = connection.create_receiver(queue, credit=0)
    message = receiver.receive(timeout=10)
    annotations = message.annotations
    assert long(annotations[symbol("x-opt-sequence-number")])
    for name in ("x-opt-enqueued-time", "x-opt-locked-until"):
        assert type(annotations[symbol(name)]) is timestamp, name
    assert isinstance(message.instructions[symbol("x-opt-lock-token")], uuid.UUID)
    receiver.accept()


def test_management_replies_have_arrays_of_the_right_types(connection, client, make_queue):
    queue = make_queue()
    encoded = Message(b"later", inferred=True, id="m", annotations={
        symbol("x-opt-scheduled-enqueue-time"): timestamp(4_000_000_000_000)}).encode()
    scheduled = manage(connection, queue, "schedule-message", messages=[{"message-id": "m", "message": encoded}]).body
    assert is_array(scheduled["sequence-numbers"], Data.LONG)
    cancelled = manage(connection, queue, "cancel-scheduled-message",
                       sequence_numbers=longs(*scheduled["sequence-numbers"].elements))
    assert cancelled.properties["statusCode"] == 200

    with client.get_queue_sender(queue) as sender:
        sender.send_messages(ServiceBusMessage("a"))
    with client.get_queue_receiver(queue) as receiver:
        [message] = receiver.receive_messages(1, max_wait_time=10)
        token = Array(UNDESCRIBED, Data.UUID, message.lock_token)
        renewed = manage(connection, queue, "renew-lock", lock_tokens=token).body
        assert is_array(renewed["expirations"], Data.TIMESTAMP)
        receiver.defer_message(message)
    fetched = manage(connection, queue, "receive-by-sequence-number", sequence_numbers=longs(message.sequence_number),
                     receiver_settle_mode=uint(1)).body
    [entry] = fetched["messages"]
    assert isinstance(entry["lock-token"], uuid.UUID)
    inner = Message()
    inner.decode(entry["message"])
    # Go reads the token only from the message itself.
    assert inner.instructions[symbol("x-opt-lock-token")] == entry["lock-token"]
    settled = manage(connection, queue, "update-disposition", disposition_status="completed",
                     lock_tokens=Array(UNDESCRIBED, Data.UUID, entry["lock-token"]))
    assert settled.properties["statusCode"] == 200


@pytest.mark.parametrize("described", [True, False])
def test_a_session_filter_comes_back_in_the_form_of_the_request(connection, make_queue, described):
    queue = make_queue(requires_session=True)
    sender = connection.create_sender(queue)
    sender.send(Message("a", group_id="s"))

    def filter_of(value):
        return Filter({SESSION_FILTER: Described(ulong(0x137000000C), value) if described else value})
    receiver = connection.create_receiver(queue, name="named", options=filter_of("s"))
    # The filter of the reply; proton has it in the remote source.
    shown = receiver.link.remote_source.filter
    shown.rewind()
    assert shown.next() is not None
    value = shown.get_object()[SESSION_FILTER]
    assert value == (Described(ulong(0x137000000C), "s") if described else "s")
    properties = receiver.link.remote_properties
    assert long(properties[symbol("com.microsoft:locked-until-utc")])
    renewed = manage(connection, queue, "renew-session-lock", session_id="s").body
    assert type(renewed["expiration"]) is timestamp
    manage(connection, queue, "set-session-state", session_id="s", session_state=b"half")
    assert manage(connection, queue, "get-session-state", session_id="s").body["session-state"] == b"half"
    everything = timestamp(253_402_300_800_000)
    sessions = manage(connection, queue, "get-message-sessions", last_updated_time=everything, skip=int32(0),
                      top=int32(10)).body
    assert is_array(sessions["sessions-ids"], Data.STRING) and list(sessions["sessions-ids"].elements) == ["s"]
    assert type(sessions["skip"]) is int32
    with pytest.raises(LinkDetached):
        connection.create_receiver(queue, name="second", options=filter_of("s"))


def test_messages_are_deleted_in_bulk(connection, client, make_queue):
    queue = make_queue()
    with client.get_queue_sender(queue) as sender:
        sender.send_messages([ServiceBusMessage(str(number)) for number in range(5)])
    now = timestamp(int((datetime.datetime.now().timestamp() + 60) * 1000))
    deleted = manage(connection, queue, "batch-delete-messages", message_count=int32(3), enqueued_time_utc=now)
    assert deleted.body["message-count"] == 3 and type(deleted.body["message-count"]) is int32
    before = manage(connection, queue, "batch-delete-messages", message_count=int32(9), enqueued_time_utc=timestamp(1000))
    assert before.properties["statusCode"] == 204
    with client.get_queue_receiver(queue) as receiver:
        assert [str(message) for message in receiver.peek_messages(10)] == ["3", "4"]
