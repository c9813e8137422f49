//! All metrics in one table: name, meaning, and the source of the value.
//!
//! The first part describes the whole pipeline as this pod last saw it. Every pod reports the same values, so aggregate them with `max`. The second
//! part describes this pod alone; aggregate its counters with `sum`. `docs/operations.md` lists the label values.

use crate::counters::PodCounters;
use crate::exposition::{ExpositionPage, MetricFamily};
use crate::health::{HealthReport, LoopState};
use crate::status::{ParkedCount, PipelineStatus, PodStatus, ProblemSeverity, REJECTION_REASONS};

/// One row of the table.
#[derive(Clone, Copy, Debug)]
pub struct Metric {
    pub name: &'static str,
    pub kind: MetricKind,
    pub help: &'static str,
    source: MetricSource,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricKind {
    Counter,
    Gauge,
    Histogram,
}

/// Reads the value. The `By` variants have one sample per value of a label.
#[derive(Clone, Copy, Debug)]
enum MetricSource {
    Pipeline(fn(&PipelineStatus) -> Option<f64>),
    PipelineBy(&'static str, fn(&PipelineStatus) -> Vec<(&str, f64)>),
    Pod(fn(&PodCounters) -> u64),
    PodBy(&'static str, fn(&PodCounters) -> Vec<(&str, u64)>),
    Identity,
    Latency,
    Services,
    Loops,
}

/// In the order of the page.
pub const METRICS: &[Metric] = &[
    // The pipeline, as this pod last saw it.
    pipeline("headwater_leader_present", "1 while the lease has a holder and is not expired.", leader_present),
    pipeline("headwater_term", "Term of the present leader.", |status| to_sample(status.leader.as_ref()?.term)),
    pipeline(
        "headwater_lag_seconds",
        "How far the checkpoint is behind the newest operation of the source.",
        |status| status.lag.seconds,
    ),
    pipeline(
        "headwater_lag_events",
        "Events read but not acknowledged by Service Bus, plus active messages of the subscription; a lower bound while the read-ahead buffer is full.",
        // Without the count of active messages the sum is unknown, not smaller.
        |status| status.subscription.active_messages.and(status.lag.events).and_then(to_sample),
    ),
    pipeline(
        "headwater_oplog_headroom_seconds",
        "Time until the oplog drops the checkpoint position, if the checkpoint does not advance.",
        |status| status.oplog.headroom_seconds,
    ),
    pipeline("headwater_checkpoint_age_seconds", "Time since the checkpoint was saved.", |status| {
        status.checkpoint.as_ref()?.saved_seconds_ago
    }),
    pipeline("headwater_pods", "Pods with a recent heartbeat.", |status| count_pods(&status.pods, |pod| !pod.silent)),
    pipeline("headwater_pods_silent", "Pods whose heartbeat is overdue.", |status| {
        count_pods(&status.pods, |pod| pod.silent)
    }),
    pipeline_by("headwater_parked_aggregates", "Parked aggregates, by read model.", "read_model", |status| {
        parked(status, |parked| parked.aggregates)
    }),
    pipeline_by("headwater_parked_events", "Parked events, by read model.", "read_model", |status| {
        parked(status, |parked| parked.events)
    }),
    pipeline_by("headwater_rejected_events", "Rejected events in the store, by reason.", "reason", rejected),
    pipeline("headwater_subscription_messages", "Active messages of the subscription: not settled yet.", |status| {
        to_sample(status.subscription.active_messages?)
    }),
    pipeline("headwater_dead_letters", "Messages in the dead-letter queue.", |status| {
        to_sample(status.subscription.dead_letters?)
    }),
    pipeline_by("headwater_read_model_documents", "Documents, by read model.", "read_model", |status| {
        let known = status.read_models.iter().filter_map(|model| Some((&*model.name, to_sample(model.documents?)?)));
        known.collect()
    }),
    pipeline_by(
        "headwater_read_model_age_seconds",
        "Time since a pod last applied an event, by read model.",
        "read_model",
        |status| {
            status.read_models.iter().filter_map(|model| Some((&*model.name, model.applied_seconds_ago?))).collect()
        },
    ),
    pipeline_by("headwater_problems", "Problems found by `status`, by severity.", "severity", problems),
    pipeline("headwater_status_age_seconds", "Age of the pipeline metrics above.", |status| {
        Some(status.collected.seconds_ago)
    }),
    // This pod.
    gauge("headwater_build_info", "Always 1; labels hold the pod id and its version.", MetricSource::Identity),
    pod_gauge("headwater_is_leader", "1 while this pod is the leader.", |pod| pod.leads.into()),
    pod_counter("headwater_terms_total", "Terms in which this pod was the leader.", |pod| pod.terms),
    pod_counter("headwater_events_captured_total", "Events read from the source.", |pod| pod.captured),
    pod_counter(
        "headwater_changes_ignored_total",
        "Changes to a source of kind `events` that are not inserts; they are not published.",
        |pod| pod.foreign,
    ),
    pod_counter("headwater_capture_reopened_total", "Times the change stream was reopened.", |pod| pod.reopened),
    pod_counter("headwater_events_published_total", "Events acknowledged by Service Bus.", |pod| pod.published),
    pod_counter("headwater_transfers_total", "Transfers that carried these events.", |pod| pod.transfers),
    pod_counter_by(
        "headwater_events_republished_total",
        "Events sent again: the first acknowledgement was lost (unacknowledged), or Service Bus refused for now (refused).",
        "reason",
        |pod| vec![("unacknowledged", pod.uncertain), ("refused", pod.retried)],
    ),
    pod_counter("headwater_events_rejected_total", "Events that could not be turned into messages.", |pod| {
        pod.rejected
    }),
    pod_counter("headwater_events_oversize_total", "Events too large for a message, sent by claim check.", |pod| {
        pod.oversize
    }),
    pod_gauge("headwater_in_flight_events", "Events sent or buffered, and not acknowledged yet.", |pod| {
        pod.in_flight_events
    }),
    pod_gauge("headwater_in_flight_bytes", "Bytes of the events in flight.", |pod| pod.in_flight_bytes),
    pod_counter("headwater_checkpoint_saves_total", "Checkpoints saved.", |pod| pod.saves),
    pod_counter("headwater_store_errors_total", "Failed MongoDB writes of the producer; each is retried.", |pod| {
        pod.store_errors
    }),
    pod_gauge("headwater_sessions_held", "Sessions that this pod holds.", |pod| pod.sessions_held),
    pod_counter("headwater_sessions_accepted_total", "Sessions accepted.", |pod| pod.sessions_accepted),
    pod_counter(
        "headwater_sessions_dropped_total",
        "Sessions closed with unsettled messages, because of a failure.",
        |pod| pod.sessions_dropped,
    ),
    pod_counter("headwater_session_locks_lost_total", "Sessions whose lock was lost.", |pod| pod.locks_lost),
    pod_counter("headwater_messages_received_total", "Messages received, including redelivered ones.", |pod| {
        pod.received
    }),
    pod_counter(
        "headwater_messages_redelivered_total",
        "Messages received that Service Bus had delivered before.",
        |pod| pod.redelivered,
    ),
    pod_counter("headwater_messages_settled_total", "Messages settled.", |pod| pod.settled),
    pod_counter_by(
        "headwater_dead_letters_read_total",
        "Dead letters read: parked in their read model (parked), or left in the dead-letter queue for an operator (left).",
        "action",
        |pod| vec![("parked", pod.dead_letters_parked), ("left", pod.dead_letters_left)],
    ),
    pod_counter("headwater_events_applied_total", "Events applied to the read models.", |pod| pod.applied),
    pod_counter_by("headwater_read_model_events_total", "Events applied, by read model.", "read_model", |pod| {
        pod.applied_in.iter().map(|(model, applied)| (&**model, *applied)).collect()
    }),
    pod_counter("headwater_events_duplicate_total", "Events skipped because they were applied before.", |pod| {
        pod.duplicates
    }),
    pod_counter(
        "headwater_events_regressed_total",
        "Events with a lower sequence than the cursor, and not duplicates.",
        |pod| pod.regressed,
    ),
    pod_counter("headwater_events_parked_total", "Events parked, or queued behind a parked event.", |pod| pod.parked),
    pod_counter("headwater_gaps_healed_total", "Gaps filled from the source.", |pod| pod.gaps_healed),
    pod_counter_by(
        "headwater_transactions_total",
        "Transactions of the applier: committed, conflict (retried), or unknown (commit result lost).",
        "outcome",
        |pod| vec![("committed", pod.transactions), ("conflict", pod.conflicts), ("unknown", pod.unknown_commits)],
    ),
    Metric {
        name: "headwater_insert_to_read_model_seconds",
        kind: MetricKind::Histogram,
        help: "Time from the commit in the source to the commit of the read models, measured with two clocks: the source's and this pod's.",
        source: MetricSource::Latency,
    },
    gauge("headwater_service_ready", "1 while the service does the work of its role.", MetricSource::Services),
    gauge(
        "headwater_loop_stalled",
        "1 while the last heartbeat of the loop is older than its limit.",
        MetricSource::Loops,
    ),
];

/// The page. `status` is `None` until the first collection.
pub fn render(status: Option<&PipelineStatus>, counters: &PodCounters, health: &HealthReport) -> String {
    let mut page = ExpositionPage::default();
    for metric in METRICS {
        let mut family = page.family(metric);
        match metric.source {
            MetricSource::Pipeline(read) => {
                if let Some(value) = status.and_then(read) {
                    family.sample(&[], value);
                }
            }
            MetricSource::PipelineBy(label, read) => {
                let samples = status.map(read).unwrap_or_default();
                samples.into_iter().for_each(|(name, value)| family.sample(&[(label, name)], value));
            }
            MetricSource::Pod(read) => family.sample(&[], read(counters)),
            MetricSource::PodBy(label, read) => {
                read(counters).into_iter().for_each(|(name, value)| family.sample(&[(label, name)], value));
            }
            MetricSource::Identity => family.sample(&[("pod", &counters.pod), ("version", &counters.version)], 1),
            MetricSource::Latency => family.histogram(&counters.latency),
            MetricSource::Services => services(&mut family, health),
            MetricSource::Loops => loops(&mut family, health),
        }
    }
    page.into_text()
}

const fn gauge(name: &'static str, help: &'static str, source: MetricSource) -> Metric {
    Metric { name, kind: MetricKind::Gauge, help, source }
}

/// An unknown value has no sample; it is never 0.
const fn pipeline(name: &'static str, help: &'static str, read: fn(&PipelineStatus) -> Option<f64>) -> Metric {
    gauge(name, help, MetricSource::Pipeline(read))
}

const fn pipeline_by(
    name: &'static str,
    help: &'static str,
    label: &'static str,
    read: fn(&PipelineStatus) -> Vec<(&str, f64)>,
) -> Metric {
    gauge(name, help, MetricSource::PipelineBy(label, read))
}

/// A present value of this pod.
const fn pod_gauge(name: &'static str, help: &'static str, read: fn(&PodCounters) -> u64) -> Metric {
    gauge(name, help, MetricSource::Pod(read))
}

/// A total of this pod since its start.
const fn pod_counter(name: &'static str, help: &'static str, read: fn(&PodCounters) -> u64) -> Metric {
    Metric { name, kind: MetricKind::Counter, help, source: MetricSource::Pod(read) }
}

const fn pod_counter_by(
    name: &'static str,
    help: &'static str,
    label: &'static str,
    read: fn(&PodCounters) -> Vec<(&str, u64)>,
) -> Metric {
    Metric { name, kind: MetricKind::Counter, help, source: MetricSource::PodBy(label, read) }
}

fn to_sample(number: u64) -> Option<f64> {
    Some(number as f64)
}

fn count_pods(pods: &[PodStatus], which: fn(&PodStatus) -> bool) -> Option<f64> {
    Some(pods.iter().filter(|pod| which(pod)).count() as f64)
}

/// One sample per read model; none while the parked events are unknown.
fn parked(status: &PipelineStatus, count: fn(&ParkedCount) -> u64) -> Vec<(&str, f64)> {
    let Some(parked) = &status.parked else { return vec![] };
    let some = parked.iter().map(|parked| (&*parked.read_model, count(parked) as f64));
    with_zeros(some.collect(), status.read_models.iter().map(|model| &*model.name))
}

/// One sample per reason; none while the rejected events are unknown.
fn rejected(status: &PipelineStatus) -> Vec<(&str, f64)> {
    let Some(rejected) = &status.rejected else { return vec![] };
    let some = rejected.iter().map(|rejected| (&*rejected.reason, rejected.events as f64));
    with_zeros(some.collect(), REJECTION_REASONS.iter().copied())
}

/// Adds a 0 for every name without a sample.
fn with_zeros<'a>(mut samples: Vec<(&'a str, f64)>, all: impl Iterator<Item = &'a str>) -> Vec<(&'a str, f64)> {
    let absent: Vec<_> = all.filter(|name| samples.iter().all(|(found, _)| found != name)).collect();
    samples.extend(absent.into_iter().map(|name| (name, 0.0)));
    samples
}

/// Unknown while the lease cannot be read.
fn leader_present(status: &PipelineStatus) -> Option<f64> {
    match &status.leader {
        Some(_) => Some(1.0),
        None if status.collected.unavailable.is_empty() => Some(0.0),
        None => None,
    }
}

fn problems(status: &PipelineStatus) -> Vec<(&str, f64)> {
    let count = |severity| status.problems.iter().filter(|problem| problem.severity == severity).count() as f64;
    vec![("critical", count(ProblemSeverity::Critical)), ("warning", count(ProblemSeverity::Warning))]
}

fn services(family: &mut MetricFamily<'_>, health: &HealthReport) {
    for service in &health.services {
        family.sample(&[("service", service.name)], u8::from(service.ready));
    }
}

fn loops(family: &mut MetricFamily<'_>, health: &HealthReport) {
    for service in &health.services {
        for one in &service.loops {
            let stalled = u8::from(one.state == LoopState::Stalled);
            family.sample(&[("service", service.name), ("loop", one.name)], stalled);
        }
    }
}
