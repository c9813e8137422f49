"""Sessions with the official Python SDK: exclusive, ordered, stateful, on plain and on partitioned entities."""

import datetime
import time

import pytest
from azure.servicebus import NEXT_AVAILABLE_SESSION, ServiceBusMessage, ServiceBusSubQueue
from azure.servicebus.exceptions import (
    OperationTimeoutError, ServiceBusError, SessionCannotBeLockedError, SessionLockLostError)

from test_queues import bodies, receive, send


@pytest.fixture(params=[False, True], ids=["plain", "partitioned"])
def queue(request, make_queue):
    return make_queue(requires_session=True, enable_partitioning=request.param)


def messages(session, count):
    return [ServiceBusMessage(f"{session}-{n}", session_id=session) for n in range(count)]


def test_a_session_is_one_ordered_stream(client, queue):
    for session in ("a", "b"):
        send(client, queue, *messages(session, 10))
    for session in ("a", "b"):
        with client.get_queue_receiver(queue, session_id=session) as receiver:
            assert receiver.session.session_id == session
            got = receive(receiver, 10)
            assert bodies(got) == [f"{session}-{n}" for n in range(10)]
            assert {message.session_id for message in got} == {session}
            for message in got:
                receiver.complete_message(message)


def test_accept_next_session_returns_an_unlocked_session(client, queue):
    for session in ("a", "b"):
        send(client, queue, *messages(session, 1))
    with client.get_queue_receiver(queue, session_id=NEXT_AVAILABLE_SESSION) as first:
        with client.get_queue_receiver(queue, session_id=NEXT_AVAILABLE_SESSION) as second:
            assert {first.session.session_id, second.session.session_id} == {"a", "b"}
            with pytest.raises(OperationTimeoutError):
                with client.get_queue_receiver(queue, session_id=NEXT_AVAILABLE_SESSION, max_wait_time=1) as third:
                    third.receive_messages()


def test_a_session_has_one_holder(client, queue):
    send(client, queue, *messages("a", 1))
    with client.get_queue_receiver(queue, session_id="a"):
        with pytest.raises((SessionCannotBeLockedError, ServiceBusError)):
            with client.get_queue_receiver(queue, session_id="a") as second:
                second.receive_messages(max_wait_time=1)
    with client.get_queue_receiver(queue, session_id="a") as receiver:
        [message] = receive(receiver, 1)
        assert message.delivery_count == 0, "closing a session does not count as a failed delivery"
        receiver.complete_message(message)


def test_an_abandoned_message_is_redelivered_before_later_ones(client, queue):
    send(client, queue, *messages("a", 3))
    with client.get_queue_receiver(queue, session_id="a") as receiver:
        [first] = receive(receiver, 1)
        receiver.abandon_message(first)
        got = []
        while len(got) < 3:
            [message] = receive(receiver, 1)
            got.append(str(message))
            receiver.complete_message(message)
        assert got == ["a-0", "a-1", "a-2"]


def test_session_state_is_stored(client, queue):
    send(client, queue, *messages("a", 1))
    with client.get_queue_receiver(queue, session_id="a") as receiver:
        assert not receiver.session.get_state()
        receiver.session.set_state(b"\x00half way")
        assert receiver.session.get_state() == b"\x00half way"
        [message] = receive(receiver, 1)
        receiver.complete_message(message)
    with client.get_queue_receiver(queue, session_id="a") as receiver:
        assert receiver.session.get_state() == b"\x00half way"
        receiver.session.set_state(None)
        assert not receiver.session.get_state()


def test_a_session_lock_is_renewed_or_lost(client, make_queue):
    queue = make_queue(requires_session=True, lock_duration=datetime.timedelta(seconds=5))
    send(client, queue, *messages("a", 1))
    with client.get_queue_receiver(queue, session_id="a") as receiver:
        [message] = receive(receiver, 1)
        before = receiver.session.locked_until_utc
        time.sleep(1.1)
        assert receiver.session.renew_lock() > before
        deadline = time.monotonic() + 30
        with pytest.raises((SessionLockLostError, ServiceBusError)):
            while time.monotonic() < deadline:
                receiver.receive_messages(max_wait_time=1)
        with pytest.raises((SessionLockLostError, ServiceBusError)):
            receiver.complete_message(message)
    with client.get_queue_receiver(queue, session_id="a") as receiver:
        [message] = receive(receiver, 1)
        assert message.delivery_count == 1, "a lock that ran out counts as a failed delivery"
        receiver.complete_message(message)


def test_the_empty_session_id_is_a_session(client, queue):
    send(client, queue, *messages("", 1))
    with client.get_queue_receiver(queue, session_id="") as receiver:
        [message] = receive(receiver, 1)
        assert message.session_id == ""
        receiver.complete_message(message)


def test_a_session_entity_requires_a_session_id(client, queue):
    with pytest.raises(ServiceBusError):
        send(client, queue, ServiceBusMessage("homeless"))
    with pytest.raises(ServiceBusError):
        with client.get_queue_receiver(queue) as receiver:
            receiver.receive_messages(max_wait_time=1)


def test_dead_letters_of_sessions_need_no_session(client, queue):
    send(client, queue, *messages("a", 1))
    with client.get_queue_receiver(queue, session_id="a") as receiver:
        [message] = receive(receiver, 1)
        receiver.dead_letter_message(message, reason="why", error_description="because")
    with client.get_queue_receiver(queue, sub_queue=ServiceBusSubQueue.DEAD_LETTER) as receiver:
        [dead] = receive(receiver, 1)
        assert (dead.session_id, dead.dead_letter_reason) == ("a", "why")
        receiver.complete_message(dead)


def test_messages_of_a_session_are_peeked_and_deferred_within_it(client, queue):
    send(client, queue, *messages("a", 2))
    send(client, queue, *messages("b", 1))
    with client.get_queue_receiver(queue, session_id="a") as receiver:
        assert bodies(receiver.peek_messages(max_message_count=5)) == ["a-0", "a-1"]
        first, second = receive(receiver, 2)
        receiver.defer_message(first)
        receiver.complete_message(second)
        [deferred] = receiver.receive_deferred_messages(first.sequence_number)
        assert str(deferred) == "a-0"
        receiver.complete_message(deferred)


def test_a_partition_key_must_equal_the_session_id(client, make_queue):
    queue = make_queue(requires_session=True, enable_partitioning=True)
    with client.get_queue_sender(queue) as sender:
        with pytest.raises((ServiceBusError, ValueError)):
            sender.send_messages(ServiceBusMessage("torn", session_id="a", partition_key="b"))
        batch = sender.create_message_batch()
        batch.add_message(ServiceBusMessage("1", session_id="a"))
        batch.add_message(ServiceBusMessage("2", session_id="b"))
        with pytest.raises(ServiceBusError):
            sender.send_messages(batch)
    assert [str(m) for s in ("a",) for m in peek_session(client, queue, s)] == []


def peek_session(client, queue, session):
    with client.get_queue_receiver(queue, session_id=session, max_wait_time=1) as receiver:
        return receiver.peek_messages(max_message_count=10)


def test_a_message_is_scheduled_into_its_session(client, queue):
    now = datetime.datetime.now(datetime.timezone.utc)
    with client.get_queue_sender(queue) as sender:
        sender.schedule_messages(ServiceBusMessage("soon", session_id="a"), now + datetime.timedelta(seconds=1))
        [never] = sender.schedule_messages(ServiceBusMessage("never", session_id="a"), now + datetime.timedelta(hours=1))
        sender.cancel_scheduled_messages(never)
    with client.get_queue_receiver(queue, session_id=NEXT_AVAILABLE_SESSION) as receiver:
        [message] = receive(receiver, 1)
        assert (str(message), message.session_id) == ("soon", "a")
        assert message.partition_key in (None, "a")
        receiver.complete_message(message)


def test_messages_in_a_session_share_the_session_lock(client, queue):
    send(client, queue, *messages("a", 1))
    with client.get_queue_receiver(queue, session_id="a") as receiver:
        [message] = receive(receiver, 1)
        with pytest.raises((TypeError, ValueError, ServiceBusError)):
            receiver.renew_message_lock(message)
        receiver.complete_message(message)
        assert receiver.receive_messages(max_wait_time=1) == []


def test_receive_and_delete_works_with_sessions(client, queue):
    send(client, queue, *messages("a", 3))
    with client.get_queue_receiver(queue, session_id="a", receive_mode="receiveanddelete") as receiver:
        assert bodies(receive(receiver, 3)) == ["a-0", "a-1", "a-2"]
        assert receiver.peek_messages() == []


def test_a_named_session_is_accepted_before_its_first_message(client, queue):
    with client.get_queue_receiver(queue, session_id="late") as receiver:
        assert receiver.receive_messages(max_wait_time=1) == []
        send(client, queue, *messages("other", 1))
        send(client, queue, *messages("late", 1))
        [message] = receive(receiver, 1)
        assert str(message) == "late-0"
        receiver.complete_message(message)


def test_a_dead_lettered_message_does_not_block_its_session(client, make_queue):
    queue = make_queue(requires_session=True, max_delivery_count=2)
    send(client, queue, *messages("a", 2))
    with client.get_queue_receiver(queue, session_id="a") as receiver:
        for count in range(2):
            [message] = receive(receiver, 1)
            assert (str(message), message.delivery_count) == ("a-0", count)
            receiver.abandon_message(message)
        [message] = receive(receiver, 1)
        assert str(message) == "a-1"
        receiver.complete_message(message)
    with client.get_queue_receiver(queue, sub_queue=ServiceBusSubQueue.DEAD_LETTER) as receiver:
        [dead] = receive(receiver, 1)
        assert dead.dead_letter_reason == "MaxDeliveryCountExceeded"
        receiver.complete_message(dead)
