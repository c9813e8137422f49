//! The life of one held session: receive, hand over, settle, renew, let go.
//!
//! While a batch's transaction runs, the next messages come in and the batch before it is settled; a batch is settled after its
//! transaction is committed, never before, and the next begins when it is resolved, never earlier.

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
use super::batch::{ParsedMessage, SessionBatch, SettlementRule};
use super::budget::BudgetShare;
use super::message::{MessageReader, fetch_oversize_body};
use super::monitor::SessionProblem;
use super::renewal;
use super::settle::{SettleAction, can_continue, settle, settleable_messages};
use crate::error_chain::error_chain;
use crate::failpoints::{Failpoint, LoopStall};
use crate::view::{self, AppliedBatch, BatchEnd, DeliveredEvent, SessionApplier};

/// What a session begins with: enough for the many that are short. A longer one is given more when it has used this up.
pub(super) const INITIAL_CREDIT: u32 = 16;

/// A window that was full is followed by one so many times as large.
const CREDIT_GROWTH: u32 = 4;

/// After a window that was full more is to be expected, also when others wait: it is under way.
const IN_FLIGHT_WAIT: Duration = Duration::from_millis(50);

/// Beside its body, what a message needs in memory.
const ENVELOPE_BYTES: usize = 1 << 10;

/// Why a session is let go.
#[derive(Debug)]
enum CloseReason {
    /// It has no more messages.
    Idle,
    /// It had its turn.
    Limit,
    Stopped,
    /// Its lock is lost, or the way to the bus.
    Lost(Option<BusErrorKind>),
    /// Something failed; what was not settled comes again.
    Failed,
}

/// Holds a session until it is to be let go, and lets it go. When this returns another may have it.
pub(super) async fn hold(
    context: &Arc<SessionContext>,
    receiver: SessionReceiver,
    share: BudgetShare,
    stop: &CancellationToken,
) {
    let session = receiver.session().clone();
    let lock_lost = CancellationToken::new();
    let mut held = HeldSession::new(context, receiver, share, stop, &lock_lost);
    let ended = tokio::select! {
        // First: a lock that is due is renewed before anything else is done.
        biased;
        never = renewal::renew_while_held(&session, context.config.lock_duration, &lock_lost) => match never {},
        ended = held.run() => ended,
    };
    let counters = &context.monitor.0;
    match &ended {
        CloseReason::Idle | CloseReason::Limit | CloseReason::Stopped => {}
        CloseReason::Lost(kind) => {
            let kind = kind.or_else(|| session.lost_reason().map(|error| error.kind()));
            if matches!(kind, None | Some(BusErrorKind::SessionLockLost)) {
                counters.locks_lost.fetch_add(1, Relaxed);
            }
            counters.dropped.fetch_add(1, Relaxed);
            info!(?kind, "a session is lost; what was not settled comes again");
        }
        CloseReason::Failed => drop(counters.dropped.fetch_add(1, Relaxed)),
    }
    debug!(?ended, events = held.events, "a session is let go");
    if let Err(error) = held.receiver.close().await {
        debug!(error = error_chain(&error), "close a session");
    }
}

struct HeldSession<'a> {
    context: &'a SessionContext,
    receiver: SessionReceiver,
    settler: Settler,
    applier: SessionApplier,
    reader: MessageReader,
    share: BudgetShare,
    stop: &'a CancellationToken,
    /// The lock is lost.
    lock_lost: &'a CancellationToken,
    accepted_at: Instant,
    events: usize,
    credit: u32,
    /// What its messages are charged at.
    charged_message_size: usize,
    /// Received, and not yet handed over.
    buffer: VecDeque<ReceivedMessage>,
    /// Whether the bus was kept from sending more by our credit alone.
    window_full: bool,
    has_received: bool,
    /// Held while an event with a large body is in hand.
    oversize_permit: Option<OwnedSemaphorePermit>,
}

impl<'a> HeldSession<'a> {
    fn new(
        context: &'a SessionContext,
        receiver: SessionReceiver,
        share: BudgetShare,
        stop: &'a CancellationToken,
        lock_lost: &'a CancellationToken,
    ) -> Self {
        Self {
            context,
            settler: receiver.settler(),
            receiver,
            applier: context.applier.session_applier(),
            reader: MessageReader::with_tracing(context.applier.is_traced()),
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
        }
    }

    async fn run(&mut self) -> CloseReason {
        let (Ok(ended) | Err(ended)) = self.process_batches().await;
        self.back_off_after(&ended).await;
        ended
    }

    async fn process_batches(&mut self) -> Result<CloseReason, CloseReason> {
        // Applied, and not yet settled.
        let mut unsettled: Vec<(ReceivedMessage, SettleAction)> = vec![];
        loop {
            if let Some(ended) = self.close_reason() {
                self.settle(&unsettled).await?;
                return Ok(ended);
            }
            let batch = match self.next_batch(!unsettled.is_empty()).await {
                Ok(batch) => batch,
                Err(ended) => {
                    // What is done is done, whatever comes after it. Without a lock this fails at once, and it comes again.
                    let _ = self.settle(&unsettled).await;
                    return Err(ended);
                }
            };
            if batch.is_empty() {
                if unsettled.is_empty() {
                    return Ok(self.close_reason().unwrap_or(CloseReason::Idle));
                }
                self.settle(&unsettled).await?;
                unsettled.clear();
                continue;
            }
            LoopStall::Sessions.block_if_enabled().await;
            let SessionBatch { events, messages } = batch;
            let settle_too_early = Failpoint::SettleBeforeCommit.is_enabled();
            if settle_too_early {
                self.settle_unapplied(&messages).await?;
            }
            let (settler, context) = (self.settler.clone(), self.context);
            // Side by side: the last batch is committed, and this one's transaction has nothing to do with its messages.
            let (settled, applied) = join(settle_counted(context, &settler, &unsettled), self.apply(events)).await;
            unsettled = if settle_too_early { vec![] } else { settleable_messages(messages, &applied) };
            settled?;
            if !can_continue(&applied.end) {
                self.settle(&unsettled).await?;
                return Err(self.close_reason_after(&applied.end));
            }
        }
    }

    fn close_reason(&self) -> Option<CloseReason> {
        if self.lock_lost.is_cancelled() {
            Some(CloseReason::Lost(None))
        } else if self.stop.is_cancelled() {
            Some(CloseReason::Stopped)
        } else if self.events >= self.context.config.max_session_events.get()
            || self.accepted_at.elapsed() >= self.context.config.max_session_duration
        {
            Some(CloseReason::Limit)
        } else {
            None
        }
    }

    /// Events in order, as many as go together. Empty when none came in time. `has_unsettled`: something waits to be settled meanwhile.
    async fn next_batch(&mut self, has_unsettled: bool) -> Result<SessionBatch, CloseReason> {
        self.oversize_permit = None;
        if self.buffer.is_empty() {
            let received = self.receive(has_unsettled).await?;
            self.record_received(&received);
            self.buffer.extend(received);
        }
        let max_events = self.context.config.max_session_events.get().saturating_sub(self.events).max(1);
        let mut batch = SessionBatch::default();
        while let Some(message) = self.buffer.pop_front() {
            let sorted = ParsedMessage::parse(&message, &mut self.reader);
            if sorted.starts_new_batch() && !batch.is_empty() {
                self.buffer.push_front(message);
                break;
            }
            match sorted {
                ParsedMessage::Event(event) => batch.add(message, Some(event), SettlementRule::ByOutcome),
                ParsedMessage::Oversize(mut event) => {
                    // Boxed, as it is seldom: every session would carry the room for it.
                    Box::pin(self.fetch_body(&message, &mut event)).await?;
                    batch.add(message, Some(event), SettlementRule::ByOutcome);
                    break;
                }
                ParsedMessage::UnreadableBody(event) => {
                    self.count_unreadable();
                    batch.add(
                        message,
                        Some(event),
                        SettlementRule::DeadLetterOnceResolved("its body cannot be read".to_owned()),
                    );
                }
                ParsedMessage::NotAnEvent(why) => {
                    self.count_unreadable();
                    batch.add(message, None, SettlementRule::DeadLetter(why));
                }
                ParsedMessage::NewerFormat { format } => {
                    warn!(format, "a message was written by a newer version; its session is left to others");
                    return Err(self.fail_with(SessionProblem::NewerFormat));
                }
            }
            if batch.events.len() >= max_events {
                break;
            }
        }
        Ok(batch)
    }

    fn count_unreadable(&self) {
        self.context.monitor.0.unreadable.fetch_add(1, Relaxed);
    }

    async fn receive(&mut self, has_unsettled: bool) -> Result<Vec<ReceivedMessage>, CloseReason> {
        let max_events = self.context.config.batch_size();
        if has_unsettled {
            return self.receiver.receive(max_events, Duration::ZERO).await.map_err(|error| lost_connection(&error));
        }
        let idle = self.context.config.session_idle_timeout;
        // It has messages, or had: the first of them and those under way are waited for in any case.
        let at_least = match (self.has_received, self.window_full) {
            (false, _) => idle,
            (true, true) => IN_FLIGHT_WAIT,
            (true, false) => Duration::ZERO,
        };
        let slot_wanted = async {
            if !at_least.is_zero() {
                tokio::time::sleep(at_least).await;
            }
            self.context.slots.release_requested().await;
        };
        // cancel-safe: receive, of which nothing is lost when it is dropped.
        let received = tokio::select! {
            biased;
            () = self.lock_lost.cancelled() => return Err(CloseReason::Lost(None)),
            received = self.receiver.receive(max_events, idle) => received,
            () = self.stop.cancelled() => return Ok(vec![]),
            // Who is told of a wish must grant it: with nothing in hand, the session is let go.
            () = slot_wanted => return Ok(vec![]),
        };
        received.map_err(|error| lost_connection(&error))
    }

    /// Counts, and gives a session that has used up its credit more of it.
    fn record_received(&mut self, received: &[ReceivedMessage]) {
        let counters = &self.context.monitor.0;
        counters.received.fetch_add(received.len() as u64, Relaxed);
        let redelivered = received.iter().filter(|message| message.delivery_count() > 0).count();
        counters.redelivered.fetch_add(redelivered as u64, Relaxed);
        if received.is_empty() {
            return;
        }
        self.has_received = true;
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

    async fn fetch_body(&mut self, message: &ReceivedMessage, event: &mut DeliveredEvent) -> Result<(), CloseReason> {
        let permit = Arc::clone(&self.context.oversize_permits).acquire_owned().await;
        self.oversize_permit = permit.ok();
        fetch_oversize_body(&self.context.oversize, message.raw(), event).await.map_err(|error| {
            warn!(error = error_chain(&error), "an event's body cannot be fetched");
            self.fail_with(SessionProblem::ReadModels)
        })
    }

    async fn apply(&mut self, events: Vec<DeliveredEvent>) -> AppliedBatch {
        if events.is_empty() {
            return AppliedBatch { outcomes: vec![], end: BatchEnd::Complete };
        }
        let applied = self.applier.apply(events).await;
        self.events += applied.outcomes.len();
        if !applied.outcomes.is_empty() {
            self.context.monitor.0.record_progress();
            self.context.backoff.record_success(self.receiver.session_id());
        }
        applied
    }

    async fn settle(&self, messages: &[(ReceivedMessage, SettleAction)]) -> Result<(), CloseReason> {
        settle_counted(self.context, &self.settler, messages).await
    }

    /// The defect: what was received is settled, whatever becomes of it.
    async fn settle_unapplied(&self, messages: &[(ReceivedMessage, SettlementRule)]) -> Result<(), CloseReason> {
        self.settler
            .complete(messages.iter().map(|(message, _)| message))
            .await
            .map_err(|error| lost_connection(&error))
    }

    fn close_reason_after(&self, end: &BatchEnd) -> CloseReason {
        match end {
            BatchEnd::Failed(error) if matches!(**error, view::Error::Stopped) && self.stop.is_cancelled() => {
                return CloseReason::Stopped;
            }
            BatchEnd::Complete | BatchEnd::Unknown => {
                warn!("it is not known whether events were applied; their session is accepted again");
            }
            BatchEnd::Failed(error) => {
                warn!(error = error_chain(error), "events were not applied; their session is accepted again")
            }
        }
        self.fail_with(SessionProblem::ReadModels)
    }

    fn fail_with(&self, problem: SessionProblem) -> CloseReason {
        self.context.monitor.0.set_apply_problem(Some(problem));
        CloseReason::Failed
    }

    /// Keeps a session that failed before for a while, so that it does not fail again at once, here or elsewhere.
    async fn back_off_after(&mut self, ended: &CloseReason) {
        let CloseReason::Failed = ended else { return };
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

async fn settle_counted(
    context: &SessionContext,
    settler: &Settler,
    messages: &[(ReceivedMessage, SettleAction)],
) -> Result<(), CloseReason> {
    if messages.is_empty() {
        return Ok(());
    }
    let settled = settle(settler, messages).await.map_err(|error| {
        debug!(error = error_chain(&error), "settle messages");
        lost_connection(&error)
    })?;
    context.monitor.0.settled.fetch_add(settled as u64, Relaxed);
    Ok(())
}

/// After a failed settlement, too, the session is dropped: what is settled is gone, the rest comes again.
fn lost_connection(error: &servicebus::Error) -> CloseReason {
    CloseReason::Lost(Some(error.kind()))
}
