"""`python-qpid-proton`, an AMQP 1.0 client that is no SDK: send, receive, credit, drain, settle,
transactions."""

import pytest
from proton import Delivery, Described, Message, decimal128, int32, symbol, timestamp, ubyte, ulong
from proton.handlers import MessagingHandler, TransactionHandler
from proton.reactor import Container
from proton.utils import BlockingConnection, SendException


@pytest.fixture
def connection(broker):
    connection = BlockingConnection(f"amqp://{broker.address}", timeout=30, allowed_mechs="ANONYMOUS")
    yield connection
    connection.close()


def send(connection, queue, *messages):
    sender = connection.create_sender(queue)
    for message in messages:
        delivery = sender.send(message if isinstance(message, Message) else Message(message))
        assert delivery.remote_state == Delivery.ACCEPTED
    sender.close()


def left(client, queue):
    with client.get_queue_receiver(queue) as receiver:
        return [message.raw_amqp_message.body for message in receiver.peek_messages(100, sequence_number=1)]


def test_messages_are_sent_received_and_accepted_in_order(connection, client, make_queue):
    queue = make_queue()
    send(connection, queue, *[f"m{number}" for number in range(20)])
    receiver = connection.create_receiver(queue, credit=0)
    for number in range(19):
        assert receiver.receive(timeout=10).body == f"m{number}"
        receiver.accept()
    receiver.close()
    assert left(client, queue) == [b"m19"]


def test_every_outcome_means_what_service_bus_means_by_it(connection, client, make_queue):
    queue = make_queue()
    send(connection, queue, "a")
    receiver = connection.create_receiver(queue, credit=0)
    counts = []
    for settle in (lambda: receiver.release(delivered=False), lambda: receiver.release(delivered=True), receiver.reject):
        counts.append(receiver.receive(timeout=10).delivery_count)
        settle()
    # Released: the count stays. Modified: it rises. Rejected: the message is dead-lettered.
    assert counts == [0, 0, 1]
    receiver.close()
    assert connection.create_receiver(f"{queue}/$DeadLetterQueue").receive(timeout=10).body == "a"
    assert left(client, queue) == []


def test_no_message_exceeds_the_credit_and_a_drain_ends_it(connection, make_queue):
    queue = make_queue()
    send(connection, queue, *["m"] * 5)
    receiver = connection.create_receiver(queue, credit=0)
    link, incoming = receiver.link, receiver.fetcher.incoming
    link.flow(2)
    connection.wait(lambda: len(incoming) == 2)
    assert link.credit == 0
    link.drain(10)
    connection.wait(lambda: len(incoming) == 5 and not link.draining())
    assert link.credit == 0
    send(connection, queue, "later")
    link.drain_mode = False
    link.flow(1)
    connection.wait(lambda: len(incoming) == 6)


def test_a_message_comes_back_with_all_its_types(connection, make_queue):
    queue = make_queue()
    sent = Message(
        body={"list": [int32(1), 2.5, True, None], "tagged": Described(symbol("x:y"), "value")},
        properties={"byte": ubyte(7), "big": ulong(2**63), "when": timestamp(1_700_000_000_000), "id": symbol("s")},
        annotations={symbol("x-own"): decimal128(b"\x01" * 16)}, id=ulong(42), correlation_id=b"\x00\x01",
        subject="s", group_id="g", group_sequence=3, reply_to_group_id="r", user_id=b"me", priority=7)
    send(connection, queue, sent)
    got = connection.create_receiver(queue).receive(timeout=10)
    assert got.body == sent.body and got.properties == sent.properties
    for name in ("id", "correlation_id", "subject", "group_id", "group_sequence", "reply_to_group_id", "user_id", "priority"):
        assert getattr(got, name) == getattr(sent, name), name
    assert got.annotations[symbol("x-own")] == decimal128(b"\x01" * 16)
    assert [type(value) for value in got.properties.values()] == [type(value) for value in sent.properties.values()]


def test_a_send_that_is_refused_says_why(connection, make_queue):
    queue = make_queue(requires_session=True)
    sender = connection.create_sender(queue)
    with pytest.raises(SendException) as refused:
        sender.send(Message(b"without a session"))
    assert refused.value.state == Delivery.REJECTED


class TwoTransactions(MessagingHandler, TransactionHandler):
    """Sends two messages in a transaction and rolls it back, then two in another one and commits it."""

    def __init__(self, address, queue):
        super().__init__()
        self.address, self.queue, self.bodies = address, queue, [["a", "b"], ["c", "d"]]

    def on_start(self, event):
        self.container = event.container
        self.connection = event.container.connect(f"amqp://{self.address}", reconnect=False, allowed_mechs="ANONYMOUS")
        self.sender = event.container.create_sender(self.connection, self.queue)
        self.container.declare_transaction(self.connection, handler=self)

    def on_transaction_declared(self, event):
        for body in self.bodies.pop(0):
            event.transaction.send(self.sender, Message(body))
        event.transaction.commit() if not self.bodies else event.transaction.abort()

    def on_transaction_aborted(self, event):
        self.container.declare_transaction(self.connection, handler=self)

    def on_transaction_committed(self, event):
        self.connection.close()


def test_a_transaction_takes_effect_as_a_whole_or_not_at_all(broker, client, make_queue):
    queue = make_queue()
    Container(TwoTransactions(broker.address, queue)).run()
    assert left(client, queue) == [b"c", b"d"]
