"""Faults injected into the broker, as the official SDK sees them."""

import datetime
import json
import urllib.request

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient as AsyncServiceBusClient
from azure.servicebus.exceptions import ServiceBusServerBusyError, SessionLockLostError
from azure.servicebus.management import ServiceBusAdministrationClient

from broker_process import Broker
from conftest import unique

TOKEN = "open sesame"


@pytest.fixture(scope="module")
def broker():
    broker = Broker("--ephemeral", "--test-token", TOKEN)
    yield broker
    broker.stop()


@pytest.fixture(scope="module")
def admin(broker):
    client = ServiceBusAdministrationClient.from_connection_string(broker.connection_string)
    client._impl._client._base_url = f"http://{broker.address}"
    return client


@pytest.fixture
def arm(broker):
    """Arms a fault for one entity."""
    def arm(kind, entity, **more):
        body = json.dumps({"kind": kind, "entity": entity, **more}).encode()
        request = urllib.request.Request(f"http://{broker.address}/$test/faults", data=body, method="POST",
                                         headers={"x-headwater-test-token": TOKEN})
        with urllib.request.urlopen(request) as answer:
            return json.load(answer)
    return arm


def advance(broker, millis):
    body = json.dumps({"advance_ms": millis}).encode()
    urllib.request.urlopen(urllib.request.Request(
        f"http://{broker.address}/$test/clock", data=body, method="POST", headers={"x-headwater-test-token": TOKEN})).close()


def bodies(client, queue):
    with client.get_queue_receiver(queue, receive_mode="receiveanddelete") as receiver:
        return [str(message) for message in receiver.receive_messages(10, max_wait_time=1)]


def test_a_throttled_send_stores_nothing(broker, admin, arm):
    queue = unique("queue")
    admin.create_queue(queue)
    arm("server_busy", queue)
    with ServiceBusClient.from_connection_string(broker.connection_string, retry_total=0) as client:
        with client.get_queue_sender(queue) as sender:
            with pytest.raises(ServiceBusServerBusyError, match="Error code : 50009. Please wait 2 seconds and try again"):
                sender.send_messages(ServiceBusMessage("refused"))
            sender.send_messages(ServiceBusMessage("taken"))
        assert bodies(client, queue) == ["taken"]


def test_a_send_with_a_lost_acknowledgement_is_stored_once(broker, admin, arm):
    queue = unique("queue")
    admin.create_queue(queue, requires_duplicate_detection=True)
    arm("lose_acknowledgement", queue)
    with ServiceBusClient.from_connection_string(broker.connection_string) as client:
        with client.get_queue_sender(queue) as sender:
            sender.send_messages(ServiceBusMessage("once", message_id="1"))
        assert bodies(client, queue) == ["once"]


def test_an_expired_session_lock_is_reported(broker, admin, arm):
    queue = unique("queue")
    admin.create_queue(queue, requires_session=True)
    with ServiceBusClient.from_connection_string(broker.connection_string, retry_total=0) as client:
        with client.get_queue_sender(queue) as sender:
            sender.send_messages(ServiceBusMessage("a", session_id="s"))
        with client.get_queue_receiver(queue, session_id="s") as receiver:
            [message] = receiver.receive_messages(1, max_wait_time=10)
            arm("expire_session_lock", queue, session="s")
            with pytest.raises(SessionLockLostError):
                receiver.complete_message(message)
        with client.get_queue_receiver(queue, session_id="s") as receiver:
            [message] = receiver.receive_messages(1, max_wait_time=10)
            assert message.delivery_count == 1


def test_a_receiver_that_deletes_keeps_its_session(broker, admin):
    """It has nothing to settle, so the service does not take the session away from it."""
    queue = unique("queue")
    admin.create_queue(queue, requires_session=True, lock_duration=datetime.timedelta(seconds=5))
    with ServiceBusClient.from_connection_string(broker.connection_string, retry_total=0) as client:
        with client.get_queue_sender(queue) as sender:
            sender.send_messages(ServiceBusMessage("a", session_id="s"))
            with client.get_queue_receiver(queue, session_id="s", receive_mode="receiveanddelete") as receiver:
                assert len(receiver.receive_messages(1, max_wait_time=10)) == 1
                advance(broker, 60_000)
                sender.send_messages(ServiceBusMessage("b", session_id="s"))
                assert [str(message) for message in receiver.receive_messages(1, max_wait_time=10)] == ["b"]


@pytest.mark.asyncio
async def test_a_session_that_deletes_is_kept_async(broker, admin):
    queue = unique("queue")
    admin.create_queue(queue, requires_session=True, lock_duration=datetime.timedelta(seconds=5))
    async with AsyncServiceBusClient.from_connection_string(broker.connection_string, retry_total=0) as client:
        async with client.get_queue_receiver(queue, session_id="s", receive_mode="receiveanddelete") as receiver, \
                client.get_queue_sender(queue) as sender:
            advance(broker, 60_000)
            await sender.send_messages(ServiceBusMessage("b", session_id="s"))
            assert [str(message) for message in await receiver.receive_messages(1, max_wait_time=10)] == ["b"]


@pytest.mark.asyncio
async def test_faults_reach_the_async_client(broker, admin, arm):
    plain, sessions = unique("queue"), unique("queue")
    admin.create_queue(plain, requires_duplicate_detection=True)
    admin.create_queue(sessions, requires_session=True)
    async with AsyncServiceBusClient.from_connection_string(broker.connection_string, retry_total=0) as client:
        arm("server_busy", plain)
        async with client.get_queue_sender(plain) as sender:
            with pytest.raises(ServiceBusServerBusyError, match="Error code : 50009. Please wait 2 seconds and try again"):
                await sender.send_messages(ServiceBusMessage("refused"))
        async with client.get_queue_receiver(sessions, session_id="s") as receiver, \
                client.get_queue_sender(sessions) as sender:
            await sender.send_messages(ServiceBusMessage("a", session_id="s"))
            [message] = await receiver.receive_messages(1, max_wait_time=10)
            arm("expire_session_lock", sessions, session="s")
            with pytest.raises(SessionLockLostError):
                await receiver.complete_message(message)
    async with AsyncServiceBusClient.from_connection_string(broker.connection_string) as client:
        arm("lose_acknowledgement", plain)
        async with client.get_queue_sender(plain) as sender:
            await sender.send_messages(ServiceBusMessage("once", message_id="1"))
        async with client.get_queue_receiver(plain) as receiver:
            assert [str(message) for message in await receiver.receive_messages(5, max_wait_time=1)] == ["once"]
