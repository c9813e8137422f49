//! What the bus put among the dead letters by itself (too many deliveries, a time to live): parked in its place, so that no event is
//! passed over in silence.
//!
//! A dead-letter queue has no sessions. Letters we wrote ourselves, and those of others, are there for people: they are deferred, which
//! keeps them in the queue, to be listed and taken by their number, and out of this reader's way.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use servicebus::{Error, Map, ReceivedMessage, Receiver, Settlement};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::acceptor::SessionContext;
use super::backoff::backoff_delay;
use super::batch::ParsedMessage;
use super::message::{MessageReader, fetch_oversize_body};
use super::settle::{can_continue, dead_letter_reason};
use crate::error_chain::error_chain;
use crate::failpoints::LoopStall;
use crate::view::{DeliveredEvent, SessionApplier};

/// Read at once; each has a lock of its own, which is not renewed, so they must be few.
const MAX_BATCH: usize = 16;
const RECEIVE_TIMEOUT: Duration = Duration::from_secs(30);

pub(super) async fn run(context: Arc<SessionContext>, stop: CancellationToken) {
    let client = context.bus.with_own_connection(MAX_BATCH as u32);
    let mut applier = context.applier.session_applier();
    let mut failures = 0;
    while !stop.is_cancelled() {
        let receiver = client.receiver(&format!("{}/$DeadLetterQueue", context.entity));
        let progress = poll_until_failure(&context, receiver, &mut applier, &stop).await;
        failures = if progress == PollProgress::Progressed { 1 } else { failures + 1 };
        let pause = backoff_delay(failures, rand::random_range(0.75..1.25));
        tokio::select! {
            () = stop.cancelled() => {}
            () = tokio::time::sleep(pause) => {}
        }
    }
    let _ = client.close().await;
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum PollProgress {
    /// Something was dealt with before it ended.
    Progressed,
    None,
}

async fn receive(receiver: &mut Receiver) -> Result<Vec<ReceivedMessage>, Error> {
    LoopStall::DeadLetters.block_if_enabled().await;
    receiver.receive(MAX_BATCH, RECEIVE_TIMEOUT).await
}

/// Until something fails, or `stop`.
async fn poll_until_failure(
    context: &SessionContext,
    mut receiver: Receiver,
    applier: &mut SessionApplier,
    stop: &CancellationToken,
) -> PollProgress {
    let mut progress = PollProgress::None;
    loop {
        // cancel-safe: receive, of which nothing is lost when it is dropped.
        let received = tokio::select! {
            biased;
            () = stop.cancelled() => break,
            received = receive(&mut receiver) => received,
        };
        context.monitor.0.dead_letter_polls.fetch_add(1, Relaxed);
        let handled = match received {
            Ok(dead_letters) if dead_letters.is_empty() => continue,
            Ok(dead_letters) => handle_dead_letters(context, &receiver, applier, &dead_letters).await,
            Err(error) => Err(error),
        };
        match handled {
            Ok(true) => progress = PollProgress::Progressed,
            Ok(false) => break,
            Err(error) => {
                // A subscription that is missing is told by those who accept sessions.
                tracing::debug!(error = error_chain(&error), "read the dead letters");
                break;
            }
        }
    }
    // What was fetched ahead goes back; what was in hand and is not settled comes again when its lock ends.
    let _ = receiver.close().await;
    progress
}

/// `false`: some could not be dealt with now, and have been given back.
async fn handle_dead_letters(
    context: &SessionContext,
    receiver: &Receiver,
    applier: &mut SessionApplier,
    dead_letters: &[ReceivedMessage],
) -> Result<bool, Error> {
    let (mut events, mut pending, mut deferred, mut released) = (vec![], vec![], vec![], vec![]);
    let mut reader = MessageReader::default();
    for dead_letter in dead_letters {
        match classify(context, &mut reader, dead_letter).await {
            DeadLetterKind::Event(event, after_parking) => {
                events.push(DeliveredEvent { dead_lettered: true, ..*event });
                pending.push((dead_letter, after_parking));
            }
            DeadLetterKind::NeedsOperator => deferred.push(dead_letter),
            DeadLetterKind::RetryLater => released.push(dead_letter),
        }
    }
    let applied = applier.apply(events).await;
    let mut parked = vec![];
    for (at, (dead_letter, after_parking)) in pending.into_iter().enumerate() {
        match after_parking {
            _ if at >= applied.outcomes.len() => released.push(dead_letter),
            AfterParking::Complete => parked.push(dead_letter),
            AfterParking::Defer => deferred.push(dead_letter),
        }
    }
    if !parked.is_empty() {
        receiver.settle(parked.iter().copied(), Settlement::Complete).await?;
        context.monitor.0.dead_letters_parked.fetch_add(parked.len() as u64, Relaxed);
        warn!(dead_letters = parked.len(), "the bus had dead-lettered events; they are parked");
    }
    if !deferred.is_empty() {
        receiver.settle(deferred.iter().copied(), Settlement::Defer { properties: Map::new() }).await?;
        context.monitor.0.dead_letters_deferred.fetch_add(deferred.len() as u64, Relaxed);
        info!(dead_letters = deferred.len(), "dead letters are set aside for an operator");
    }
    if !released.is_empty() {
        receiver.settle(released.iter().copied(), Settlement::Release).await?;
    }
    Ok(released.is_empty() && can_continue(&applied.end))
}

/// What a letter is.
enum DeadLetterKind {
    /// To be parked.
    Event(Box<DeliveredEvent>, AfterParking),
    NeedsOperator,
    RetryLater,
}

/// What becomes of it when its event is parked.
enum AfterParking {
    Complete,
    /// Its body could not be read, and may be wanted.
    Defer,
}

async fn classify(
    context: &SessionContext,
    reader: &mut MessageReader,
    dead_letter: &ReceivedMessage,
) -> DeadLetterKind {
    if dead_letter.dead_letter_reason().is_some_and(|why| dead_letter_reason::ALL.contains(&why)) {
        return DeadLetterKind::NeedsOperator;
    }
    match ParsedMessage::parse(dead_letter, reader) {
        ParsedMessage::Event(event) => DeadLetterKind::Event(Box::new(event), AfterParking::Complete),
        ParsedMessage::Oversize(mut event) => {
            match fetch_oversize_body(&context.oversize, dead_letter.raw(), &mut event).await {
                Ok(()) => DeadLetterKind::Event(Box::new(event), AfterParking::Complete),
                Err(error) => {
                    warn!(error = error_chain(&error), "an event's body cannot be fetched");
                    DeadLetterKind::RetryLater
                }
            }
        }
        ParsedMessage::UnreadableBody(event) => DeadLetterKind::Event(Box::new(event), AfterParking::Defer),
        // One of a newer version is for people, too: in this queue nobody waits behind it.
        ParsedMessage::NotAnEvent(_) | ParsedMessage::NewerFormat { .. } => DeadLetterKind::NeedsOperator,
    }
}
