//! The state of this pod, read from the handles of its services on every request: health, counters, and the announcement.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use admin::{
    LatencyBuckets, LatencyHistogram, PodHealth, PodSample, PodServiceHealth, PodTelemetry, Readiness, StatusCache,
};
use lease::{LeaseSpread, LeaseStatus};
use pipeline::counters::MetricSample;
use pipeline::{audit, capture, consumer, producer, publish};
use servicebus::entra::TokenSource;

use super::heartbeats::BackgroundLoopHeartbeats;
use super::liveness::LoopMonitor;
use super::service_state::{self, ServiceState};
use super::token_state;
use crate::pods::Announcement;
use crate::status::THE_LEASE;

/// The services of one pod.
pub(crate) struct PodServices {
    pub(crate) pod_id: String,
    pub(crate) ttl: Duration,
    pub(crate) lease: lease::Handle,
    /// The leases of the whole process.
    pub(crate) spread: LeaseSpread,
    pub(crate) producer: producer::Handle,
    /// `None` without read models.
    pub(crate) consumer: Option<consumer::Handle>,
    /// `None` without read models, or with the audit off.
    pub(crate) audit: Option<audit::Handle>,
    /// Tokens of Entra ID; `None` with a connection string.
    pub(crate) tokens: Option<Arc<TokenSource>>,
    /// Filled by the apply observer.
    pub(crate) latency: LatencyHistogram,
    /// Generation of its set of read models.
    pub(crate) generation: Option<String>,
}

pub(crate) struct PodMonitor {
    services: PodServices,
    status_cache: Arc<StatusCache>,
    loop_monitor: LoopMonitor,
    heartbeats: BackgroundLoopHeartbeats,
    terms: AtomicU64,
    stopping: AtomicBool,
}

impl PodMonitor {
    pub(crate) fn new(services: PodServices, status_cache: Arc<StatusCache>) -> Self {
        let (loop_monitor, heartbeats) = (LoopMonitor::default(), BackgroundLoopHeartbeats::new(Instant::now()));
        Self {
            services,
            status_cache,
            loop_monitor,
            heartbeats,
            terms: AtomicU64::new(0),
            stopping: AtomicBool::new(false),
        }
    }

    pub(crate) fn heartbeats(&self) -> &BackgroundLoopHeartbeats {
        &self.heartbeats
    }

    pub(crate) fn lease(&self) -> &lease::Handle {
        &self.services.lease
    }

    /// The first step of a stop: the pod is not ready from now on.
    pub(crate) fn set_stopping(&self) {
        self.stopping.store(true, Relaxed);
    }

    pub(crate) fn count_term(&self) {
        self.terms.fetch_add(1, Relaxed);
    }

    /// Events published and applied by this pod since its start.
    pub(crate) fn totals(&self) -> (u64, u64) {
        let PodServices { producer, consumer, .. } = &self.services;
        let applied = consumer.as_ref().map_or(0, |consumer| consumer.counts().events.applied);
        (producer.publish_handle().counts().published, applied)
    }

    /// The present state. The announcer adds rates, latencies and the address.
    pub(crate) fn announcement(&self, now: Instant) -> Announcement {
        let PodServices { lease, producer, consumer, .. } = &self.services;
        let (producer_state, consumer_state) = (self.producer_state(), self.consumer_state());
        let is_leader = lease.is_leader();
        let capture = self.capture_status();
        let mut problems: Vec<_> = producer_state.problem.iter().cloned().collect();
        problems.extend(consumer_state.as_ref().and_then(|state| state.problem.clone()));
        problems.extend(self.services.tokens.as_deref().and_then(|tokens| token_state::problem(&tokens.health(), now)));
        problems.extend(self.stalled_loops(now));
        Announcement {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            generation: self.services.generation.clone(),
            applies: Some(consumer.as_ref().map_or(0, |consumer| consumer.applier().generation())),
            producer: producer_state.state,
            consumer: consumer_state.map_or_else(|| "none".to_owned(), |state| state.state),
            problems,
            sessions: consumer.as_ref().map(|consumer| consumer.counts().sessions.held),
            unverified: consumer.as_ref().map(|consumer| consumer.counts().sessions.unverified),
            applied_ago: self.applied_ago(now),
            in_flight: is_leader.then(|| producer.publish_handle().counts().in_flight_events),
            read_ahead_full: capture.is_some_and(|status| status.state == capture::CaptureState::Full),
            leads: self.services.spread.led() as u64,
            ..Announcement::default()
        }
    }

    /// Only read models to which this pod has applied an event.
    fn applied_ago(&self, now: Instant) -> Vec<(String, Duration)> {
        let models = self.services.consumer.as_ref().map(consumer::Handle::models).unwrap_or_default();
        let ago = |last: tokio::time::Instant| now.saturating_duration_since(last.into_std());
        models.into_iter().filter_map(|counts| Some((counts.model, ago(counts.last_applied?)))).collect()
    }

    fn stalled_loops(&self, now: Instant) -> Vec<admin::status::PodProblem> {
        let report = self.health(now).evaluate(now);
        let stalled = report.services.iter().flat_map(|service| service.stalled().map(|one| (service.name, one)));
        stalled
            .map(|(service, one)| admin::status::PodProblem {
                service: service.to_owned(),
                text: format!("{} has been stalled for {:.0} s", one.name, one.stalled_seconds.unwrap_or_default()),
                page: None,
            })
            .collect()
    }

    fn producer_state(&self) -> ServiceState {
        service_state::producer(&self.services.producer.state(), self.services.producer.publish_handle().state())
    }

    fn consumer_state(&self) -> Option<ServiceState> {
        self.services.consumer.as_ref().map(|consumer| service_state::consumer(&consumer.state()))
    }

    /// `None` between terms: the handle then still describes the last term.
    fn capture_status(&self) -> Option<capture::CaptureStatus> {
        let running = matches!(self.services.producer.state(), producer::ProducerState::Running { .. });
        running.then(|| self.services.producer.capture_handle().map(|handle| handle.status())).flatten()
    }

    fn lease_service(&self, now: Instant) -> PodServiceHealth {
        let state = self.services.lease.status();
        let is_leader = self.services.lease.is_leader();
        let lease_unavailable = self
            .status_cache
            .latest(now)
            .is_some_and(|status| status.collected.unavailable.iter().any(|part| part == THE_LEASE));
        let not_ready = |reason: &str| Readiness::NotReady(reason.to_owned());
        let (role, readiness) = match &state {
            LeaseStatus::Starting => ("starting", not_ready("the lease has not been read yet")),
            LeaseStatus::Stopped => ("stopped", not_ready("leader election has stopped")),
            LeaseStatus::Leading { .. } if !is_leader => {
                ("leader", not_ready("the lease expired before it could be renewed"))
            }
            LeaseStatus::Leading { .. } => ("leader", Readiness::Ready),
            LeaseStatus::Following { .. } if lease_unavailable => ("standby", not_ready("the lease cannot be read")),
            LeaseStatus::Following { .. } => ("standby", Readiness::Ready),
        };
        // A stopping elector may wait for the work of a lost term to end.
        let stopping = self.stopping.load(Relaxed) || matches!(state, LeaseStatus::Stopped);
        let elector = self.loop_monitor.elector(self.services.lease.iterations(), stopping, self.services.ttl, now);
        PodServiceHealth { name: "lease", role, readiness, loops: vec![elector, self.heartbeats.step_down.liveness()] }
    }

    fn producer_service(&self, now: Instant) -> PodServiceHealth {
        let publishing = self.services.producer.publish_handle();
        let state = self.services.producer.state();
        let role = if state == producer::ProducerState::Standby { "standby" } else { "leader" };
        let loops = vec![
            self.loop_monitor.capture(self.capture_status().as_ref()),
            self.loop_monitor.publish(publishing.counts(), publishing.state(), now),
        ];
        PodServiceHealth { name: "producer", role, readiness: readiness(&self.producer_state()), loops }
    }

    fn consumer_service(&self, consumer: &consumer::Handle, now: Instant) -> PodServiceHealth {
        let readiness = match consumer.state() {
            consumer::ConsumerState::Preparing | consumer::ConsumerState::Idle => {
                Readiness::NotReady("read models are not prepared yet".to_owned())
            }
            state => readiness(&service_state::consumer(&state)),
        };
        let counts = consumer.counts();
        let consuming =
            matches!(consumer.state(), consumer::ConsumerState::Consuming | consumer::ConsumerState::Blocked(_));
        let loops = vec![
            self.loop_monitor.acceptor(counts, consuming, now),
            self.loop_monitor.sessions(counts, now),
            self.loop_monitor.dead_letters(counts, consuming, now),
            self.loop_monitor.applier(counts, now),
        ];
        PodServiceHealth { name: "consumer", role: "active", readiness, loops }
    }
}

/// The background loops of the admin side.
fn status_service(heartbeats: &BackgroundLoopHeartbeats) -> PodServiceHealth {
    let loops = vec![heartbeats.announcer.liveness(), heartbeats.status_collector.liveness()];
    PodServiceHealth { name: "status", role: "active", readiness: Readiness::Ready, loops }
}

fn readiness(state: &ServiceState) -> Readiness {
    state.problem.as_ref().map_or(Readiness::Ready, |problem| Readiness::NotReady(problem.text.clone()))
}

impl PodTelemetry for PodMonitor {
    fn health(&self, now: Instant) -> PodHealth {
        let mut services = vec![self.lease_service(now), self.producer_service(now)];
        services.extend(self.services.consumer.as_ref().map(|consumer| self.consumer_service(consumer, now)));
        services.push(status_service(&self.heartbeats));
        PodHealth { services, stopping: self.stopping.load(Relaxed) }
    }

    fn samples(&self) -> Vec<PodSample> {
        let PodServices { pod_id, lease, producer, consumer, audit, .. } = &self.services;
        let identity = vec![("pod", pod_id.clone()), ("version", env!("CARGO_PKG_VERSION").to_owned())];
        let mut samples = vec![
            PodSample {
                name: "headwater_build_info",
                help: "Always 1; labels hold the pod id and its version.",
                labels: identity,
                value: 1,
            },
            PodSample {
                name: "headwater_is_leader",
                help: "1 while this pod is the leader.",
                labels: vec![],
                value: lease.is_leader().into(),
            },
            PodSample {
                name: "headwater_terms_total",
                help: "Terms in which this pod was the leader.",
                labels: vec![],
                value: self.terms.load(Relaxed),
            },
        ];
        let captured = producer.capture_handle().map(|handle| handle.status());
        let captured = captured.unwrap_or_else(|| capture::CaptureStatus::initial(tokio::time::Instant::now()));
        let consumed = consumer.as_ref().map(consumer::Handle::counts).unwrap_or_default();
        let audited = audit.as_ref().map(audit::Handle::counts).unwrap_or_default();
        samples.extend(counter_samples(&captured, &producer.publish_handle().counts(), &consumed, &audited));
        let models = consumer.as_ref().map(consumer::Handle::models).unwrap_or_default();
        samples.extend(models.into_iter().map(|counts| PodSample {
            name: "headwater_read_model_events_total",
            help: "Events applied, by read model.",
            labels: vec![("read_model", counts.model)],
            value: counts.applied,
        }));
        let health = self.services.tokens.as_deref().map(TokenSource::health).unwrap_or_default();
        samples.extend(token_state::samples(&health, tokio::time::Instant::now().into_std()));
        samples
    }

    fn latency(&self) -> LatencyBuckets {
        self.services.latency.snapshot()
    }
}

/// The counters of all stations, in the order of the event flow.
fn counter_samples(
    captured: &capture::CaptureStatus,
    published: &publish::PublishCounts,
    consumed: &consumer::ConsumerCounts,
    audited: &audit::AuditCounts,
) -> Vec<PodSample> {
    let consumer::ConsumerCounts { sessions, events, .. } = consumed;
    let stations = [captured.samples(), published.samples(), sessions.samples(), events.samples(), audited.samples()];
    let to_pod_sample = |MetricSample { name, help, label, value }| {
        let labels = label.into_iter().map(|(label, value)| (label, value.to_owned())).collect();
        PodSample { name, help, labels, value }
    };
    stations.into_iter().flatten().map(to_pod_sample).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// The page for operators lists all metrics and alerts.
    const RUNBOOK: &str = include_str!("../../../../docs/operations.md");

    /// Metrics of a pod that no station counts.
    const OF_THE_POD: [&str; 5] = [
        "headwater_build_info",
        "headwater_is_leader",
        "headwater_terms_total",
        "headwater_read_model_events_total",
        crate::admin::pipeline_slot::FAILURES,
    ];

    fn all_metrics() -> BTreeSet<&'static str> {
        let captured = capture::CaptureStatus::initial(tokio::time::Instant::now());
        let counters = counter_samples(&captured, &Default::default(), &Default::default(), &Default::default());
        let pipeline = admin::metrics::METRICS.iter().map(|metric| metric.name);
        pipeline
            .chain(counters.into_iter().map(|sample| sample.name))
            .chain(OF_THE_POD)
            .chain(token_state::METRICS)
            .collect()
    }

    #[test]
    fn the_runbook_lists_exactly_the_exposed_metrics() {
        let rows = RUNBOOK.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next());
        let documented: BTreeSet<_> = rows.filter(|name| name.starts_with("headwater_")).collect();
        assert_eq!(documented, all_metrics());
    }

    #[test]
    fn runbook_alerts_use_known_metrics_and_have_advice() {
        let known = all_metrics();
        let words = RUNBOOK.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_');
        let used = words.filter(|word| word.starts_with("headwater_")).map(|word| word.trim_end_matches("_bucket"));
        for name in used {
            assert!(known.contains(name), "`{name}` is not a metric");
        }
        let alerts: Vec<_> =
            RUNBOOK.lines().filter_map(|line| line.strip_prefix("| `Headwater")?.split('`').next()).collect();
        assert!(alerts.len() >= 10, "{alerts:?}");
        for alert in alerts {
            assert!(RUNBOOK.contains(&format!("**Headwater{alert}")), "advice for Headwater{alert}");
        }
    }

    #[test]
    fn samples_of_one_metric_follow_each_other() {
        let captured = capture::CaptureStatus::initial(tokio::time::Instant::now());
        let samples = counter_samples(&captured, &Default::default(), &Default::default(), &Default::default());
        let families: Vec<_> = samples.chunk_by(|one, next| one.name == next.name).map(|same| same[0].name).collect();
        assert_eq!(families.len(), families.iter().collect::<BTreeSet<_>>().len(), "{families:?}");
    }
}
