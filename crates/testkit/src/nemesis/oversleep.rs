//! A pod that sleeps past its locks: stopped with messages in hand, continued when another has its sessions.
//!
//! Shortly before it is stopped, what it says to the broker is held up on the way; so it sleeps with events it has applied and not settled,
//! and the broker hears of them when the locks are another's.
//!
//! Told by what pods count. A message counts as given out before when the lock it was given out under was lost, not when its holder let it go
//! or was cut off; and while a pod sleeps nothing else is broken. So what comes again elsewhere was the sleeper's.

use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use super::fault::FarEnd;
use crate::cluster::{House, Metrics};
use crate::proxy::{Direction, Fault};
use crate::wait::try_wait_for;

const APPLIED: &str = "headwater_events_applied_total";
const REDELIVERED: &str = "headwater_messages_redelivered_total";
const LOCKS_LOST: &str = "headwater_session_locks_lost_total";

/// How often it is looked for at work, and for how long: what it could still apply without a word to the broker it soon has.
const TRIES: usize = 20;
const AT_WORK_WITHIN: Duration = Duration::from_secs(1);
/// Beyond the lock's time, for another to accept the session and to receive from it.
const TAKEN_WITHIN: Duration = Duration::from_secs(20);
const NOTICED_WITHIN: Duration = Duration::from_secs(20);

/// A pod that is stopped, and what was counted when it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sleeper {
    pod: usize,
    since: Instant,
    locks_lost: u64,
    /// By all others.
    redelivered: u64,
}

/// Stops it with events applied and not settled; `None` when it applied none.
pub(super) async fn fall_asleep(house: &mut House, pod: usize) -> Option<Sleeper> {
    for _ in 0..TRIES {
        hold_up(house, pod).await;
        if let Some(metrics) = at_work(house, pod).await {
            house.pod_mut(pod).pause().await;
            let since = Instant::now();
            // Its locks have half their time left, or more. What others lost before, to faults that are mended, comes again sooner.
            tokio::time::sleep(house.blueprint().topic.lock / 5).await;
            let redelivered = redelivered_elsewhere(house, pod).await;
            return Some(Sleeper { pod, since, locks_lost: metrics.count(LOCKS_LOST), redelivered });
        }
        carry_on(house, pod).await;
    }
    None
}

/// Continues it when messages it had in hand have come to another, and returns how many locks it then finds lost; 0 when nobody took any.
pub(super) async fn awaken(house: &mut House, sleeper: Sleeper) -> u64 {
    let Sleeper { pod, since, locks_lost, redelivered } = sleeper;
    // Until the last lock it knew of is over. Sooner than that it loses what it was granted in its sleep, because it had asked before.
    sleep_until(since + house.blueprint().topic.lock).await;
    let taken = try_wait_for("another to take a session", TAKEN_WITHIN, async || {
        let now = redelivered_elsewhere(house, pod).await;
        if now > redelivered { Ok(()) } else { Err(now) }
    });
    let taken = taken.await.is_ok();
    carry_on(house, pod).await;
    house.pod_mut(pod).resume();
    if !taken {
        return 0;
    }
    let lost = try_wait_for("the sleeper to find its locks lost", NOTICED_WITHIN, async || {
        let lost = count(house, pod, LOCKS_LOST).await.saturating_sub(locks_lost);
        if lost > 0 { Ok(lost) } else { Err(lost) }
    });
    lost.await.unwrap_or(0)
}

/// What it counts when it has applied something the broker cannot have heard of.
async fn at_work(house: &House, pod: usize) -> Option<Metrics> {
    let asked = async || house.pod(pod).metrics().await.ok_or("no answer");
    let before = try_wait_for("its answer", AT_WORK_WITHIN, asked).await.ok()?.count(APPLIED);
    let applying = try_wait_for("it to be at work", AT_WORK_WITHIN, async || {
        let metrics = asked().await?;
        if metrics.count(APPLIED) > before { Ok(metrics) } else { Err("nothing new") }
    });
    applying.await.ok()
}

async fn hold_up(house: &House, pod: usize) {
    if let Some(link) = house.pod(pod).link(FarEnd::Broker) {
        link.inject(Fault::Withhold(Direction::ToTarget)).await;
    }
}

async fn carry_on(house: &House, pod: usize) {
    if let Some(link) = house.pod(pod).link(FarEnd::Broker) {
        link.heal().await;
    }
}

async fn redelivered_elsewhere(house: &House, pod: usize) -> u64 {
    let mut sum = 0;
    for other in (0..house.pods().len()).filter(|other| *other != pod) {
        sum += count(house, other, REDELIVERED).await;
    }
    sum
}

/// 0 when it cannot be asked.
async fn count(house: &House, pod: usize, name: &str) -> u64 {
    house.pod(pod).metrics().await.map_or(0, |metrics| metrics.count(name))
}
