"""A real Prometheus scrapes real pods: every metric of the alerts and of the Grafana dashboard exists, and alerts fire when their condition happens.

`test_monitoring_outage.py` has the alerts that take longer.
"""

import json
import re
import signal
import time

from azure.servicebus import ServiceBusClient, ServiceBusMessage, ServiceBusSubQueue

from chart import CHART
from monitoring import quick_rules
from pods import wait_until

METRIC = re.compile(r"headwater_[a-z_]+")
# Panels that are empty while nothing is wrong.
EMPTY_WHEN_HEALTHY = {"Stalled loops"}


def panels():
    dashboard = json.loads((CHART / "files" / "dashboard.json").read_text())
    return [panel for panel in dashboard["panels"] if panel["type"] != "row"]


def panel_expressions():
    """(title, expression) with the variables of Grafana filled in."""
    values = {"$namespace": "prod", "$job": "prod/shop-headwater", "$pipeline": ".*", "$__rate_interval": "10s"}
    for panel in panels():
        for target in panel["targets"]:
            expression = target["expr"]
            for variable, value in values.items():
                expression = expression.replace(variable, value)
            yield panel["title"], expression


def used_metrics():
    expressions = [rule["expr"] for group in quick_rules() for rule in group["rules"]]
    expressions += [expression for _, expression in panel_expressions()]
    return {name for expression in expressions for name in METRIC.findall(expression)}


def test_alerts_and_dashboard_use_metrics_that_pods_export(monitored):
    exported = wait_until("metadata", monitored.prometheus.metadata)
    names = {name for name, kind in exported.items()}
    names |= {f"{name}_bucket" for name, kind in exported.items() if kind == "histogram"}
    assert used_metrics() <= names, used_metrics() - names


def test_rates_are_taken_of_counters_only(monitored):
    exported = wait_until("metadata", monitored.prometheus.metadata)
    expressions = [rule["expr"] for group in quick_rules() for rule in group["rules"]]
    expressions += [expression for _, expression in panel_expressions()]
    rated = {name for expression in expressions for name in re.findall(r"(?:rate|increase)\((headwater_[a-z_]+)", expression)}
    kinds = {exported.get(name.removesuffix("_bucket")) for name in rated}
    assert rated and kinds == {"counter", "histogram"}


def test_every_panel_shows_data_of_real_pods(monitored):
    # Two scrapes with events in between, for the rates.
    for _ in range(3):
        monitored.insert()
        time.sleep(1)
    wait_until("events are applied", lambda: (monitored.value("sum(headwater_events_applied_total)") or 0) >= 3)
    expected = [(title, expression) for title, expression in panel_expressions() if title not in EMPTY_WHEN_HEALTHY]
    # The headroom is unknown until the oplog of the server covers a minute, and the age of the audit while the source cannot be audited.
    unknown = ("oplog_headroom", "audit_age")
    expected = [(title, expression) for title, expression in expected if not any(name in expression for name in unknown)]

    def all_have_data():
        monitored.insert()
        return not [title for title, expression in expected if not monitored.prometheus.query(expression)]
    wait_until("every panel has data", all_have_data)
    for title, expression in panel_expressions():
        monitored.prometheus.query(expression)


def test_no_alert_fires_on_healthy_pods(monitored):
    # The oplog of a test server is short, which is a problem of that server.
    of_the_server = {"HeadwaterOplogHeadroomLow", "HeadwaterOplogHeadroomCritical", "HeadwaterUnhealthy"}
    wait_until("all is quiet", lambda: not monitored.prometheus.firing() - of_the_server)


def test_single_events_fire_until_they_are_dealt_with(monitored):
    cluster = monitored.cluster
    order = monitored.insert()
    wait_until("the order is applied", lambda: cluster.views["orders"].find_one({"_id": order}))
    cluster.insert(order, 2, "Paid", amount="not a number")
    cluster.events.insert_one({"version": 1, "type": "Placed"})
    cluster.events.update_one({"aggregateId": order, "version": 1}, {"$set": {"late": True}})
    with ServiceBusClient.from_connection_string(cluster.broker.connection_string) as client:
        with client.get_topic_sender("events") as sender:
            sender.send_messages(ServiceBusMessage("hello", session_id="stranger", message_id="theirs"))
        alerts = ("HeadwaterParked", "HeadwaterRejected", "HeadwaterIgnoredChanges", "HeadwaterDeadLetters")
        wait_until("all four have fired", lambda: monitored.have_fired(*alerts))

        discarded = cluster.run("parked", "discard", order, "--yes")
        assert discarded.returncode == 0, discarded.stderr
        cluster.coordination["rejected_events"].delete_many({})
        with client.get_subscription_receiver("events", "read-models", sub_queue=ServiceBusSubQueue.DEAD_LETTER) as receiver:
            # A pod has read the letter, found that it is not of Headwater, and deferred it.
            [letter] = receiver.peek_messages(1)
            [letter] = receiver.receive_deferred_messages(letter.sequence_number)
            receiver.complete_message(letter)
    monitored.wait_for_silence(*alerts)


def test_a_killed_pod_fires_until_it_is_back(monitored):
    monitored.remove_pod("pod-1", signal.SIGKILL)
    monitored.wait_for_alert("HeadwaterPodSilent")
    monitored.start_pod("pod-1")
    monitored.wait_for_silence("HeadwaterPodSilent")


def test_a_time_without_a_leader_fires(monitored):
    monitored.remove_pod("pod-1")
    # A pod that stepped down waits for a ttl before it leads again, and there is no other.
    monitored.cluster.run("step-down")
    monitored.wait_for_alert("HeadwaterNoLeader")
    monitored.wait_for_alert("HeadwaterUnhealthy")
    monitored.wait_for_silence("HeadwaterNoLeader")
    monitored.start_pod("pod-1")


def test_pods_that_do_not_respond_fire_status_missing(monitored):
    for pod in monitored.cluster.pods.values():
        pod.send_signal(signal.SIGSTOP)
    wait_until("the alert", lambda: "HeadwaterStatusMissing" in monitored.prometheus.firing())
    for pod in monitored.cluster.pods.values():
        pod.send_signal(signal.SIGCONT)
    monitored.wait_for_silence("HeadwaterStatusMissing")


def test_a_stalled_loop_fires_until_the_pod_is_gone(monitored):
    # No fault from outside stalls a loop, so a failpoint of debug builds does it.
    monitored.start_pod("pod-2", HEADWATER_FAILPOINT_STALL="StepDown", HEADWATER_FAILPOINT_STALL_LIMIT="3000")
    monitored.wait_for_alert("HeadwaterLoopStalled")
    monitored.wait_for_alert("HeadwaterNotReady")
    monitored.remove_pod("pod-2", signal.SIGKILL)
    monitored.wait_for_silence("HeadwaterLoopStalled", "HeadwaterNotReady")
