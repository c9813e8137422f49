//! A pod through one tick, and without what can make no difference to it any more.

use lease::decide::LeaderAction;

use crate::bounds::{Bounds, Clocks};
use crate::defect::Defect;
use crate::pod::{Pod, Stage};
use crate::stored::{Nonce, What};
use crate::tick::{Held, Pace, Waited};
use crate::world::lead;

/// The pod one tick later.
pub fn aged(pod: &Pod, pace: Pace, bounds: &Bounds) -> Pod {
    let horizon = bounds.horizon();
    let waited = |age: &mut Waited| *age = horizon.waited(*age, pace);
    let held = |age: &mut Held| *age = horizon.held(*age, pace);
    let mut pod = *pod;
    pod.stood_down.iter_mut().for_each(|stood_down| waited(&mut stood_down.age));
    pod.sight.iter_mut().for_each(|sight| waited(&mut sight.since));
    pod.look.iter_mut().for_each(|look| waited(&mut look.age));
    pod.hold.iter_mut().for_each(|hold| held(&mut hold.sent));
    pod.asked.iter_mut().for_each(|asked| held(&mut asked.sent));
    settled(&pod, bounds)
}

/// The same pod without what nothing will ask for.
pub fn settled(pod: &Pod, bounds: &Bounds) -> Pod {
    let mut pod = *pod;
    if bounds.clocks == Clocks::Lying {
        lie_to(&mut pod, bounds);
    }
    settle_statement(&mut pod);
    // An expired leader that waits for nothing can only notice it.
    if pod.asked.is_none() && lead(&pod, bounds) == Some(LeaderAction::Expired) {
        pod.hold = None;
    }
    settle_work(&mut pod);
    settle_memory(&mut pod, bounds);
    pod
}

/// Every wait is over, and nothing was sent long ago.
fn lie_to(pod: &mut Pod, bounds: &Bounds) {
    pod.sight.iter_mut().for_each(|sight| sight.since = bounds.horizon().over());
    pod.hold.iter_mut().for_each(|hold| hold.sent = Held::ZERO);
    pod.stood_down = None;
}

/// Of an answer that carries nothing, only that it comes is kept.
fn settle_statement(pod: &mut Pod) {
    let Some(asked) = &mut pod.asked else { return };
    let release = matches!(asked.ask.what, What::Release { .. });
    if asked.stage == Stage::Refused || (asked.stage == Stage::Acknowledged && release) {
        asked.ask.what = What::Doomed;
    }
    if release || asked.ask.what == What::Doomed {
        asked.sent = Held::ZERO;
    }
}

/// An answer to a leadership that is over is thrown away.
fn settle_work(pod: &mut Pod) {
    if pod.hold.is_none() {
        pod.work.claimed = None;
    }
    let current = pod.hold.map(|hold| hold.term);
    pod.work.errand = pod.work.errand.filter(|errand| errand.reply.is_none() || Some(errand.term) == current);
}

fn settle_memory(pod: &mut Pod, bounds: &Bounds) {
    if !bounds.has(Defect::SeenFromAsking) {
        pod.look.iter_mut().for_each(|look| look.age = Waited::ZERO);
    }
    if let Some(sight) = &mut pod.sight {
        let holder = sight.seen.map(|glance| glance.edition.holder);
        // Taken at once, however long it was seen.
        if sight.of_nothing() || holder == Some(Nonce::NOBODY) || holder == Some(pod.nonce) {
            sight.since = Waited::ZERO;
        }
        // Only the rule that trusts wall clocks asks whether a lease was ever seen to move.
        sight.moved |= sight.seen.is_some() && bounds.max_clock_skew.is_none();
        // A patience no longer than one's own ttl changes no wait.
        sight.patience = sight.patience.filter(|patience| patience.ttl() > pod.span.ttl());
        let highest = sight.highest;
        pod.stood_down = pod.stood_down.filter(|stood_down| highest <= stood_down.term);
    }
    pod.stood_down = pod.stood_down.filter(|stood_down| !bounds.horizon().is_over(stood_down.age));
}
