"""Rules of the service that the SDK's own suite asserts."""

import datetime
import decimal
import threading
import urllib.request

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage, ServiceBusMessageState, ServiceBusSubQueue
from azure.servicebus.amqp import AmqpAnnotatedMessage, AmqpMessageHeader
from azure.servicebus.exceptions import (
    MessageSizeExceededError, ServiceBusAuthenticationError, ServiceBusError)

from conftest import unique


def send(client, queue, *messages):
    with client.get_queue_sender(queue) as sender:
        sender.send_messages([ServiceBusMessage(message) if isinstance(message, str) else message
                              for message in messages])


def receive_one(receiver):
    [message] = receiver.receive_messages(1, max_wait_time=10)
    return message


def test_concurrent_management_requests_keep_the_receiver(client, make_queue):
    """Threads of the SDK can send two requests with one delivery-id."""
    queue = make_queue()
    send(client, queue, "a")
    with client.get_queue_receiver(queue) as receiver:
        message = receive_one(receiver)
        errors = []

        def peek():
            try:
                for _ in range(30):
                    receiver.peek_messages(1)
            except Exception as error:
                errors.append(error)
        threads = [threading.Thread(target=peek) for _ in range(4)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        assert not errors
        receiver.complete_message(message)


def test_a_management_request_that_is_too_large_fails_at_once(client, make_queue):
    queue = make_queue()
    soon = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(hours=1)
    with client.get_queue_sender(queue) as sender:
        started = datetime.datetime.now()
        with pytest.raises(ServiceBusError):
            sender.schedule_messages(ServiceBusMessage("x" * 400_000), soon)
        assert datetime.datetime.now() - started < datetime.timedelta(seconds=20)


def test_a_standard_namespace_takes_messages_up_to_256_kilobytes(client, make_queue, admin):
    queue = make_queue()
    assert admin.get_namespace_properties().messaging_sku == "Standard"
    with client.get_queue_sender(queue) as sender:
        sender.send_messages(ServiceBusMessage(b"x" * 261_000))
        with pytest.raises(MessageSizeExceededError):
            sender.send_messages(ServiceBusMessage(b"x" * 263_000))


def test_deferring_counts_as_a_delivery(client, make_queue):
    queue = make_queue()
    send(client, queue, "a")
    with client.get_queue_receiver(queue) as receiver:
        message = receive_one(receiver)
        receiver.defer_message(message)
        number = message.sequence_number
        for count in (1, 2):
            [deferred] = receiver.receive_deferred_messages([number])
            assert deferred.delivery_count == count
            receiver.defer_message(deferred)
        [deferred] = receiver.receive_deferred_messages([number])
        receiver.complete_message(deferred)


def test_a_dead_letter_is_not_dead_lettered_again(client, make_queue):
    queue = make_queue()
    send(client, queue, "a")
    with client.get_queue_receiver(queue) as receiver:
        receiver.dead_letter_message(receive_one(receiver), reason="bad")
    with client.get_queue_receiver(queue, sub_queue=ServiceBusSubQueue.DEAD_LETTER) as receiver:
        for _ in range(3):
            message = receive_one(receiver)
            assert message.delivery_count == 0
            receiver.abandon_message(message)
        message = receive_one(receiver)
        with pytest.raises(ServiceBusError):
            receiver.dead_letter_message(message, reason="again")


def test_a_delivered_message_keeps_its_scheduled_state(client, make_queue):
    queue = make_queue()
    due = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(seconds=1)
    with client.get_queue_sender(queue) as sender:
        sender.schedule_messages(ServiceBusMessage("later"), due)
        sender.send_messages(ServiceBusMessage("now"))
    with client.get_queue_receiver(queue) as receiver:
        states = {}
        while len(states) < 2:
            message = receive_one(receiver)
            states[str(message)] = message.state
            receiver.complete_message(message)
    assert states == {"now": ServiceBusMessageState.ACTIVE, "later": ServiceBusMessageState.SCHEDULED}


def test_a_missing_entity_is_refused_with_its_token(broker):
    with ServiceBusClient.from_connection_string(broker.connection_string, retry_total=0) as client:
        with pytest.raises(ServiceBusAuthenticationError):
            with client.get_queue_sender("missing") as sender:
                sender.send_messages(ServiceBusMessage("a"))


def test_an_empty_session_id_goes_with_a_partition_key(client, make_queue):
    queue = make_queue()
    message = AmqpAnnotatedMessage(data_body=b"a", properties={"group_id": ""},
                                   annotations={"x-opt-partition-key": "key"})
    with client.get_queue_sender(queue) as sender:
        sender.send_messages(message)
    with client.get_queue_receiver(queue) as receiver:
        assert receive_one(receiver).partition_key == "key"


def test_header_fields_come_back_as_sent(client, make_queue):
    queue = make_queue()
    header = AmqpMessageHeader(durable=False, first_acquirer=False, priority=3)
    with client.get_queue_sender(queue) as sender:
        sender.send_messages(AmqpAnnotatedMessage(data_body=b"a", header=header))
    with client.get_queue_receiver(queue, receive_mode="receiveanddelete") as receiver:
        raw = receive_one(receiver).raw_amqp_message
    assert (raw.header.durable, raw.header.first_acquirer, raw.header.priority) == (False, False, 3)
    assert raw.delivery_annotations == {}
    assert b"x-opt-enqueue-sequence-number" not in raw.annotations


def test_a_header_field_that_is_not_set_stays_so(client, make_queue):
    queue = make_queue()
    send(client, queue, "a")
    with client.get_queue_receiver(queue) as receiver:
        header = receive_one(receiver).raw_amqp_message.header
    assert (header.durable, header.first_acquirer, header.priority) == (None, None, None)


def test_a_partitioned_entity_shows_the_size_of_all_partitions(admin):
    name = unique("queue")
    created = admin.create_queue(name, enable_partitioning=True, max_size_in_megabytes=1024)
    assert created.max_size_in_megabytes == 16 * 1024
    admin.update_queue(admin.get_queue(name))
    assert admin.get_queue(name).max_size_in_megabytes == 16 * 1024


def test_the_namespace_itself_can_be_read(broker):
    with urllib.request.urlopen(f"http://{broker.address}/") as answer:
        assert answer.status == 200 and b"Publicly Listed Services" in answer.read()


def test_a_topic_shows_its_filter_counts(admin, make_topic):
    # The default rule of its subscription counts: a boolean filter is a SQL filter (1=1).
    properties = admin.get_topic(make_topic())
    assert (properties._internal_td.sql_filter_count, properties._internal_td.correlation_filter_count) == (1, 0)


def test_receive_and_delete_keeps_the_session_lock(client, make_queue):
    queue = make_queue(requires_session=True)
    send(client, queue, ServiceBusMessage("a", session_id="s"), ServiceBusMessage("b", session_id="s"))
    with client.get_queue_receiver(queue, session_id="s", receive_mode="receiveanddelete") as receiver:
        assert str(receive_one(receiver)) == "a"
        receiver.session.set_state("half")
        assert str(receive_one(receiver)) == "b"
        assert bytes(receiver.session.get_state()) == b"half"
        receiver.session.renew_lock()


def test_a_decimal_property_is_read_as_sent(client, make_queue):
    queue = make_queue()
    sent = {"a": decimal.Decimal("12.5"), "b": decimal.Decimal("-3.75"), "c": decimal.Decimal(7)}
    send(client, queue, ServiceBusMessage("a", application_properties=sent))
    with client.get_queue_receiver(queue) as receiver:
        got = receive_one(receiver).application_properties
    assert got == {name.encode(): value for name, value in sent.items()}


def test_an_entity_shows_when_it_was_last_accessed(admin, client, make_queue):
    queue = make_queue()
    never = admin.get_queue_runtime_properties(queue).accessed_at_utc
    send(client, queue, "a")
    sent = admin.get_queue_runtime_properties(queue)
    assert never < sent.created_at_utc <= sent.accessed_at_utc
    with client.get_queue_receiver(queue) as receiver:
        receive_one(receiver)
    assert admin.get_queue_runtime_properties(queue).accessed_at_utc >= sent.accessed_at_utc
