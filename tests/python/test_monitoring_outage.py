"""The alerts on real pods that take longest."""

import signal

from pods import wait_until


def test_leader_changes_and_an_outage_fire_and_resolve(monitored):
    for _ in range(8):
        term = monitored.value("max(headwater_term)")
        result = monitored.cluster.run("step-down")
        assert result.returncode == 0, result.stderr
        wait_until("the next term", lambda: (monitored.latest("max(headwater_term)") or 0) > term)
    monitored.wait_for_alert("HeadwaterLeaderChanges")

    # Service Bus does not reply for more than 30 seconds. An event that waits is late when it arrives.
    monitored.cluster.broker.process.send_signal(signal.SIGSTOP)
    monitored.insert()
    monitored.wait_for_alert("HeadwaterLagging", seconds=90)
    monitored.cluster.broker.process.send_signal(signal.SIGCONT)
    monitored.wait_for_alert("HeadwaterHighLatency")
    monitored.wait_for_silence("HeadwaterLagging", "HeadwaterHighLatency", "HeadwaterLeaderChanges", seconds=90)
