//! Every metric there is: its name, its meaning, and where its value comes from.
//!
//! The first part is the whole pipeline as this pod last saw it: every pod tells the same, so take `max` over pods. The second is this pod
//! alone: sum what is counted. Label values: `read_model` is a configured name; `reason` a rejection's code; `severity` critical or warning; `why`
//! uncertain or refused; `fate` parked or left; `outcome` committed, conflict or unknown; `service` and `loop` as in `/healthz`.

use crate::counters::Counters;
use crate::exposition::Page;
pub use crate::exposition::{Kind, Metric};
use crate::health::{LoopState, Report};
use crate::status::{Severity, Status};

// The pipeline.
pub const LEADER_PRESENT: Metric = Metric {
    name: "headwater_leader_present",
    kind: Kind::Gauge,
    help: "1 while the lease names a leader and has not run out.",
};
pub const TERM: Metric = Metric { name: "headwater_term", kind: Kind::Gauge, help: "The present leader's term." };
pub const LAG_SECONDS: Metric = Metric {
    name: "headwater_lag_seconds",
    kind: Kind::Gauge,
    help: "How far the checkpoint is behind the source's newest operation.",
};
pub const LAG_EVENTS: Metric = Metric {
    name: "headwater_lag_events",
    kind: Kind::Gauge,
    help: "Events read and not acknowledged by the bus, plus messages that wait on the bus; a lower bound while the read-ahead is full.",
};
pub const OPLOG_HEADROOM_SECONDS: Metric = Metric {
    name: "headwater_oplog_headroom_seconds",
    kind: Kind::Gauge,
    help: "How long the checkpoint could stand still before the oplog no longer holds what follows it.",
};
pub const CHECKPOINT_AGE_SECONDS: Metric = Metric {
    name: "headwater_checkpoint_age_seconds",
    kind: Kind::Gauge,
    help: "Since the checkpoint was last saved.",
};
pub const PODS: Metric = Metric { name: "headwater_pods", kind: Kind::Gauge, help: "Pods that are heard of." };
pub const PODS_SILENT: Metric = Metric {
    name: "headwater_pods_silent",
    kind: Kind::Gauge,
    help: "Pods that should have been heard of, and are not.",
};
pub const PARKED_AGGREGATES: Metric =
    Metric { name: "headwater_parked_aggregates", kind: Kind::Gauge, help: "Aggregates that wait, by read model." };
pub const PARKED_EVENTS: Metric =
    Metric { name: "headwater_parked_events", kind: Kind::Gauge, help: "Events that wait, by read model." };
pub const REJECTED_EVENTS: Metric =
    Metric { name: "headwater_rejected_events", kind: Kind::Gauge, help: "Rejected events that are kept, by reason." };
pub const SUBSCRIPTION_MESSAGES: Metric = Metric {
    name: "headwater_subscription_messages",
    kind: Kind::Gauge,
    help: "Messages that wait on the bus or are being applied.",
};
pub const DEAD_LETTERS: Metric =
    Metric { name: "headwater_dead_letters", kind: Kind::Gauge, help: "Dead letters on the bus." };
pub const READ_MODEL_DOCUMENTS: Metric =
    Metric { name: "headwater_read_model_documents", kind: Kind::Gauge, help: "Documents, by read model." };
pub const PROBLEMS: Metric =
    Metric { name: "headwater_problems", kind: Kind::Gauge, help: "What is wrong, by severity." };
pub const STATUS_AGE_SECONDS: Metric = Metric {
    name: "headwater_status_age_seconds",
    kind: Kind::Gauge,
    help: "How old the figures above are: they were gathered by this pod, of the whole pipeline.",
};

// This pod.
pub const BUILD_INFO: Metric =
    Metric { name: "headwater_build_info", kind: Kind::Gauge, help: "Always 1; which pod this is and what it runs." };
pub const LEADS: Metric = Metric { name: "headwater_leads", kind: Kind::Gauge, help: "1 while this pod leads." };
pub const TERMS_TOTAL: Metric =
    Metric { name: "headwater_terms_total", kind: Kind::Counter, help: "Terms this pod has gained." };
pub const EVENTS_CAPTURED_TOTAL: Metric =
    Metric { name: "headwater_events_captured_total", kind: Kind::Counter, help: "Events read from the source." };
pub const EVENTS_FOREIGN_TOTAL: Metric = Metric {
    name: "headwater_events_foreign_total",
    kind: Kind::Counter,
    help: "Changes to a source of events that are no inserts; they are not published.",
};
pub const CAPTURE_REOPENED_TOTAL: Metric = Metric {
    name: "headwater_capture_reopened_total",
    kind: Kind::Counter,
    help: "How often the change stream was opened again.",
};
pub const EVENTS_PUBLISHED_TOTAL: Metric =
    Metric { name: "headwater_events_published_total", kind: Kind::Counter, help: "Events acknowledged by the bus." };
pub const TRANSFERS_TOTAL: Metric =
    Metric { name: "headwater_transfers_total", kind: Kind::Counter, help: "Transfers these events went in." };
pub const EVENTS_RESENT_TOTAL: Metric = Metric {
    name: "headwater_events_resent_total",
    kind: Kind::Counter,
    help: "Events sent again, because the first try may have been lost (uncertain) or the bus said no for now (refused).",
};
pub const EVENTS_REJECTED_TOTAL: Metric = Metric {
    name: "headwater_events_rejected_total",
    kind: Kind::Counter,
    help: "Events that could not become messages.",
};
pub const EVENTS_OVERSIZE_TOTAL: Metric = Metric {
    name: "headwater_events_oversize_total",
    kind: Kind::Counter,
    help: "Events whose body was too large for the bus and went by claim check.",
};
pub const IN_FLIGHT_EVENTS: Metric =
    Metric { name: "headwater_in_flight_events", kind: Kind::Gauge, help: "Events on their way to the bus." };
pub const IN_FLIGHT_BYTES: Metric =
    Metric { name: "headwater_in_flight_bytes", kind: Kind::Gauge, help: "Bytes on their way to the bus." };
pub const CHECKPOINT_SAVES_TOTAL: Metric =
    Metric { name: "headwater_checkpoint_saves_total", kind: Kind::Counter, help: "Checkpoints saved." };
pub const STORE_ERRORS_TOTAL: Metric = Metric {
    name: "headwater_store_errors_total",
    kind: Kind::Counter,
    help: "The producer's writes to MongoDB that had to be repeated.",
};
pub const SESSIONS_HELD: Metric =
    Metric { name: "headwater_sessions_held", kind: Kind::Gauge, help: "Sessions this pod holds." };
pub const SESSIONS_ACCEPTED_TOTAL: Metric =
    Metric { name: "headwater_sessions_accepted_total", kind: Kind::Counter, help: "Sessions accepted." };
pub const SESSIONS_DROPPED_TOTAL: Metric = Metric {
    name: "headwater_sessions_dropped_total",
    kind: Kind::Counter,
    help: "Sessions let go unsettled, because something failed.",
};
pub const SESSION_LOCKS_LOST_TOTAL: Metric =
    Metric { name: "headwater_session_locks_lost_total", kind: Kind::Counter, help: "Sessions whose lock was lost." };
pub const MESSAGES_RECEIVED_TOTAL: Metric = Metric {
    name: "headwater_messages_received_total",
    kind: Kind::Counter,
    help: "Messages received, those that came again included.",
};
pub const MESSAGES_REDELIVERED_TOTAL: Metric = Metric {
    name: "headwater_messages_redelivered_total",
    kind: Kind::Counter,
    help: "Messages received that the bus had given out before.",
};
pub const MESSAGES_SETTLED_TOTAL: Metric =
    Metric { name: "headwater_messages_settled_total", kind: Kind::Counter, help: "Messages settled." };
pub const DEAD_LETTERS_READ_TOTAL: Metric = Metric {
    name: "headwater_dead_letters_read_total",
    kind: Kind::Counter,
    help: "Dead letters this pod parked in their place, or left for people.",
};
pub const EVENTS_APPLIED_TOTAL: Metric =
    Metric { name: "headwater_events_applied_total", kind: Kind::Counter, help: "Events applied to the read models." };
pub const EVENTS_DUPLICATE_TOTAL: Metric = Metric {
    name: "headwater_events_duplicate_total",
    kind: Kind::Counter,
    help: "Events that had been applied before.",
};
pub const EVENTS_REGRESSED_TOTAL: Metric =
    Metric { name: "headwater_events_regressed_total", kind: Kind::Counter, help: "Events whose sequence went back." };
pub const EVENTS_PARKED_TOTAL: Metric = Metric {
    name: "headwater_events_parked_total",
    kind: Kind::Counter,
    help: "Events parked, or queued behind one that is.",
};
pub const GAPS_HEALED_TOTAL: Metric =
    Metric { name: "headwater_gaps_healed_total", kind: Kind::Counter, help: "Gaps filled from the source." };
pub const TRANSACTIONS_TOTAL: Metric = Metric {
    name: "headwater_transactions_total",
    kind: Kind::Counter,
    help: "Transactions of the applier, by how they ended: committed, conflict (run again), unknown.",
};
pub const INSERT_TO_READ_MODEL_SECONDS: Metric = Metric {
    name: "headwater_insert_to_read_model_seconds",
    kind: Kind::Histogram,
    help: "From an event's commit in the source to its read models' commit; the two clocks are the servers' and this pod's.",
};
pub const SERVICE_READY: Metric =
    Metric { name: "headwater_service_ready", kind: Kind::Gauge, help: "1 while the service does what its role asks." };
pub const LOOP_WEDGED: Metric = Metric {
    name: "headwater_loop_wedged",
    kind: Kind::Gauge,
    help: "1 while the loop shows no sign of life beyond its limit.",
};

/// In the order of the page.
pub const ALL: &[Metric] = &[
    LEADER_PRESENT,
    TERM,
    LAG_SECONDS,
    LAG_EVENTS,
    OPLOG_HEADROOM_SECONDS,
    CHECKPOINT_AGE_SECONDS,
    PODS,
    PODS_SILENT,
    PARKED_AGGREGATES,
    PARKED_EVENTS,
    REJECTED_EVENTS,
    SUBSCRIPTION_MESSAGES,
    DEAD_LETTERS,
    READ_MODEL_DOCUMENTS,
    PROBLEMS,
    STATUS_AGE_SECONDS,
    BUILD_INFO,
    LEADS,
    TERMS_TOTAL,
    EVENTS_CAPTURED_TOTAL,
    EVENTS_FOREIGN_TOTAL,
    CAPTURE_REOPENED_TOTAL,
    EVENTS_PUBLISHED_TOTAL,
    TRANSFERS_TOTAL,
    EVENTS_RESENT_TOTAL,
    EVENTS_REJECTED_TOTAL,
    EVENTS_OVERSIZE_TOTAL,
    IN_FLIGHT_EVENTS,
    IN_FLIGHT_BYTES,
    CHECKPOINT_SAVES_TOTAL,
    STORE_ERRORS_TOTAL,
    SESSIONS_HELD,
    SESSIONS_ACCEPTED_TOTAL,
    SESSIONS_DROPPED_TOTAL,
    SESSION_LOCKS_LOST_TOTAL,
    MESSAGES_RECEIVED_TOTAL,
    MESSAGES_REDELIVERED_TOTAL,
    MESSAGES_SETTLED_TOTAL,
    DEAD_LETTERS_READ_TOTAL,
    EVENTS_APPLIED_TOTAL,
    EVENTS_DUPLICATE_TOTAL,
    EVENTS_REGRESSED_TOTAL,
    EVENTS_PARKED_TOTAL,
    GAPS_HEALED_TOTAL,
    TRANSACTIONS_TOTAL,
    INSERT_TO_READ_MODEL_SECONDS,
    SERVICE_READY,
    LOOP_WEDGED,
];

/// The page. `None`: nothing has been gathered yet.
pub fn page(status: Option<&Status>, counters: &Counters, health: &Report) -> String {
    let mut page = Page::default();
    pipeline(&mut page, status);
    identity(&mut page, counters);
    producer(&mut page, counters);
    consumer(&mut page, counters);
    loops(&mut page, health);
    page.into_text()
}

/// Unknown is no sample, never 0.
fn pipeline(page: &mut Page, status: Option<&Status>) {
    let mut gauge = |metric: &Metric, value: Option<f64>| {
        let mut family = page.family(metric);
        if let Some(value) = value {
            family.sample(&[], value);
        }
    };
    let unread = status.is_none_or(|status| !status.gathered.missing.is_empty());
    let leader = status.and_then(|status| status.leader.as_ref());
    let number = |number: u64| number as f64;
    let heard = |silent| status.map(|status| status.pods.iter().filter(|pod| pod.silent == silent).count() as f64);
    // A lease that cannot be read says nothing about who leads.
    gauge(&LEADER_PRESENT, if leader.is_none() && unread { None } else { Some(f64::from(u8::from(leader.is_some()))) });
    gauge(&TERM, leader.map(|leader| number(leader.term)));
    gauge(&LAG_SECONDS, status.and_then(|status| status.lag.seconds));
    gauge(&LAG_EVENTS, status.and_then(|status| status.lag.events).map(number));
    gauge(&OPLOG_HEADROOM_SECONDS, status.and_then(|status| status.oplog.headroom_seconds));
    gauge(&CHECKPOINT_AGE_SECONDS, status.and_then(|status| status.checkpoint.as_ref()?.saved_seconds_ago));
    gauge(&PODS, heard(false));
    gauge(&PODS_SILENT, heard(true));
    gauge(&SUBSCRIPTION_MESSAGES, status.and_then(|status| status.bus.waiting).map(number));
    gauge(&DEAD_LETTERS, status.and_then(|status| status.bus.dead_letters).map(number));
    gauge(&STATUS_AGE_SECONDS, status.map(|status| status.gathered.seconds_ago));
    waiting(page, status);
}

fn waiting(page: &mut Page, status: Option<&Status>) {
    let parked = || status.and_then(|status| status.parked.as_ref()).into_iter().flatten();
    let mut family = page.family(&PARKED_AGGREGATES);
    parked().for_each(|parked| family.sample(&[("read_model", &parked.read_model)], parked.aggregates));
    let mut family = page.family(&PARKED_EVENTS);
    parked().for_each(|parked| family.sample(&[("read_model", &parked.read_model)], parked.events));
    let mut family = page.family(&REJECTED_EVENTS);
    for rejected in status.and_then(|status| status.rejected.as_ref()).into_iter().flatten() {
        family.sample(&[("reason", &rejected.reason)], rejected.events);
    }
    let mut family = page.family(&READ_MODEL_DOCUMENTS);
    for model in status.into_iter().flat_map(|status| &status.read_models) {
        if let Some(documents) = model.documents {
            family.sample(&[("read_model", &model.name)], documents);
        }
    }
    let mut family = page.family(&PROBLEMS);
    for (label, severity) in [("critical", Severity::Critical), ("warning", Severity::Warning)] {
        if let Some(status) = status {
            let count = status.problems.iter().filter(|problem| problem.severity == severity).count();
            family.sample(&[("severity", label)], count);
        }
    }
}

fn identity(page: &mut Page, counters: &Counters) {
    let labels = [("pod", &*counters.pod), ("version", &*counters.version)];
    page.family(&BUILD_INFO).sample(&labels, 1);
    page.family(&LEADS).sample(&[], u8::from(counters.leads));
    page.family(&TERMS_TOTAL).sample(&[], counters.terms);
}

fn producer(page: &mut Page, counters: &Counters) {
    let mut plain = |metric: &Metric, value: u64| page.family(metric).sample(&[], value);
    plain(&EVENTS_CAPTURED_TOTAL, counters.captured);
    plain(&EVENTS_FOREIGN_TOTAL, counters.foreign);
    plain(&CAPTURE_REOPENED_TOTAL, counters.reopened);
    plain(&EVENTS_PUBLISHED_TOTAL, counters.published);
    plain(&TRANSFERS_TOTAL, counters.transfers);
    plain(&EVENTS_REJECTED_TOTAL, counters.rejected);
    plain(&EVENTS_OVERSIZE_TOTAL, counters.oversize);
    plain(&IN_FLIGHT_EVENTS, counters.in_flight_events);
    plain(&IN_FLIGHT_BYTES, counters.in_flight_bytes);
    plain(&CHECKPOINT_SAVES_TOTAL, counters.saves);
    plain(&STORE_ERRORS_TOTAL, counters.store_errors);
    let mut family = page.family(&EVENTS_RESENT_TOTAL);
    family.sample(&[("why", "uncertain")], counters.uncertain);
    family.sample(&[("why", "refused")], counters.retried);
}

fn consumer(page: &mut Page, counters: &Counters) {
    let mut plain = |metric: &Metric, value: u64| page.family(metric).sample(&[], value);
    plain(&SESSIONS_HELD, counters.sessions_held);
    plain(&SESSIONS_ACCEPTED_TOTAL, counters.sessions_accepted);
    plain(&SESSIONS_DROPPED_TOTAL, counters.sessions_dropped);
    plain(&SESSION_LOCKS_LOST_TOTAL, counters.locks_lost);
    plain(&MESSAGES_RECEIVED_TOTAL, counters.received);
    plain(&MESSAGES_REDELIVERED_TOTAL, counters.redelivered);
    plain(&MESSAGES_SETTLED_TOTAL, counters.settled);
    plain(&EVENTS_APPLIED_TOTAL, counters.applied);
    plain(&EVENTS_DUPLICATE_TOTAL, counters.duplicates);
    plain(&EVENTS_REGRESSED_TOTAL, counters.regressed);
    plain(&EVENTS_PARKED_TOTAL, counters.parked);
    plain(&GAPS_HEALED_TOTAL, counters.gaps_healed);
    let mut family = page.family(&DEAD_LETTERS_READ_TOTAL);
    family.sample(&[("fate", "parked")], counters.dead_letters_parked);
    family.sample(&[("fate", "left")], counters.dead_letters_left);
    let mut family = page.family(&TRANSACTIONS_TOTAL);
    family.sample(&[("outcome", "committed")], counters.transactions);
    family.sample(&[("outcome", "conflict")], counters.conflicts);
    family.sample(&[("outcome", "unknown")], counters.unknown_commits);
    page.family(&INSERT_TO_READ_MODEL_SECONDS).histogram(&counters.latency);
}

fn loops(page: &mut Page, health: &Report) {
    let mut family = page.family(&SERVICE_READY);
    for service in &health.services {
        family.sample(&[("service", service.name)], u8::from(service.ready));
    }
    let mut family = page.family(&LOOP_WEDGED);
    for service in &health.services {
        for one in &service.loops {
            let wedged = u8::from(one.state == LoopState::Wedged);
            family.sample(&[("service", service.name), ("loop", one.name)], wedged);
        }
    }
}
