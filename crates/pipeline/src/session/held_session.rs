//! One held session from accept to release: receive, apply, settle, renew the lock, close.
//!
//! While a batch is in its transaction, the next messages arrive and the batch before it is settled. A batch is settled only after its
//! transaction has committed, and the next one starts only when it is resolved.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use futures_util::future::join;
use servicebus::{BusErrorKind, ReceivedMessage, SessionReceiver, Settler};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use super::acceptor::SessionContext;
use super::attempt_marks::{AttemptAction, AttemptMark, MarkError, SessionMarks};
use super::batch::{BatchMessage, ParsedMessage, SessionBatch, SettlementRule};
use super::budget::SessionByteShare;
use super::message::{MessageReader, OversizeFetch, fetch_oversize_body};
use super::monitor::SessionProblem;
use super::renewal;
use super::settle::{SettleAction, can_continue, dead_letter_reason, settle, settleable_messages};
use crate::envelope::property;
use crate::error_chain::error_chain;
use crate::failpoints::{Failpoint, LoopStall};
use crate::view::{self, AppliedBatch, Arrivals, BatchEnd, DeliveredEvent, SessionApplier};

/// Enough for the many short sessions. A longer session gets more once it has used this up.
pub(super) const INITIAL_CREDIT: u32 = 16;

/// A full credit window is followed by one this many times larger.
const CREDIT_GROWTH: u32 = 4;

/// After a full window more messages are in flight, so they are awaited even if other sessions need the slot.
const IN_FLIGHT_WAIT: Duration = Duration::from_millis(50);

/// How long a gap waits for the missing event, which the source may have committed a moment later.
const ARRIVAL_WAIT: Duration = Duration::from_millis(200);

/// How often a pod releases a session for a message that only another pod may verify before it dead-letters the message: about ten seconds.
/// Enough for a pod that has the key or reads the format to get it, while the pods differ.
const UNKNOWN_KEY_RELEASES: u32 = 10;

/// Memory of a message besides its body.
const ENVELOPE_BYTES: usize = 1 << 10;

/// For the description of a dead letter.
const NEVER_ENDED: &str = "no attempt to handle the message has ended: each ended with its pod";

/// Why a session is closed.
#[derive(Debug)]
enum SessionCloseReason {
    /// No more messages.
    Idle,
    /// The time or event limit is reached.
    Limit,
    Stopped,
    /// The lock or the connection is lost.
    Lost(Option<BusErrorKind>),
    /// A batch failed; unsettled messages are redelivered.
    Failed,
}

/// Runs a session to its end and closes it. Afterwards another pod may accept it.
pub(super) async fn run_session(
    context: &Arc<SessionContext>,
    receiver: SessionReceiver,
    share: SessionByteShare,
    stop: &CancellationToken,
) {
    let session = receiver.session().clone();
    let lock_lost = CancellationToken::new();
    let mut held = HeldSession::new(context, receiver, share, stop, &lock_lost);
    let reason = tokio::select! {
        // First, so that a due lock renewal never waits for the batch.
        biased;
        never = renewal::renew_while_held(&session, context.config.lock_duration, &lock_lost) => match never {},
        reason = held.run() => reason,
    };
    let counters = &context.monitor.0.counters;
    match &reason {
        SessionCloseReason::Idle | SessionCloseReason::Limit | SessionCloseReason::Stopped => {}
        SessionCloseReason::Lost(kind) => {
            let kind = kind.or_else(|| session.lost_reason().map(|error| error.kind()));
            if matches!(kind, None | Some(BusErrorKind::SessionLockLost)) {
                counters.locks_lost.fetch_add(1, Relaxed);
            }
            counters.dropped.fetch_add(1, Relaxed);
            info!(?kind, "session lost; unsettled messages will be redelivered");
        }
        SessionCloseReason::Failed => drop(counters.dropped.fetch_add(1, Relaxed)),
    }
    debug!(?reason, events = held.events, "session closed");
    if let Err(error) = held.receiver.close().await {
        debug!(error = error_chain(&error), "failed to close session");
    }
}

struct HeldSession<'a> {
    context: &'a SessionContext,
    receiver: SessionReceiver,
    settler: Settler,
    /// Taken while a batch is applied.
    applier: Option<SessionApplier>,
    reader: MessageReader,
    share: SessionByteShare,
    stop: &'a CancellationToken,
    /// Cancelled when the lock is lost.
    lock_lost: &'a CancellationToken,
    accepted_at: Instant,
    events: usize,
    credit: u32,
    /// The message size by which the share is charged.
    charged_message_size: usize,
    /// Received but not yet applied.
    buffer: VecDeque<ReceivedMessage>,
    /// The bus stopped sending only because the credit was used up.
    window_full: bool,
    has_received: bool,
    /// Held while an oversize body is in memory.
    oversize_permit: Option<OwnedSemaphorePermit>,
    marks: SessionMarks,
}

impl<'a> HeldSession<'a> {
    fn new(
        context: &'a SessionContext,
        receiver: SessionReceiver,
        share: SessionByteShare,
        stop: &'a CancellationToken,
        lock_lost: &'a CancellationToken,
    ) -> Self {
        Self {
            context,
            settler: receiver.settler(),
            receiver,
            applier: Some(context.applier.session_applier()),
            reader: MessageReader::with_tracing(context.applier.is_traced()).verifying(context.message_keys.clone()),
            share,
            stop,
            lock_lost,
            accepted_at: Instant::now(),
            events: 0,
            credit: INITIAL_CREDIT,
            charged_message_size: context.budget.typical_message_size(),
            buffer: VecDeque::new(),
            window_full: false,
            has_received: false,
            oversize_permit: None,
            marks: SessionMarks::default(),
        }
    }

    async fn run(&mut self) -> SessionCloseReason {
        let (Ok(reason) | Err(reason)) = self.process_batches().await;
        self.marks.end(self.receiver.session()).await;
        self.back_off_after(&reason).await;
        reason
    }

    async fn process_batches(&mut self) -> Result<SessionCloseReason, SessionCloseReason> {
        // Applied but not yet settled.
        let mut unsettled: Vec<(ReceivedMessage, SettleAction)> = vec![];
        loop {
            if let Some(reason) = self.close_reason() {
                self.settle(&unsettled).await?;
                return Ok(reason);
            }
            let batch = match self.next_batch(!unsettled.is_empty()).await {
                Ok(batch) => batch,
                Err(reason) => {
                    // These are committed, so settle them whatever happened next. Without the lock this fails and they are redelivered.
                    let _ = self.settle(&unsettled).await;
                    return Err(reason);
                }
            };
            if batch.is_empty() {
                if unsettled.is_empty() {
                    return Ok(self.close_reason().unwrap_or(SessionCloseReason::Idle));
                }
                self.settle(&unsettled).await?;
                unsettled.clear();
                continue;
            }
            LoopStall::Sessions.block_if_enabled().await;
            let SessionBatch { events, mut messages } = batch;
            let settle_too_early = Failpoint::SettleBeforeCommit.is_enabled();
            if settle_too_early {
                self.settle_unapplied(&messages).await?;
            }
            let (settler, context) = (self.settler.clone(), self.context);
            // Concurrently: the previous batch is committed, and this transaction does not depend on its messages.
            let (settled, applied) =
                join(settle_counted(context, &settler, &unsettled), self.apply(events, &mut messages)).await;
            self.marks.end(self.receiver.session()).await;
            unsettled = if settle_too_early { vec![] } else { settleable_messages(messages, &applied) };
            // The link is lost: this batch is redelivered and then skipped as duplicate.
            settled?;
            if !can_continue(&applied.end) {
                self.settle(&unsettled).await?;
                return Err(self.close_reason_after(&applied.end));
            }
        }
    }

    fn close_reason(&self) -> Option<SessionCloseReason> {
        if self.lock_lost.is_cancelled() {
            Some(SessionCloseReason::Lost(None))
        } else if self.stop.is_cancelled() {
            Some(SessionCloseReason::Stopped)
        } else if self.events >= self.context.config.max_session_events.get()
            || self.accepted_at.elapsed() >= self.context.config.max_session_duration
        {
            Some(SessionCloseReason::Limit)
        } else {
            None
        }
    }

    /// The next events, in order. Empty on timeout. `has_unsettled`: do not wait, as messages are to be settled.
    async fn next_batch(&mut self, has_unsettled: bool) -> Result<SessionBatch, SessionCloseReason> {
        self.oversize_permit = None;
        if self.buffer.is_empty() {
            let received = self.receive(has_unsettled).await?;
            self.record_received(&received);
            self.buffer.extend(received);
        }
        // A batch ends at the event limit of the session.
        let max_events = self.context.config.max_session_events.get().saturating_sub(self.events).max(1);
        let mut batch = SessionBatch::default();
        if has_unsettled && self.buffer.front().is_some_and(|message| self.context.marks.needs_mark(message)) {
            // A marked attempt may wait for another one; committed messages should be settled without a delay.
            return Ok(batch);
        }
        let attempt = self.begin_marked_attempt(max_events).await?;
        while let Some(message) = self.buffer.pop_front() {
            // Messages with a mark and without one are not handled together.
            let is_unfit = match &attempt {
                Some((mark, _)) => !mark.covers(&message),
                None => self.context.marks.needs_mark(&message),
            };
            if is_unfit {
                self.buffer.push_front(message);
                break;
            }
            if matches!(attempt, Some((_, AttemptAction::DeadLetter))) {
                self.count_unreadable();
                batch.add(message, None, unreadable(NEVER_ENDED.to_owned()));
                break;
            }
            let parsed = self.parse(&message).await?;
            if parsed.starts_new_batch() && !batch.is_empty() {
                // It starts the next batch.
                self.buffer.push_front(message);
                break;
            }
            match parsed {
                ParsedMessage::Event(mut event) => {
                    if matches!(attempt, Some((_, AttemptAction::Park))) {
                        warn!("message handled three times without an end; parking its aggregate");
                        event.delivery_count = DeliveredEvent::PARK_UNTRIED;
                    }
                    batch.add(message, Some(event), SettlementRule::ByOutcome);
                }
                ParsedMessage::Oversize(mut event) if matches!(attempt, Some((_, AttemptAction::Park))) => {
                    // Without its body: reading that may be what ends the pod.
                    warn!("message handled three times without an end; parking its aggregate");
                    event.delivery_count = DeliveredEvent::PARK_UNTRIED;
                    batch.add(message, Some(event), SettlementRule::ByOutcome);
                }
                ParsedMessage::Oversize(mut event) => {
                    // Boxed because it is rare: otherwise every session future has its size.
                    Box::pin(self.fetch_body(&message, &mut event)).await?;
                    batch.add(message, Some(event), SettlementRule::ByOutcome);
                    break;
                }
                ParsedMessage::UnreadableBody(event) => {
                    self.count_unreadable();
                    batch.add(
                        message,
                        Some(event),
                        SettlementRule::DeadLetterOnceResolved("the body is not readable".to_owned()),
                    );
                }
                ParsedMessage::NotAnEvent(description) => {
                    self.count_unreadable();
                    batch.add(message, None, unreadable(description));
                }
                ParsedMessage::Unverified(problem) => {
                    if problem.is_fixed_elsewhere() && self.may_wait_for_key() {
                        warn!(%problem, "message not verified; releasing the session for a pod that can verify it");
                        return Err(SessionCloseReason::Failed);
                    }
                    self.count_unverified();
                    let rule = SettlementRule::DeadLetter {
                        reason: dead_letter_reason::SIGNATURE,
                        description: problem.to_string(),
                    };
                    batch.add(message, None, rule);
                }
                ParsedMessage::NewerFormat { format } => {
                    warn!(format, "message has a newer format; releasing the session for a newer pod");
                    return Err(self.fail_with(SessionProblem::NewerFormat));
                }
            }
            if batch.events.len() >= max_events {
                break;
            }
        }
        Ok(batch)
    }

    async fn parse(&mut self, message: &ReceivedMessage) -> Result<ParsedMessage, SessionCloseReason> {
        let parsed = ParsedMessage::parse(message, &mut self.reader);
        if parsed.event().is_none_or(|event| self.context.places.problem_of(event).is_none()) {
            return Ok(parsed);
        }
        // Boxed because it is rare: otherwise every session future has its size.
        Box::pin(parsed.check_place(&self.context.places)).await.map_err(|error| {
            let error = mongo_error::DriverError::from(error);
            warn!(error = error_chain(&error), "failed to read the checkpoint; the session will be accepted again");
            self.fail_with(SessionProblem::ReadModels)
        })
    }

    /// Marks the first messages of the buffer in the session state, if one of them may end the pod.
    async fn begin_marked_attempt(
        &mut self,
        max_messages: usize,
    ) -> Result<Option<(AttemptMark, AttemptAction)>, SessionCloseReason> {
        let suspects =
            self.buffer.iter().take(max_messages).take_while(|message| self.context.marks.needs_mark(message));
        let mut numbers = suspects.map(ReceivedMessage::sequence_number);
        let Some(first) = numbers.next() else { return Ok(None) };
        let last = numbers.last().unwrap_or(first);
        let (session, waiting_since) = (self.receiver.session().clone(), Instant::now());
        // A dropped `begin` may leave a mark of this run, which blames nobody.
        let begun = tokio::select! {
            begun = self.marks.begin(&self.context.marks, &session, (first, last)) => begun,
            () = self.lock_lost.cancelled() => return Err(SessionCloseReason::Lost(None)),
            () = self.stop.cancelled() => return Err(SessionCloseReason::Stopped),
        };
        // A wait for other attempts, or for a sign of life of the last holder, is not time in which this session was handled.
        self.accepted_at += waiting_since.elapsed();
        begun.map(Some).map_err(|error| match error {
            MarkError::Busy => SessionCloseReason::Limit,
            MarkError::Bus(error) => connection_lost(&error),
            MarkError::Store(error) => {
                warn!(
                    error = error_chain(&error),
                    "failed to read the runs of pods; the session will be accepted again"
                );
                self.fail_with(SessionProblem::ReadModels)
            }
        })
    }

    fn count_unreadable(&self) {
        self.context.monitor.0.counters.unreadable.fetch_add(1, Relaxed);
    }

    fn count_unverified(&self) {
        self.context.monitor.0.counters.unverified.fetch_add(1, Relaxed);
    }

    /// Whether another pod may still get the message. Not for ever: anybody can name an unknown key. The delivery count does not tell, as a closed
    /// session does not raise it.
    fn may_wait_for_key(&self) -> bool {
        self.context.backoff.failures(self.receiver.session_id()) < UNKNOWN_KEY_RELEASES
    }

    async fn receive(&mut self, has_unsettled: bool) -> Result<Vec<ReceivedMessage>, SessionCloseReason> {
        let max_events = self.context.config.batch_size();
        if has_unsettled {
            // Only what has already arrived: committed messages should be settled without a delay.
            return self.receiver.receive(max_events, Duration::ZERO).await.map_err(|error| connection_lost(&error));
        }
        let idle_timeout = self.context.config.session_idle_timeout;
        // The first messages of a session, and those in flight, are awaited in any case.
        let min_wait = match (self.has_received, self.window_full) {
            (false, _) => idle_timeout,
            (true, true) => IN_FLIGHT_WAIT,
            (true, false) => Duration::ZERO,
        };
        let slot_wanted = async {
            if !min_wait.is_zero() {
                tokio::time::sleep(min_wait).await;
            }
            self.context.slots.release_requested().await;
        };
        // cancel-safe: a dropped `receive` loses no message.
        let received = tokio::select! {
            biased;
            () = self.lock_lost.cancelled() => return Err(SessionCloseReason::Lost(None)),
            received = self.receiver.receive(max_events, idle_timeout) => received,
            () = self.stop.cancelled() => return Ok(vec![]),
            // A consumed release request must be met: return nothing, so that the session closes.
            () = slot_wanted => return Ok(vec![]),
        };
        received.map_err(|error| connection_lost(&error))
    }

    /// Counts the messages and raises the credit of a session that has used it up.
    fn record_received(&mut self, received: &[ReceivedMessage]) {
        let counters = &self.context.monitor.0.counters;
        counters.received.fetch_add(received.len() as u64, Relaxed);
        let redelivered = received.iter().filter(|message| message.delivery_count() > 0).count();
        counters.redelivered.fetch_add(redelivered as u64, Relaxed);
        if received.is_empty() {
            return;
        }
        if self.context.message_keys.is_some() {
            let is_unsigned =
                |message: &&ReceivedMessage| message.raw().application_property(property::SIGNATURE).is_none();
            counters.unsigned.fetch_add(received.iter().filter(is_unsigned).count() as u64, Relaxed);
        }
        self.has_received = true;
        // Half of the credit in one receive means that the bus sends as fast as the credit allows.
        self.window_full = received.len() as u64 * 2 >= u64::from(self.credit);
        let largest = received.iter().map(|message| message.body().len()).max().unwrap_or(0) + ENVELOPE_BYTES;
        self.context.budget.record_message_size(largest);
        if self.window_full || largest > self.charged_message_size {
            self.charged_message_size = largest;
            let wanted = if self.window_full { self.credit.saturating_mul(CREDIT_GROWTH) } else { self.credit };
            let credit = self.share.resize(wanted.min(self.context.config.credit.get()), largest);
            if credit != self.credit && self.receiver.session().set_credit(credit).is_ok() {
                self.credit = credit;
            }
        }
    }

    async fn fetch_body(
        &mut self,
        message: &ReceivedMessage,
        event: &mut DeliveredEvent,
    ) -> Result<(), SessionCloseReason> {
        let permit = Arc::clone(&self.context.oversize_permits).acquire_owned().await;
        self.oversize_permit = permit.ok();
        let fetched = fetch_oversize_body(&self.context.oversize, message.raw(), event).await.map_err(|error| {
            warn!(error = error_chain(&error), "failed to fetch oversize body; the session will be accepted again");
            self.fail_with(SessionProblem::ReadModels)
        })?;
        if fetched == OversizeFetch::Altered {
            self.count_unverified();
        }
        Ok(())
    }

    /// Messages that arrive meanwhile and are applied too are added to `messages`.
    async fn apply(&mut self, events: Vec<DeliveredEvent>, messages: &mut Vec<BatchMessage>) -> AppliedBatch {
        if events.is_empty() {
            return AppliedBatch { outcomes: vec![], end: BatchEnd::Complete };
        }
        let mut applier = self.applier.take().expect("it is back before the next batch");
        let applied = if self.marks.is_active() || Failpoint::SettleBeforeCommit.is_enabled() {
            // A mark covers only the messages of the batch.
            applier.apply(events).await
        } else {
            applier.apply_with(events, &mut SessionArrivals { session: self, messages }).await
        };
        self.applier = Some(applier);
        self.events += applied.outcomes.len();
        if !applied.outcomes.is_empty() {
            self.context.monitor.0.record_progress();
            // One applied event is progress: the next failure starts without backoff again.
            self.context.backoff.record_success(self.receiver.session_id());
        }
        applied
    }

    /// The events of the next messages, as far as they are plain events. `None` if another message is next, which waits for the next batch.
    async fn next_arrivals(
        &mut self,
        within: Duration,
        messages: &mut Vec<BatchMessage>,
    ) -> Option<Vec<DeliveredEvent>> {
        if self.buffer.is_empty() {
            let max_events = self.context.config.batch_size();
            // cancel-safe: a dropped `receive` loses no message.
            let received = tokio::select! {
                biased;
                () = self.lock_lost.cancelled() => return None,
                () = self.stop.cancelled() => return None,
                received = self.receiver.receive(max_events, within) => received,
            };
            // An error ends the session with the next receive.
            let received = received.ok()?;
            if received.is_empty() {
                return Some(vec![]);
            }
            self.record_received(&received);
            self.buffer.extend(received);
        }
        let mut events = vec![];
        while let Some(message) = self.buffer.pop_front() {
            let parsed =
                (!self.context.marks.needs_mark(&message)).then(|| ParsedMessage::parse(&message, &mut self.reader));
            let event = match parsed {
                Some(ParsedMessage::Event(event)) if self.context.places.problem_of(&event).is_none() => event,
                Some(_) | None => {
                    self.buffer.push_front(message);
                    break;
                }
            };
            messages.push((message, SettlementRule::ByOutcome));
            events.push(event);
        }
        (!events.is_empty()).then_some(events)
    }

    async fn settle(&self, messages: &[(ReceivedMessage, SettleAction)]) -> Result<(), SessionCloseReason> {
        settle_counted(self.context, &self.settler, messages).await
    }

    /// Failpoint: settles received messages whether or not they are applied.
    async fn settle_unapplied(&self, messages: &[(ReceivedMessage, SettlementRule)]) -> Result<(), SessionCloseReason> {
        self.settler
            .complete(messages.iter().map(|(message, _)| message))
            .await
            .map_err(|error| connection_lost(&error))
    }

    fn close_reason_after(&self, end: &BatchEnd) -> SessionCloseReason {
        match end {
            BatchEnd::Failed(error) if matches!(**error, view::Error::Stopped) && self.stop.is_cancelled() => {
                return SessionCloseReason::Stopped;
            }
            BatchEnd::Complete | BatchEnd::Unknown => {
                warn!("commit result unknown; the session will be accepted again");
            }
            BatchEnd::Failed(error) => {
                warn!(error = error_chain(error), "failed to apply events; the session will be accepted again")
            }
        }
        self.fail_with(SessionProblem::ReadModels)
    }

    fn fail_with(&self, problem: SessionProblem) -> SessionCloseReason {
        self.context.monitor.0.set_apply_problem(Some(problem));
        SessionCloseReason::Failed
    }

    /// Keeps a failed session locked for its backoff, so that it does not fail again at once on another pod.
    async fn back_off_after(&mut self, reason: &SessionCloseReason) {
        let SessionCloseReason::Failed = reason else { return };
        // Frees the memory during the backoff; the bus redelivers the messages after the close.
        self.buffer.clear();
        self.oversize_permit = None;
        let pause = self.context.backoff.record_failure(self.receiver.session_id());
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = self.lock_lost.cancelled() => {}
            () = self.stop.cancelled() => {}
        }
    }
}

fn unreadable(description: String) -> SettlementRule {
    SettlementRule::DeadLetter { reason: dead_letter_reason::UNREADABLE, description }
}

/// The messages that a held session receives while a batch is applied.
struct SessionArrivals<'s, 'a> {
    session: &'s mut HeldSession<'a>,
    messages: &'s mut Vec<BatchMessage>,
}

impl Arrivals for SessionArrivals<'_, '_> {
    fn gap_wait(&self) -> Duration {
        ARRIVAL_WAIT
    }

    async fn next(&mut self, within: Duration) -> Option<Vec<DeliveredEvent>> {
        self.session.next_arrivals(within, self.messages).await
    }
}

async fn settle_counted(
    context: &SessionContext,
    settler: &Settler,
    messages: &[(ReceivedMessage, SettleAction)],
) -> Result<(), SessionCloseReason> {
    if messages.is_empty() {
        return Ok(());
    }
    let settled = settle(settler, messages).await.map_err(|error| {
        debug!(error = error_chain(&error), "failed to settle messages");
        connection_lost(&error)
    })?;
    context.monitor.0.counters.settled.fetch_add(settled as u64, Relaxed);
    Ok(())
}

/// Also after a failed settlement: settled messages are gone, the others are redelivered.
fn connection_lost(error: &servicebus::Error) -> SessionCloseReason {
    SessionCloseReason::Lost(Some(error.kind()))
}
