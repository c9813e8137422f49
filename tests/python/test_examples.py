"""The fixture and the example of docs/broker.md, as they stand there."""

import os
import pathlib
import re
import subprocess
import urllib.request

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage

DOCS = pathlib.Path(__file__).parents[2] / "docs" / "broker.md"


def code(heading):
    """The first Python code of a section."""
    section = DOCS.read_text().split(f"### {heading}\n")[1]
    return re.search(r"```python\n(.*?)```", section, re.DOTALL)[1]


exec(code("Fixtures").replace('"headwater"', repr(os.environ["HEADWATER_BIN"])))


def send(bus, queue):
    with ServiceBusClient.from_connection_string(bus, retry_total=0) as client:
        with client.get_queue_sender(queue) as sender:
            sender.send_messages(ServiceBusMessage("left over"))


@pytest.mark.parametrize("turn", range(2))
def test_the_fixture_gives_every_test_an_empty_broker(bus, turn):
    with ServiceBusClient.from_connection_string(bus, retry_total=0) as client:
        with client.get_queue_receiver("orders") as receiver:
            assert receiver.peek_messages() == [], f"turn {turn}"
    send(bus, "orders")


def test_the_example_sends_and_receives(bus):
    lines = re.sub(r'^BUS = .*$', f"BUS = {bus!r}", code("Examples"), flags=re.MULTILINE)
    received = []
    names = {"ServiceBusClient": ServiceBusClient, "ServiceBusMessage": ServiceBusMessage}
    exec(lines.replace("receiver.complete_message(message)", "receiver.complete_message(message); received.append(message); break"),
         names | {"received": received})
    assert [str(message) for message in received] == ["hello"]
