"""`AutoDeleteOnIdle`, as the official SDK sees it. The clock of the broker is moved."""

import datetime

import pytest
from azure.core.exceptions import HttpResponseError, ResourceNotFoundError
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient as AsyncServiceBusClient
from azure.servicebus.exceptions import ServiceBusError

from conftest import unique
from test_faults import admin, advance, broker  # noqa: F401 (fixtures: a broker with test hooks)


def test_an_idle_entity_is_deleted_and_a_used_one_stays(broker, admin):
    idle, used = unique("queue"), unique("queue")
    for queue in idle, used:
        admin.create_queue(queue, auto_delete_on_idle=datetime.timedelta(minutes=5))
    with ServiceBusClient.from_connection_string(broker.connection_string, retry_total=0) as client:
        advance(broker, 4 * 60_000)
        with client.get_queue_sender(used) as sender:
            sender.send_messages(ServiceBusMessage("a"))
        advance(broker, 2 * 60_000)
        assert admin.get_queue_runtime_properties(used).active_message_count == 1
        with pytest.raises(ResourceNotFoundError):
            admin.get_queue(idle)
        with pytest.raises(ServiceBusError), client.get_queue_sender(idle) as sender:
            sender.send_messages(ServiceBusMessage("b"))


def test_an_idle_time_below_five_minutes_is_refused(admin):
    with pytest.raises(HttpResponseError, match="AutoDeleteOnIdle") as refused:
        admin.create_queue(unique("queue"), auto_delete_on_idle=datetime.timedelta(minutes=4))
    assert refused.value.status_code == 400


@pytest.mark.asyncio
async def test_a_receiver_keeps_its_idle_subscription_async(broker, admin):
    topic = unique("topic")
    admin.create_topic(topic)
    for name in "idle", "held":
        admin.create_subscription(topic, name, auto_delete_on_idle=datetime.timedelta(minutes=5))
    async with AsyncServiceBusClient.from_connection_string(broker.connection_string, retry_total=0) as client:
        async with client.get_subscription_receiver(topic, "held") as receiver:
            await receiver.peek_messages()
            advance(broker, 6 * 60_000)
    assert [subscription.name for subscription in admin.list_subscriptions(topic)] == ["held"]


@pytest.mark.asyncio
async def test_an_idle_queue_is_deleted_and_a_used_one_stays_async(broker, admin):
    idle, used = unique("queue"), unique("queue")
    for queue in idle, used:
        admin.create_queue(queue, auto_delete_on_idle=datetime.timedelta(minutes=5))
    async with AsyncServiceBusClient.from_connection_string(broker.connection_string, retry_total=0) as client:
        advance(broker, 4 * 60_000)
        async with client.get_queue_sender(used) as sender:
            await sender.send_messages(ServiceBusMessage("a"))
        advance(broker, 2 * 60_000)
        async with client.get_queue_receiver(used) as receiver:
            assert len(await receiver.receive_messages(1, max_wait_time=10)) == 1
        with pytest.raises(ServiceBusError):
            async with client.get_queue_sender(idle) as sender:
                await sender.send_messages(ServiceBusMessage("b"))
