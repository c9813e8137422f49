"""Topics with the official Python SDK: every subscription gets its own copy."""

import datetime

from azure.servicebus import ServiceBusMessage, ServiceBusSubQueue

from test_queues import bodies, receive


def publish(client, topic, *messages):
    with client.get_topic_sender(topic) as sender:
        sender.send_messages(list(messages))


def test_every_subscription_gets_every_message(client, make_topic):
    topic = make_topic(subscriptions=3)
    publish(client, topic, *[ServiceBusMessage(f"m{n}") for n in range(5)])
    for number in range(3):
        with client.get_subscription_receiver(topic, f"sub{number}") as receiver:
            got = receive(receiver, 5)
            assert bodies(got) == [f"m{n}" for n in range(5)]
            for message in got:
                receiver.complete_message(message)


def test_subscriptions_settle_independently(client, make_topic):
    topic = make_topic(subscriptions=2)
    publish(client, topic, ServiceBusMessage("both"))
    with client.get_subscription_receiver(topic, "sub0") as receiver:
        [message] = receive(receiver, 1)
        receiver.dead_letter_message(message, reason="mine", error_description="only here")
    with client.get_subscription_receiver(topic, "sub1") as receiver:
        [message] = receive(receiver, 1)
        receiver.complete_message(message)
    with client.get_subscription_receiver(topic, "sub0", sub_queue=ServiceBusSubQueue.DEAD_LETTER) as receiver:
        [dead] = receive(receiver, 1)
        assert dead.dead_letter_reason == "mine"
        receiver.complete_message(dead)


def test_a_partitioned_topic_with_duplicate_detection(client, make_topic):
    topic = make_topic(
        enable_partitioning=True, requires_duplicate_detection=True,
        duplicate_detection_history_time_window=datetime.timedelta(minutes=10),
        subscription={"requires_session": True, "max_delivery_count": 2000})
    for _ in range(2):
        publish(client, topic, ServiceBusMessage("e1", session_id="order-1", message_id="m1"))
    publish(client, topic, ServiceBusMessage("e1", session_id="order-2", message_id="m1"))
    for session in ("order-1", "order-2"):
        with client.get_subscription_receiver(topic, "sub0", session_id=session) as receiver:
            got = receive(receiver, 2, wait=1)
            assert bodies(got) == ["e1"], "the id counts together with the partition key"
            receiver.complete_message(got[0])


def test_a_topic_without_subscriptions_drops_messages(client, make_topic, admin):
    topic = make_topic(subscriptions=0)
    publish(client, topic, ServiceBusMessage("gone"))
    admin.create_subscription(topic, "late")
    with client.get_subscription_receiver(topic, "late") as receiver:
        assert receiver.receive_messages(max_wait_time=1) == []
