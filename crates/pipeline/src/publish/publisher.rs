//! The loop: fill lanes, send, take acknowledgements, let the checkpoint follow.
//!
//! One task. It waits for whatever comes first and then does everything that is possible; all decisions about order are [`Lanes`]', about
//! the checkpoint [`AcknowledgedPrefix`]'s. What it cannot do now (a bus that is busy, away, or without its subscription) it holds, and says why.

mod admission;
mod drain;
mod sending;
mod subscription_probe;

use std::collections::VecDeque;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use servicebus::SendOutcome;
use tokio::sync::mpsc;

use self::drain::DrainDeadlines;
use self::sending::TopicConnection;
use self::subscription_probe::SubscriptionProbe;
use super::batch::BatchLimits;
use super::checkpoint_saver::CheckpointSaver;
use super::config::Config;
use super::error::{Error, PublishEnd};
use super::handle::{Handle, PauseReason, PublishState};
use super::lanes::Lanes;
use super::message::Encoder;
use super::pending_writes::{CompletedWrite, PendingWrites};
use super::prefix::AcknowledgedPrefix;
use super::rejected::RejectedStore;
use super::topic::{LinkLimits, PublishTopic};
use super::traced_events::{PublishTracer, TracedEvents};
use crate::capture::CaptureItem;
use crate::checkpoint::{self, CheckpointStore, Claim, SaveResult};
use crate::event::Epoch;
use crate::failpoints::LoopStall;
use crate::stored::ClaimCheckStore;

/// Where captured events come from, in order. `None`: there is no more to come, and what there was is to be brought out.
pub trait CaptureInput: Send {
    /// Cancel-safe: what is not returned is not lost.
    fn next(&mut self) -> impl Future<Output = Option<Vec<CaptureItem>>> + Send;
}

impl CaptureInput for mpsc::Receiver<Vec<CaptureItem>> {
    fn next(&mut self) -> impl Future<Output = Option<Vec<CaptureItem>>> + Send {
        self.recv()
    }
}

/// In whose name is published.
#[derive(Clone, Debug)]
pub struct PublishTerm {
    pub claim: Claim,
    pub epoch: Epoch,
}

/// Publishes during one term.
pub struct Publisher<T: PublishTopic, S> {
    config: Config,
    tenure: PublishTerm,
    handle: Handle,
    encoder: Encoder,
    lanes: Lanes,
    prefix: AcknowledgedPrefix,
    saver: CheckpointSaver<S>,
    pending_writes: PendingWrites,
    connection: TopicConnection<T>,
    probe: SubscriptionProbe<T>,
    traces: TracedEvents,
    /// Captured, and not yet in a lane.
    pending: VecDeque<CaptureItem>,
    limits: Option<LinkLimits>,
    /// Events taken and not behind the saved checkpoint.
    unsaved: u64,
    /// The intake has ended: nothing more comes.
    exhausted: bool,
    /// Set by the word to stop, or by the end of the intake, whichever comes first.
    draining: Option<DrainDeadlines>,
    /// Time ran out: nothing more is sent, only saved.
    given_up: bool,
}

/// What the loop woke up for.
enum PublisherEvent<L> {
    Lost,
    Stop,
    Captured(Option<Vec<CaptureItem>>),
    Outcomes,
    Saved(Result<SaveResult, checkpoint::Error>),
    Stored(CompletedWrite),
    Opened(Result<L, servicebus::Error>),
    Probed(Result<bool, servicebus::Error>),
    /// A moment has come, or there is more to do.
    Time,
}

/// However quiet it is, the loop looks at its clock this often.
const LONGEST_WAIT: Duration = Duration::from_secs(60);

impl<T: PublishTopic, S: CheckpointStore + 'static> Publisher<T, S> {
    pub fn new(
        config: Config,
        tenure: PublishTerm,
        topic: T,
        checkpoints: Arc<S>,
        (oversize, rejected): (ClaimCheckStore, RejectedStore),
        handle: Handle,
    ) -> Self {
        let (topic, now) = (Arc::new(topic), Instant::now());
        let PublishTerm { claim, epoch } = tenure.clone();
        let batch_limits = BatchLimits { count: config.batch_count.get(), bytes: 0, linger: config.linger };
        Self {
            encoder: Encoder::new(config.body, config.sessions, epoch, claim.term),
            lanes: Lanes::new(config.window(), batch_limits),
            prefix: AcknowledgedPrefix::default(),
            pending_writes: PendingWrites::new(oversize, rejected, claim.term, handle.clone()),
            saver: CheckpointSaver::new(checkpoints, (claim, epoch), config.checkpoint, config.save_after(), now),
            connection: TopicConnection::new(Arc::clone(&topic)),
            probe: SubscriptionProbe::new(topic),
            traces: TracedEvents::default(),
            pending: VecDeque::new(),
            limits: None,
            unsaved: 0,
            exhausted: false,
            draining: None,
            given_up: false,
            handle,
            tenure,
            config,
        }
    }

    /// Who is told of the events it wants traced.
    #[must_use]
    pub fn with_tracer(mut self, tracer: Option<Arc<dyn PublishTracer>>) -> Self {
        self.traces = TracedEvents::new(tracer);
        self.encoder = self.encoder.sampling(self.traces.sampling());
        self
    }

    /// Publishes what `input` gives. From its end, or from `stop` on, what there is is brought out, for no longer than `drain` of the
    /// configuration, whatever the bus does. After `lost` the term is over, and nothing more is done.
    ///
    /// `stop` must also end the intake. It is heard whether or not there is room for what the intake holds: waiting for its end would be
    /// waiting for the bus.
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
        self.handle.set_state(PublishState::Idle);
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
            let more = self.admit(now);
            self.send_ready(now);
            // What is not saved when the time is over is sent again.
            let immediately = self.draining.is_some();
            self.saver.start_if_due(&mut self.prefix, now, immediately);
            if let Some(ended) = self.finished(now) {
                return Ok(ended);
            }
            self.update_gauges();
            if !self.lanes.is_empty() {
                LoopStall::Publish.block_if_enabled().await;
            }
            let wake = self.next_timer(now, immediately);
            let wants_input = self.pending.is_empty() && !self.exhausted;
            let event = tokio::select! {
                () = &mut lost => PublisherEvent::Lost,
                () = &mut stop => PublisherEvent::Stop,
                // cancel-safe, each: what was not returned is there when asked again
                captured = input.next(), if wants_input => PublisherEvent::Captured(captured),
                opened = self.connection.next(&mut outcomes) => opened.map_or(PublisherEvent::Outcomes, PublisherEvent::Opened),
                saved = self.saver.finished() => PublisherEvent::Saved(saved),
                stored = self.pending_writes.next() => PublisherEvent::Stored(stored),
                exists = self.probe.finished() => PublisherEvent::Probed(exists),
                () = tokio::time::sleep_until(wake.into()) => PublisherEvent::Time,
                () = tokio::task::yield_now(), if more => PublisherEvent::Time,
            };
            match event {
                PublisherEvent::Lost => return Ok(PublishEnd::TermLost),
                PublisherEvent::Stop => self.begin_drain(Instant::now()),
                PublisherEvent::Captured(captured) => self.on_captured(captured),
                PublisherEvent::Outcomes => self.on_outcomes(&mut outcomes)?,
                PublisherEvent::Opened(opened) => self.on_opened(opened)?,
                PublisherEvent::Saved(saved) => self.on_saved(saved)?,
                PublisherEvent::Stored(stored) => self.on_stored(stored),
                PublisherEvent::Probed(exists) => self.on_probed(exists),
                PublisherEvent::Time => {}
            }
        }
    }

    fn check_timers(&mut self, now: Instant) {
        self.connection.check_timers(&self.lanes, now);
        self.lanes.wake_due_lanes(now);
        self.given_up |= self.draining.is_some_and(|drain| now >= drain.send_until);
    }

    fn next_timer(&self, now: Instant, immediately: bool) -> Instant {
        let save = self.saver.next_due(&self.prefix, now, immediately);
        let drain = self.draining.map(|drain| if self.given_up { drain.end_at } else { drain.send_until });
        let moments = [save, drain, self.lanes.next_wake(), self.connection.next_timer()];
        moments.into_iter().flatten().min().unwrap_or(now + LONGEST_WAIT)
    }

    fn on_saved(&mut self, saved: Result<SaveResult, checkpoint::Error>) -> Result<(), Error> {
        let saved = self.saver.record_result(saved, Instant::now()).map_err(Error::Checkpoint)?;
        match saved {
            Some((position, events)) => {
                self.unsaved -= events;
                self.handle.record_saved(position.cluster_time);
            }
            None => drop(self.handle.counters().store_errors.fetch_add(1, Relaxed)),
        }
        Ok(())
    }

    fn on_probed(&mut self, exists: Result<bool, servicebus::Error>) {
        self.probe.record_result(exists);
        match self.probe.subscription_exists() {
            Some(false) => self.handle.set_state(PublishState::Paused(PauseReason::SubscriptionMissing)),
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
        self.handle.set_state(if self.draining.is_some() { PublishState::Draining } else { PublishState::Publishing });
    }

    fn may_send(&self, now: Instant) -> bool {
        self.probe.subscription_exists() == Some(true) && !self.given_up && self.connection.is_open(now)
    }

    fn update_gauges(&self) {
        let counters = self.handle.counters();
        counters.in_flight_events.store(self.lanes.events() as u64, Relaxed);
        counters.in_flight_bytes.store(self.lanes.bytes() as u64, Relaxed);
        if let Some(time) = self.prefix.cluster_time() {
            self.handle.record_acknowledged(time);
        }
    }
}
