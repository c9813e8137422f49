"""A real broker process for the official SDK, started once per run. Every test creates its own entities."""

import contextlib
import itertools
import uuid

import pytest
from azure.servicebus import ServiceBusClient
from azure.servicebus.management import ServiceBusAdministrationClient

from broker_process import Broker
from monitoring import Monitored


@pytest.fixture(scope="session")
def broker():
    broker = Broker("--ephemeral")
    yield broker
    broker.stop()


@pytest.fixture(scope="session")
def admin(broker):
    """The SDK uses https for administration; this is the documented way to use plain HTTP."""
    client = ServiceBusAdministrationClient.from_connection_string(broker.connection_string)
    client._impl._client._base_url = f"http://{broker.address}"
    return client


@pytest.fixture(scope="module")
def monitored():
    """Pods and a Prometheus for the tests of one module in one worker. A test that changes them restores what it changed."""
    with contextlib.ExitStack() as cleanup:
        yield Monitored(cleanup)


_numbers = itertools.count()


def unique(kind):
    return f"{kind}-{next(_numbers)}-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def make_queue(admin):
    def make(**properties):
        name = unique("queue")
        admin.create_queue(name, **properties)
        return name
    return make


@pytest.fixture
def make_topic(admin):
    def make(subscriptions=1, subscription=None, **properties):
        name = unique("topic")
        admin.create_topic(name, **properties)
        for number in range(subscriptions):
            admin.create_subscription(name, f"sub{number}", **(subscription or {}))
        return name
    return make


@pytest.fixture
def client(broker):
    with ServiceBusClient.from_connection_string(broker.connection_string, retry_total=0) as client:
        yield client
