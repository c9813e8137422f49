"""Basic, Standard and Premium, as the official SDK sees them."""

import contextlib
import datetime

import pytest
from azure.core.exceptions import HttpResponseError
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient as AsyncServiceBusClient
from azure.servicebus.exceptions import MessageSizeExceededError
from azure.servicebus.management import ServiceBusAdministrationClient

from broker_process import Broker


@contextlib.contextmanager
def tier(name):
    broker = Broker("--ephemeral", "--tier", name)
    try:
        admin = ServiceBusAdministrationClient.from_connection_string(broker.connection_string)
        admin._impl._client._base_url = f"http://{broker.address}"
        yield broker, admin
    finally:
        broker.stop()


def refused(match, status=400):
    @contextlib.contextmanager
    def check():
        with pytest.raises(HttpResponseError, match=match) as error:
            yield
        assert error.value.status_code == status
    return check()


BASIC = "cannot be set when creating a Queue because the namespace is using 'Basic' tier"


def test_the_basic_tier_has_only_plain_queues():
    with tier("basic") as (_, admin):
        assert admin.get_namespace_properties().messaging_sku == "Basic"
        admin.create_queue("plain")
        assert admin.get_queue("plain").default_message_time_to_live == datetime.timedelta(days=14)
        with refused("Cannot operate on type Topic because the namespace is using 'Basic' tier"):
            admin.create_topic("topic")
        for properties in ({"requires_session": True}, {"requires_duplicate_detection": True}, {"forward_to": "plain"},
                           {"auto_delete_on_idle": datetime.timedelta(hours=1)}):
            with refused(BASIC):
                admin.create_queue("other", **properties)
        with refused("must be between 00:00:01 and 14.00:00:00 when the namespace is using 'Basic' tier"):
            admin.create_queue("other", default_message_time_to_live=datetime.timedelta(days=15))


def test_a_queue_of_the_basic_tier_can_be_updated():
    with tier("basic") as (_, admin):
        admin.create_queue("plain")
        properties = admin.get_queue("plain")
        properties.max_delivery_count = 3
        admin.update_queue(properties)
        assert admin.get_queue("plain").max_delivery_count == 3
        properties.default_message_time_to_live = None
        admin.update_queue(properties)
        assert admin.get_queue("plain").default_message_time_to_live == datetime.timedelta(days=14)


def test_the_standard_tier_has_100_partitioned_entities_and_5_gb():
    with tier("standard") as (_, admin):
        admin.create_queue("large", max_size_in_megabytes=5120)
        with refused("'MaxSizeInMegabytes' must not exceed 5120 when the namespace is using 'Standard' tier"):
            admin.create_queue("larger", max_size_in_megabytes=10240)
        for number in range(100):
            admin.create_queue(f"p{number}", enable_partitioning=True)
        with refused("maximum number of resources of type `partitioned Queue or Topic`", status=403):
            admin.create_topic("more", enable_partitioning=True)
        admin.create_topic("more")


def test_the_premium_tier_has_large_queues_without_partitions():
    with tier("premium") as (_, admin):
        assert admin.get_namespace_properties().messaging_sku == "Premium"
        with refused("'EnablePartitioning' cannot be set .* 'Premium' tier"):
            admin.create_topic("partitioned", enable_partitioning=True)
        admin.create_queue("large", max_size_in_megabytes=81920)
        assert admin.get_queue("large").max_size_in_megabytes == 81920


@pytest.mark.parametrize("name, size", [("basic", 256), ("standard", 256), ("premium", 1024)])
def test_the_largest_message_depends_on_the_tier(name, size):
    with tier(name) as (broker, admin):
        admin.create_queue("queue")
        with ServiceBusClient.from_connection_string(broker.connection_string, retry_total=0) as client, \
                client.get_queue_sender("queue") as sender:
            sender.send_messages(ServiceBusMessage(b"x" * (size * 1024 - 1000)))
            with pytest.raises(MessageSizeExceededError):
                sender.send_messages(ServiceBusMessage(b"x" * (size * 1024 + 1000)))


@pytest.mark.asyncio
@pytest.mark.parametrize("name, size", [("standard", 256), ("premium", 1024)])
async def test_the_largest_message_depends_on_the_tier_async(name, size):
    with tier(name) as (broker, admin):
        admin.create_queue("queue")
        async with AsyncServiceBusClient.from_connection_string(broker.connection_string, retry_total=0) as client, \
                client.get_queue_sender("queue") as sender:
            await sender.send_messages(ServiceBusMessage(b"x" * (size * 1024 - 1000)))
            with pytest.raises(MessageSizeExceededError):
                await sender.send_messages(ServiceBusMessage(b"x" * (size * 1024 + 1000)))
