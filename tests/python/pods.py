"""Real pods that share a MongoDB, a broker and a configuration, as in `tests/javascript/pods.mjs`."""

import json
import os
import signal
import subprocess
import tempfile
import threading
import time
import urllib.request
import uuid
from pathlib import Path

import pymongo

from broker_process import Broker

CONFIG = """format: 1
pipeline: shop
source: {{ uri: "{uri}", database: {name}, collection: events, sequence: version }}
coordination: {{ database: {name}_coordination, lease: {{ ttl: 8s, renew_deadline: 6s, heartbeat: 1s }} }}
service_bus: {{ connection_string: "{bus}", topic: events, subscription: read-models }}
producer: {{ start: now }}
read_models:
  orders: {{ when: {{ Placed: {{ $set: {{ status: placed }} }}, Paid: {{ $inc: {{ paid: $$event.payload.amount }} }} }} }}
admin: {{ listen: "127.0.0.1:0" }}
"""


def wait_until(what, condition, seconds=60):
    """Polls until the condition returns something, and returns that."""
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, f"timed out: {what}"
        time.sleep(0.2)
    return found


class Pod:
    """One `headwater run` process, or the command that starts it elsewhere."""

    def __init__(self, name, config, environment=None, command=None):
        self.name = name
        command = command or [os.environ["HEADWATER_BIN"], "run", "--config", config, "--set", f"pod_id={name}"]
        variables = {**os.environ, "RUST_LOG": "info", **(environment or {})}
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, env=variables)
        self.log = []
        self.address = None
        threading.Thread(target=self._read_log, daemon=True).start()
        try:
            wait_until(f"{name} listens", self._is_listening)
        except AssertionError:
            self.process.kill()
            raise AssertionError(f"{name} did not start:\n{''.join(self.log)}")

    def _is_listening(self):
        assert self.process.poll() is None
        return self.address

    def _read_log(self):
        for line in self.process.stderr:
            self.log.append(line)
            if "admin server listening" in line:
                self.address = json.loads(line)["address"]

    def get(self, path):
        with urllib.request.urlopen(f"http://{self.address}{path}", timeout=5) as response:
            return response.read().decode()

    def send_signal(self, number):
        self.process.send_signal(number)

    def stop(self, number=signal.SIGTERM):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.send_signal(number)
            self.process.wait(timeout=40)


class Cluster:
    """A broker, and pods that share it. Databases are new; the server is the one of the test run."""

    def __init__(self, config=CONFIG, broker=None):
        uri = os.environ.get("HEADWATER_TEST_MONGODB_URI")
        assert uri, "HEADWATER_TEST_MONGODB_URI names no MongoDB; `cargo xtask test` starts one and sets it"
        self.folder = tempfile.TemporaryDirectory(prefix="headwater-pods-")
        self.path = Path(self.folder.name)
        self.broker = Broker("--ephemeral", command=broker)
        self.name = f"pods_{uuid.uuid4().hex[:12]}"
        self.config = self.path / "headwater.yaml"
        self.config.write_text(config.format(uri=uri, name=self.name, bus=self.broker.connection_string))
        self.mongo = pymongo.MongoClient(uri, serverSelectionTimeoutMS=10_000)
        self.events = self.mongo[self.name]["events"]
        # The audit reads along this index.
        self.events.create_index([("aggregateId", 1), ("version", 1)])
        self.coordination = self.mongo[f"{self.name}_coordination"]
        self.views = self.mongo[f"{self.name}_views"]
        self.pods = {}

    def run(self, *arguments):
        """Runs a command of the binary on the pipeline."""
        command = [os.environ["HEADWATER_BIN"], *arguments, "--config", self.config]
        return subprocess.run(command, capture_output=True, text=True, timeout=60)

    def start_pod(self, name, environment=None):
        self.pods[name] = Pod(name, self.config, environment)
        return self.pods[name]

    def insert(self, aggregate, version, kind="Placed", **payload):
        self.events.insert_one({"aggregateId": aggregate, "version": version, "type": kind, "payload": payload})

    def stop(self):
        self.broker.process.send_signal(signal.SIGCONT)
        for pod in self.pods.values():
            pod.stop()
        self.broker.stop()
        for database in self.mongo.list_database_names():
            if database.startswith(self.name):
                self.mongo.drop_database(database)
        self.mongo.close()
        self.folder.cleanup()
