//! The publish loop: admits captured events to the send window, sends them, takes outcomes, and lets the checkpoint follow.
//!
//! One task. It waits for the first event and then does everything that is possible. Each part owns its state: `admission` (captured events to
//! messages), `window` (order and acknowledgements), `topic_connection` (the sender link), `subscription_probe`, `drain_timer`, and beside them
//! `CheckpointSaver` and `PendingWrites`. While Service Bus is busy, unreachable or without the subscription, the publisher pauses and logs why.

mod admission;
mod drain_timer;
mod outcomes;
mod subscription_probe;
mod topic_connection;
mod window;

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use servicebus::SendOutcome;
use tokio::sync::mpsc;

use self::admission::{AdmissionResult, EventDestination};
use self::drain_timer::DrainTimer;
use self::subscription_probe::SubscriptionProbe;
use self::topic_connection::{TopicConnection, TopicConnectionEvent};
use self::window::SendWindow;
use super::batch::BatchLimits;
use super::checkpoint_saver::CheckpointSaver;
use super::config::Config;
use super::error::{Error, PublishEnd};
use super::message::Encoder;
use super::monitor::{Handle, PauseReason, PublishState};
use super::pending_writes::{CompletedWrite, PendingWrites};
use super::rejected::RejectedStore;
use super::topic::PublishTopic;
use super::traced_events::{PublishTracer, TracedEvents};
use crate::capture::CaptureItem;
use crate::checkpoint::{self, CheckpointClaim, CheckpointStore, ReplayCounter, SaveResult};
use crate::event::Epoch;
use crate::failpoints::LoopStall;
use crate::signing::MessageKeys;
use crate::stored::ClaimCheckStore;

/// The captured items, in order. `None` ends the input; the publisher then drains.
pub trait CaptureInput: Send {
    /// Cancel-safe: an item that is not returned is not lost.
    fn next(&mut self) -> impl Future<Output = Option<Vec<CaptureItem>>> + Send;
}

impl CaptureInput for mpsc::Receiver<Vec<CaptureItem>> {
    fn next(&mut self) -> impl Future<Output = Option<Vec<CaptureItem>>> + Send {
        self.recv()
    }
}

/// The claim, epoch and replay counter under which the publisher works.
#[derive(Clone, Debug)]
pub struct PublishClaim {
    pub claim: CheckpointClaim,
    pub epoch: Epoch,
    pub replay: ReplayCounter,
}

/// The stores that the publisher writes.
pub struct PublisherStores<S> {
    pub checkpoints: Arc<S>,
    pub claim_checks: ClaimCheckStore,
    pub rejected: RejectedStore,
}

/// Publishes during one term.
pub struct Publisher<T: PublishTopic, S> {
    config: Config,
    term: PublishClaim,
    handle: Handle,
    topic: Arc<T>,
    admission: AdmissionResult,
    window: SendWindow,
    saver: CheckpointSaver<S>,
    pending_writes: PendingWrites,
    connection: TopicConnection<T>,
    probe: SubscriptionProbe<T>,
    drain: DrainTimer,
}

/// What woke the loop.
enum PublisherEvent {
    TermLost,
    Stop,
    Captured(Option<Vec<CaptureItem>>),
    Connection(TopicConnectionEvent),
    Saved(Result<SaveResult, checkpoint::Error>),
    Stored(CompletedWrite),
    Probed(Result<bool, servicebus::Error>),
    /// A timer is due, or there is more to admit.
    Timer,
}

/// The loop wakes at least this often.
const MAX_WAIT: Duration = Duration::from_secs(60);

impl<T: PublishTopic, S: CheckpointStore + 'static> Publisher<T, S> {
    pub fn new(config: Config, term: PublishClaim, topic: T, stores: PublisherStores<S>, handle: Handle) -> Self {
        let PublisherStores { checkpoints, claim_checks, rejected } = stores;
        let topic = Arc::new(topic);
        let encoder = Encoder::new(config.body, config.sessions, term.epoch, term.claim.term);
        // The link sets the real size limit of a batch.
        let batch_limits = BatchLimits { count: config.batch_count.get(), bytes: 0, linger: config.linger };
        Self {
            admission: AdmissionResult::new(encoder, term.replay, config.window().events as u64),
            window: SendWindow::new(config.window(), batch_limits),
            saver: CheckpointSaver::new(checkpoints, &term, config.checkpoint, config.save_after(), Instant::now()),
            pending_writes: PendingWrites::new(claim_checks, rejected, term.claim.term, handle.clone()),
            connection: TopicConnection::new(Arc::clone(&topic)),
            probe: SubscriptionProbe::new(Arc::clone(&topic)),
            drain: DrainTimer::default(),
            topic,
            handle,
            term,
            config,
        }
    }

    /// Rejects events without a sequence: consumers could not place them among the events of their aggregate.
    #[must_use]
    pub fn requiring_sequence(mut self, needed: bool) -> Self {
        self.admission.require_sequence(needed);
        self
    }

    /// Sets the tracer, which receives a trace of each sampled event.
    #[must_use]
    pub fn with_tracer(mut self, tracer: Option<Arc<dyn PublishTracer>>) -> Self {
        let traces = TracedEvents::new(tracer);
        self.admission = self.admission.with_sampling(traces.sampling());
        self.window.set_traces(traces);
        self
    }

    /// Signs the messages, if there are keys.
    #[must_use]
    pub fn with_signing(mut self, keys: Option<Arc<MessageKeys>>) -> Self {
        self.admission = self.admission.with_signing(keys);
        self
    }

    /// Publishes the items of `input`. When it ends, or on `stop`, drains for at most `drain` of the configuration, whatever Service Bus does. On
    /// `lost` the term is over, and the publisher returns at once.
    ///
    /// `stop` must also end the input. The loop reacts to `stop` even while the window is full: waiting for the end of the input would mean waiting
    /// for Service Bus.
    pub async fn run(
        mut self,
        input: impl CaptureInput,
        stop: impl Future<Output = ()> + Send,
        lost: impl Future<Output = ()> + Send,
    ) -> Result<PublishEnd, Error> {
        self.handle.set_state(PublishState::Opening);
        self.pending_writes.create_indexes();
        let ended = self.publish(input, stop, lost).await;
        self.update_gauges();
        self.set_state(PublishState::Idle);
        ended
    }

    async fn publish(
        &mut self,
        mut input: impl CaptureInput,
        stop: impl Future<Output = ()> + Send,
        lost: impl Future<Output = ()> + Send,
    ) -> Result<PublishEnd, Error> {
        let (mut stop, mut lost) = (pin!(stop.fuse()), pin!(lost));
        let mut outcomes: Vec<SendOutcome> = Vec::new();
        loop {
            let now = Instant::now();
            self.check_timers(now);
            let has_more = self.admit(now);
            self.send_ready(now);
            // A drain saves at once: the next leader republishes everything that is not saved.
            let immediately = self.drain.is_active();
            self.saver.start_if_due(self.window.prefix_mut(), now, immediately);
            if let Some(ended) = self.finished(now) {
                return Ok(ended);
            }
            self.update_gauges();
            if !self.window.is_empty() {
                LoopStall::Publish.block_if_enabled().await;
            }
            let wake = self.next_timer(now, immediately);
            let wants_input = self.admission.wants_input();
            // cancel-safe, each: the next call returns what this one did not
            let event = tokio::select! {
                () = &mut lost => PublisherEvent::TermLost,
                () = &mut stop => PublisherEvent::Stop,
                captured = input.next(), if wants_input => PublisherEvent::Captured(captured),
                event = self.connection.next(&mut outcomes) => PublisherEvent::Connection(event),
                saved = self.saver.finished() => PublisherEvent::Saved(saved),
                stored = self.pending_writes.next() => PublisherEvent::Stored(stored),
                exists = self.probe.finished() => PublisherEvent::Probed(exists),
                () = tokio::time::sleep_until(wake.into()) => PublisherEvent::Timer,
                () = tokio::task::yield_now(), if has_more => PublisherEvent::Timer,
            };
            match event {
                PublisherEvent::TermLost => return Ok(PublishEnd::TermLost),
                PublisherEvent::Stop => self.begin_drain(Instant::now()),
                PublisherEvent::Captured(Some(items)) => self.admission.receive(items),
                PublisherEvent::Captured(None) => {
                    self.admission.end_input();
                    self.begin_drain(Instant::now());
                }
                PublisherEvent::Connection(event) => self.on_connection(event, &mut outcomes)?,
                PublisherEvent::Saved(saved) => self.on_saved(saved)?,
                PublisherEvent::Stored(stored) => self.window.apply_write(stored),
                PublisherEvent::Probed(exists) => self.on_probed(exists),
                PublisherEvent::Timer => {}
            }
        }
    }

    fn check_timers(&mut self, now: Instant) {
        self.connection.check_timers(&self.window, now);
        self.window.wake_due_lanes(now);
        if self.drain.check_send_deadline(now) {
            self.admission.close();
        }
    }

    fn next_timer(&self, now: Instant, immediately: bool) -> Instant {
        let save = self.saver.next_due(self.window.prefix(), now, immediately);
        let timers = [save, self.drain.next_timer(), self.window.next_wake(), self.connection.next_timer()];
        timers.into_iter().flatten().min().unwrap_or(now + MAX_WAIT)
    }

    /// `true` if there is room for more events.
    fn admit(&mut self, now: Instant) -> bool {
        // The size limit of a message is known after the first link is open.
        let Some(limits) = self.connection.limits() else { return false };
        let mut to = EventDestination { limits, window: &mut self.window, writes: &self.pending_writes, now };
        self.admission.admit(&mut to)
    }

    fn send_ready(&mut self, now: Instant) {
        let may_send = self.probe.subscription_exists() == Some(true)
            && !self.drain.has_stopped_sending()
            && self.connection.is_open(now);
        if may_send {
            self.connection.submit(self.window.next_transfers(now), now);
        }
    }

    /// Only the first call counts: a stop takes `drain` once.
    fn begin_drain(&mut self, now: Instant) {
        if self.drain.begin(now, self.config.drain) && self.handle.state() == PublishState::Publishing {
            self.set_state(PublishState::Draining);
        }
    }

    /// `None` while there is work left and time for it.
    fn finished(&self, now: Instant) -> Option<PublishEnd> {
        if !self.drain.is_active() {
            return None;
        }
        let published = self.admission.is_drained() && self.window.is_empty() && self.pending_writes.is_empty();
        let saved = self.saver.is_idle(self.window.prefix());
        if published && saved {
            return Some(PublishEnd::Drained);
        }
        let over = self.drain.is_over(now) || self.drain.has_stopped_sending() && saved;
        over.then(|| PublishEnd::Unfinished { events: self.window.events() + self.admission.pending_events() })
    }

    fn on_saved(&mut self, saved: Result<SaveResult, checkpoint::Error>) -> Result<(), Error> {
        match self.saver.record_result(saved, Instant::now()).map_err(Error::Checkpoint)? {
            Some((position, events)) => {
                self.admission.record_saved(events);
                self.handle.record_saved(position.cluster_time);
            }
            None => drop(self.handle.counters().store_errors.fetch_add(1, Relaxed)),
        }
        Ok(())
    }

    fn on_probed(&mut self, exists: Result<bool, servicebus::Error>) {
        self.probe.record_result(exists);
        match self.probe.subscription_exists() {
            Some(false) => self.set_state(PublishState::Paused(PauseReason::SubscriptionMissing)),
            Some(true) => match self.handle.state() {
                PublishState::Paused(PauseReason::SubscriptionMissing) => self.set_active(),
                PublishState::Opening if self.connection.is_open(Instant::now()) => self.set_active(),
                PublishState::Idle
                | PublishState::Opening
                | PublishState::Publishing
                | PublishState::Paused(_)
                | PublishState::Draining => {}
            },
            None => {}
        }
    }

    fn set_active(&self) {
        self.set_state(if self.drain.is_active() { PublishState::Draining } else { PublishState::Publishing });
    }

    /// Logs when a pause begins or ends.
    fn set_state(&self, state: PublishState) {
        match (self.handle.set_state(state), state) {
            (before, state) if before == state => {}
            (_, PublishState::Paused(reason)) => {
                tracing::warn!("publishing paused: {}", reason.describe(self.topic.name(), self.topic.subscription()));
            }
            (PublishState::Paused(reason), _) => tracing::info!(?reason, "publishing resumed"),
            _ => {}
        }
    }

    fn update_gauges(&self) {
        let counters = self.handle.counters();
        counters.in_flight_events.store(self.window.events() as u64, Relaxed);
        counters.in_flight_bytes.store(self.window.bytes() as u64, Relaxed);
        if let Some(time) = self.window.prefix().cluster_time() {
            self.handle.record_acknowledged(time);
        }
    }
}
