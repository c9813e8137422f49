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

use super::acceptor::Shared;
use super::batch::{Batch, Fate, Sorted};
use super::budget::Share;
use super::handle::Trouble;
use super::message::{Reader, fetch};
use super::renewal;
use super::settle::{How, goes_on, resolved, settle};
use crate::error_chain::error_chain;
use crate::failpoints::{Failpoint, LoopStall};
use crate::view::{self, Applied, Delivered, End, Feed};

/// What a session begins with: enough for the many that are short. A longer one is given more when it has used this up.
pub(super) const FIRST_CREDIT: u32 = 16;

/// A window that was full is followed by one so many times as large.
const GROWTH: u32 = 4;

/// After a window that was full more is to be expected, also when others wait: it is under way.
const UNDER_WAY: Duration = Duration::from_millis(50);

/// Beside its body, what a message needs in memory.
const ENVELOPE: usize = 1 << 10;

/// Why a session is let go.
#[derive(Debug)]
enum Ended {
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
pub(super) async fn hold(shared: &Arc<Shared>, receiver: SessionReceiver, share: Share, stop: &CancellationToken) {
    let session = receiver.session().clone();
    let over = CancellationToken::new();
    let mut held = Holding::new(shared, receiver, share, stop, &over);
    let ended = tokio::select! {
        // First: a lock that is due is renewed before anything else is done.
        biased;
        never = renewal::keep(&session, shared.config.lock_duration, &over) => match never {},
        ended = held.live() => ended,
    };
    let book = &shared.handle.0;
    match &ended {
        Ended::Idle | Ended::Limit | Ended::Stopped => {}
        Ended::Lost(kind) => {
            let kind = kind.or_else(|| session.lost_reason().map(|error| error.kind()));
            if matches!(kind, None | Some(BusErrorKind::SessionLockLost)) {
                book.locks_lost.fetch_add(1, Relaxed);
            }
            book.dropped.fetch_add(1, Relaxed);
            info!(?kind, "a session is lost; what was not settled comes again");
        }
        Ended::Failed => drop(book.dropped.fetch_add(1, Relaxed)),
    }
    debug!(?ended, events = held.events, "a session is let go");
    if let Err(error) = held.receiver.close().await {
        debug!(error = error_chain(&error), "close a session");
    }
}

struct Holding<'a> {
    shared: &'a Shared,
    receiver: SessionReceiver,
    settler: Settler,
    feed: Feed,
    reader: Reader,
    share: Share,
    stop: &'a CancellationToken,
    /// The lock is lost.
    over: &'a CancellationToken,
    since: Instant,
    events: usize,
    credit: u32,
    /// What its messages are charged at.
    size: usize,
    /// Received, and not yet handed over.
    waiting: VecDeque<ReceivedMessage>,
    /// Whether the bus was kept from sending more by our credit alone.
    window_full: bool,
    begun: bool,
    /// Held while an event with a large body is in hand.
    large: Option<OwnedSemaphorePermit>,
}

impl<'a> Holding<'a> {
    fn new(
        shared: &'a Shared,
        receiver: SessionReceiver,
        share: Share,
        stop: &'a CancellationToken,
        over: &'a CancellationToken,
    ) -> Self {
        Self {
            shared,
            settler: receiver.settler(),
            receiver,
            feed: shared.applier.feed(),
            reader: Reader::traced(shared.applier.is_traced()),
            share,
            stop,
            over,
            since: Instant::now(),
            events: 0,
            credit: FIRST_CREDIT,
            size: shared.budget.usual(),
            waiting: VecDeque::new(),
            window_full: false,
            begun: false,
            large: None,
        }
    }

    async fn live(&mut self) -> Ended {
        let (Ok(ended) | Err(ended)) = self.work().await;
        self.pause_after(&ended).await;
        ended
    }

    async fn work(&mut self) -> Result<Ended, Ended> {
        // Applied, and not yet settled.
        let mut done: Vec<(ReceivedMessage, How)> = vec![];
        loop {
            if let Some(ended) = self.turn_is_over() {
                self.settle(&done).await?;
                return Ok(ended);
            }
            let batch = match self.next_batch(!done.is_empty()).await {
                Ok(batch) => batch,
                Err(ended) => {
                    // What is done is done, whatever comes after it. Without a lock this fails at once, and it comes again.
                    let _ = self.settle(&done).await;
                    return Err(ended);
                }
            };
            if batch.is_empty() {
                if done.is_empty() {
                    return Ok(self.turn_is_over().unwrap_or(Ended::Idle));
                }
                self.settle(&done).await?;
                done.clear();
                continue;
            }
            LoopStall::Sessions.block_if_enabled().await;
            let Batch { events, messages } = batch;
            let too_early = Failpoint::SettleBeforeCommit.is_enabled();
            if too_early {
                self.settle_unapplied(&messages).await?;
            }
            let (settler, shared) = (self.settler.clone(), self.shared);
            // Side by side: the last batch is committed, and this one's transaction has nothing to do with its messages.
            let (settled, applied) = join(settle_counted(shared, &settler, &done), self.apply(events)).await;
            done = if too_early { vec![] } else { resolved(messages, &applied) };
            settled?;
            if !goes_on(&applied.end) {
                self.settle(&done).await?;
                return Err(self.failed(&applied.end));
            }
        }
    }

    fn turn_is_over(&self) -> Option<Ended> {
        if self.over.is_cancelled() {
            Some(Ended::Lost(None))
        } else if self.stop.is_cancelled() {
            Some(Ended::Stopped)
        } else if self.events >= self.shared.config.max_session_events.get()
            || self.since.elapsed() >= self.shared.config.max_session_duration
        {
            Some(Ended::Limit)
        } else {
            None
        }
    }

    /// Events in order, as many as go together. Empty when none came in time. `in_hand`: something waits to be settled meanwhile.
    async fn next_batch(&mut self, in_hand: bool) -> Result<Batch, Ended> {
        self.large = None;
        if self.waiting.is_empty() {
            let received = self.receive(in_hand).await?;
            self.note(&received);
            self.waiting.extend(received);
        }
        let most = self.shared.config.max_session_events.get().saturating_sub(self.events).max(1);
        let mut batch = Batch::default();
        while let Some(message) = self.waiting.pop_front() {
            let sorted = Sorted::of(&message, &mut self.reader);
            if sorted.begins_a_batch() && !batch.is_empty() {
                self.waiting.push_front(message);
                break;
            }
            match sorted {
                Sorted::Event(event) => batch.add(message, Some(event), Fate::Event),
                Sorted::Large(mut event) => {
                    // Boxed, as it is seldom: every session would carry the room for it.
                    Box::pin(self.fetch(&message, &mut event)).await?;
                    batch.add(message, Some(event), Fate::Event);
                    break;
                }
                Sorted::Mangled(event) => {
                    self.count_unreadable();
                    batch.add(message, Some(event), Fate::Mangled("its body cannot be read".to_owned()));
                }
                Sorted::NotAnEvent(why) => {
                    self.count_unreadable();
                    batch.add(message, None, Fate::NotAnEvent(why));
                }
                Sorted::Newer { format } => {
                    warn!(format, "a message was written by a newer version; its session is left to others");
                    return Err(self.trouble(Trouble::NewerFormat));
                }
            }
            if batch.events.len() >= most {
                break;
            }
        }
        Ok(batch)
    }

    fn count_unreadable(&self) {
        self.shared.handle.0.unreadable.fetch_add(1, Relaxed);
    }

    async fn receive(&mut self, in_hand: bool) -> Result<Vec<ReceivedMessage>, Ended> {
        let most = self.shared.config.batch();
        if in_hand {
            return self.receiver.receive(most, Duration::ZERO).await.map_err(|error| lost(&error));
        }
        let idle = self.shared.config.session_idle_timeout;
        // It has messages, or had: the first of them and those under way are waited for in any case.
        let at_least = match (self.begun, self.window_full) {
            (false, _) => idle,
            (true, true) => UNDER_WAY,
            (true, false) => Duration::ZERO,
        };
        let crowded = async {
            if !at_least.is_zero() {
                tokio::time::sleep(at_least).await;
            }
            self.shared.seats.wanted().await;
        };
        // cancel-safe: receive, of which nothing is lost when it is dropped.
        let received = tokio::select! {
            biased;
            () = self.over.cancelled() => return Err(Ended::Lost(None)),
            received = self.receiver.receive(most, idle) => received,
            () = self.stop.cancelled() => return Ok(vec![]),
            // Who is told of a wish must grant it: with nothing in hand, the session is let go.
            () = crowded => return Ok(vec![]),
        };
        received.map_err(|error| lost(&error))
    }

    /// Counts, and gives a session that has used up its credit more of it.
    fn note(&mut self, received: &[ReceivedMessage]) {
        let book = &self.shared.handle.0;
        book.received.fetch_add(received.len() as u64, Relaxed);
        let again = received.iter().filter(|message| message.delivery_count() > 0).count();
        book.redelivered.fetch_add(again as u64, Relaxed);
        if received.is_empty() {
            return;
        }
        self.begun = true;
        self.window_full = received.len() as u64 * 2 >= u64::from(self.credit);
        let largest = received.iter().map(|message| message.body().len()).max().unwrap_or(0) + ENVELOPE;
        self.shared.budget.saw(largest);
        if self.window_full || largest > self.size {
            self.size = largest;
            let want = if self.window_full { self.credit.saturating_mul(GROWTH) } else { self.credit };
            let credit = self.share.resize(want.min(self.shared.config.credit.get()), largest);
            if credit != self.credit && self.receiver.session().set_credit(credit).is_ok() {
                self.credit = credit;
            }
        }
    }

    async fn fetch(&mut self, message: &ReceivedMessage, event: &mut Delivered) -> Result<(), Ended> {
        let permit = Arc::clone(&self.shared.large).acquire_owned().await;
        self.large = permit.ok();
        fetch(&self.shared.oversize, message.raw(), event).await.map_err(|error| {
            warn!(error = error_chain(&error), "an event's body cannot be fetched");
            self.trouble(Trouble::ReadModels)
        })
    }

    async fn apply(&mut self, events: Vec<Delivered>) -> Applied {
        if events.is_empty() {
            return Applied { outcomes: vec![], end: End::Complete };
        }
        let applied = self.feed.apply(events).await;
        self.events += applied.outcomes.len();
        if !applied.outcomes.is_empty() {
            self.shared.handle.0.progressed();
            self.shared.troubles.passed(self.receiver.session_id());
        }
        applied
    }

    async fn settle(&self, messages: &[(ReceivedMessage, How)]) -> Result<(), Ended> {
        settle_counted(self.shared, &self.settler, messages).await
    }

    /// The defect: what was received is settled, whatever becomes of it.
    async fn settle_unapplied(&self, messages: &[(ReceivedMessage, Fate)]) -> Result<(), Ended> {
        self.settler.complete(messages.iter().map(|(message, _)| message)).await.map_err(|error| lost(&error))
    }

    fn failed(&self, end: &End) -> Ended {
        match end {
            End::Failed(error) if matches!(**error, view::Error::Stopped) && self.stop.is_cancelled() => {
                return Ended::Stopped;
            }
            End::Complete | End::Unknown => {
                warn!("it is not known whether events were applied; their session is accepted again");
            }
            End::Failed(error) => {
                warn!(error = error_chain(error), "events were not applied; their session is accepted again")
            }
        }
        self.trouble(Trouble::ReadModels)
    }

    fn trouble(&self, trouble: Trouble) -> Ended {
        self.shared.handle.0.applying(Some(trouble));
        Ended::Failed
    }

    /// Keeps a session that failed before for a while, so that it does not fail again at once, here or elsewhere.
    async fn pause_after(&mut self, ended: &Ended) {
        let Ended::Failed = ended else { return };
        self.waiting.clear();
        self.large = None;
        let pause = self.shared.troubles.failed(self.receiver.session_id());
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = self.over.cancelled() => {}
            () = self.stop.cancelled() => {}
        }
    }
}

async fn settle_counted(shared: &Shared, settler: &Settler, messages: &[(ReceivedMessage, How)]) -> Result<(), Ended> {
    if messages.is_empty() {
        return Ok(());
    }
    let settled = settle(settler, messages).await.map_err(|error| {
        debug!(error = error_chain(&error), "settle messages");
        lost(&error)
    })?;
    shared.handle.0.settled.fetch_add(settled as u64, Relaxed);
    Ok(())
}

/// After a failed settlement, too, the session is dropped: what is settled is gone, the rest comes again.
fn lost(error: &servicebus::Error) -> Ended {
    Ended::Lost(Some(error.kind()))
}
