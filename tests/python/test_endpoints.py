"""Addresses, API versions, tiers and configuration files, as the official SDK sees them."""

import asyncio
import urllib.request

import pytest
from azure.core.exceptions import HttpResponseError, ResourceExistsError
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.aio.management import ServiceBusAdministrationClient as AsyncServiceBusAdministrationClient
from azure.servicebus.management import CorrelationRuleFilter, ServiceBusAdministrationClient

from broker_process import Broker
from conftest import unique

ENTITIES = """
# The keys of the official emulator, as YAML.
UserConfig:
  Namespaces:
    - Name: sbemulatorns
      Queues:
        - Name: orders
          Properties: {LockDuration: PT42S, MaxDeliveryCount: 7}
      Topics:
        - Name: events
          Subscriptions:
            - Name: reds
              Rules:
                - Name: red
                  Properties: {FilterType: Sql, SqlFilter: {SqlExpression: "color = 'red'"}}
"""


def administration(address, client=ServiceBusAdministrationClient, **options):
    made = client.from_connection_string(
        f"Endpoint=sb://{address};SharedAccessKeyName=any;SharedAccessKey=any;UseDevelopmentEmulator=true;", **options)
    made._impl._client._base_url = f"http://{address}"
    return made


@pytest.fixture(scope="module")
def premium():
    broker = Broker("--ephemeral", "--tier", "premium", "--also-listen", "127.0.0.1:0")
    yield broker
    broker.stop()


def test_a_second_address_serves_the_same(premium):
    """The official emulator has its administration on a port of its own."""
    line = premium.process.stdout.readline()
    assert line.startswith("also serving 127.0.0.1:")
    second = line.split()[-1]
    queue = unique("queue")
    administration(second).create_queue(queue)
    for address in (premium.address, second):
        with urllib.request.urlopen(f"http://{address}/health") as answer:
            assert b"healthy" in answer.read()
        with ServiceBusClient.from_connection_string(
                f"Endpoint=sb://{address};SharedAccessKeyName=a;SharedAccessKey=a;UseDevelopmentEmulator=true;") as client:
            with client.get_queue_sender(queue) as sender:
                sender.send_messages(ServiceBusMessage("a"))
    assert administration(premium.address).get_queue_runtime_properties(queue).active_message_count == 2


@pytest.mark.parametrize("size, refused", [(1023, True), (1024, False), (102_400, False), (102_401, True)])
def test_the_message_size_of_a_premium_entity_has_a_range(premium, size, refused):
    admin, name = administration(premium.address), unique("queue")
    if not refused:
        assert admin.create_queue(name, max_message_size_in_kilobytes=size).max_message_size_in_kilobytes == size
        return
    text = "The value for 'MaxMessageSizeInKilobytes' must be between 1024 and 102400"
    with pytest.raises(HttpResponseError, match=text):
        admin.create_queue(name, max_message_size_in_kilobytes=size)


@pytest.mark.parametrize("version, shows", [("2017-04", False), ("2021-05", False), ("2024-05", True)])
def test_filter_counts_belong_to_the_newest_version(broker, admin, make_topic, version, shows):
    topic = make_topic()
    admin.create_rule(topic, "sub0", "r", filter=CorrelationRuleFilter(label="x"))
    with urllib.request.urlopen(f"http://{broker.address}/{topic}?api-version={version}") as answer:
        text = answer.read().decode()
    assert ("<SqlFilterCount>1<" in text and "<CorrelationFilterCount>1<" in text) == shows
    assert ("MaxMessageSizeInKilobytes" in text) == (version >= "2021-05")
    assert "<SubscriptionCount>1<" in text


def test_every_version_of_the_sdk_administers(broker):
    for version in ("2017-04", "2021-05", "2024-05"):
        admin, name = administration(broker.address, api_version=version), unique("queue")
        admin.create_queue(name, max_delivery_count=7)
        assert admin.get_queue(name).max_delivery_count == 7
        with pytest.raises(ResourceExistsError, match="The messaging entity .* already exists"):
            admin.create_queue(name)


def test_entities_come_from_a_yaml_file(tmp_path):
    file = tmp_path / "entities.yaml"
    file.write_text(ENTITIES)
    broker = Broker("--ephemeral", "--config", str(file))
    try:
        async def read():
            async with administration(broker.address, AsyncServiceBusAdministrationClient) as admin:
                rules = [rule.name async for rule in admin.list_rules("events", "reds")]
                return (await admin.get_queue("orders")).max_delivery_count, rules
        assert asyncio.run(read()) == (7, ["red"])
    finally:
        broker.stop()
