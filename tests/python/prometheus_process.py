"""A real Prometheus that scrapes pods every second."""

import json
import socket
import subprocess
import urllib.parse
import urllib.request

import yaml

from pods import wait_until


class Prometheus:
    """One `prometheus` process. `targets` is a file of targets, which is read again when it changes."""

    def __init__(self, folder, groups):
        self.folder = folder
        self.targets = folder / "targets.json"
        self.set_targets({})
        (folder / "rules.yaml").write_text(yaml.safe_dump({"groups": groups}))
        scrape = {"job_name": "pods", "file_sd_configs": [{"files": ["targets.json"], "refresh_interval": "1s"}]}
        config = {"global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
                  "rule_files": ["rules.yaml"], "scrape_configs": [scrape]}
        (folder / "prometheus.yaml").write_text(yaml.safe_dump(config))
        # Prometheus does not say which port it got for 0.
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.address = f"127.0.0.1:{probe.getsockname()[1]}"
        self.log = open(folder / "prometheus.log", "w")
        command = ["prometheus", f"--config.file={folder / 'prometheus.yaml'}", f"--storage.tsdb.path={folder / 'data'}",
                   f"--web.listen-address={self.address}"]
        self.process = subprocess.Popen(command, stdout=self.log, stderr=subprocess.STDOUT)
        wait_until("Prometheus is ready", self._is_ready)

    def _is_ready(self):
        assert self.process.poll() is None, (self.folder / "prometheus.log").read_text()
        try:
            return bool(self.query("vector(1)"))
        except OSError:
            return False

    def set_targets(self, pods):
        """The pods, with labels as the Prometheus operator sets them for a PodMonitor."""
        labels = {"namespace": "prod", "job": "prod/shop-headwater"}
        targets = [{"targets": [pod.address], "labels": {**labels, "pod": name}} for name, pod in pods.items()]
        # Replaced as a whole: Prometheus may read at any moment.
        new = self.targets.with_suffix(".new")
        new.write_text(json.dumps(targets))
        new.rename(self.targets)

    def _get(self, path, **parameters):
        url = f"http://{self.address}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        with urllib.request.urlopen(url, timeout=10) as response:
            return json.load(response)["data"]

    def query(self, expression):
        """The samples at this moment, as (labels, value). A wrong expression is an error."""
        return [(sample["metric"], float(sample["value"][1])) for sample in self._get("query", query=expression)["result"]]

    def firing(self, label="alertname", **labels):
        """The values of this label of the firing alerts that have these labels."""
        firing = [alert["labels"] for alert in self._get("alerts")["alerts"] if alert["state"] == "firing"]
        return {alert.get(label) for alert in firing if labels.items() <= alert.items()}

    def metadata(self):
        """The type of each metric that a target exposes."""
        return {name: found[0]["type"] for name, found in self._get("metadata").items()}

    def stop(self):
        self.process.terminate()
        self.process.wait(timeout=20)
        self.log.close()
