"""A real broker process for the official SDK, started once per run. Every test creates its own entities."""

import itertools
import os
import subprocess
import uuid

import pytest
from azure.servicebus import ServiceBusClient
from azure.servicebus.management import ServiceBusAdministrationClient


class Broker:
    """One `headwater broker` process."""

    def __init__(self, *arguments):
        command = [os.environ["HEADWATER_BIN"], "broker", "--listen", "127.0.0.1:0", *arguments]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        ready = self.process.stdout.readline()
        assert "ready" in ready, f"the broker did not become ready: {ready!r}"
        self.address = next(word for word in ready.split() if word.startswith("127.0.0.1:"))

    @property
    def connection_string(self):
        return (f"Endpoint=sb://{self.address};SharedAccessKeyName=RootManageSharedAccessKey;"
                "SharedAccessKey=SAS_KEY_VALUE;UseDevelopmentEmulator=true;")

    def stop(self):
        self.process.terminate()
        self.process.wait(timeout=20)


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
