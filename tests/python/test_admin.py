"""Entities over the ATOM administration API, with the official Python SDK."""

import datetime

import pytest
from azure.core.exceptions import HttpResponseError, ResourceExistsError, ResourceNotFoundError
from azure.servicebus import ServiceBusMessage

from conftest import unique


def test_a_queue_is_created_read_changed_listed_and_deleted(admin):
    name = unique("queue")
    created = admin.create_queue(
        name, lock_duration=datetime.timedelta(seconds=42), max_delivery_count=7, requires_session=True,
        default_message_time_to_live=datetime.timedelta(hours=3), dead_lettering_on_message_expiration=True)
    assert created.name == name
    read = admin.get_queue(name)
    assert (read.lock_duration, read.max_delivery_count) == (datetime.timedelta(seconds=42), 7)
    assert (read.requires_session, read.requires_duplicate_detection) == (True, False)
    assert read.default_message_time_to_live == datetime.timedelta(hours=3)
    read.max_delivery_count = 9
    admin.update_queue(read)
    assert admin.get_queue(name).max_delivery_count == 9
    assert name in [queue.name for queue in admin.list_queues()]
    admin.delete_queue(name)
    with pytest.raises(ResourceNotFoundError):
        admin.get_queue(name)
    assert name not in [queue.name for queue in admin.list_queues()]


def test_what_exists_cannot_be_created_again(admin, make_queue):
    queue = make_queue()
    with pytest.raises(ResourceExistsError):
        admin.create_queue(queue)


def test_what_is_missing_cannot_be_changed_or_deleted(admin):
    with pytest.raises(ResourceNotFoundError):
        admin.delete_queue("no-such-queue")
    with pytest.raises(ResourceNotFoundError):
        admin.get_topic("no-such-topic")


def test_a_topic_and_its_subscriptions(admin):
    name = unique("topic")
    admin.create_topic(name, enable_partitioning=True, requires_duplicate_detection=True,
                       duplicate_detection_history_time_window=datetime.timedelta(minutes=5))
    read = admin.get_topic(name)
    assert (read.enable_partitioning, read.requires_duplicate_detection) == (True, True)
    assert read.duplicate_detection_history_time_window == datetime.timedelta(minutes=5)
    admin.create_subscription(name, "reader", requires_session=True, max_delivery_count=2000)
    subscription = admin.get_subscription(name, "reader")
    assert (subscription.requires_session, subscription.max_delivery_count) == (True, 2000)
    assert [found.name for found in admin.list_subscriptions(name)] == ["reader"]
    assert name in [topic.name for topic in admin.list_topics()]
    admin.delete_subscription(name, "reader")
    assert list(admin.list_subscriptions(name)) == []
    admin.delete_topic(name)
    with pytest.raises(ResourceNotFoundError):
        admin.get_topic(name)


def test_counts_are_told(admin, client, make_queue):
    queue = make_queue()
    with client.get_queue_sender(queue) as sender:
        sender.send_messages([ServiceBusMessage("1"), ServiceBusMessage("2")])
    runtime = admin.get_queue_runtime_properties(queue)
    assert (runtime.active_message_count, runtime.dead_letter_message_count) == (2, 0)
    assert runtime.total_message_count == 2 and runtime.size_in_bytes > 0


@pytest.mark.parametrize("properties", [
    {"lock_duration": datetime.timedelta(minutes=6)},
    {"lock_duration": datetime.timedelta(seconds=1)},
    {"max_delivery_count": 0},
    {"requires_duplicate_detection": True,
     "duplicate_detection_history_time_window": datetime.timedelta(days=8)},
])
def test_a_value_out_of_range_is_refused(admin, properties):
    with pytest.raises(HttpResponseError) as refused:
        admin.create_queue(unique("queue"), **properties)
    assert refused.value.status_code == 400


def test_the_namespace_is_told(admin):
    assert admin.get_namespace_properties().name
