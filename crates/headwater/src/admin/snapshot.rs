//! The state of this pod, read from the handles of its services on every request: health, counters, and the announcement.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use admin::{LatencyHistogram, PodCounters, PodHealth, PodTelemetry, Readiness, ServiceHealth, StatusCache};
use lease::LeaseStatus;
use pipeline::{capture, consumer, producer};

use super::heartbeats::BackgroundHeartbeats;
use super::liveness::LoopMonitor;
use super::service_state::{self, ServiceState};
use crate::pods::Announcement;
use crate::status::THE_LEASE;

/// The services of one pod.
pub(crate) struct PodServices {
    pub(crate) pod_id: String,
    pub(crate) ttl: Duration,
    pub(crate) lease: lease::Handle,
    pub(crate) producer: producer::Handle,
    /// `None` without read models.
    pub(crate) consumer: Option<consumer::Handle>,
    /// Filled by the apply observer.
    pub(crate) latency: LatencyHistogram,
    /// Generation of its set of read models.
    pub(crate) generation: Option<String>,
}

pub(crate) struct PodMonitor {
    services: PodServices,
    status_cache: Arc<StatusCache>,
    loop_monitor: LoopMonitor,
    heartbeats: BackgroundHeartbeats,
    terms: AtomicU64,
    stopping: AtomicBool,
}

impl PodMonitor {
    pub(super) fn new(services: PodServices, status_cache: Arc<StatusCache>) -> Self {
        let (loop_monitor, heartbeats) = (LoopMonitor::default(), BackgroundHeartbeats::new(Instant::now()));
        Self {
            services,
            status_cache,
            loop_monitor,
            heartbeats,
            terms: AtomicU64::new(0),
            stopping: AtomicBool::new(false),
        }
    }

    pub(crate) fn heartbeats(&self) -> &BackgroundHeartbeats {
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

    /// The present state. The announcer adds rates, latencies and the address.
    pub(crate) fn announcement(&self, now: Instant) -> Announcement {
        let PodServices { lease, producer, consumer, .. } = &self.services;
        let (producer_state, consumer_state) = (self.producer_state(), self.consumer_state());
        let is_leader = lease.is_leader();
        let capture = self.capture_status();
        let mut problems: Vec<_> = producer_state.problem.iter().cloned().collect();
        problems.extend(consumer_state.as_ref().and_then(|state| state.problem.clone()));
        problems.extend(self.stalled_loops(now));
        Announcement {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            generation: self.services.generation.clone(),
            producer: producer_state.state,
            consumer: consumer_state.map_or_else(|| "none".to_owned(), |state| state.state),
            problems,
            sessions: consumer.as_ref().map(|consumer| consumer.counts().sessions.held),
            applied_ago: self.applied_ago(now),
            in_flight: is_leader.then(|| producer.publish_handle().counts().in_flight_events),
            read_ahead_full: capture.is_some_and(|status| status.state == capture::CaptureState::Full),
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

    fn lease_service(&self, now: Instant) -> ServiceHealth {
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
        ServiceHealth { name: "lease", role, readiness, loops: vec![elector, self.heartbeats.step_down.liveness()] }
    }

    fn producer_service(&self, now: Instant) -> ServiceHealth {
        let publishing = self.services.producer.publish_handle();
        let state = self.services.producer.state();
        let role = if state == producer::ProducerState::Standby { "standby" } else { "leader" };
        let loops = vec![
            self.loop_monitor.capture(self.capture_status().as_ref()),
            self.loop_monitor.publish(publishing.counts(), publishing.state(), now),
        ];
        ServiceHealth { name: "producer", role, readiness: readiness(&self.producer_state()), loops }
    }

    fn consumer_service(&self, consumer: &consumer::Handle, now: Instant) -> ServiceHealth {
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
        ServiceHealth { name: "consumer", role: "active", readiness, loops }
    }
}

/// The background loops of the admin side.
fn status_service(heartbeats: &BackgroundHeartbeats) -> ServiceHealth {
    let loops = vec![heartbeats.announcer.liveness(), heartbeats.status_collector.liveness()];
    ServiceHealth { name: "status", role: "active", readiness: Readiness::Ready, loops }
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

    fn counters(&self) -> PodCounters {
        let PodServices { pod_id, lease, producer, consumer, latency, .. } = &self.services;
        let published = producer.publish_handle().counts();
        let captured = producer.capture_handle().map(|handle| handle.status());
        let consumer::ConsumerCounts { sessions, events } =
            consumer.as_ref().map(consumer::Handle::counts).unwrap_or_default();
        let models = consumer.as_ref().map(consumer::Handle::models).unwrap_or_default();
        PodCounters {
            pod: pod_id.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            leads: lease.is_leader(),
            terms: self.terms.load(Relaxed),
            captured: captured.as_ref().map_or(0, |status| status.events),
            foreign: captured.as_ref().map_or(0, |status| status.non_inserts),
            reopened: captured.as_ref().map_or(0, |status| status.reopens),
            published: published.published,
            transfers: published.transfers,
            uncertain: published.uncertain,
            retried: published.retried,
            rejected: published.rejected,
            oversize: published.oversize,
            in_flight_events: published.in_flight_events,
            in_flight_bytes: published.in_flight_bytes,
            saves: published.saves,
            store_errors: published.store_errors,
            sessions_held: sessions.held,
            sessions_accepted: sessions.accepted,
            sessions_dropped: sessions.dropped,
            locks_lost: sessions.locks_lost,
            received: sessions.received,
            redelivered: sessions.redelivered,
            settled: sessions.settled,
            dead_letters_parked: sessions.dead_letters_parked,
            dead_letters_left: sessions.dead_letters_deferred,
            applied: events.applied,
            applied_in: models.into_iter().map(|counts| (counts.model, counts.applied)).collect(),
            duplicates: events.duplicates,
            gaps_healed: events.gaps_healed,
            regressed: events.regressed,
            parked: events.parked,
            transactions: events.groups,
            conflicts: events.conflicts,
            unknown_commits: events.unknown,
            latency: latency.snapshot(),
        }
    }
}
