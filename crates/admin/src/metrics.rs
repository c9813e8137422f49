//! Every metric there is, in one table: its name, its meaning, and where its value comes from.
//!
//! The first part is the whole pipeline as this pod last saw it: every pod tells the same, so take `max` over pods. The second is this pod
//! alone: sum what is counted. Label values: `read_model` is a configured name; `reason` a rejection's code; `severity` critical or warning; `why`
//! uncertain or refused; `fate` parked or left; `outcome` committed, conflict or unknown; `service` and `loop` as in `/healthz`.

use crate::counters::PodCounters;
use crate::exposition::{ExpositionPage, MetricFamily};
use crate::health::{HealthReport, LoopState};
use crate::status::{ParkedCount, PipelineStatus, PodStatus, ProblemSeverity, REASONS};

/// A row of the table.
#[derive(Clone, Copy, Debug)]
pub struct Metric {
    pub name: &'static str,
    pub kind: MetricKind,
    pub help: &'static str,
    read: MetricSource,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricKind {
    Counter,
    Gauge,
    Histogram,
}

/// Where the value comes from; with a label, one sample for each of its values.
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
pub const ALL: &[Metric] = &[
    // The pipeline, as this pod last saw it.
    pipeline("headwater_leader_present", "1 while the lease names a leader and has not run out.", leader_present),
    pipeline("headwater_term", "The present leader's term.", |status| number(status.leader.as_ref()?.term)),
    pipeline("headwater_lag_seconds", "How far the checkpoint is behind the source's newest operation.", |status| {
        status.lag.seconds
    }),
    pipeline(
        "headwater_lag_events",
        "Events read and not acknowledged by the bus, plus messages that wait on the bus; a lower bound while the read-ahead is full.",
        // What the bus does not say is not 0.
        |status| status.subscription.active_messages.and(status.lag.events).and_then(number),
    ),
    pipeline(
        "headwater_oplog_headroom_seconds",
        "How long the checkpoint could stand still before the oplog no longer holds what follows it.",
        |status| status.oplog.headroom_seconds,
    ),
    pipeline("headwater_checkpoint_age_seconds", "Since the checkpoint was last saved.", |status| {
        status.checkpoint.as_ref()?.saved_seconds_ago
    }),
    pipeline("headwater_pods", "Pods that are heard of.", |status| count(&status.pods, |pod| !pod.silent)),
    pipeline("headwater_pods_silent", "Pods that should have been heard of, and are not.", |status| {
        count(&status.pods, |pod| pod.silent)
    }),
    pipeline_by("headwater_parked_aggregates", "Aggregates that wait, by read model.", "read_model", |status| {
        parked(status, |parked| parked.aggregates)
    }),
    pipeline_by("headwater_parked_events", "Events that wait, by read model.", "read_model", |status| {
        parked(status, |parked| parked.events)
    }),
    pipeline_by("headwater_rejected_events", "RejectedCount events that are kept, by reason.", "reason", rejected),
    pipeline("headwater_subscription_messages", "Messages that wait on the bus or are being applied.", |status| {
        number(status.subscription.active_messages?)
    }),
    pipeline("headwater_dead_letters", "Dead letters on the bus.", |status| number(status.subscription.dead_letters?)),
    pipeline_by("headwater_read_model_documents", "Documents, by read model.", "read_model", |status| {
        let known = status.read_models.iter().filter_map(|model| Some((&*model.name, number(model.documents?)?)));
        known.collect()
    }),
    pipeline_by(
        "headwater_read_model_age_seconds",
        "Since a pod last applied an event to it, by read model.",
        "read_model",
        |status| {
            status.read_models.iter().filter_map(|model| Some((&*model.name, model.applied_seconds_ago?))).collect()
        },
    ),
    pipeline_by("headwater_problems", "What is wrong, by severity.", "severity", problems),
    pipeline(
        "headwater_status_age_seconds",
        "How old the figures above are: they were collected by this pod, of the whole pipeline.",
        |status| Some(status.collected.seconds_ago),
    ),
    // This pod.
    gauge("headwater_build_info", "Always 1; which pod this is and what it runs.", MetricSource::Identity),
    held("headwater_leads", "1 while this pod leads.", |pod| pod.leads.into()),
    counted("headwater_terms_total", "Terms this pod has gained.", |pod| pod.terms),
    counted("headwater_events_captured_total", "Events read from the source.", |pod| pod.captured),
    counted(
        "headwater_events_foreign_total",
        "Changes to a source of events that are no inserts; they are not published.",
        |pod| pod.foreign,
    ),
    counted("headwater_capture_reopened_total", "How often the change stream was opened again.", |pod| pod.reopened),
    counted("headwater_events_published_total", "Events acknowledged by the bus.", |pod| pod.published),
    counted("headwater_transfers_total", "Transfers these events went in.", |pod| pod.transfers),
    counted_by(
        "headwater_events_resent_total",
        "Events sent again, because the first try may have been lost (uncertain) or the bus said no for now (refused).",
        "why",
        |pod| vec![("uncertain", pod.uncertain), ("refused", pod.retried)],
    ),
    counted("headwater_events_rejected_total", "Events that could not become messages.", |pod| pod.rejected),
    counted(
        "headwater_events_oversize_total",
        "Events whose body was too large for the bus and went by claim check.",
        |pod| pod.oversize,
    ),
    held("headwater_in_flight_events", "Events on their way to the bus.", |pod| pod.in_flight_events),
    held("headwater_in_flight_bytes", "Bytes on their way to the bus.", |pod| pod.in_flight_bytes),
    counted("headwater_checkpoint_saves_total", "Checkpoints saved.", |pod| pod.saves),
    counted("headwater_store_errors_total", "The producer's writes to MongoDB that had to be repeated.", |pod| {
        pod.store_errors
    }),
    held("headwater_sessions_held", "Sessions this pod holds.", |pod| pod.sessions_held),
    counted("headwater_sessions_accepted_total", "Sessions accepted.", |pod| pod.sessions_accepted),
    counted("headwater_sessions_dropped_total", "Sessions let go unsettled, because something failed.", |pod| {
        pod.sessions_dropped
    }),
    counted("headwater_session_locks_lost_total", "Sessions whose lock was lost.", |pod| pod.locks_lost),
    counted("headwater_messages_received_total", "Messages received, those that came again included.", |pod| {
        pod.received
    }),
    counted("headwater_messages_redelivered_total", "Messages received that the bus had given out before.", |pod| {
        pod.redelivered
    }),
    counted("headwater_messages_settled_total", "Messages settled.", |pod| pod.settled),
    counted_by(
        "headwater_dead_letters_read_total",
        "Dead letters this pod parked in their place, or left for people.",
        "fate",
        |pod| vec![("parked", pod.dead_letters_parked), ("left", pod.dead_letters_left)],
    ),
    counted("headwater_events_applied_total", "Events applied to the read models.", |pod| pod.applied),
    counted_by("headwater_read_model_events_total", "Events applied, by read model.", "read_model", |pod| {
        pod.applied_in.iter().map(|(model, applied)| (&**model, *applied)).collect()
    }),
    counted("headwater_events_duplicate_total", "Events that had been applied before.", |pod| pod.duplicates),
    counted("headwater_events_regressed_total", "Events whose sequence went back.", |pod| pod.regressed),
    counted("headwater_events_parked_total", "Events parked, or queued behind one that is.", |pod| pod.parked),
    counted("headwater_gaps_healed_total", "Gaps filled from the source.", |pod| pod.gaps_healed),
    counted_by(
        "headwater_transactions_total",
        "Transactions of the applier, by how they ended: committed, conflict (run again), unknown.",
        "outcome",
        |pod| vec![("committed", pod.transactions), ("conflict", pod.conflicts), ("unknown", pod.unknown_commits)],
    ),
    Metric {
        name: "headwater_insert_to_read_model_seconds",
        kind: MetricKind::Histogram,
        help: "From an event's commit in the source to its read models' commit; the two clocks are the servers' and this pod's.",
        read: MetricSource::Latency,
    },
    gauge("headwater_service_ready", "1 while the service does what its role asks.", MetricSource::Services),
    gauge("headwater_loop_wedged", "1 while the loop shows no sign of life beyond its limit.", MetricSource::Loops),
];

/// The page. `None`: nothing has been collected yet.
pub fn page(status: Option<&PipelineStatus>, counters: &PodCounters, health: &HealthReport) -> String {
    let mut page = ExpositionPage::default();
    for metric in ALL {
        let mut family = page.family(metric);
        match metric.read {
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

const fn gauge(name: &'static str, help: &'static str, read: MetricSource) -> Metric {
    Metric { name, kind: MetricKind::Gauge, help, read }
}

/// Unknown is no sample, never 0.
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

/// Of this pod, as of now.
const fn held(name: &'static str, help: &'static str, read: fn(&PodCounters) -> u64) -> Metric {
    gauge(name, help, MetricSource::Pod(read))
}

/// By this pod, since its start.
const fn counted(name: &'static str, help: &'static str, read: fn(&PodCounters) -> u64) -> Metric {
    Metric { name, kind: MetricKind::Counter, help, read: MetricSource::Pod(read) }
}

const fn counted_by(
    name: &'static str,
    help: &'static str,
    label: &'static str,
    read: fn(&PodCounters) -> Vec<(&str, u64)>,
) -> Metric {
    Metric { name, kind: MetricKind::Counter, help, read: MetricSource::PodBy(label, read) }
}

fn number(number: u64) -> Option<f64> {
    Some(number as f64)
}

fn count(pods: &[PodStatus], which: fn(&PodStatus) -> bool) -> Option<f64> {
    Some(pods.iter().filter(|pod| which(pod)).count() as f64)
}

/// Of every read model; nothing at all while it is not known what is parked.
fn parked(status: &PipelineStatus, count: fn(&ParkedCount) -> u64) -> Vec<(&str, f64)> {
    let Some(parked) = &status.parked else { return vec![] };
    let some = parked.iter().map(|parked| (&*parked.read_model, count(parked) as f64));
    with_none(some.collect(), status.read_models.iter().map(|model| &*model.name))
}

/// For every reason, likewise.
fn rejected(status: &PipelineStatus) -> Vec<(&str, f64)> {
    let Some(rejected) = &status.rejected else { return vec![] };
    let some = rejected.iter().map(|rejected| (&*rejected.reason, rejected.events as f64));
    with_none(some.collect(), REASONS.iter().copied())
}

/// With a 0 for whom nothing is said.
fn with_none<'a>(mut some: Vec<(&'a str, f64)>, all: impl Iterator<Item = &'a str>) -> Vec<(&'a str, f64)> {
    let none: Vec<_> = all.filter(|name| some.iter().all(|(found, _)| found != name)).collect();
    some.extend(none.into_iter().map(|name| (name, 0.0)));
    some
}

/// A lease that cannot be read says nothing about who leads.
fn leader_present(status: &PipelineStatus) -> Option<f64> {
    match &status.leader {
        Some(_) => Some(1.0),
        None if status.collected.unavailable.is_empty() => Some(0.0),
        None => None,
    }
}

fn problems(status: &PipelineStatus) -> Vec<(&str, f64)> {
    let severe = |severity| status.problems.iter().filter(|problem| problem.severity == severity).count() as f64;
    vec![("critical", severe(ProblemSeverity::Critical)), ("warning", severe(ProblemSeverity::Warning))]
}

fn services(family: &mut MetricFamily<'_>, health: &HealthReport) {
    for service in &health.services {
        family.sample(&[("service", service.name)], u8::from(service.ready));
    }
}

fn loops(family: &mut MetricFamily<'_>, health: &HealthReport) {
    for service in &health.services {
        for one in &service.loops {
            let wedged = u8::from(one.state == LoopState::Stalled);
            family.sample(&[("service", service.name), ("loop", one.name)], wedged);
        }
    }
}
