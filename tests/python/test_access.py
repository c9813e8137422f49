"""Shared access keys: signature, expiry, scope and rights of tokens."""

import base64
import hashlib
import hmac
import json
import time
import urllib.parse

import pytest
from azure.core.exceptions import ClientAuthenticationError
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient as AsyncServiceBusClient
from azure.servicebus.exceptions import (
    ServiceBusAuthenticationError, ServiceBusAuthorizationError, ServiceBusError)
from azure.servicebus.management import AccessRights, AuthorizationRule, ServiceBusAdministrationClient

from conftest import Broker, unique

KEYS = {"keys": [
    {"name": "root", "key": "root key", "secondaryKey": "second root key", "rights": ["Manage", "Send", "Listen"]},
    {"name": "sender", "key": "sender key", "rights": ["Send"]},
    {"name": "reader", "key": "reader key", "rights": ["Listen"]},
    {"name": "orders", "key": "orders key", "rights": ["Send", "Listen"], "entity": "orders"},
]}


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    keys = tmp_path_factory.mktemp("keys") / "keys.json"
    keys.write_text(json.dumps(KEYS))
    broker = Broker("--ephemeral", "--keys", str(keys))
    admin = administration(broker, "root", "root key")
    for name in ("orders", "other", "orders/x"):
        admin.create_queue(name)
    yield broker
    broker.stop()


def connection_string(broker, name, key):
    return f"Endpoint=sb://{broker.address};SharedAccessKeyName={name};SharedAccessKey={key};UseDevelopmentEmulator=true;"


def administration(broker, name, key):
    client = ServiceBusAdministrationClient.from_connection_string(connection_string(broker, name, key))
    client._impl._client._base_url = f"http://{broker.address}"
    return client


def send(broker, name, key, queue="orders", body="a"):
    with ServiceBusClient.from_connection_string(connection_string(broker, name, key), retry_total=0) as client:
        with client.get_queue_sender(queue) as sender:
            sender.send_messages(ServiceBusMessage(body))


def receive(broker, name, key, queue="orders"):
    with ServiceBusClient.from_connection_string(connection_string(broker, name, key), retry_total=0) as client:
        with client.get_queue_receiver(queue) as receiver:
            messages = receiver.receive_messages(10, max_wait_time=2)
            [receiver.complete_message(message) for message in messages]
            return [str(message) for message in messages]


@pytest.mark.parametrize("name, key", [("root", "root key"), ("root", "second root key"), ("orders", "orders key")])
def test_a_key_with_the_right_sends_and_receives(broker, name, key):
    send(broker, name, key)
    assert "a" in receive(broker, name, key)


@pytest.mark.parametrize("name, key, queue", [
    ("root", "wrong key", "orders"), ("nobody", "root key", "orders"),
    ("reader", "reader key", "orders"), ("orders", "orders key", "other"),
])
def test_a_send_without_the_right_is_refused(broker, name, key, queue):
    with pytest.raises((ServiceBusAuthenticationError, ServiceBusAuthorizationError)):
        send(broker, name, key, queue)


def test_a_receive_without_the_right_is_refused(broker):
    with pytest.raises(ServiceBusError, match="(?i)unauthorized"):
        receive(broker, "sender", "sender key")


def test_a_peek_needs_only_the_right_to_listen(broker):
    string = connection_string(broker, "reader", "reader key")
    with ServiceBusClient.from_connection_string(string, retry_total=0) as client:
        with client.get_queue_receiver("orders") as receiver:
            receiver.peek_messages(1)


@pytest.mark.parametrize("name, key", [("root", "wrong key"), ("sender", "sender key"), ("orders", "orders key")])
def test_administration_needs_the_right_to_manage(broker, name, key):
    with pytest.raises(ClientAuthenticationError):
        administration(broker, name, key).create_queue(unique("queue"))


def test_a_rule_stored_with_a_queue_gives_its_rights(broker):
    queue = unique("queue")
    rule = AuthorizationRule(type="SharedAccessAuthorizationRule", claim_type="SharedAccessKey", claim_value="None",
                             rights=[AccessRights.SEND], key_name="own", primary_key="own key",
                             secondary_key="other own key")
    administration(broker, "root", "root key").create_queue(queue, authorization_rules=[rule])
    send(broker, "own", "own key", queue)
    with pytest.raises(ServiceBusError, match="(?i)unauthorized"):
        receive(broker, "own", "own key", queue)


def sign(resource, name, key, expiry):
    resource = urllib.parse.quote_plus(resource)
    digest = hmac.new(key.encode(), f"{resource}\n{expiry}".encode(), hashlib.sha256).digest()
    signature = urllib.parse.quote_plus(base64.b64encode(digest))
    return f"SharedAccessSignature sr={resource}&sig={signature}&se={expiry}&skn={name}"


def with_token(broker, token):
    string = f"Endpoint=sb://{broker.address};SharedAccessSignature={token};UseDevelopmentEmulator=true;"
    return ServiceBusClient.from_connection_string(string, retry_total=0)


def test_an_expired_token_and_one_for_another_queue_are_refused(broker):
    later = int(time.time()) + 600
    for resource, expiry in [("orders", int(time.time()) - 1), ("other", later)]:
        token = sign(f"sb://{broker.address}/{resource}", "root", "root key", expiry)
        with with_token(broker, token) as client, pytest.raises(ServiceBusError):
            with client.get_queue_sender("orders") as sender:
                sender.send_messages(ServiceBusMessage("a"))


def test_a_key_of_a_queue_does_not_reach_one_below_its_path(broker):
    """The name of a queue can contain slashes."""
    with pytest.raises((ServiceBusAuthenticationError, ServiceBusAuthorizationError)):
        send(broker, "orders", "orders key", queue="orders/x")
    send(broker, "root", "root key", queue="orders/x")


@pytest.mark.asyncio
async def test_a_key_gives_its_rights_and_no_others_async(broker):
    def connect(name):
        return AsyncServiceBusClient.from_connection_string(connection_string(broker, name, f"{name} key"), retry_total=0)
    async with connect("sender") as client, client.get_queue_sender("other") as sender:
        await sender.send_messages(ServiceBusMessage("a"))
    async with connect("reader") as client:
        async with client.get_queue_receiver("other") as receiver:
            assert len(await receiver.receive_messages(1, max_wait_time=10)) == 1
        with pytest.raises((ServiceBusAuthenticationError, ServiceBusAuthorizationError)):
            async with client.get_queue_sender("other") as sender:
                await sender.send_messages(ServiceBusMessage("b"))
