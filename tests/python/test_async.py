"""The SDK's asynchronous client: concurrent sessions, prefetch, streaming."""

import asyncio
import datetime

import pytest
from azure.core.exceptions import ResourceNotFoundError
from azure.servicebus import NEXT_AVAILABLE_SESSION, ServiceBusMessage, ServiceBusMessageState, ServiceBusSubQueue
from azure.servicebus.aio import AutoLockRenewer, ServiceBusClient
from azure.servicebus.aio.management import ServiceBusAdministrationClient
from azure.servicebus.exceptions import OperationTimeoutError, SessionCannotBeLockedError, ServiceBusError
from azure.servicebus.management import SqlRuleAction, SqlRuleFilter

from conftest import unique


@pytest.fixture
async def aclient(broker):
    async with ServiceBusClient.from_connection_string(broker.connection_string, retry_total=0) as client:
        yield client


async def test_many_sessions_are_read_concurrently(aclient, make_topic):
    topic = make_topic(enable_partitioning=True, subscription={"requires_session": True})
    async with aclient.get_topic_sender(topic) as sender:
        for session in range(8):
            await sender.send_messages(
                [ServiceBusMessage(f"{session}-{n}", session_id=f"s{session}") for n in range(25)])

    async def read(session):
        async with aclient.get_subscription_receiver(topic, "sub0", session_id=f"s{session}", prefetch_count=10) as receiver:
            got = []
            async for message in receiver:
                got.append(str(message))
                await receiver.complete_message(message)
                if len(got) == 25:
                    return got

    for session, got in enumerate(await asyncio.gather(*[read(session) for session in range(8)])):
        assert got == [f"{session}-{n}" for n in range(25)]


async def test_streaming_with_a_lock_renewer(aclient, make_queue):
    queue = make_queue()
    async with aclient.get_queue_sender(queue) as sender:
        await sender.send_messages([ServiceBusMessage(f"m{n}") for n in range(5)])
    async with AutoLockRenewer() as renewer:
        async with aclient.get_queue_receiver(queue, auto_lock_renewer=renewer, max_wait_time=2) as receiver:
            got = []
            async for message in receiver:
                got.append(str(message))
                await receiver.complete_message(message)
    assert got == [f"m{n}" for n in range(5)]


async def test_settling_in_every_way(aclient, make_queue):
    queue = make_queue()
    async with aclient.get_queue_sender(queue) as sender:
        await sender.send_messages([ServiceBusMessage(word) for word in ("complete", "abandon", "defer", "dead")])
    async with aclient.get_queue_receiver(queue) as receiver:
        got = []
        while len(got) < 4:
            got += await receiver.receive_messages(max_message_count=4, max_wait_time=5)
        assert [str(message) for message in got] == ["complete", "abandon", "defer", "dead"]
        await receiver.complete_message(got[0])
        await receiver.abandon_message(got[1])
        await receiver.defer_message(got[2])
        await receiver.dead_letter_message(got[3], reason="r", error_description="d")
        [again] = await receiver.receive_messages(max_wait_time=5)
        assert (str(again), again.delivery_count) == ("abandon", 1)
        await receiver.complete_message(again)
        [deferred] = await receiver.receive_deferred_messages(got[2].sequence_number)
        await receiver.complete_message(deferred)


async def test_a_locked_session_is_refused_to_others(aclient, make_queue):
    queue = make_queue(requires_session=True)
    async with aclient.get_queue_sender(queue) as sender:
        await sender.send_messages(ServiceBusMessage("m", session_id="s"))
    async with aclient.get_queue_receiver(queue, session_id="s") as receiver:
        await receiver.session.set_state("half")
        with pytest.raises((SessionCannotBeLockedError, ServiceBusError)):
            async with aclient.get_queue_receiver(queue, session_id="s") as second:
                await second.receive_messages(max_wait_time=1)
        assert await receiver.session.get_state() == b"half"


async def test_partitioned_sequence_numbers_contain_the_partition(aclient, make_queue):
    queue = make_queue(requires_session=True, enable_partitioning=True)
    async with aclient.get_queue_sender(queue) as sender:
        for number in range(24):
            await sender.send_messages(ServiceBusMessage("m", session_id=f"s{number}"))

    async def partition(session):
        async with aclient.get_queue_receiver(queue, session_id=session) as receiver:
            [message] = await receiver.receive_messages(max_wait_time=10)
            assert message.partition_key == session
            await receiver.complete_message(message)
            return message.sequence_number >> 48

    partitions = set(await asyncio.gather(*[partition(f"s{number}") for number in range(24)]))
    assert partitions <= set(range(16)) and len(partitions) > 4


def soon(seconds):
    return datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(seconds=seconds)


async def test_scheduling_cancelling_and_peeking(aclient, make_queue):
    queue = make_queue()
    async with aclient.get_queue_sender(queue) as sender:
        numbers = await sender.schedule_messages([ServiceBusMessage("a"), ServiceBusMessage("b")], soon(3600))
        await sender.cancel_scheduled_messages(numbers[0])
        await sender.schedule_messages(ServiceBusMessage("soon"), soon(1))
    async with aclient.get_queue_receiver(queue) as receiver:
        states = {str(peeked): peeked.state for peeked in await receiver.peek_messages(10)}
        assert states.keys() == {"b", "soon"} and states["b"] == ServiceBusMessageState.SCHEDULED
        [message] = await receiver.receive_messages(max_wait_time=10)
        assert str(message) == "soon"
        await receiver.complete_message(message)


async def test_accept_next_session_waits_and_times_out(aclient, make_queue):
    queue = make_queue(requires_session=True)
    with pytest.raises(OperationTimeoutError):
        async with aclient.get_queue_receiver(queue, session_id=NEXT_AVAILABLE_SESSION, max_wait_time=1) as receiver:
            await receiver.receive_messages()

    async def accept():
        async with aclient.get_queue_receiver(queue, session_id=NEXT_AVAILABLE_SESSION, max_wait_time=30) as receiver:
            [message] = await receiver.receive_messages(max_wait_time=30)
            before = receiver.session.locked_until_utc
            assert await receiver.session.renew_lock() >= before
            await receiver.complete_message(message)
            return receiver.session.session_id

    async def send():
        async with aclient.get_queue_sender(queue) as sender:
            await sender.send_messages(ServiceBusMessage("here", session_id="late"))

    accepted, _ = await asyncio.gather(accept(), send())
    assert accepted == "late"


async def test_a_topic_with_duplicates_and_its_dead_letters(aclient, make_topic):
    topic = make_topic(requires_duplicate_detection=True, subscriptions=2)
    async with aclient.get_topic_sender(topic) as sender:
        batch = await sender.create_message_batch()
        for id in ("1", "2", "1"):
            batch.add_message(ServiceBusMessage(id, message_id=id))
        await sender.send_messages(batch)
    async with aclient.get_subscription_receiver(topic, "sub0", max_wait_time=1) as receiver:
        got = [message async for message in receiver]
        assert [str(message) for message in got] == ["1", "2"]
        for message in got:
            await receiver.dead_letter_message(message, reason="r")
    async with aclient.get_subscription_receiver(
            topic, "sub0", sub_queue=ServiceBusSubQueue.DEAD_LETTER, receive_mode="receiveanddelete") as receiver:
        got = await receiver.receive_messages(2, max_wait_time=10)
        assert {message.dead_letter_reason for message in got} == {"r"}


async def test_entities_are_administered(broker):
    async with ServiceBusAdministrationClient.from_connection_string(broker.connection_string) as admin:
        admin._impl._client._base_url = f"http://{broker.address}"
        name = unique("topic")
        await admin.create_topic(name)
        await admin.create_subscription(name, "reader", requires_session=True)
        assert (await admin.get_subscription(name, "reader")).requires_session
        assert name in [topic.name async for topic in admin.list_topics()]
        await admin.delete_topic(name)
        with pytest.raises(ResourceNotFoundError):
            await admin.get_subscription(name, "reader")


async def test_rules_and_forwarding_fill_sessions_that_are_listed(aclient, broker):
    names = {kind: unique(kind) for kind in ("topic", "queue")}
    admin = ServiceBusAdministrationClient.from_connection_string(broker.connection_string)
    admin._impl._client._base_url = f"http://{broker.address}"
    async with admin:
        await admin.create_queue(names["queue"], requires_session=True)
        await admin.create_topic(names["topic"])
        await admin.create_subscription(names["topic"], "reds", forward_to=names["queue"])
        await admin.delete_rule(names["topic"], "reds", "$Default")
        await admin.create_rule(names["topic"], "reds", "red", filter=SqlRuleFilter("color = 'red'"),
                                action=SqlRuleAction("SET seen = 1"))
    async with aclient.get_topic_sender(names["topic"]) as sender:
        await sender.send_messages([
            ServiceBusMessage(color, session_id=session, application_properties={"color": color})
            for session, color in (("a", "red"), ("b", "blue"), ("c", "red"))])
    assert sorted([session async for session in aclient.list_queue_sessions(names["queue"])]) == ["a", "c"]
    async with aclient.get_queue_receiver(names["queue"], session_id="c") as receiver:
        [message] = await receiver.receive_messages(1, max_wait_time=10)
        assert message.application_properties == {b"color": b"red", b"seen": 1, b"RuleName": b"red"}
        await receiver.complete_message(message)
