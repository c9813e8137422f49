"""Queues with the official Python SDK: send, lock, settle, defer, schedule, peek, expire."""

import datetime
import time

import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusReceiveMode, ServiceBusSubQueue
from azure.servicebus.exceptions import (
    MessageLockLostError, MessageNotFoundError, MessageSizeExceededError,
    ServiceBusAuthenticationError, ServiceBusError)


def send(client, queue, *messages):
    with client.get_queue_sender(queue) as sender:
        sender.send_messages(list(messages))


def bodies(messages):
    return [str(message) for message in messages]


def receive(receiver, count, wait=10):
    got = []
    while len(got) < count:
        batch = receiver.receive_messages(max_message_count=count - len(got), max_wait_time=wait)
        if not batch:
            break
        got.extend(batch)
    return got


def test_messages_arrive_in_order_and_are_removed_on_complete(client, make_queue):
    queue = make_queue()
    send(client, queue, *[ServiceBusMessage(f"m{n}") for n in range(20)])
    with client.get_queue_receiver(queue, max_wait_time=1) as receiver:
        got = receive(receiver, 20)
        assert bodies(got) == [f"m{n}" for n in range(20)]
        assert [message.delivery_count for message in got] == [0] * 20
        numbers = [message.sequence_number for message in got]
        assert numbers == sorted(set(numbers))
        for message in got:
            receiver.complete_message(message)
        assert receiver.receive_messages(max_wait_time=1) == []


def test_all_message_fields_survive_a_round_trip(client, make_queue):
    queue = make_queue()
    message = ServiceBusMessage(
        b"\x00body\xff", message_id="id-1", correlation_id="corr", subject="OrderPlaced", content_type="application/bson",
        reply_to="answers", to="there", reply_to_session_id="s", time_to_live=datetime.timedelta(minutes=5),
        application_properties={"text": "t", "number": 7, "big": 2**30, "flag": True, "raw": b"\x01"})
    send(client, queue, message)
    with client.get_queue_receiver(queue) as receiver:
        [got] = receive(receiver, 1)
        assert b"".join(got.body) == b"\x00body\xff"
        assert (got.message_id, got.correlation_id, got.subject) == ("id-1", "corr", "OrderPlaced")
        assert (got.content_type, got.reply_to, got.to) == ("application/bson", "answers", "there")
        assert got.time_to_live == datetime.timedelta(minutes=5)
        properties = {key.decode() if isinstance(key, bytes) else key: value
                      for key, value in got.application_properties.items()}
        assert properties == {"text": b"t", "number": 7, "big": 2**30, "flag": True, "raw": b"\x01"} or \
            properties == {"text": "t", "number": 7, "big": 2**30, "flag": True, "raw": b"\x01"}
        assert got.enqueued_time_utc is not None and got.locked_until_utc is not None and got.lock_token is not None
        receiver.complete_message(got)


def test_an_abandoned_message_is_redelivered_with_a_higher_count(client, make_queue):
    queue = make_queue()
    send(client, queue, ServiceBusMessage("again"))
    with client.get_queue_receiver(queue) as receiver:
        for count in range(3):
            [message] = receive(receiver, 1)
            assert message.delivery_count == count
            receiver.abandon_message(message)


def test_a_message_is_dead_lettered_after_max_delivery_count(client, make_queue):
    queue = make_queue(max_delivery_count=2)
    send(client, queue, ServiceBusMessage("poison"), ServiceBusMessage("next"))
    with client.get_queue_receiver(queue) as receiver:
        for _ in range(2):
            [message] = receive(receiver, 1)
            assert str(message) == "poison"
            receiver.abandon_message(message)
        [message] = receive(receiver, 1)
        assert str(message) == "next"
        receiver.complete_message(message)
    with client.get_queue_receiver(queue, sub_queue=ServiceBusSubQueue.DEAD_LETTER) as receiver:
        [dead] = receive(receiver, 1)
        assert (str(dead), dead.dead_letter_reason) == ("poison", "MaxDeliveryCountExceeded")
        assert dead.dead_letter_error_description
        receiver.complete_message(dead)


def test_a_dead_lettered_message_keeps_its_reason(client, make_queue):
    queue = make_queue()
    send(client, queue, ServiceBusMessage("bad"))
    with client.get_queue_receiver(queue) as receiver:
        [message] = receive(receiver, 1)
        receiver.dead_letter_message(message, reason="Unreadable", error_description="no customer")
    with client.get_queue_receiver(queue, sub_queue=ServiceBusSubQueue.DEAD_LETTER) as receiver:
        [dead] = receive(receiver, 1)
        assert (dead.dead_letter_reason, dead.dead_letter_error_description) == ("Unreadable", "no customer")
        receiver.complete_message(dead)


def test_receive_and_delete_removes_the_message_at_once(client, make_queue):
    queue = make_queue()
    send(client, queue, ServiceBusMessage("once"))
    with client.get_queue_receiver(queue, receive_mode=ServiceBusReceiveMode.RECEIVE_AND_DELETE) as receiver:
        assert bodies(receive(receiver, 1)) == ["once"]
    with client.get_queue_receiver(queue) as receiver:
        assert receiver.receive_messages(max_wait_time=1) == []


def test_a_lock_can_be_renewed_and_its_loss_is_reported(client, make_queue):
    queue = make_queue(lock_duration=datetime.timedelta(seconds=5))
    send(client, queue, ServiceBusMessage("slow"))
    with client.get_queue_receiver(queue) as receiver:
        [message] = receive(receiver, 1)
        before = message.locked_until_utc
        time.sleep(1.1)  # the lock is in whole seconds for some SDKs: let the clock move before renewing
        assert receiver.renew_message_lock(message) > before
        deadline = time.monotonic() + 30
        while True:
            again = receiver.receive_messages(max_wait_time=1)
            if again or time.monotonic() > deadline:
                break
        assert bodies(again) == ["slow"] and again[0].delivery_count == 1
        with pytest.raises(MessageLockLostError):
            receiver.renew_message_lock(message)
        with pytest.raises(MessageLockLostError):
            receiver.complete_message(message)
        receiver.complete_message(again[0])


def test_a_deferred_message_is_received_by_sequence_number(client, make_queue):
    queue = make_queue()
    send(client, queue, ServiceBusMessage("later"), ServiceBusMessage("now"))
    with client.get_queue_receiver(queue) as receiver:
        first, second = receive(receiver, 2)
        receiver.defer_message(first)
        receiver.complete_message(second)
        assert receiver.receive_messages(max_wait_time=1) == []
        [deferred] = receiver.receive_deferred_messages(first.sequence_number)
        assert str(deferred) == "later"
        receiver.complete_message(deferred)
        with pytest.raises((MessageNotFoundError, ServiceBusError)):
            receiver.receive_deferred_messages(first.sequence_number)


def test_a_scheduled_message_arrives_on_time_or_is_cancelled(client, make_queue):
    queue = make_queue()
    soon = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(seconds=2)
    late = soon + datetime.timedelta(hours=1)
    with client.get_queue_sender(queue) as sender:
        [kept] = sender.schedule_messages(ServiceBusMessage("soon"), soon)
        [cancelled] = sender.schedule_messages(ServiceBusMessage("never"), late)
        assert kept != cancelled
        sender.cancel_scheduled_messages(cancelled)
        with pytest.raises((MessageNotFoundError, ServiceBusError)):
            sender.cancel_scheduled_messages(cancelled)
    with client.get_queue_receiver(queue) as receiver:
        [message] = receive(receiver, 1)
        assert str(message) == "soon"
        assert datetime.datetime.now(datetime.timezone.utc) >= soon - datetime.timedelta(milliseconds=50)
        receiver.complete_message(message)


def test_peek_does_not_lock_messages(client, make_queue):
    queue = make_queue()
    send(client, queue, *[ServiceBusMessage(f"m{n}") for n in range(5)])
    with client.get_queue_receiver(queue) as receiver:
        assert bodies(receiver.peek_messages(max_message_count=3)) == ["m0", "m1", "m2"]
        peeked = receiver.peek_messages(max_message_count=10, sequence_number=1)
        assert bodies(peeked) == [f"m{n}" for n in range(5)]
        got = receive(receiver, 5)
        assert bodies(got) == [f"m{n}" for n in range(5)]
        for message in got:
            receiver.complete_message(message)
        assert receiver.peek_messages() == []


def test_a_batch_is_stored_message_by_message(client, make_queue):
    queue = make_queue()
    with client.get_queue_sender(queue) as sender:
        batch = sender.create_message_batch()
        for n in range(500):
            batch.add_message(ServiceBusMessage(f"m{n}"))
        sender.send_messages(batch)
    with client.get_queue_receiver(queue, prefetch_count=100) as receiver:
        got = receive(receiver, 500)
        assert bodies(got) == [f"m{n}" for n in range(500)]
        for message in got:
            receiver.complete_message(message)


def test_a_message_over_the_limit_is_refused(client, make_queue):
    queue = make_queue()
    with client.get_queue_sender(queue) as sender:
        with pytest.raises((MessageSizeExceededError, ServiceBusError)):
            sender.send_messages(ServiceBusMessage(b"x" * 2_000_000))


def test_an_expired_message_is_dropped_or_dead_lettered(client, make_queue):
    kept = make_queue(dead_lettering_on_message_expiration=True)
    dropped = make_queue()
    for queue in (kept, dropped):
        send(client, queue, ServiceBusMessage("stale", time_to_live=datetime.timedelta(milliseconds=200)))
    with client.get_queue_receiver(kept, sub_queue=ServiceBusSubQueue.DEAD_LETTER) as receiver:
        [dead] = receive(receiver, 1)
        assert dead.dead_letter_reason == "TTLExpiredException"
        receiver.complete_message(dead)
    with client.get_queue_receiver(dropped) as receiver:
        assert receiver.receive_messages(max_wait_time=1) == []


def test_a_duplicate_is_accepted_and_dropped(client, make_queue):
    queue = make_queue(requires_duplicate_detection=True,
                       duplicate_detection_history_time_window=datetime.timedelta(minutes=1))
    send(client, queue, ServiceBusMessage("one", message_id="same"))
    with client.get_queue_receiver(queue) as receiver:
        [message] = receive(receiver, 1)
        receiver.complete_message(message)
    send(client, queue, ServiceBusMessage("two", message_id="same"), ServiceBusMessage("three", message_id="other"))
    with client.get_queue_receiver(queue) as receiver:
        got = receive(receiver, 2, wait=1)
        assert bodies(got) == ["three"]
        receiver.complete_message(got[0])


def test_a_missing_entity_is_reported(client):
    with pytest.raises(ServiceBusAuthenticationError):
        with client.get_queue_sender("no-such-queue") as sender:
            sender.send_messages(ServiceBusMessage("lost"))
    with pytest.raises(ServiceBusAuthenticationError):
        with client.get_queue_receiver("no-such-queue") as receiver:
            receiver.receive_messages(max_wait_time=1)
