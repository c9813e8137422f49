"""For each alert, the series that make it fire, and the worst series that must not.

A case has 20 minutes of regular values, 40 minutes of the condition, and 90 minutes of regular values again. Two samples are a minute.
"""

from dataclasses import dataclass, field

STEP = "30s"
REGULAR, CONDITION, AFTER = 40, 80, 180
BEGINS, LAST_MINUTE, END = 20, 59, 149


def gauge(regular, during):
    """`None` means that there is no sample."""
    return [regular] * REGULAR + [during] * CONDITION + [regular] * AFTER


def counter(regular_step, step_during):
    steps = [regular_step] * REGULAR + [step_during] * CONDITION + [regular_step] * AFTER
    return [sum(steps[:count + 1]) for count in range(len(steps))]


def term(changes):
    """A term that rises once per minute, so many times."""
    return [1] * REGULAR + [1 + min(step // 2 + 1, changes) for step in range(CONDITION + AFTER)]


def latencies(seconds):
    """Ten events per step, faster than a second; during the condition they take so long."""
    name = "headwater_insert_to_read_model_seconds_bucket"
    return {name + f'{{le="{bound}"}}': counter(10, 10 if seconds <= float(bound) else 0)
            for bound in ("1", "4", "6", "+Inf")}


def redelivered(share):
    return {"headwater_messages_received_total": counter(100, 100),
            "headwater_messages_redelivered_total": counter(0, share)}


@dataclass
class AlertCase:
    alert: str
    firing: dict
    harmless: dict
    labels: dict = field(default_factory=dict)


CASES = [
    AlertCase("HeadwaterNoLeader",
              {"headwater_leader_present": gauge(1, 0)},
              # A pod that has just lost MongoDB is outvoted by one that sees the leader.
              {'headwater_leader_present{pod="a"}': gauge(1, 0), 'headwater_leader_present{pod="b"}': gauge(1, 1)}),
    AlertCase("HeadwaterStatusMissing",
              {"headwater_leader_present": gauge(1, None)},
              {"headwater_leader_present": gauge(1, 0), "headwater_status_age_seconds": gauge(1, 60)}),
    AlertCase("HeadwaterStatusMissing",
              {"headwater_leader_present": gauge(1, 1), "headwater_status_age_seconds": gauge(1, 61)},
              # One pod without MongoDB is not enough: the others know the state.
              {"headwater_leader_present": gauge(1, 1), 'headwater_status_age_seconds{pod="a"}': gauge(1, 500),
               'headwater_status_age_seconds{pod="b"}': gauge(1, 5)}),
    AlertCase("HeadwaterUnhealthy",
              {'headwater_problems{severity="critical"}': gauge(0, 1)},
              {'headwater_problems{severity="critical"}': gauge(0, 0), 'headwater_problems{severity="warning"}': gauge(0, 5)}),
    AlertCase("HeadwaterOplogHeadroomCritical",
              {"headwater_oplog_headroom_seconds": gauge(90_000, 3_599)},
              {"headwater_oplog_headroom_seconds": gauge(90_000, 3_600)}),
    AlertCase("HeadwaterOplogHeadroomLow",
              {"headwater_oplog_headroom_seconds": gauge(90_000, 43_199)},
              {"headwater_oplog_headroom_seconds": gauge(90_000, 43_200)}),
    AlertCase("HeadwaterLagging",
              {"headwater_lag_seconds": gauge(0.5, 31)},
              {"headwater_lag_seconds": gauge(0.5, 30)}),
    AlertCase("HeadwaterHighLatency", latencies(6), latencies(4)),
    AlertCase("HeadwaterNotReady",
              {'headwater_service_ready{pod="a",service="consumer"}': gauge(1, 0),
               'headwater_service_ready{pod="b",service="consumer"}': gauge(1, 1)},
              {'headwater_service_ready{pod="a",service="consumer"}': gauge(1, 1)},
              {"service": "consumer"}),
    AlertCase("HeadwaterLoopStalled",
              {'headwater_loop_stalled{pod="a",service="producer",loop="capture"}': gauge(0, 1),
               'headwater_loop_stalled{pod="b",service="producer",loop="capture"}': gauge(0, 0)},
              {'headwater_loop_stalled{pod="a",service="producer",loop="capture"}': gauge(0, 0)},
              {"service": "producer", "loop": "capture"}),
    AlertCase("HeadwaterPodSilent",
              {"headwater_pods_silent": gauge(0, 1)},
              {"headwater_pods_silent": gauge(0, 0)}),
    AlertCase("HeadwaterParked",
              {'headwater_parked_aggregates{read_model="orders"}': gauge(0, 1),
               'headwater_parked_aggregates{read_model="customers"}': gauge(0, 0)},
              {'headwater_parked_aggregates{read_model="orders"}': gauge(0, 0)},
              {"read_model": "orders"}),
    AlertCase("HeadwaterRejected",
              {'headwater_rejected_events{reason="no_aggregate_id"}': gauge(0, 1),
               'headwater_rejected_events{reason="refused"}': gauge(0, 0)},
              {'headwater_rejected_events{reason="no_aggregate_id"}': gauge(0, 0)},
              {"reason": "no_aggregate_id"}),
    AlertCase("HeadwaterDeadLetters",
              {"headwater_dead_letters": gauge(0, 1)},
              # The count is unknown to a key without the Manage right.
              {"headwater_dead_letters": gauge(0, None)}),
    AlertCase("HeadwaterUnverifiedMessages",
              {"headwater_messages_unverified_total": counter(0, 1)},
              {"headwater_messages_unverified_total": counter(0, 0)}),
    AlertCase("HeadwaterEventsMissing",
              {"headwater_audit_missing_aggregates": gauge(0, 1)},
              {"headwater_audit_missing_aggregates": gauge(0, 0)}),
    AlertCase("HeadwaterAuditFound",
              {"headwater_audit_found_aggregates": gauge(0, 1)},
              {"headwater_audit_found_aggregates": gauge(0, 0)}),
    AlertCase("HeadwaterAuditOverdue",
              {"headwater_audit_overdue": gauge(0, 1)},
              # There is no sample while the audit is off.
              {"headwater_audit_overdue": gauge(0, None)}),
    AlertCase("HeadwaterIgnoredChanges",
              {"headwater_changes_ignored_total": counter(0, 1)},
              {"headwater_changes_ignored_total": counter(0, 0)}),
    AlertCase("HeadwaterRedelivery", redelivered(21), redelivered(20)),
    AlertCase("HeadwaterLeaderChanges",
              {"headwater_term": term(7)},
              # A rolling restart of three pods, twice.
              {"headwater_term": term(6)}),
]
