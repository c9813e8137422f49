"""Runs the image as a cluster would: non-root, read-only, without capabilities, with limits. `cargo xtask image` builds it and runs this."""

import json
import os
import signal
import subprocess
import time
import uuid
from pathlib import Path

import pytest

from pods import Cluster, Pod, wait_until

IMAGE = os.environ["HEADWATER_IMAGE"]
PODMAN = os.environ["HEADWATER_PODMAN"].split("\n")
MEMORY, CPUS = 256 << 20, 0.5
HARD_FILES = subprocess.run(["sh", "-c", "ulimit -Hn"], capture_output=True, text=True, check=True).stdout.strip()


def podman(*arguments):
    return subprocess.run([*PODMAN, *map(str, arguments)], capture_output=True, text=True, timeout=60)


def run_command(name, *mounts):
    """As the chart does it. The limits of open files and processes are explicit: the defaults of podman exceed those of small machines."""
    volumes = [part for mount in mounts for part in ("--volume", mount)]
    return [*PODMAN, "run", "--rm", "--name", name, "--network", "host", "--read-only", "--cap-drop", "ALL", "--security-opt",
            "no-new-privileges", "--memory", str(MEMORY), "--cpus", str(CPUS), "--ulimit", f"nofile=1024:{HARD_FILES}",
            "--ulimit", "nproc=1024:1024", *volumes, IMAGE]


def run_once(*arguments, mounts=()):
    """Runs one command in a container of its own."""
    command = [*run_command(f"headwater-command-{uuid.uuid4().hex[:8]}", *mounts), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def main_process(name):
    """The process id on this machine of the container's first process."""
    def found():
        result = podman("inspect", "--format", "{{.State.Pid}}", name)
        return result.returncode == 0 and int(result.stdout)
    return wait_until(f"{name} runs", found)


def status_fields(pid):
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return dict(line.split(":\t", 1) for line in lines if ":\t" in line)


def cgroup_value(pid, controller, v1, v2):
    """A limit of the process's control group, in the first or second version of the interface."""
    for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controller in controllers.split(","):
            return Path(f"/sys/fs/cgroup/{controller}{path}/{v1}").read_text().split()
        if controllers == "" and Path(f"/sys/fs/cgroup{path}/{v2}").exists():
            return Path(f"/sys/fs/cgroup{path}/{v2}").read_text().split()
    raise AssertionError(f"no control group of {controller}")


class ContainerCluster(Cluster):
    """The broker and the pods run in containers of the image; the commands, too."""

    def start_container(self, name):
        container = f"headwater-{name}-{uuid.uuid4().hex[:8]}"
        command = [*run_command(container, f"{self.path}:/etc/headwater:ro"), "run", "--config",
                   "/etc/headwater/headwater.yaml", "--set", f"pod_id={name}"]
        self.pods[name] = Pod(name, self.config, command=command)
        self.pods[name].container = container
        return self.pods[name]

    def run(self, *arguments):
        return run_once(*arguments, "--config", "/etc/headwater/headwater.yaml", mounts=[f"{self.path}:/etc/headwater:ro"])


@pytest.fixture(scope="module")
def cluster():
    broker = [*run_command(f"headwater-broker-{uuid.uuid4().hex[:8]}"), "broker"]
    cluster = ContainerCluster(broker=broker)
    # The user of the image reads it, too.
    cluster.path.chmod(0o755)
    applied = cluster.run("topology", "apply")
    assert applied.returncode == 0, applied.stderr
    yield cluster
    cluster.stop()


def test_the_image_says_what_it_is():
    [image] = json.loads(podman("inspect", IMAGE).stdout)
    config = image["Config"]
    assert config["User"] == "65532:65532"
    assert config["Entrypoint"] == ["/usr/bin/headwater"] and config["Cmd"] == ["run"]
    labels = {name.removeprefix("org.opencontainers.image."): value for name, value in config["Labels"].items()}
    assert labels["title"] == "headwater" and labels["licenses"] == "Apache-2.0"
    version = run_once("version", "--json")
    assert version.returncode == 0, version.stderr
    assert labels["version"] == json.loads(version.stdout)["version"]
    assert image["Size"] < 60e6, image["Size"]


def test_the_image_has_a_stripped_binary_and_no_shell(tmp_path):
    saved = tmp_path / "image.tar"
    name = f"headwater-files-{uuid.uuid4().hex[:8]}"
    created = podman("create", "--name", name, "--ulimit", f"nofile=1024:{HARD_FILES}", "--ulimit", "nproc=1024:1024", IMAGE)
    assert created.returncode == 0, created.stderr
    try:
        exported = podman("export", "--output", saved, name)
        assert exported.returncode == 0, exported.stderr
    finally:
        podman("rm", name)
    subprocess.run(["tar", "--extract", "--file", saved, "--directory", tmp_path], check=True)
    files = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    programs = {file for file in files if "/bin/" in f"/{file}" or "/sbin/" in f"/{file}"}
    assert programs == {"usr/bin/headwater"}
    sections = subprocess.run(["objdump", "--section-headers", tmp_path / "usr/bin/headwater"], capture_output=True, text=True, check=True)
    assert ".debug_line" not in sections.stdout and ".gnu_debuglink" in sections.stdout
    sbom = json.loads((tmp_path / "usr/share/doc/headwater/sbom.cdx.json").read_text())
    names = {component["name"] for component in sbom["components"]}
    assert {"tokio", "mongodb", "libc.so.6"} <= names
    assert "tokio" in (tmp_path / "usr/share/doc/headwater/THIRD-PARTY-LICENSES.txt").read_text()


def test_a_pod_has_no_rights_and_the_limits_it_was_given(cluster):
    pod = cluster.start_container("limits")
    pid = main_process(pod.container)
    fields = status_fields(pid)
    assert fields["Uid"].split() == ["65532"] * 4
    assert [int(fields[name], 16) for name in ("CapPrm", "CapEff", "CapBnd", "CapAmb")] == [0] * 4
    assert fields["NoNewPrivs"] == "1"
    assert fields["NSpid"].split()[-1] == "1", "it is the first process of its container"
    root = next(line for line in Path(f"/proc/{pid}/mountinfo").read_text().splitlines() if line.split()[4] == "/")
    assert "ro" in root.split()[5].split(",")
    assert cgroup_value(pid, "memory", "memory.limit_in_bytes", "memory.max") == [str(MEMORY)]
    quota = cgroup_value(pid, "cpu", "cpu.cfs_quota_us", "cpu.max")[0]
    assert int(quota) == CPUS * 100_000
    pod.stop()
    assert pod.process.returncode == 0


def test_events_reach_the_read_models_of_pods_in_containers(cluster):
    pods = [cluster.start_container(f"pod-{number}") for number in range(2)]
    for order in range(200):
        cluster.insert(f"order-{order}", 1)
        cluster.insert(f"order-{order}", 2, "Paid", amount=order)
    wait_until("all orders", lambda: cluster.views["orders"].count_documents({"paid": {"$exists": True}}) == 200)
    assert cluster.views["orders"].find_one({"_id": "order-7"})["paid"] == 7
    status = cluster.run("status", "--json")
    assert status.returncode in (0, 4), status.stderr
    assert json.loads(status.stdout)["leader"]
    for pod in pods:
        began = time.monotonic()
        pod.stop()
        assert pod.process.returncode == 0, "".join(pod.log[-5:])
        assert time.monotonic() - began < 15
    lease = cluster.coordination["leader_leases"].find_one({"_id": "shop"})
    assert lease and "leaderId" not in lease, "SIGTERM released the lease"


def test_a_named_volume_of_the_broker_is_writable(tmp_path):
    volume = f"headwater-{uuid.uuid4().hex[:8]}"
    command = [*run_command(volume, f"{volume}:/var/lib/headwater"), "broker", "--listen", "127.0.0.1:0", "--data-dir",
               "/var/lib/headwater/broker"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        ready = process.stdout.readline()
        assert "ready" in ready, process.stderr.read()
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=30) == 0
    finally:
        process.kill()
        podman("volume", "rm", volume)
