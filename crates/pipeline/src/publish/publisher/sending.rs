//! Messages go out, and what the bus says of them comes back.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use futures_util::future::BoxFuture;
use servicebus::{EncodedMessage, SendOutcome};

use super::{PauseReason, PublishState, Publisher};
use crate::checkpoint::CheckpointStore;
use crate::error_chain::error_chain;
use crate::error_policy::{self, SendErrorAction};
use crate::publish::batch::BatchLimits;
use crate::publish::error::Error;
use crate::publish::lanes::{LaneTransfer, Lanes, RefusedMessage};
use crate::publish::message::rejected_marker;
use crate::publish::rejected::{RejectReason, RejectedEvent};
use crate::publish::topic::{PublishTopic, SenderLink};
use crate::retry::backoff;

/// What the bus gives as credit, so that what waits here can still travel together.
const MAX_TRANSFERS: usize = 2_000;
/// A lane whose message was refused for now.
const FIRST_LANE_BACKOFF: Duration = Duration::from_millis(20);
const MAX_LANE_BACKOFF: Duration = Duration::from_secs(5);
/// All lanes, when the bus asks for patience: it says two seconds itself.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const MAX_BUSY_PAUSE: Duration = Duration::from_secs(2);
/// When it is the topic or our rights that are amiss: a person must mend it.
const MAX_PAUSE: Duration = Duration::from_secs(5);
/// Between two tries to open a line; the client paces its dials by itself.
const FIRST_REOPEN_BACKOFF: Duration = Duration::from_millis(20);
/// An answer later than this does not come.
const OUTCOME_TIMEOUT: Duration = Duration::from_secs(30);

/// The way to the topic: open, being opened, or held.
pub(super) struct TopicConnection<T: PublishTopic> {
    topic: Arc<T>,
    link: Option<T::Link>,
    opening: Option<BoxFuture<'static, Result<T::Link, servicebus::Error>>>,
    /// Nothing is sent before this moment.
    paused_until: Option<Instant>,
    /// Times in a row that it was held, or could not be opened.
    failures: u32,
    /// The line is lost; what is under way on it is told so one by one.
    is_broken: bool,
    /// When transfers went out, oldest first; those that have landed since are still in it.
    sent: VecDeque<(Instant, u64)>,
}

impl<T: PublishTopic> TopicConnection<T> {
    pub(super) fn new(topic: Arc<T>) -> Self {
        let opening = Some(open(Arc::clone(&topic), Duration::ZERO));
        Self { topic, link: None, opening, paused_until: None, failures: 0, is_broken: false, sent: VecDeque::new() }
    }

    pub(super) fn is_open(&self, now: Instant) -> bool {
        self.link.is_some() && !self.is_broken && self.paused_until.is_none_or(|until| now >= until)
    }

    /// Outcomes of what is under way (`None`), or a line that was being opened. Cancel-safe: a line keeps what it did not hand out, and
    /// an opening goes on.
    pub(super) async fn next(&mut self, outcomes: &mut Vec<SendOutcome>) -> Option<Result<T::Link, servicebus::Error>> {
        match (&mut self.link, &mut self.opening) {
            (Some(link), _) => {
                link.outcomes(outcomes).await;
                None
            }
            (None, Some(opening)) => Some(opening.await),
            (None, None) => std::future::pending().await,
        }
    }

    /// Lets go of a lost line once everything on it has been told, and of what takes too long.
    pub(super) fn check_timers(&mut self, lanes: &Lanes, now: Instant) {
        self.paused_until = self.paused_until.filter(|until| now < *until);
        while self.sent.front().is_some_and(|(_, token)| lanes.attempts(*token).is_none()) {
            self.sent.pop_front();
        }
        if let (Some((at, _)), Some(link)) = (self.sent.front(), &self.link)
            && now >= *at + OUTCOME_TIMEOUT
            && !self.is_broken
        {
            tracing::warn!("the bus does not answer: the connection is given up");
            link.abandon();
            self.is_broken = true;
        }
        self.is_broken |= self.link.as_ref().is_some_and(SenderLink::is_closed);
        if self.is_broken && lanes.transfers() == 0 && self.opening.is_none() {
            self.link = None;
            self.is_broken = false;
            let pause = backoff(self.failures, FIRST_REOPEN_BACKOFF, MAX_PAUSE);
            self.opening = Some(open(Arc::clone(&self.topic), pause));
        }
    }

    pub(super) fn next_timer(&self) -> Option<Instant> {
        let held = self.paused_until;
        let overdue = self.sent.front().map(|(at, _)| *at + OUTCOME_TIMEOUT).filter(|_| !self.is_broken);
        held.into_iter().chain(overdue).min()
    }

    fn submit(&mut self, transfers: Vec<(u64, EncodedMessage)>, now: Instant) {
        self.sent.extend(transfers.iter().map(|(token, _)| (now, *token)));
        if let Some(link) = &mut self.link {
            link.submit(transfers);
        }
    }

    fn pause(&mut self, longest: Duration, now: Instant) {
        // Many that were under way together are refused together: that is one failure.
        if self.paused_until.is_none_or(|until| now >= until) {
            self.paused_until = Some(now + backoff(self.failures, FIRST_PAUSE, longest));
            self.failures = self.failures.saturating_add(1);
        }
    }
}

fn open<T: PublishTopic>(topic: Arc<T>, pause: Duration) -> BoxFuture<'static, Result<T::Link, servicebus::Error>> {
    Box::pin(async move {
        tokio::time::sleep(pause).await;
        topic.open().await
    })
}

impl<T: PublishTopic, S: CheckpointStore + 'static> Publisher<T, S> {
    pub(super) fn on_opened(&mut self, opened: Result<T::Link, servicebus::Error>) -> Result<(), Error> {
        self.connection.opening = None;
        match opened {
            Ok(link) => {
                let limits = link.limits();
                self.limits = Some(limits);
                let (count, linger) = (self.config.batch_count.get(), self.config.linger);
                self.lanes.set_batch_limits(BatchLimits { count, bytes: limits.batch, linger });
                self.connection.link = Some(link);
                match self.handle.state() {
                    PublishState::Idle
                    | PublishState::Publishing
                    | PublishState::Draining
                    | PublishState::Paused(PauseReason::SubscriptionMissing) => {}
                    PublishState::Opening if self.probe.subscription_exists() != Some(true) => {}
                    PublishState::Opening | PublishState::Paused(_) => self.set_active(),
                }
                Ok(())
            }
            Err(error) => {
                tracing::warn!(error = %error_chain(&error), "open a way to the topic");
                let why = match error_policy::service_bus(error.kind()).send {
                    SendErrorAction::Pause(why) => why,
                    SendErrorAction::Retry | SendErrorAction::Reopen | SendErrorAction::Refused => {
                        PauseReason::Unreachable
                    }
                    SendErrorAction::GateClosed => return Err(self.gate_closed()),
                    SendErrorAction::Fatal => return Err(Error::Bus(error)),
                };
                self.handle.set_state(PublishState::Paused(why));
                let pause = backoff(self.connection.failures, FIRST_REOPEN_BACKOFF, MAX_PAUSE);
                self.connection.failures = self.connection.failures.saturating_add(1);
                self.connection.opening = Some(open(Arc::clone(&self.connection.topic), pause));
                Ok(())
            }
        }
    }

    /// Sends what may go.
    pub(super) fn send_ready(&mut self, now: Instant) {
        if !self.may_send(now) {
            return;
        }
        let mut transfers = Vec::new();
        while self.lanes.transfers() < MAX_TRANSFERS {
            let Some(LaneTransfer { token, message }) = self.lanes.next_transfer(now) else { break };
            for ordinal in self.lanes.ordinals(token) {
                self.prefix.record_sent(ordinal);
            }
            transfers.push((token, message));
        }
        if !transfers.is_empty() {
            self.connection.submit(transfers, now);
        }
    }

    pub(super) fn on_outcomes(&mut self, outcomes: &mut Vec<SendOutcome>) -> Result<(), Error> {
        let now = Instant::now();
        let (mut published, mut transfers) = (0, 0);
        for (token, outcome) in outcomes.drain(..) {
            match outcome {
                Ok(()) => {
                    transfers += 1;
                    let (prefix, traces) = (&mut self.prefix, &mut self.traces);
                    self.lanes.acknowledge(token, |ordinal| {
                        published += 1;
                        traces.acknowledge(ordinal);
                        prefix.acknowledge(ordinal);
                    });
                }
                Err(error) => self.on_failed(token, error, now)?,
            }
        }
        if transfers > 0 {
            self.handle.counters().published.fetch_add(published, Relaxed);
            self.handle.counters().transfers.fetch_add(transfers, Relaxed);
            if self.connection.paused_until.is_none_or(|until| now >= until) {
                self.connection.failures = 0;
                self.connection.paused_until = None;
                self.set_active_after_pause();
            }
        }
        Ok(())
    }

    fn set_active_after_pause(&self) {
        match self.handle.state() {
            PublishState::Publishing
            | PublishState::Draining
            | PublishState::Paused(PauseReason::SubscriptionMissing) => {}
            PublishState::Idle | PublishState::Opening | PublishState::Paused(_) => self.set_active(),
        }
    }

    fn on_failed(&mut self, token: u64, error: servicebus::Error, now: Instant) -> Result<(), Error> {
        let Some((attempts, events)) = self.lanes.attempts(token) else { return Ok(()) };
        let counters = self.handle.counters();
        match error_policy::service_bus(error.kind()).send {
            SendErrorAction::Retry => {
                counters.uncertain.fetch_add(events as u64, Relaxed);
                tracing::warn!(error = %error_chain(&error), attempts, "send");
                self.lanes.retry(token, Some(now + backoff(attempts, FIRST_LANE_BACKOFF, MAX_LANE_BACKOFF)));
            }
            SendErrorAction::Reopen => {
                counters.uncertain.fetch_add(events as u64, Relaxed);
                self.connection.is_broken = true;
                self.lanes.retry(token, None);
            }
            SendErrorAction::Pause(why) => {
                counters.retried.fetch_add(events as u64, Relaxed);
                self.connection.pause(if why == PauseReason::Busy { MAX_BUSY_PAUSE } else { MAX_PAUSE }, now);
                self.handle.set_state(PublishState::Paused(why));
                self.lanes.retry(token, None);
            }
            SendErrorAction::Refused => self.on_refused(token, &error),
            SendErrorAction::GateClosed => return Err(self.gate_closed()),
            SendErrorAction::Fatal => return Err(Error::Bus(error)),
        }
        Ok(())
    }

    /// A batch comes apart; a single message is kept, and a marker takes its place.
    fn on_refused(&mut self, token: u64, error: &servicebus::Error) {
        let Some(RefusedMessage { lane, ordinal, message }) = self.lanes.refuse(token) else { return };
        let message = amqp::Message::parse(message).expect("a message we encoded can be decoded");
        let marker = rejected_marker(&message);
        // Even the marker was refused; what it stands for is kept already.
        let words = if marker.is_some() { "refused" } else { "refused, and so was its marker" };
        let reason = RejectReason::Refused(format!("{words}: {}", error_chain(error)));
        self.pending_writes.reject(ordinal, RejectedEvent::from_message(&message, reason), Some((lane, marker)));
    }

    fn gate_closed(&self) -> Error {
        Error::GateClosed { term: self.tenure.claim.term }
    }
}
