"""Two pods, and a real Prometheus that scrapes them and evaluates the alerts of the chart."""

import itertools
import re
import signal

from chart import render_kind
from pods import CONFIG, Cluster, wait_until
from prometheus_process import Prometheus


def quick_rules(*arguments):
    """The rules of the chart with shorter times, and the same conditions."""
    [group] = render_kind("PrometheusRule", "--set", "metrics.alerts.enabled=true", *arguments)["spec"]["groups"]
    for rule in group["rules"]:
        rule["for"] = "1s"
        rule["expr"] = re.sub(r"\[[0-9]+m\]", "[10s]", rule["expr"]).replace("[1h:1m]", "[30s:1s]")
    return [group]


class Monitored:
    """Two pods and the Prometheus that watches them."""

    def __init__(self, cleanup, config=CONFIG, chart_arguments=()):
        self.cluster = Cluster(config)
        cleanup.callback(self.cluster.stop)
        applied = self.cluster.run("topology", "apply")
        assert applied.returncode == 0, applied.stderr
        self.prometheus = Prometheus(self.cluster.path, quick_rules(*chart_arguments))
        cleanup.callback(self.prometheus.stop)
        for name in ("pod-0", "pod-1"):
            self.start_pod(name)
        self.seen = set()
        self.orders = (f"order-{number}" for number in itertools.count())
        wait_until("both pods are scraped and there is a leader",
                   lambda: self.value("count(headwater_build_info)") == 2 and self.value("min(headwater_leader_present)") == 1)

    def start_pod(self, name, **environment):
        self.cluster.start_pod(name, environment)
        self.prometheus.set_targets(self.cluster.pods)

    def remove_pod(self, name, how=signal.SIGTERM):
        self.cluster.pods.pop(name).stop(how)
        self.prometheus.set_targets(self.cluster.pods)

    def insert(self):
        order = next(self.orders)
        self.cluster.insert(order, 1)
        return order

    def value(self, expression):
        samples = self.prometheus.query(expression)
        return samples[0][1] if samples else None

    def latest(self, expression):
        """Like `value`, with a status that pods collect now."""
        self._request_status()
        return self.value(expression)

    def have_fired(self, *alerts):
        """Whether each of them has fired since the first call; an alert on a counter is over soon."""
        self._request_status()
        self.seen |= self.prometheus.firing()
        return set(alerts) <= self.seen

    def wait_for_alert(self, alert, seconds=60):
        wait_until(f"{alert} fires", lambda: self._is_firing(alert), seconds)

    def wait_for_silence(self, *alerts, seconds=60):
        for alert in alerts:
            wait_until(f"{alert} resolves", lambda: not self._is_firing(alert), seconds)

    def _is_firing(self, alert):
        self._request_status()
        return alert in self.prometheus.firing()

    def _request_status(self):
        """While a client requests the status, pods collect it every second."""
        for pod in self.cluster.pods.values():
            try:
                pod.get("/api/status")
            except OSError:
                pass
