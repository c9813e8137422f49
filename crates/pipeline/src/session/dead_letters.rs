//! Parks the events that Service Bus dead-lettered by itself (delivery count, time to live), so that no event is skipped unnoticed.
//!
//! A dead-letter queue has no sessions. Dead letters written by Headwater or by others need an operator: they are deferred. A deferred
//! message stays in the queue, can be listed and received by sequence number, and is not delivered to this reader again.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use servicebus::{Error, Map, ReceivedMessage, Receiver, Settlement};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::acceptor::SessionContext;
use super::backoff::backoff_delay;
use super::batch::ParsedMessage;
use super::message::{MessageReader, OversizeFetch, fetch_oversize_body};
use super::settle::{can_continue, dead_letter_reason};
use crate::error_chain::error_chain;
use crate::failpoints::LoopStall;
use crate::view::{DeliveredEvent, SessionApplier};

/// Few, because each message has a lock of its own that is not renewed.
const MAX_BATCH: usize = 16;
const RECEIVE_TIMEOUT: Duration = Duration::from_secs(30);

pub(super) async fn run(context: Arc<SessionContext>, stop: CancellationToken) {
    let client = context.bus.with_own_connection(MAX_BATCH as u32);
    let mut applier = context.applier.session_applier();
    let mut failures = 0;
    while !stop.is_cancelled() {
        let receiver = client.receiver(&format!("{}/$DeadLetterQueue", context.entity));
        let progress = poll_until_failure(&context, receiver, &mut applier, &stop).await;
        // After progress the backoff starts again at its first step, not at zero: an error ended the polling.
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
    /// At least one dead letter was handled.
    Progressed,
    None,
}

async fn receive(receiver: &mut Receiver) -> Result<Vec<ReceivedMessage>, Error> {
    LoopStall::DeadLetters.block_if_enabled().await;
    receiver.receive(MAX_BATCH, RECEIVE_TIMEOUT).await
}

/// Polls until an error or `stop`.
async fn poll_until_failure(
    context: &SessionContext,
    mut receiver: Receiver,
    applier: &mut SessionApplier,
    stop: &CancellationToken,
) -> PollProgress {
    let mut progress = PollProgress::None;
    loop {
        // cancel-safe: a dropped `receive` loses no message.
        let received = tokio::select! {
            biased;
            () = stop.cancelled() => break,
            received = receive(&mut receiver) => received,
        };
        context.monitor.0.counters.dead_letter_polls.fetch_add(1, Relaxed);
        let handled = match received {
            Ok(dead_letters) if dead_letters.is_empty() => continue,
            Ok(dead_letters) => handle_dead_letters(context, &receiver, applier, &dead_letters).await,
            Err(error) => Err(error),
        };
        match handled {
            Ok(true) => progress = PollProgress::Progressed,
            Ok(false) => break,
            Err(error) => {
                // The acceptor already reports a missing subscription.
                tracing::debug!(error = error_chain(&error), "failed to read dead-letter queue; retrying");
                break;
            }
        }
    }
    // Closing releases prefetched messages; unsettled ones are redelivered when their lock ends.
    let _ = receiver.close().await;
    progress
}

/// Returns `false` if some could not be handled now and were released.
async fn handle_dead_letters(
    context: &SessionContext,
    receiver: &Receiver,
    applier: &mut SessionApplier,
    dead_letters: &[ReceivedMessage],
) -> Result<bool, Error> {
    let (mut events, mut pending, mut deferred, mut released) = (vec![], vec![], vec![], vec![]);
    let mut reader = MessageReader::default().verifying(context.message_keys.clone());
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
            // Not resolved, so the message must stay in the queue.
            _ if at >= applied.outcomes.len() => released.push(dead_letter),
            AfterParking::Complete => parked.push(dead_letter),
            AfterParking::Defer => deferred.push(dead_letter),
        }
    }
    if !parked.is_empty() {
        receiver.settle(parked.iter().copied(), Settlement::Complete).await?;
        context.monitor.0.counters.dead_letters_parked.fetch_add(parked.len() as u64, Relaxed);
        warn!(dead_letters = parked.len(), "parked events that Service Bus had dead-lettered");
    }
    if !deferred.is_empty() {
        receiver.settle(deferred.iter().copied(), Settlement::Defer { properties: Map::new() }).await?;
        context.monitor.0.counters.dead_letters_deferred.fetch_add(deferred.len() as u64, Relaxed);
        info!(dead_letters = deferred.len(), "dead letters need operator action");
    }
    if !released.is_empty() {
        receiver.settle(released.iter().copied(), Settlement::Release).await?;
    }
    Ok(released.is_empty() && can_continue(&applied.end))
}

/// How a dead letter is handled.
enum DeadLetterKind {
    /// Its event is parked.
    Event(Box<DeliveredEvent>, AfterParking),
    NeedsOperator,
    RetryLater,
}

/// How the message is settled once its event is parked.
enum AfterParking {
    Complete,
    /// Its body is unreadable and is kept for inspection.
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
    let parsed = match ParsedMessage::parse(dead_letter, reader).check_place(&context.places).await {
        Ok(parsed) => parsed,
        Err(error) => {
            let error = mongo_error::DriverError::from(error);
            warn!(error = error_chain(&error), "failed to read the checkpoint; retrying");
            return DeadLetterKind::RetryLater;
        }
    };
    match parsed {
        ParsedMessage::Event(event) => DeadLetterKind::Event(Box::new(event), AfterParking::Complete),
        ParsedMessage::Oversize(mut event) => {
            match fetch_oversize_body(&context.oversize, dead_letter.raw(), &mut event).await {
                Ok(fetched) => {
                    if fetched == OversizeFetch::Altered {
                        context.monitor.0.counters.unverified.fetch_add(1, Relaxed);
                    }
                    DeadLetterKind::Event(Box::new(event), AfterParking::Complete)
                }
                Err(error) => {
                    warn!(error = error_chain(&error), "failed to fetch oversize body; retrying");
                    DeadLetterKind::RetryLater
                }
            }
        }
        ParsedMessage::UnreadableBody(event) => DeadLetterKind::Event(Box::new(event), AfterParking::Defer),
        ParsedMessage::Unverified(_) => {
            context.monitor.0.counters.unverified.fetch_add(1, Relaxed);
            DeadLetterKind::NeedsOperator
        }
        // A newer format needs an operator, too: unlike in a session, no message waits behind it.
        ParsedMessage::NotAnEvent(_) | ParsedMessage::NewerFormat { .. } => DeadLetterKind::NeedsOperator,
    }
}
