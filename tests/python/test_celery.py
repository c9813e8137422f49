"""Celery runs its own example against the broker, unchanged: the file comes from Celery's source package.

Its broker URL is `azureservicebus://name:key@namespace`, so the SDK uses TLS, port 5671 and the certificates of `certifi`."""

import os
import random
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import pytest

from broker_process import Broker

EXAMPLE = "examples/app/myapp.py"
# In place of the package with the authorities of the world.
TRUST_PACKAGE = '''
def where():
    return "{authority}"
'''


@pytest.fixture
def example(tmp_path):
    """The folder of the example, as it was published."""
    archive, = Path(sys.prefix, "sources").glob("celery-*.tar.gz")
    with tarfile.open(archive) as source:
        file, = (name for name in source.getnames() if name.endswith(EXAMPLE))
        source.extract(file, tmp_path, filter="data")
    return (tmp_path / file).parent


@pytest.fixture
def environment(tmp_path, example):
    """A broker on the port of AMQP with TLS. Every run has an address of its own: the port is the same."""
    address = "127." + ".".join(str(random.randint(1, 254)) for _ in range(3))
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
                    "-days", "2", "-keyout", "key.pem", "-out", "cert.pem", "-subj", "/CN=localhost",
                    "-addext", f"subjectAltName=IP:{address}"], cwd=tmp_path, check=True, capture_output=True)
    authority = tmp_path / "cert.pem"
    (tmp_path / "trust" / "certifi").mkdir(parents=True)
    (tmp_path / "trust" / "certifi" / "__init__.py").write_text(TRUST_PACKAGE.format(authority=authority))
    broker = Broker("--ephemeral", "--also-listen", f"{address}:5671", "--tls-cert", str(authority),
                    "--tls-key", str(tmp_path / "key.pem"), "--require-tls")
    url = f"azureservicebus://RootManageSharedAccessKey:SAS_KEY_VALUE@{address}:5671/.net"
    yield {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path / "trust"), str(example)]),
           "REQUESTS_CA_BUNDLE": str(authority), "CELERY_BROKER_URL": url}
    broker.stop()


@pytest.mark.timeout(180)
def test_the_example_of_celery_runs_unchanged(environment, example, tmp_path):
    log = tmp_path / "worker.log"
    with log.open("w") as output:
        worker = subprocess.Popen([sys.executable, "-m", "celery", "-A", "myapp", "worker", "-l", "INFO", "--pool", "solo"],
                                  cwd=example, env=environment, stdout=output, stderr=subprocess.STDOUT)
    try:
        sent = subprocess.run([sys.executable, "-c", "from myapp import add; print(add.delay(16, 16).id)"], cwd=example,
                              env=environment, check=True, capture_output=True, text=True, timeout=90)
        deadline = time.monotonic() + 90
        while not (done := [line for line in log.read_text().splitlines() if f"{sent.stdout.strip()}] succeeded" in line]):
            assert worker.poll() is None and time.monotonic() < deadline, log.read_text()
            time.sleep(0.2)
        assert done[0].endswith(": 32"), done
    finally:
        worker.send_signal(signal.SIGTERM)
        worker.wait(timeout=30)
