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

use super::acceptor::Shared;
use super::batch::Sorted;
use super::message::{Reader, fetch};
use super::settle::{goes_on, reason};
use super::troubles::backoff;
use crate::error_chain::error_chain;
use crate::failpoints::LoopStall;
use crate::view::{Delivered, Feed};

/// Read at once; each has a lock of its own, which is not renewed, so they must be few.
const MOST: usize = 16;
const WAIT: Duration = Duration::from_secs(30);

pub(super) async fn read(shared: Arc<Shared>, stop: CancellationToken) {
    let client = shared.bus.with_own_connection(MOST as u32);
    let mut feed = shared.applier.feed();
    let mut failures = 0;
    while !stop.is_cancelled() {
        let receiver = client.receiver(&format!("{}/$DeadLetterQueue", shared.entity));
        let ended = read_on(&shared, receiver, &mut feed, &stop).await;
        failures = if ended == Ended::Progressed { 1 } else { failures + 1 };
        let pause = backoff(failures, rand::random_range(0.75..1.25));
        tokio::select! {
            () = stop.cancelled() => {}
            () = tokio::time::sleep(pause) => {}
        }
    }
    let _ = client.close().await;
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Ended {
    /// Something was dealt with before it ended.
    Progressed,
    AtOnce,
}

async fn receive(receiver: &mut Receiver) -> Result<Vec<ReceivedMessage>, Error> {
    LoopStall::DeadLetters.block_if_enabled().await;
    receiver.receive(MOST, WAIT).await
}

/// Until something fails, or `stop`.
async fn read_on(shared: &Shared, mut receiver: Receiver, feed: &mut Feed, stop: &CancellationToken) -> Ended {
    let mut ended = Ended::AtOnce;
    loop {
        // cancel-safe: receive, of which nothing is lost when it is dropped.
        let received = tokio::select! {
            biased;
            () = stop.cancelled() => break,
            received = receive(&mut receiver) => received,
        };
        shared.handle.0.looked.fetch_add(1, Relaxed);
        let dealt_with = match received {
            Ok(letters) if letters.is_empty() => continue,
            Ok(letters) => deal_with(shared, &receiver, feed, &letters).await,
            Err(error) => Err(error),
        };
        match dealt_with {
            Ok(true) => ended = Ended::Progressed,
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
    ended
}

/// `false`: some could not be dealt with now, and have been given back.
async fn deal_with(
    shared: &Shared,
    receiver: &Receiver,
    feed: &mut Feed,
    letters: &[ReceivedMessage],
) -> Result<bool, Error> {
    let (mut events, mut waiting, mut aside, mut back) = (vec![], vec![], vec![], vec![]);
    let mut reader = Reader::default();
    for letter in letters {
        match sort(shared, &mut reader, letter).await {
            Sort::Event(event, then) => {
                events.push(Delivered { dead_lettered: true, ..*event });
                waiting.push((letter, then));
            }
            Sort::ForPeople => aside.push(letter),
            Sort::NotNow => back.push(letter),
        }
    }
    let applied = feed.apply(events).await;
    let mut parked = vec![];
    for (at, (letter, then)) in waiting.into_iter().enumerate() {
        match then {
            _ if at >= applied.outcomes.len() => back.push(letter),
            Then::Gone => parked.push(letter),
            Then::Aside => aside.push(letter),
        }
    }
    if !parked.is_empty() {
        receiver.settle(parked.iter().copied(), Settlement::Complete).await?;
        shared.handle.0.dead_letters.fetch_add(parked.len() as u64, Relaxed);
        warn!(letters = parked.len(), "the bus had dead-lettered events; they are parked");
    }
    if !aside.is_empty() {
        receiver.settle(aside.iter().copied(), Settlement::Defer { properties: Map::new() }).await?;
        shared.handle.0.set_aside.fetch_add(aside.len() as u64, Relaxed);
        info!(letters = aside.len(), "dead letters are set aside for an operator");
    }
    if !back.is_empty() {
        receiver.settle(back.iter().copied(), Settlement::Release).await?;
    }
    Ok(back.is_empty() && goes_on(&applied.end))
}

/// What a letter is.
enum Sort {
    /// To be parked.
    Event(Box<Delivered>, Then),
    ForPeople,
    NotNow,
}

/// What becomes of it when its event is parked.
enum Then {
    Gone,
    /// Its body could not be read, and may be wanted.
    Aside,
}

async fn sort(shared: &Shared, reader: &mut Reader, letter: &ReceivedMessage) -> Sort {
    if letter.dead_letter_reason().is_some_and(|why| reason::ALL.contains(&why)) {
        return Sort::ForPeople;
    }
    match Sorted::of(letter, reader) {
        Sorted::Event(event) => Sort::Event(Box::new(event), Then::Gone),
        Sorted::Large(mut event) => match fetch(&shared.oversize, letter.raw(), &mut event).await {
            Ok(()) => Sort::Event(Box::new(event), Then::Gone),
            Err(error) => {
                warn!(error = error_chain(&error), "an event's body cannot be fetched");
                Sort::NotNow
            }
        },
        Sorted::Mangled(event) => Sort::Event(Box::new(event), Then::Aside),
        // One of a newer version is for people, too: in this queue nobody waits behind it.
        Sorted::NotAnEvent(_) | Sorted::Newer { .. } => Sort::ForPeople,
    }
}
