"""Checks that the official SDK is installed and encodes a message."""

from azure.servicebus import ServiceBusMessage


def test_the_official_sdk_encodes_a_message_with_its_session():
    message = ServiceBusMessage(b"body", session_id="order-1", message_id="m-1")
    raw = message.raw_amqp_message
    assert raw.properties.group_id == b"order-1" or raw.properties.group_id == "order-1"
    assert message.message_id == "m-1"
