//! The metrics of the pipeline in one table (name, meaning, and the source of the value), and the page with those and the samples of this pod.
//!
//! The table describes the whole pipeline as this pod last saw it. Every pod reports the same values, so aggregate them with `max`. The samples
//! describe this pod alone; aggregate its counters with `sum`. The components of the pod declare them. `docs/operations.md` lists all metrics.

use crate::exposition::{ExpositionPage, MetricFamily};
use crate::health::{HealthReport, LoopState};
use crate::latency::LatencyBuckets;
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
    pipeline_by(
        "headwater_read_model_incomplete",
        "1 for a read model that was added or changed after events had been applied, until it is accepted.",
        "read_model",
        |status| {
            let models = status.read_models.iter();
            models.filter_map(|model| Some((&*model.name, to_sample(model.incomplete.is_some().into())?))).collect()
        },
    ),
    pipeline(
        "headwater_audit_age_seconds",
        "Time since the last round of the audit ended, or since the audit was first enabled.",
        |status| status.audit.as_ref().filter(|audit| audit.is_proving())?.age_seconds,
    ),
    pipeline("headwater_audit_overdue", "1 while the last round of the audit is older than its period.", |status| {
        let audit = status.audit.as_ref().filter(|audit| audit.is_proving())?;
        to_sample(audit.is_overdue().into())
    }),
    pipeline(
        "headwater_audit_found_aggregates",
        "Aggregates that missed events, in the present round of the audit and in the last one.",
        |status| to_sample(status.audit.as_ref()?.found()),
    ),
    pipeline(
        "headwater_audit_missing_aggregates",
        "Aggregates that miss events and could not be healed yet.",
        |status| to_sample(status.audit.as_ref()?.missing),
    ),
    pipeline_by("headwater_problems", "Problems found by `status`, by severity.", "severity", problems),
    pipeline("headwater_status_age_seconds", "Age of the pipeline metrics above.", |status| {
        Some(status.collected.seconds_ago)
    }),
    // This pod.
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

/// A value of this pod. By Prometheus convention a name that ends with `_total` is a counter, and any other a gauge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodSample {
    pub name: &'static str,
    pub help: &'static str,
    pub labels: Vec<(&'static str, String)>,
    pub value: u64,
}

/// What the page shows of one pipeline.
#[derive(Clone, Debug)]
pub struct PipelineMetrics {
    /// The label of every sample; `None` without a list of pipelines.
    pub pipeline: Option<String>,
    /// `None` until the first collection.
    pub status: Option<PipelineStatus>,
    pub samples: Vec<PodSample>,
    pub latency: LatencyBuckets,
    pub health: HealthReport,
}

/// The page. All samples of one metric follow each other, as the format requires.
pub fn render(pipelines: &[PipelineMetrics]) -> String {
    let mut page = ExpositionPage::default();
    let mut described: Vec<&PodSample> = vec![];
    for sample in pipelines.iter().flat_map(|pipeline| &pipeline.samples) {
        if described.iter().all(|known| known.name != sample.name) {
            described.push(sample);
        }
    }
    for PodSample { name, help, .. } in described {
        let kind = if name.ends_with("_total") { MetricKind::Counter } else { MetricKind::Gauge };
        let mut family = page.start_family(name, kind, help);
        for one in pipelines {
            family.set_pipeline(one.pipeline.as_deref());
            for sample in one.samples.iter().filter(|sample| sample.name == *name) {
                let labels: Vec<_> = sample.labels.iter().map(|(label, value)| (*label, value.as_str())).collect();
                family.sample(&labels, sample.value);
            }
        }
    }
    for metric in METRICS {
        let mut family = page.family(metric);
        for one in pipelines {
            family.set_pipeline(one.pipeline.as_deref());
            add_samples(&mut family, metric.source, one);
        }
    }
    page.into_text()
}

fn add_samples(family: &mut MetricFamily<'_>, source: MetricSource, one: &PipelineMetrics) {
    let status = one.status.as_ref();
    match source {
        MetricSource::Pipeline(read) => {
            if let Some(value) = status.and_then(read) {
                family.sample(&[], value);
            }
        }
        MetricSource::PipelineBy(label, read) => {
            let samples = status.map(read).unwrap_or_default();
            samples.into_iter().for_each(|(name, value)| family.sample(&[(label, name)], value));
        }
        MetricSource::Latency => family.histogram(&one.latency),
        MetricSource::Services => services(family, &one.health),
        MetricSource::Loops => loops(family, &one.health),
    }
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
