"""AMQP over WebSocket with the official Python SDK, sync and async, on the broker's one port."""

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage, TransportType
from azure.servicebus.aio import ServiceBusClient as AsyncServiceBusClient


@pytest.fixture
def options(broker):
    return {"transport_type": TransportType.AmqpOverWebsocket, "retry_total": 0,
            # Without it the SDK uses port 443.
            "custom_endpoint_address": f"sb://{broker.address}"}


def test_messages_go_over_a_websocket(broker, options, make_queue):
    queue = make_queue()
    with ServiceBusClient.from_connection_string(broker.connection_string, **options) as client:
        with client.get_queue_sender(queue) as sender:
            sender.send_messages([ServiceBusMessage(f"{n}" * 1000) for n in range(100)])
        with client.get_queue_receiver(queue) as receiver:
            got = []
            while len(got) < 100:
                batch = receiver.receive_messages(100, max_wait_time=30)
                assert batch
                for message in batch:
                    receiver.complete_message(message)
                got += [str(message) for message in batch]
    assert got == [f"{n}" * 1000 for n in range(100)]


@pytest.mark.asyncio
async def test_a_session_is_received_over_a_websocket(broker, options, make_queue):
    queue = make_queue(requires_session=True)
    async with AsyncServiceBusClient.from_connection_string(broker.connection_string, **options) as client:
        async with client.get_queue_sender(queue) as sender:
            await sender.send_messages(ServiceBusMessage("a" * 200_000, session_id="s"))
        async with client.get_queue_receiver(queue, session_id="s") as receiver:
            [message] = await receiver.receive_messages(1, max_wait_time=30)
            assert len(str(message)) == 200_000
            await receiver.session.set_state("done")
            await receiver.complete_message(message)
            assert await receiver.session.get_state() == b"done"
