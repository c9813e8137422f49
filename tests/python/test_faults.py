"""Faults injected into the broker, as the official SDK sees them."""

import json
import urllib.request

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
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


def bodies(client, queue):
    with client.get_queue_receiver(queue, receive_mode="receiveanddelete") as receiver:
        return [str(message) for message in receiver.receive_messages(10, max_wait_time=1)]


def test_a_throttled_send_stores_nothing(broker, admin, arm):
    queue = unique("queue")
    admin.create_queue(queue)
    arm("server_busy", queue)
    with ServiceBusClient.from_connection_string(broker.connection_string, retry_total=0) as client:
        with client.get_queue_sender(queue) as sender:
            with pytest.raises(ServiceBusServerBusyError):
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
