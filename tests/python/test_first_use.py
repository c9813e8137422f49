"""For tests of other applications: entities created on first use, a reset between tests."""

import time
import urllib.request

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient as AsyncServiceBusClient
from azure.servicebus.exceptions import ServiceBusError
from azure.servicebus.management import ServiceBusAdministrationClient

from broker_process import Broker


@pytest.fixture
def fresh():
    """A broker whose entities are created on first use."""
    broker = Broker("--ephemeral", "--create-on-first-use", "--test-token", "t0ken")
    yield broker
    broker.stop()


def administrate(broker):
    admin = ServiceBusAdministrationClient.from_connection_string(broker.connection_string)
    admin._impl._client._base_url = f"http://{broker.address}"
    return admin


def connect(broker):
    return ServiceBusClient.from_connection_string(broker.connection_string, retry_total=0)


def reset(broker):
    request = urllib.request.Request(f"http://{broker.address}/$test/reset", method="POST",
                                     headers={"x-headwater-test-token": "t0ken"})
    with urllib.request.urlopen(request, timeout=30) as answer:
        assert answer.status == 200


def test_a_queue_is_created_by_its_sender(fresh):
    with connect(fresh) as client:
        with client.get_queue_sender("orders") as sender:
            sender.send_messages(ServiceBusMessage("a"))
        with client.get_queue_receiver("orders") as receiver:
            [message] = receiver.receive_messages(1, max_wait_time=30)
            receiver.complete_message(message)
    assert [queue.name for queue in administrate(fresh).list_queues()] == ["orders"]


def test_a_subscription_is_created_with_its_topic(fresh):
    with connect(fresh) as client:
        with client.get_subscription_receiver("events", "all") as receiver:
            with client.get_topic_sender("events") as sender:
                sender.send_messages(ServiceBusMessage("a"))
            [message] = receiver.receive_messages(1, max_wait_time=30)
            receiver.complete_message(message)


def test_a_session_receiver_creates_a_queue_with_sessions(fresh):
    with connect(fresh) as client:
        with client.get_queue_receiver("orders", session_id="s") as receiver:
            with client.get_queue_sender("orders") as sender:
                sender.send_messages(ServiceBusMessage("a", session_id="s"))
            [message] = receiver.receive_messages(1, max_wait_time=30)
            receiver.complete_message(message)
    assert administrate(fresh).get_queue("orders").requires_session


def test_a_reset_deletes_everything(fresh):
    with connect(fresh) as client:
        with client.get_queue_sender("orders") as sender:
            sender.send_messages([ServiceBusMessage("a")] * 100)
    reset(fresh)
    assert list(administrate(fresh).list_queues()) == []
    with connect(fresh) as client:
        with client.get_queue_receiver("orders") as receiver:
            assert receiver.receive_messages(1, max_wait_time=1) == []


def test_without_the_flag_nothing_is_created(client):
    with pytest.raises(ServiceBusError):
        with client.get_queue_sender(f"missing-{time.time_ns()}") as sender:
            sender.send_messages(ServiceBusMessage("a"))


@pytest.mark.asyncio
async def test_entities_are_created_and_reset_async(fresh):
    async with AsyncServiceBusClient.from_connection_string(fresh.connection_string, retry_total=0) as client:
        async with client.get_subscription_receiver("events", "all") as receiver, \
                client.get_topic_sender("events") as sender:
            await receiver.peek_messages()
            await sender.send_messages(ServiceBusMessage("a"))
            assert len(await receiver.receive_messages(1, max_wait_time=30)) == 1
        async with client.get_queue_receiver("orders", session_id="s") as receiver, \
                client.get_queue_sender("orders") as sender:
            await sender.send_messages(ServiceBusMessage("b", session_id="s"))
            assert len(await receiver.receive_messages(1, max_wait_time=30)) == 1
    assert administrate(fresh).get_queue("orders").requires_session
    reset(fresh)
    assert list(administrate(fresh).list_queues()) == list(administrate(fresh).list_topics()) == []
