//! What this pod tells of itself: taken from the handles of its services whenever somebody asks.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use admin::{Board, Counters, Health, Latency, Pod, Readiness, Service};
use lease::Status as Standing;
use pipeline::{capture, consumer, producer};

use super::hearts::Hearts;
use super::pulses::Pulses;
use super::words::{self, Words};
use crate::pods::Announcement;
use crate::status::THE_LEASE;

/// The services of one pod.
pub(crate) struct Parts {
    pub(crate) pod_id: String,
    pub(crate) ttl: Duration,
    pub(crate) lease: lease::Handle,
    pub(crate) producer: producer::Handle,
    /// `None` where no read model is declared.
    pub(crate) consumer: Option<consumer::Handle>,
    /// Where whoever applies events records how long they took.
    pub(crate) latency: Latency,
    /// Of its set of read models.
    pub(crate) generation: Option<String>,
}

pub(crate) struct Readings {
    parts: Parts,
    board: Arc<Board>,
    pulses: Pulses,
    hearts: Hearts,
    terms: AtomicU64,
    stopping: AtomicBool,
}

impl Readings {
    pub(super) fn new(parts: Parts, board: Arc<Board>) -> Self {
        let (pulses, hearts) = (Pulses::default(), Hearts::new(Instant::now()));
        Self { parts, board, pulses, hearts, terms: AtomicU64::new(0), stopping: AtomicBool::new(false) }
    }

    pub(crate) fn hearts(&self) -> &Hearts {
        &self.hearts
    }

    pub(crate) fn lease(&self) -> &lease::Handle {
        &self.parts.lease
    }

    /// The first thing a stop does: nobody shall count on this pod any more.
    pub(crate) fn stopping(&self) {
        self.stopping.store(true, Relaxed);
    }

    pub(crate) fn term_began(&self) {
        self.terms.fetch_add(1, Relaxed);
    }

    /// What can be told of this moment; rates and the address are the announcer's to add.
    pub(crate) fn announcement(&self, now: Instant) -> Announcement {
        let Parts { lease, producer, consumer, .. } = &self.parts;
        let (produces, consumes) = (self.producing(), self.consuming());
        let state =
            |words: &Option<Words>| words.as_ref().map_or_else(|| "none".to_owned(), |words| words.state.clone());
        let leads = lease.is_leader();
        let capturing = self.capturing();
        let mut troubles: Vec<_> = produces.trouble.iter().cloned().collect();
        troubles.extend(consumes.as_ref().and_then(|words| words.trouble.clone()));
        troubles.extend(self.wedged(now));
        Announcement {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            generation: self.parts.generation.clone(),
            producer: produces.state,
            consumer: state(&consumes),
            troubles,
            sessions: consumer.as_ref().map(|consumer| consumer.counts().sessions.held),
            applied_ago: self.applied_ago(now),
            in_flight: leads.then(|| producer.publishing().counts().in_flight_events),
            read_ahead_full: capturing.is_some_and(|status| status.state == capture::State::Full),
            ..Announcement::default()
        }
    }

    /// Of the read models this pod has applied something to.
    fn applied_ago(&self, now: Instant) -> Vec<(String, Duration)> {
        let models = self.parts.consumer.as_ref().map(consumer::Handle::models).unwrap_or_default();
        let ago = |last: tokio::time::Instant| now.saturating_duration_since(last.into_std());
        models.into_iter().filter_map(|counts| Some((counts.model, ago(counts.last?)))).collect()
    }

    fn wedged(&self, now: Instant) -> Vec<admin::status::Trouble> {
        let report = self.health(now).judge(now);
        let loops = report.services.iter().flat_map(|service| service.wedged().map(|one| (service.name, one)));
        loops
            .map(|(service, one)| admin::status::Trouble {
                service: service.to_owned(),
                text: format!("{} does not move, for {:.0} s", one.name, one.for_seconds.unwrap_or_default()),
                page: None,
            })
            .collect()
    }

    fn producing(&self) -> Words {
        words::producer(&self.parts.producer.state(), self.parts.producer.publishing().state())
    }

    fn consuming(&self) -> Option<Words> {
        self.parts.consumer.as_ref().map(|consumer| words::consumer(&consumer.state()))
    }

    /// Only of the term that runs: an old handle tells of an old term.
    fn capturing(&self) -> Option<capture::Status> {
        let runs = matches!(self.parts.producer.state(), producer::State::Running { .. });
        runs.then(|| self.parts.producer.capturing().map(|handle| handle.status())).flatten()
    }

    fn lease_service(&self, now: Instant) -> Service {
        let standing = self.parts.lease.status();
        let leads = self.parts.lease.is_leader();
        let unread =
            self.board.read(now).is_some_and(|status| status.gathered.missing.iter().any(|part| part == THE_LEASE));
        let not = |why: &str| Readiness::Not(why.to_owned());
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
        let elector = self.pulses.elector(self.parts.lease.rounds(), ends, self.parts.ttl, now);
        Service { name: "lease", role, readiness, loops: vec![elector, self.hearts.step_down.seen()] }
    }

    fn producer_service(&self, now: Instant) -> Service {
        let publishing = self.parts.producer.publishing();
        let state = self.parts.producer.state();
        let role = if state == producer::State::Standby { "standby" } else { "leader" };
        let loops = vec![
            self.pulses.capture(self.capturing().as_ref()),
            self.pulses.publish(publishing.counts(), publishing.state(), now),
        ];
        Service { name: "producer", role, readiness: readiness(&self.producing()), loops }
    }

    fn consumer_service(&self, consumer: &consumer::Handle, now: Instant) -> Service {
        let readiness = match consumer.state() {
            consumer::State::Preparing | consumer::State::Idle => {
                Readiness::Not("read models are not ready yet".to_owned())
            }
            state => readiness(&words::consumer(&state)),
        };
        let counts = consumer.counts();
        let consumes = matches!(consumer.state(), consumer::State::Consuming | consumer::State::Troubled(_));
        let loops = vec![
            self.pulses.acceptor(counts, consumes, now),
            self.pulses.sessions(counts, now),
            self.pulses.dead_letters(counts, consumes, now),
            self.pulses.applier(counts, now),
        ];
        Service { name: "consumer", role: "every pod", readiness, loops }
    }
}

/// Who tells of this pod, and of all.
fn status_service(hearts: &Hearts) -> Service {
    let loops = vec![hearts.announcer.seen(), hearts.gather.seen()];
    Service { name: "status", role: "every pod", readiness: Readiness::Ready, loops }
}

fn readiness(words: &Words) -> Readiness {
    words.trouble.as_ref().map_or(Readiness::Ready, |trouble| Readiness::Not(trouble.text.clone()))
}

impl Pod for Readings {
    fn health(&self, now: Instant) -> Health {
        let mut services = vec![self.lease_service(now), self.producer_service(now)];
        services.extend(self.parts.consumer.as_ref().map(|consumer| self.consumer_service(consumer, now)));
        services.push(status_service(&self.hearts));
        Health { services, stopping: self.stopping.load(Relaxed) }
    }

    fn counters(&self) -> Counters {
        let Parts { pod_id, lease, producer, consumer, latency, .. } = &self.parts;
        let published = producer.publishing().counts();
        let captured = producer.capturing().map(|handle| handle.status());
        let consumer::Counts { sessions, events } = consumer.as_ref().map(consumer::Handle::counts).unwrap_or_default();
        let models = consumer.as_ref().map(consumer::Handle::models).unwrap_or_default();
        Counters {
            pod: pod_id.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            leads: lease.is_leader(),
            terms: self.terms.load(Relaxed),
            captured: captured.as_ref().map_or(0, |status| status.events),
            foreign: captured.as_ref().map_or(0, |status| status.foreign),
            reopened: captured.as_ref().map_or(0, |status| status.reopened),
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
            dead_letters_parked: sessions.dead_letters,
            dead_letters_left: sessions.set_aside,
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
