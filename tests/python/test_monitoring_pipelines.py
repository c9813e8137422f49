"""The alerts on real pods that run two pipelines: each alert names the pipeline that it is about, and the other one is quiet."""

import contextlib

import pytest

from monitoring import Monitored
from pods import CONFIG, wait_until
from test_monitoring import panel_expressions

PIPELINES = """pipelines:
  shop: {{ }}
  bills:
    source: {{ collection: bills }}
    service_bus: {{ topic: bills }}
    read_models: {{ database: {name}_bills }}
"""


@pytest.fixture(scope="module")
def several():
    config = CONFIG.replace("pipeline: shop\n", "") + PIPELINES
    with contextlib.ExitStack() as cleanup:
        yield Monitored(cleanup, config, ("--set-json", 'pipelines="shop: {}\\nbills: {}"'))


def test_an_alert_names_the_pipeline_it_is_about(several):
    cluster = several.cluster
    bills = cluster.mongo[cluster.name]["bills"]
    for version, (kind, amount) in enumerate((("Placed", 1), ("Paid", "not a number")), 1):
        bills.insert_one({"aggregateId": "bill-1", "version": version, "type": kind, "payload": {"amount": amount}})
    several.wait_for_alert("HeadwaterParked")
    assert several.prometheus.firing("pipeline", alertname="HeadwaterParked") == {"bills"}
    discarded = cluster.run("parked", "discard", "bill-1", "--yes", "--pipeline", "bills")
    assert discarded.returncode == 0, discarded.stderr
    several.wait_for_silence("HeadwaterParked")


def test_the_dashboard_shows_one_of_several_pipelines(several):
    several.insert()
    applied = 'sum(headwater_events_applied_total{pipeline="%s"})'
    wait_until("an event of one pipeline is applied", lambda: (several.value(applied % "shop") or 0) >= 1)
    [(_, led)] = [(title, one) for title, one in panel_expressions() if "headwater_leader_present" in one]
    chosen = led.replace('pipeline=~".*"', 'pipeline=~"bills"')
    assert chosen != led and several.value(chosen) == 1 and several.value(led) == 1
