"""The clock of the broker is moved: time to live, schedules, locks and duplicates, as the official SDK sees them."""

import datetime

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage, ServiceBusSubQueue
from azure.servicebus.aio import ServiceBusClient as AsyncServiceBusClient
from azure.servicebus.exceptions import MessageLockLostError

from conftest import unique
from test_faults import admin, advance, broker  # noqa: F401 (fixtures: a broker with test hooks)

MINUTE = 60_000


def in_an_hour():
    return datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(hours=1)


@pytest.fixture
def queue(admin):
    name = unique("queue")
    admin.create_queue(name, dead_lettering_on_message_expiration=True, requires_duplicate_detection=True,
                       lock_duration=datetime.timedelta(minutes=1))
    return name


def test_a_message_expires_and_a_scheduled_one_arrives(broker, queue):
    with ServiceBusClient.from_connection_string(broker.connection_string, retry_total=0) as client:
        with client.get_queue_sender(queue) as sender:
            sender.send_messages(ServiceBusMessage("expires", time_to_live=datetime.timedelta(minutes=1)))
            # Another test may have moved the clock before: the time is that of this machine.
            sender.schedule_messages(ServiceBusMessage("later"), in_an_hour() + datetime.timedelta(days=30))
        advance(broker, 2 * MINUTE)
        with client.get_queue_receiver(queue, sub_queue=ServiceBusSubQueue.DEAD_LETTER) as receiver:
            [dead] = receiver.receive_messages(1, max_wait_time=10)
            assert (str(dead), dead.dead_letter_reason) == ("expires", "TTLExpiredException")
        with client.get_queue_receiver(queue) as receiver:
            assert receiver.receive_messages(1, max_wait_time=1) == []
            advance(broker, 31 * 24 * 60 * MINUTE)
            assert [str(message) for message in receiver.receive_messages(1, max_wait_time=10)] == ["later"]


def test_a_lock_and_a_known_id_expire(broker, queue):
    with ServiceBusClient.from_connection_string(broker.connection_string, retry_total=0) as client, \
            client.get_queue_sender(queue) as sender, client.get_queue_receiver(queue) as receiver:
        sender.send_messages(ServiceBusMessage("a", message_id="1"))
        [message] = receiver.receive_messages(1, max_wait_time=10)
        advance(broker, 2 * MINUTE)
        with pytest.raises(MessageLockLostError):
            receiver.complete_message(message)
        [again] = receiver.receive_messages(1, max_wait_time=10)
        assert again.delivery_count == 1
        receiver.complete_message(again)
        sender.send_messages(ServiceBusMessage("duplicate", message_id="1"))
        assert receiver.receive_messages(1, max_wait_time=1) == []
        advance(broker, 11 * MINUTE)
        sender.send_messages(ServiceBusMessage("new", message_id="1"))
        assert [str(message) for message in receiver.receive_messages(1, max_wait_time=10)] == ["new"]


@pytest.mark.asyncio
async def test_a_message_expires_and_a_lock_is_lost_async(broker, queue):
    async with AsyncServiceBusClient.from_connection_string(broker.connection_string, retry_total=0) as client:
        async with client.get_queue_sender(queue) as sender:
            await sender.send_messages(ServiceBusMessage("kept"))
            await sender.send_messages(ServiceBusMessage("expires", time_to_live=datetime.timedelta(minutes=1)))
        async with client.get_queue_receiver(queue) as receiver:
            [message] = await receiver.receive_messages(1, max_wait_time=10)
            advance(broker, 2 * MINUTE)
            with pytest.raises(MessageLockLostError):
                await receiver.complete_message(message)
            [again] = await receiver.receive_messages(1, max_wait_time=10)
            assert (str(again), again.delivery_count) == ("kept", 1)
            await receiver.complete_message(again)
        async with client.get_queue_receiver(queue, sub_queue=ServiceBusSubQueue.DEAD_LETTER) as receiver:
            assert [str(dead) for dead in await receiver.receive_messages(1, max_wait_time=10)] == ["expires"]
