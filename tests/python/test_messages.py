"""Message properties after a round trip, as the official SDK reads them."""

import datetime
import uuid

import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusMessageState, ServiceBusReceiveMode, ServiceBusSubQueue
from azure.servicebus.amqp import AmqpAnnotatedMessage, AmqpMessageBodyType
from azure.servicebus.exceptions import ServiceBusError

from test_queues import bodies, receive, send


def now():
    return datetime.datetime.now(datetime.timezone.utc)


def test_every_property_survives_a_round_trip(client, make_queue):
    queue = make_queue()
    sent = ServiceBusMessage(
        "data", application_properties={"key": "value", "n": 7}, subject="label", content_type="application/text",
        correlation_id="cid", message_id="mid", partition_key="pk", to="to", reply_to="reply_to",
        session_id="pk", reply_to_session_id="reply_to_sid", time_to_live=datetime.timedelta(seconds=60))
    send(client, queue, sent)
    with client.get_queue_receiver(queue) as receiver:
        [got] = receive(receiver, 1)
        assert got.application_properties == {b"key": b"value", b"n": 7}
        assert (got.subject, got.content_type, got.correlation_id) == ("label", "application/text", "cid")
        assert (got.message_id, got.partition_key, got.to, got.reply_to) == ("mid", "pk", "to", "reply_to")
        assert (got.session_id, got.reply_to_session_id) == ("pk", "reply_to_sid")
        assert got.expires_at_utc == got.enqueued_time_utc + datetime.timedelta(seconds=60)
        assert got.enqueued_sequence_number is None and got.delivery_count == 0
        assert got.state == ServiceBusMessageState.ACTIVE
        assert got.locked_until_utc > now()
        # The lock token is the delivery tag, and is also an annotation of the message.
        annotations = got.raw_amqp_message.delivery_annotations
        assert annotations[b"x-opt-lock-token"] == got.lock_token
        receiver.complete_message(got)


def test_missing_properties_stay_missing(client, make_queue):
    queue = make_queue()
    send(client, queue, ServiceBusMessage("bare"))
    with client.get_queue_receiver(queue, receive_mode=ServiceBusReceiveMode.RECEIVE_AND_DELETE) as receiver:
        [got] = receive(receiver, 1)
        for name in ("application_properties", "subject", "content_type", "correlation_id", "partition_key", "to",
                     "reply_to", "scheduled_enqueue_time_utc", "time_to_live", "session_id", "reply_to_session_id"):
            assert not getattr(got, name), name
        with pytest.raises(ValueError):
            receiver.complete_message(got)


def test_every_kind_of_body_survives_a_round_trip(client, make_queue):
    queue = make_queue()
    data = AmqpAnnotatedMessage(data_body=[b"aa", b"bb"], delivery_annotations={"delann": "kept"})
    value = AmqpAnnotatedMessage(value_body={b"key": [-123, b"data", False]}, header={"priority": 10},
                                 annotations={"ann": "kept"})
    sequence = AmqpAnnotatedMessage(sequence_body=[b"message", 123.456, True], footer={"foot": "kept"},
                                    properties={"subject": "sequence"})
    with client.get_queue_sender(queue) as sender:
        sender.send_messages([data, value, sequence])
        for message in (data, value, sequence):
            sender.send_messages(message)
    with client.get_queue_receiver(queue) as receiver:
        got = receive(receiver, 6)
        assert len(got) == 6
        for message in got:
            raw = message.raw_amqp_message
            if raw.body_type == AmqpMessageBodyType.DATA:
                assert list(raw.body) == [b"aa", b"bb"] and raw.delivery_annotations[b"delann"] == b"kept"
            elif raw.body_type == AmqpMessageBodyType.VALUE:
                assert raw.body == {b"key": [-123, b"data", False]}
                assert raw.header.priority == 10 and raw.annotations[b"ann"] == b"kept"
            else:
                assert list(raw.body) == [[b"message", 123.456, True]]
                assert raw.footer[b"foot"] == b"kept" and raw.properties.subject == b"sequence"
            receiver.complete_message(message)


def test_a_message_without_a_body_and_with_a_numeric_id(client, make_queue):
    queue = make_queue(requires_duplicate_detection=True)
    id = uuid.uuid4()
    for _ in range(2):
        send(client, queue, ServiceBusMessage(None, message_id=id))
    with client.get_queue_receiver(queue) as receiver:
        [got] = receive(receiver, 2, wait=1)
        assert got.body is None and got.message_id == id
        receiver.complete_message(got)


def test_a_received_message_can_be_sent_again(client, make_queue):
    queue = make_queue()
    send(client, queue, ServiceBusMessage("again", subject="1st"))
    with client.get_queue_receiver(queue) as receiver, client.get_queue_sender(queue) as sender:
        [first] = receive(receiver, 1)
        receiver.complete_message(first)
        first.subject = "2nd"
        sender.send_messages(first)
        [second] = receive(receiver, 1)
        assert (str(second), second.subject, second.delivery_count) == ("again", "2nd", 0)
        assert second.sequence_number > first.sequence_number and second.lock_token != first.lock_token
        receiver.complete_message(second)


def test_scheduled_and_deferred_messages_show_their_state(client, make_queue):
    queue = make_queue()
    with client.get_queue_sender(queue) as sender:
        sender.schedule_messages(ServiceBusMessage("later"), now() + datetime.timedelta(hours=1))
        sender.send_messages(ServiceBusMessage("now"))
    with client.get_queue_receiver(queue) as receiver:
        [message] = receive(receiver, 1)
        receiver.defer_message(message)
        states = {str(peeked): peeked.state for peeked in receiver.peek_messages(10, sequence_number=1)}
        assert states == {"later": ServiceBusMessageState.SCHEDULED, "now": ServiceBusMessageState.DEFERRED}
        [deferred] = receiver.receive_deferred_messages(message.sequence_number)
        assert deferred.state == ServiceBusMessageState.DEFERRED
        assert deferred.lock_token and deferred.locked_until_utc > now()
        receiver.renew_message_lock(deferred)
        receiver.dead_letter_message(deferred, reason="r", error_description="d")
    with client.get_queue_receiver(queue, sub_queue=ServiceBusSubQueue.DEAD_LETTER) as receiver:
        [dead] = receive(receiver, 1)
        assert (dead.dead_letter_reason, dead.dead_letter_error_description) == ("r", "d")
        assert dead.application_properties[b"DeadLetterReason"] == b"r" and dead.dead_letter_source == queue
        receiver.complete_message(dead)


def test_a_message_sent_with_a_time_is_enqueued_at_that_time(client, make_queue):
    queue = make_queue()
    at = (now() + datetime.timedelta(seconds=2)).replace(microsecond=0)
    ids = [uuid.uuid4(), uuid.uuid4(), uuid.uuid4()]
    with client.get_queue_sender(queue) as sender:
        sender.send_messages(ServiceBusMessage("sent", message_id=ids[0], scheduled_enqueue_time_utc=at))
        numbers = sender.schedule_messages([ServiceBusMessage("x", message_id=id) for id in ids[1:]], at)
        assert len(set(numbers)) == 2
    with client.get_queue_receiver(queue, prefetch_count=5) as receiver:
        got = receive(receiver, 3)
        assert [message.message_id for message in got] == ids
        for message in got:
            assert message.scheduled_enqueue_time_utc == at <= message.enqueued_time_utc
            receiver.complete_message(message)


def test_a_message_is_settled_over_management_without_its_link(client, make_queue):
    queue = make_queue()
    send(client, queue, ServiceBusMessage("one"), ServiceBusMessage("two"))
    with client.get_queue_receiver(queue) as receiver:
        one, two = receive(receiver, 2)
        receiver._handler._link.detach()
        receiver.complete_message(one)
        receiver.abandon_message(two)
    with client.get_queue_receiver(queue) as receiver:
        [again] = receive(receiver, 1)
        assert (str(again), again.delivery_count) == ("two", 1)
        receiver.complete_message(again)


def test_deferred_messages_are_received_all_or_none(client, make_queue):
    queue = make_queue()
    send(client, queue, *[ServiceBusMessage(f"m{n}") for n in range(3)])
    with client.get_queue_receiver(queue) as receiver:
        got = receive(receiver, 3)
        for message in got:
            receiver.defer_message(message)
        numbers = [message.sequence_number for message in got]
        with pytest.raises(ServiceBusError):
            receiver.receive_deferred_messages([*numbers, numbers[-1] + 100])
        assert receiver.receive_deferred_messages([]) == []
    with client.get_queue_receiver(queue, receive_mode=ServiceBusReceiveMode.RECEIVE_AND_DELETE) as receiver:
        assert bodies(receiver.receive_deferred_messages(numbers)) == ["m0", "m1", "m2"]
        with pytest.raises(ServiceBusError):
            receiver.receive_deferred_messages(numbers)


def test_unused_credit_does_not_raise_the_delivery_count(client, make_queue):
    """The receiver asks for ten and gets two. Messages that arrive later are released, not failed."""
    queue = make_queue()
    with client.get_queue_sender(queue) as sender, client.get_queue_receiver(queue) as receiver:
        sender.send_messages([ServiceBusMessage("a"), ServiceBusMessage("b")])
        got = []
        while len(got) < 2:
            got += receiver.receive_messages(max_message_count=10, max_wait_time=5)
        sender.send_messages([ServiceBusMessage("c"), ServiceBusMessage("d")])
        while len(got) < 4:
            got += receiver.receive_messages(max_message_count=10, max_wait_time=10)
        assert sorted(bodies(got)) == ["a", "b", "c", "d"]
        assert {message.delivery_count for message in got} == {0}
        for message in got:
            receiver.complete_message(message)


def test_iteration_ends_with_the_wait_and_can_continue(client, make_queue):
    queue = make_queue()
    send(client, queue, *[ServiceBusMessage(str(n)) for n in range(2)])
    with client.get_queue_sender(queue) as sender, client.get_queue_receiver(queue, max_wait_time=1) as receiver:
        got = []
        for message in receiver:
            got.append(message)
            break
        got.extend(receiver)
        sender.send_messages(ServiceBusMessage("2"))
        got.extend(receiver)
        assert bodies(got) == ["0", "1", "2"]
        for message in got:
            receiver.complete_message(message)
        sender.send_messages([])


def test_a_session_id_is_ignored_on_an_entity_without_sessions(client, make_queue):
    queue = make_queue()
    with pytest.raises(ServiceBusError):
        with client.get_queue_receiver(queue, session_id="s") as receiver:
            receiver.receive_messages(max_wait_time=1)
    send(client, queue, ServiceBusMessage("m", session_id="s"))
    with client.get_queue_receiver(queue) as receiver:
        [message] = receive(receiver, 1)
        assert message.session_id == "s"
        receiver.complete_message(message)
