//! What this pod tells of itself: taken from the handles of its services whenever somebody asks.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use admin::{LatencyHistogram, PodCounters, PodHealth, PodTelemetry, Readiness, ServiceHealth, StatusCache};
use lease::LeaseStatus as Standing;
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
    /// `None` where no read model is declared.
    pub(crate) consumer: Option<consumer::Handle>,
    /// Where whoever applies events records how long they took.
    pub(crate) latency: LatencyHistogram,
    /// Of its set of read models.
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

    /// The first thing a stop does: nobody shall count on this pod any more.
    pub(crate) fn set_stopping(&self) {
        self.stopping.store(true, Relaxed);
    }

    pub(crate) fn term_began(&self) {
        self.terms.fetch_add(1, Relaxed);
    }

    /// What can be told of this moment; rates and the address are the announcer's to add.
    pub(crate) fn announcement(&self, now: Instant) -> Announcement {
        let PodServices { lease, producer, consumer, .. } = &self.services;
        let (produces, consumes) = (self.producing(), self.consuming());
        let state = |words: &Option<ServiceState>| {
            words.as_ref().map_or_else(|| "none".to_owned(), |words| words.state.clone())
        };
        let leads = lease.is_leader();
        let capturing = self.capturing();
        let mut problems: Vec<_> = produces.problem.iter().cloned().collect();
        problems.extend(consumes.as_ref().and_then(|words| words.problem.clone()));
        problems.extend(self.stalled(now));
        Announcement {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            generation: self.services.generation.clone(),
            producer: produces.state,
            consumer: state(&consumes),
            problems,
            sessions: consumer.as_ref().map(|consumer| consumer.counts().sessions.held),
            applied_ago: self.applied_ago(now),
            in_flight: leads.then(|| producer.publish_handle().counts().in_flight_events),
            read_ahead_full: capturing.is_some_and(|status| status.state == capture::CaptureState::Full),
            ..Announcement::default()
        }
    }

    /// Of the read models this pod has applied something to.
    fn applied_ago(&self, now: Instant) -> Vec<(String, Duration)> {
        let models = self.services.consumer.as_ref().map(consumer::Handle::models).unwrap_or_default();
        let ago = |last: tokio::time::Instant| now.saturating_duration_since(last.into_std());
        models.into_iter().filter_map(|counts| Some((counts.model, ago(counts.last_applied?)))).collect()
    }

    fn stalled(&self, now: Instant) -> Vec<admin::status::PodProblem> {
        let report = self.health(now).evaluate(now);
        let loops = report.services.iter().flat_map(|service| service.stalled().map(|one| (service.name, one)));
        loops
            .map(|(service, one)| admin::status::PodProblem {
                service: service.to_owned(),
                text: format!("{} does not move, for {:.0} s", one.name, one.for_seconds.unwrap_or_default()),
                page: None,
            })
            .collect()
    }

    fn producing(&self) -> ServiceState {
        service_state::producer(&self.services.producer.state(), self.services.producer.publish_handle().state())
    }

    fn consuming(&self) -> Option<ServiceState> {
        self.services.consumer.as_ref().map(|consumer| service_state::consumer(&consumer.state()))
    }

    /// Only of the term that runs: an old handle tells of an old term.
    fn capturing(&self) -> Option<capture::CaptureStatus> {
        let runs = matches!(self.services.producer.state(), producer::ProducerState::Running { .. });
        runs.then(|| self.services.producer.capture_handle().map(|handle| handle.status())).flatten()
    }

    fn lease_service(&self, now: Instant) -> ServiceHealth {
        let standing = self.services.lease.status();
        let leads = self.services.lease.is_leader();
        let unread = self
            .status_cache
            .read(now)
            .is_some_and(|status| status.collected.unavailable.iter().any(|part| part == THE_LEASE));
        let not = |why: &str| Readiness::NotReady(why.to_owned());
        let (role, readiness) = match &standing {
            Standing::Starting => ("starting", not("the lease has not been seen yet")),
            Standing::Stopped => ("stopped", not("it no longer contends")),
            Standing::Leading { .. } if !leads => ("leader", not("its term has run out unrenewed")),
            Standing::Leading { .. } => ("leader", Readiness::Ready),
            Standing::Following { .. } if unread => ("standby", not("the lease cannot be read")),
            Standing::Following { .. } => ("standby", Readiness::Ready),
        };
        // One that stops may wait for the work of a term that was lost.
        let ends = self.stopping.load(Relaxed) || matches!(standing, Standing::Stopped);
        let elector = self.loop_monitor.elector(self.services.lease.iterations(), ends, self.services.ttl, now);
        ServiceHealth { name: "lease", role, readiness, loops: vec![elector, self.heartbeats.step_down.seen()] }
    }

    fn producer_service(&self, now: Instant) -> ServiceHealth {
        let publishing = self.services.producer.publish_handle();
        let state = self.services.producer.state();
        let role = if state == producer::ProducerState::Standby { "standby" } else { "leader" };
        let loops = vec![
            self.loop_monitor.capture(self.capturing().as_ref()),
            self.loop_monitor.publish(publishing.counts(), publishing.state(), now),
        ];
        ServiceHealth { name: "producer", role, readiness: readiness(&self.producing()), loops }
    }

    fn consumer_service(&self, consumer: &consumer::Handle, now: Instant) -> ServiceHealth {
        let readiness = match consumer.state() {
            consumer::ConsumerState::Preparing | consumer::ConsumerState::Idle => {
                Readiness::NotReady("read models are not ready yet".to_owned())
            }
            state => readiness(&service_state::consumer(&state)),
        };
        let counts = consumer.counts();
        let consumes =
            matches!(consumer.state(), consumer::ConsumerState::Consuming | consumer::ConsumerState::Blocked(_));
        let loops = vec![
            self.loop_monitor.acceptor(counts, consumes, now),
            self.loop_monitor.sessions(counts, now),
            self.loop_monitor.dead_letters(counts, consumes, now),
            self.loop_monitor.applier(counts, now),
        ];
        ServiceHealth { name: "consumer", role: "every pod", readiness, loops }
    }
}

/// Who tells of this pod, and of all.
fn status_service(heartbeats: &BackgroundHeartbeats) -> ServiceHealth {
    let loops = vec![heartbeats.announcer.seen(), heartbeats.gather.seen()];
    ServiceHealth { name: "status", role: "every pod", readiness: Readiness::Ready, loops }
}

fn readiness(words: &ServiceState) -> Readiness {
    words.problem.as_ref().map_or(Readiness::Ready, |problem| Readiness::NotReady(problem.text.clone()))
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
            latency: latency.read(),
        }
    }
}
