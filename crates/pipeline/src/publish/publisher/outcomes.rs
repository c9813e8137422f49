//! What the publisher does with opened links and with the outcomes of sends. `error_policy.rs` decides; this file acts.

use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use servicebus::SendOutcome;

use super::topic_connection::TopicConnectionEvent;
use super::{PauseReason, PublishState, Publisher};
use crate::checkpoint::CheckpointStore;
use crate::error_chain::error_chain;
use crate::error_policy::{self, SendErrorAction};
use crate::failpoints::Failpoint;
use crate::publish::batch::BatchLimits;
use crate::publish::error::Error;
use crate::publish::lanes::RefusedSend;
use crate::publish::message::is_marker;
use crate::publish::pending_writes::RejectedEventSlot;
use crate::publish::rejected::{RejectReason, RejectedEvent};
use crate::publish::topic::{LinkLimits, PublishTopic};
use crate::retry::backoff;

/// Backoff of a lane whose transfer failed.
const FIRST_LANE_BACKOFF: Duration = Duration::from_millis(20);
const MAX_LANE_BACKOFF: Duration = Duration::from_secs(5);

impl<T: PublishTopic, S: CheckpointStore + 'static> Publisher<T, S> {
    pub(super) fn on_connection(
        &mut self,
        event: TopicConnectionEvent,
        outcomes: &mut Vec<SendOutcome>,
    ) -> Result<(), Error> {
        match event {
            TopicConnectionEvent::Outcomes => self.on_outcomes(outcomes),
            TopicConnectionEvent::Opened(limits) => {
                self.on_opened(limits);
                Ok(())
            }
            TopicConnectionEvent::OpenFailed(error) => self.on_open_failed(error),
        }
    }

    fn on_opened(&mut self, limits: LinkLimits) {
        let (count, linger) = (self.config.batch_count.get(), self.config.linger);
        self.window.set_batch_limits(BatchLimits { count, bytes: limits.batch, linger });
        match self.handle.state() {
            PublishState::Idle
            | PublishState::Publishing
            | PublishState::Draining
            | PublishState::Paused(PauseReason::SubscriptionMissing) => {}
            PublishState::Opening if self.probe.subscription_exists() != Some(true) => {}
            PublishState::Opening | PublishState::Paused(_) => self.set_active(),
        }
    }

    fn on_open_failed(&mut self, error: servicebus::Error) -> Result<(), Error> {
        let topic = self.topic.name();
        tracing::warn!(error = %error_chain(&error), "failed to open sender link to topic `{topic}`; retrying");
        let reason = match error_policy::on_send_error(&error) {
            SendErrorAction::Pause(reason) => reason,
            SendErrorAction::Retry | SendErrorAction::Reopen | SendErrorAction::Isolate | SendErrorAction::Refused => {
                PauseReason::Unreachable
            }
            SendErrorAction::GateClosed => return Err(self.gate_closed()),
            SendErrorAction::Fatal => return Err(Error::Bus(error)),
        };
        self.set_state(PublishState::Paused(reason));
        Ok(())
    }

    fn on_outcomes(&mut self, outcomes: &mut Vec<SendOutcome>) -> Result<(), Error> {
        let now = Instant::now();
        let (mut events, mut transfers) = (0, 0);
        for (token, outcome) in outcomes.drain(..) {
            match outcome {
                Ok(()) => {
                    transfers += 1;
                    events += self.window.acknowledge(token);
                }
                Err(_) if Failpoint::RefusedIsAcknowledged.is_enabled() => drop(self.window.acknowledge(token)),
                Err(error) => self.on_send_failed(token, error, now)?,
            }
        }
        if transfers > 0 {
            self.handle.counters().published.fetch_add(events, Relaxed);
            self.handle.counters().transfers.fetch_add(transfers, Relaxed);
            if self.connection.end_pause(now) {
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

    fn on_send_failed(&mut self, token: u64, error: servicebus::Error, now: Instant) -> Result<(), Error> {
        let Some((attempts, events)) = self.window.attempts(token) else { return Ok(()) };
        let counters = self.handle.counters();
        match error_policy::on_send_error(&error) {
            SendErrorAction::Retry => {
                counters.uncertain.fetch_add(events as u64, Relaxed);
                tracing::warn!(error = %error_chain(&error), attempts, "failed to send; retrying");
                self.window.retry(token, Some(now + backoff(attempts, FIRST_LANE_BACKOFF, MAX_LANE_BACKOFF)));
            }
            SendErrorAction::Reopen => {
                counters.uncertain.fetch_add(events as u64, Relaxed);
                self.connection.mark_broken();
                self.window.retry(token, None);
            }
            SendErrorAction::Pause(reason) => {
                counters.retried.fetch_add(events as u64, Relaxed);
                self.connection.pause(reason, now);
                self.set_state(PublishState::Paused(reason));
                self.window.retry(token, None);
            }
            SendErrorAction::Isolate => {
                counters.uncertain.fetch_add(events as u64, Relaxed);
                self.on_link_detached(token, &error, now);
            }
            SendErrorAction::Refused => self.on_refused(token, &error),
            SendErrorAction::GateClosed => return Err(self.gate_closed()),
            SendErrorAction::Fatal => return Err(Error::Bus(error)),
        }
        Ok(())
    }

    /// The error is about one of the transfers in flight, and every one of them gets it. They are sent again in smaller groups, until one is alone.
    fn on_link_detached(&mut self, token: u64, error: &servicebus::Error, now: Instant) {
        let is_cause = self.window.is_isolated();
        if self.connection.mark_detached() && !is_cause {
            let transfers = self.window.transfers();
            tracing::warn!(error = %error_chain(error), transfers, "sender link detached; resending in smaller groups to find the message that causes it");
            self.window.isolate();
        }
        let is_marker = self.window.single_message(token).is_some_and(is_marker);
        if is_cause && !is_marker {
            return self.on_refused(token, error);
        }
        if is_cause {
            // A marker holds nothing that could be refused, so no message is the cause.
            self.connection.pause(PauseReason::SendRefused, now);
            self.set_state(PublishState::Paused(PauseReason::SendRefused));
        }
        self.window.retry(token, None);
    }

    /// A refused batch is resent in halves. A refused message is stored as rejected, and a marker replaces it.
    fn on_refused(&mut self, token: u64, error: &servicebus::Error) {
        let Some(RefusedSend { lane, ordinal, message }) = self.window.refuse(token) else { return };
        let message = amqp::Message::parse(message).expect("a message we encoded can be decoded");
        let marker = self.admission.rejected_marker(&message);
        // A marker has no marker: its event is stored already.
        let what = if marker.is_some() { "refused" } else { "refused, and so was its marker" };
        let reason = RejectReason::Refused(format!("{what}: {}", error_chain(error)));
        let event = RejectedEvent::from_message(&message, reason);
        self.pending_writes.reject(ordinal, event, Some(RejectedEventSlot { lane, marker }));
    }

    fn gate_closed(&self) -> Error {
        Error::GateClosed { term: self.term.claim.term }
    }
}
