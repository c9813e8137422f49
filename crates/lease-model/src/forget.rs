//! What a state may forget because the store has moved on.
//!
//! Every version is written once, and what a pod saw, a majority had. So a version that was seen and is no longer the majority's has
//! *passed* for good. Two things then lose their meaning: what a standby remembers of such a version (whatever it reads next
//! differs from it), and a statement that needs it (it is *doomed*: refused whenever it comes). To forget them changes nothing but idle
//! steps of that one pod: a standby whose doomed statement is dropped is one that was refused, and looks again.

use crate::bounds::{Bounds, PODS};
use crate::checkpoint::{Errand, Reply};
use crate::defect::Defect;
use crate::pod::{Asked, Hold, Look, Pod, Sight, Stage};
use crate::settle::settled;
use crate::store::ALONE;
use crate::stored::{Ask, Edition, Glance, Nonce, What};
use crate::tick::{Span, Waited};
use crate::world::{LATE, World};

/// Stands for every passed version: no real one has the heartbeat zero.
const PASSED: Glance = Glance { edition: Edition { holder: Nonce::NOBODY, term: 0, beat: 0 }, span: Span::Short };

/// The same world without what the store has made meaningless.
pub fn forget(world: &mut World, bounds: &Bounds) {
    if bounds.defect.is_some_and(makes_the_old_matter) {
        return;
    }
    forget_errands(world, bounds);
    let past = Past::of(world, bounds);
    for late in &mut world.late {
        *late = late.filter(|ask| !past.dooms(ask));
    }
    for index in 0..world.pods.len() {
        let pod = &mut world.pods[index];
        past.forget_statement(pod, bounds);
        past.forget_memory(pod, bounds);
        *pod = settled(pod, bounds);
    }
}

/// With these, a version that was replaced is not as good as forgotten.
const fn makes_the_old_matter(defect: Defect) -> bool {
    matches!(
        defect,
        Defect::CompareTermOnly
            | Defect::ClientClock
            | Defect::ReleasedWhileOpen
            | Defect::SeenFromAsking
            | Defect::PrimaryAckTrusted
    )
}

/// The term of the last claim never falls, so an errand refused for its term is refused whenever it comes.
fn forget_errands(world: &mut World, bounds: &Bounds) {
    let checkpoint = world.checkpoint;
    let refused = |errand: &Errand| matches!({ checkpoint }.receive(errand, bounds.defect).0, Reply::Refused { .. });
    let hopeless = |errand: &Errand| errand.term < checkpoint.term && refused(errand);
    for late in &mut world.late_errands {
        *late = late.filter(|errand| !hopeless(errand));
    }
    for pod in &mut world.pods {
        let term = pod.hold.map(|hold| hold.term);
        let idle = |errand: &Errand| Some(errand.term) != term && hopeless(errand);
        // That a save succeeded tells its sender nothing new.
        pod.work.errand = pod.work.errand.filter(|errand| !idle(errand) && errand.reply != Some(Reply::Saved));
    }
}

/// How far the store has come.
struct Past {
    /// What a majority has.
    stored: Option<Edition>,
    /// A first record under way, which after a deletion may still be written, or is and may reach a majority yet: by whom, and
    /// in which term.
    first: [Option<(Nonce, u8)>; PODS + LATE + ALONE],
    may_vanish: bool,
    /// The lease is never deleted.
    lasting: bool,
}

impl Past {
    fn of(world: &World, bounds: &Bounds) -> Self {
        let asked = world.pods.iter().map(|pod| pod.asked.filter(|asked| asked.stage != Stage::Refused));
        let under_way = asked.map(|asked| asked.map(|asked| asked.ask)).chain(world.late);
        let under_way = under_way.map(|ask| {
            ask.and_then(|ask| match ask.what {
                What::Create { term, .. } => Some((ask.by, term)),
                _ => None,
            })
        });
        let alone = world.store.alone.map(|write| write.map(|write| write.lease.glance.edition));
        let written = alone.map(|edition| edition.map(|edition| (edition.holder, edition.term)));
        let mut first = [None; PODS + LATE + ALONE];
        first.iter_mut().zip(under_way.chain(written)).for_each(|(place, known)| *place = known);
        let stored = world.store.majority.map(|lease| lease.glance.edition);
        let may_vanish = world.spent.deletions < bounds.deletions;
        Self { stored, first, may_vanish, lasting: bounds.deletions == 0 }
    }

    fn forget_statement(&self, pod: &mut Pod, bounds: &Bounds) {
        let Some(asked) = &mut pod.asked else {
            // With a shut gate, and every raise that it could still send doomed, it has nothing to lose either.
            let hopeless = |hold: &Hold| hold.raising_above.is_some() && self.is_over(pod.nonce, hold.term, u8::MAX);
            pod.hold = pod.hold.filter(|hold| !hopeless(hold));
            return;
        };
        if asked.stage == Stage::Sent && self.dooms(&asked.ask) {
            asked.stage = Stage::Refused;
        }
        // A leader whose renewal is refused goes on until it hears of it. Nobody else has anything to lose.
        let leads = pod.hold.is_some_and(|hold| hold.raising_above.is_none());
        if asked.stage == Stage::Refused && !leads {
            pod.hold = None;
            pod.asked = None;
        } else if is_worthless(asked, bounds) {
            pod.asked = None;
        }
    }

    fn forget_memory(&self, pod: &mut Pod, bounds: &Bounds) {
        // Who never saw the lease move may ask the server for the time; that must not be forgotten.
        let blank = self.lasting && bounds.max_clock_skew.is_none();
        if let Some(sight) = pod.sight.filter(|sight| self.is_past(sight.seen) || is_at_once(sight.seen, pod.nonce)) {
            let highest = if self.lasting { 0 } else { sight.highest };
            let sight = Sight { seen: Some(PASSED), since: Waited::ZERO, moved: true, highest, patience: None };
            pod.sight = (!blank).then_some(sight);
        }
        if let Some(look) = pod.look.filter(|look| self.is_past(look.found)) {
            let term = self.told_by(pod, look.found);
            let found = Some(Glance { edition: Edition { term, ..PASSED.edition }, ..PASSED });
            let idle = blank && pod.sight.is_none() && term == 0;
            pod.look = (!idle).then_some(Look { found, ..look });
        }
    }

    /// The term a passed version still tells a pod of: if the lease lasts, only whether its own resignation was heeded.
    fn told_by(&self, pod: &Pod, found: Option<Glance>) -> u8 {
        let term = found.map_or(0, |glance| glance.edition.term);
        match pod.stood_down {
            _ if !self.lasting => term,
            Some(stood_down) if term > stood_down.term => self.stored.map_or(0, |stored| stored.term),
            _ => 0,
        }
    }

    /// Whether what was seen has passed. That there was no lease passes when there is one for good.
    fn is_past(&self, seen: Option<Glance>) -> bool {
        seen.map_or(self.lasting && self.stored.is_some(), |glance| Some(glance.edition) != self.stored)
    }

    fn dooms(&self, ask: &Ask) -> bool {
        match ask.what {
            What::Create { .. } => self.stored.is_some() && !self.may_vanish,
            What::Take { seen, .. } | What::TakeIfExpired { seen, .. } => Some(seen) != self.stored,
            What::Renew { term, beat } | What::Raise { term, beat, .. } => self.is_over(ask.by, term, beat),
            What::Release { term } => self.is_over(ask.by, term, u8::MAX),
            What::Doomed => true,
        }
    }

    /// Whether this term of this holder is over, or has come past this heartbeat.
    fn is_over(&self, by: Nonce, term: u8, beat: u8) -> bool {
        let holds = self.stored.is_some_and(|stored| (stored.holder, stored.term) == (by, term) && stored.beat < beat);
        let returns = !self.lasting && self.first.contains(&Some((by, term)));
        !holds && !returns
    }
}

/// Whether what was seen may be taken at once, whenever it is seen again: then nothing need be remembered of it.
fn is_at_once(seen: Option<Glance>, own: Nonce) -> bool {
    seen.is_some_and(|glance| [Nonce::NOBODY, own].contains(&glance.edition.holder))
}

/// Whether its answer will change nothing: it acknowledges a release, or a takeover that was sent too long ago to begin a leadership.
fn is_worthless(asked: &Asked, bounds: &Bounds) -> bool {
    let begins_nothing = match asked.ask.what {
        What::Create { .. } | What::Take { .. } | What::TakeIfExpired { .. } => {
            let trusted = matches!(bounds.defect, Some(Defect::ValidFromAnswer | Defect::NoDeadline));
            // If the lease can vanish, the answer still tells of a term.
            bounds.horizon().is_expired(asked.sent) && !trusted && bounds.deletions == 0
        }
        What::Release { .. } | What::Doomed => true,
        What::Renew { .. } | What::Raise { .. } => false,
    };
    asked.stage == Stage::Acknowledged && begins_nothing
}
