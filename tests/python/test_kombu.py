"""`kombu`, the messaging library of Celery, with its own Service Bus transport, unmodified: it creates queues over ATOM, and sends,
receives, settles, counts and purges over AMQP."""

import subprocess

import pytest
from kombu import Connection, Exchange, Queue

from broker_process import Broker


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    """The SDK always uses https for administration, so this broker has a certificate. It serves both on its one port."""
    folder = tmp_path_factory.mktemp("kombu")
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
                    "-days", "2", "-keyout", "key.pem", "-out", "cert.pem", "-subj", "/CN=localhost",
                    "-addext", "subjectAltName=IP:127.0.0.1"], cwd=folder, check=True, capture_output=True)
    broker = Broker("--ephemeral", "--tls-cert", str(folder / "cert.pem"), "--tls-key", str(folder / "key.pem"))
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("REQUESTS_CA_BUNDLE", str(folder / "cert.pem"))
        yield broker.address
    broker.stop()


def connect(address):
    connection = Connection(transport="azureservicebus", transport_options={"wait_time_seconds": 1})
    # A namespace of the transport ends with `.net`; a semicolon in a URL would separate two URLs.
    connection.switch(f"RootManageSharedAccessKey:SAS_KEY_VALUE;UseDevelopmentEmulator=true@{address}/.net")
    return connection


def test_a_simple_queue_keeps_order_and_counts(address):
    with connect(address) as connection:
        queue = connection.SimpleQueue("simple")
        for number in range(3):
            queue.put({"hello": number}, serializer="json", compression="zlib")
        assert queue.qsize() == 3
        for number in range(3):
            message = queue.get(block=True, timeout=20)
            assert message.payload == {"hello": number}
            message.ack()
        assert queue.qsize() == 0
        queue.close()


def test_a_producer_and_a_consumer_share_a_declared_queue(address):
    exchange = Exchange("media", "direct", durable=True)
    videos = Queue("video", exchange=exchange, routing_key="video")
    received = []

    def process(body, message):
        received.append(body["name"])
        message.ack()

    with connect(address) as connection:
        producer = connection.Producer(serializer="json")
        for number in range(3):
            producer.publish({"name": f"cat{number}.avi"}, exchange=exchange, routing_key="video", declare=[videos])
    with connect(address) as connection:
        with connection.Consumer(videos, callbacks=[process]):
            while len(received) < 2:
                connection.drain_events(timeout=20)
        assert received[:2] == ["cat0.avi", "cat1.avi"]
        bound = videos(connection.channel())
        bound.purge()
        bound.delete()
