"""Forwarding with the official Python SDK: queues, subscriptions, dead letters, chains, refusals, crashes."""

import json
import time

import pytest
from azure.core.exceptions import HttpResponseError
from azure.servicebus import ServiceBusClient, ServiceBusMessage, ServiceBusSubQueue
from azure.servicebus.exceptions import ServiceBusError
from azure.servicebus.management import ServiceBusAdministrationClient

from broker_process import Broker


def send(client, queue, *bodies):
    with client.get_queue_sender(queue) as sender:
        sender.send_messages([ServiceBusMessage(body) for body in bodies])


def receive(receiver, count):
    """Exactly this many, and nothing after them."""
    got = []
    with receiver:
        deadline = time.monotonic() + 30
        while len(got) < count and time.monotonic() < deadline:
            got += receiver.receive_messages(count - len(got), max_wait_time=5)
        for message in got:
            receiver.complete_message(message)
        assert receiver.receive_messages(1, max_wait_time=1) == []
    return got


def bodies(messages):
    return [str(message) for message in messages]


def test_a_chain_of_queues_forwards_in_order(client, make_queue):
    last = make_queue()
    first = make_queue(forward_to=make_queue(forward_to=last))
    send(client, first, "a", "b", "c")
    got = receive(client.get_queue_receiver(last), 3)
    assert bodies(got) == ["a", "b", "c"]


def test_a_subscription_forwards_what_its_rules_select(admin, client, make_queue, make_topic):
    queue, topic = make_queue(), make_topic(subscriptions=1)
    admin.create_subscription(topic, "forwarding", forward_to=queue)
    with client.get_topic_sender(topic) as sender:
        sender.send_messages(ServiceBusMessage("a"))
    assert bodies(receive(client.get_queue_receiver(queue), 1)) == ["a"]
    assert bodies(receive(client.get_subscription_receiver(topic, "sub0"), 1)) == ["a"]


def test_dead_letters_are_forwarded_with_their_source(client, make_queue):
    target = make_queue()
    queue = make_queue(forward_dead_lettered_messages_to=target)
    send(client, queue, "a")
    with client.get_queue_receiver(queue) as receiver:
        [message] = receiver.receive_messages(1, max_wait_time=30)
        receiver.dead_letter_message(message, reason="why", error_description="so")
    [dead] = receive(client.get_queue_receiver(target), 1)
    assert (dead.dead_letter_reason, dead.dead_letter_error_description) == ("why", "so")
    assert dead.dead_letter_source == queue


def test_a_loop_is_refused(admin, make_queue):
    one = make_queue()
    two = make_queue(forward_to=one)
    properties = admin.get_queue(one)
    properties.forward_to = two
    with pytest.raises(HttpResponseError, match="messages would come back") as refused:
        admin.update_queue(properties)
    assert refused.value.status_code == 400


def test_a_fifth_hop_ends_in_the_transfer_dead_letter_queue(client, make_queue):
    queues = [make_queue()]
    for _ in range(5):
        queues.append(make_queue(forward_to=queues[-1]))
    send(client, queues[5], "a")
    receiver = client.get_queue_receiver(queues[1], sub_queue=ServiceBusSubQueue.TRANSFER_DEAD_LETTER)
    [dead] = receive(receiver, 1)
    assert dead.dead_letter_reason == "MaxTransferHopCountExceeded"


def test_counts_show_what_could_not_be_forwarded(admin, client, make_queue):
    target = make_queue(requires_session=True)
    queue = make_queue(forward_to=target)
    send(client, queue, "no session id")
    deadline = time.monotonic() + 30
    while admin.get_queue_runtime_properties(queue).transfer_dead_letter_message_count != 1:
        assert time.monotonic() < deadline
    counts = admin.get_queue_runtime_properties(queue)
    assert (counts.transfer_message_count, counts.active_message_count, counts.total_message_count) == (0, 0, 1)


def test_an_entity_that_does_not_exist_is_refused(admin, make_queue):
    queue = make_queue()
    properties = admin.get_queue(queue)
    properties.forward_to = "nothing"
    with pytest.raises(HttpResponseError, match="auto forwarding destination entity .* does not exist") as refused:
        admin.update_queue(properties)
    assert refused.value.status_code == 400


def test_a_receiver_on_a_forwarding_queue_is_refused(client, make_queue):
    queue = make_queue(forward_to=make_queue())
    with pytest.raises(ServiceBusError, match="auto-forwarding enabled"):
        with client.get_queue_receiver(queue) as receiver:
            receiver.receive_messages(1, max_wait_time=5)


def test_a_configuration_file_forwards(tmp_path):
    queues = [{"Name": "from", "Properties": {"ForwardTo": "to", "ForwardDeadLetteredMessagesTo": "dead"}},
              {"Name": "to"}, {"Name": "dead"}]
    config = {"UserConfig": {"Namespaces": [{"Name": "sbemulatorns", "Queues": queues}]}}
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    broker = Broker("--ephemeral", "--config", str(path))
    try:
        with ServiceBusClient.from_connection_string(broker.connection_string, retry_total=0) as client:
            send(client, "from", "a")
            assert bodies(receive(client.get_queue_receiver("to"), 1)) == ["a"]
    finally:
        broker.stop()


def test_a_killed_broker_neither_loses_nor_doubles(tmp_path):
    broker = Broker("--data-dir", str(tmp_path))
    admin = ServiceBusAdministrationClient.from_connection_string(broker.connection_string)
    admin._impl._client._base_url = f"http://{broker.address}"
    admin.create_queue("to")
    admin.create_queue("middle", forward_to="to")
    admin.create_queue("from", forward_to="middle")
    sent = []
    for _ in range(3):
        with ServiceBusClient.from_connection_string(broker.connection_string, retry_total=0) as client:
            with client.get_queue_sender("from") as sender:
                for _ in range(20):
                    sent.append(str(len(sent)))
                    sender.send_messages(ServiceBusMessage(sent[-1]))
                broker.process.kill()
        broker.process.wait(timeout=20)
        broker = Broker("--data-dir", str(tmp_path))
    try:
        with ServiceBusClient.from_connection_string(broker.connection_string, retry_total=0) as client:
            got = receive(client.get_queue_receiver("to"), len(sent))
        assert bodies(got) == sent
    finally:
        broker.stop()
