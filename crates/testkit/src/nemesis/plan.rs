//! Plans: which fault, when, for how long. Drawn from a seed and a profile, the same every time, and readable.

use std::fmt;
use std::ops::RangeInclusive;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::fault::{BrokerHarm, FarEnd, Fault, LinkHarm, PodHarm, PrimaryHarm, Whom};

/// One step of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Strike {
    /// Since the strike before; the first since the beginning. Shorter than the last one's `lasts` means that the two overlap.
    pub after: Duration,
    pub fault: Fault,
    /// Until it is mended.
    pub lasts: Duration,
    /// For what the fault leaves to chance: which messages a busy broker refuses.
    pub seed: u32,
}

/// What is to happen, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    pub strikes: Vec<Strike>,
}

/// What a nemesis likes to do.
#[derive(Clone, Debug)]
pub struct Profile {
    pub name: &'static str,
    /// From one blow to the next.
    pub every: RangeInclusive<Duration>,
    /// How long a fault lasts.
    pub lasts: RangeInclusive<Duration>,
    /// A blow is one fault, or several shortly after one another; drawn by weight.
    pub blows: Vec<(u32, Vec<Fault>)>,
    /// Between the faults of one blow.
    pub within: RangeInclusive<Duration>,
    /// Blows that fall exactly once, somewhere in the first half of the time a run should take.
    pub once: Vec<Vec<Fault>>,
}

/// How much longer than its run a plan is.
const RESERVE: u32 = 4;

const fn millis(from: u64, to: u64) -> RangeInclusive<Duration> {
    Duration::from_millis(from)..=Duration::from_millis(to)
}

impl Profile {
    /// Leaders are killed, paused and deposed at random, standbys sometimes, and the primary is killed once. Pauses outlast a lease of two
    /// seconds as often as not. Before a leader or the primary falls what the leader sends arrives late, so that on a quick machine too they
    /// fall with events under way.
    pub fn leaders() -> Self {
        use PodHarm::{Depose, Kill, Pause, Terminate};
        let late = Fault::Link(Whom::Leader, FarEnd::Broker, LinkHarm::DelayRequests);
        let leader = |harm| vec![late, Fault::Pod(Whom::Leader, harm)];
        let standby = |harm| vec![Fault::Pod(Whom::Standby, harm)];
        Self {
            name: "leaders",
            every: millis(1_500, 5_000),
            lasts: millis(300, 4_000),
            blows: vec![
                (4, leader(Kill)),
                (4, leader(Pause)),
                (3, leader(Depose)),
                (2, leader(Terminate)),
                (1, standby(Kill)),
                (1, standby(Pause)),
            ],
            within: millis(100, 300),
            once: vec![vec![late, Fault::Primary(PrimaryHarm::Kill)]],
        }
    }

    /// The same with less time between, for a run of seconds.
    #[must_use]
    pub fn quick(mut self) -> Self {
        self.every = millis(700, 2_000);
        self.lasts = millis(200, 2_800);
        self
    }

    /// [`Self::leaders`], and the broker and the links to it as well.
    pub fn everything() -> Self {
        let mut profile = Self::leaders();
        profile.name = "everything";
        let broker = |harm| vec![Fault::Broker(harm)];
        let link = |harm| vec![Fault::Link(Whom::Leader, FarEnd::Broker, harm)];
        profile.blows.extend([
            (2, broker(BrokerHarm::Kill)),
            (1, broker(BrokerHarm::Pause)),
            (2, broker(BrokerHarm::Throttle)),
            (2, broker(BrokerHarm::LoseAcknowledgements)),
            (1, link(LinkHarm::Cut)),
            (1, link(LinkHarm::Reset)),
            (1, link(LinkHarm::BlackHole)),
            (1, link(LinkHarm::LoseAnswers)),
            (1, link(LinkHarm::Freeze)),
            (1, link(LinkHarm::Delay)),
        ]);
        profile
    }

    /// Pods are killed, paused and stopped, leaders and others alike, their links are cut, and primary and broker are killed once. Pauses
    /// outlast a session's lock of five seconds now and then, and once a pod sleeps until another has its sessions.
    pub fn consumers() -> Self {
        use PodHarm::{Depose, Kill, Oversleep, Pause, Terminate};
        let mut blows = vec![(1, vec![Fault::Pod(Whom::Leader, Depose)])];
        for whom in [Whom::Leader, Whom::Standby] {
            blows.extend([Kill, Pause, Terminate].map(|harm| (3, vec![Fault::Pod(whom, harm)])));
            let harms = [LinkHarm::Cut, LinkHarm::Reset, LinkHarm::Freeze, LinkHarm::LoseAnswers];
            blows.extend(harms.map(|harm| (1, vec![Fault::Link(whom, FarEnd::Broker, harm)])));
        }
        Self {
            name: "consumers",
            every: millis(1_500, 5_000),
            lasts: millis(300, 7_000),
            blows,
            within: millis(0, 0),
            once: vec![
                vec![Fault::Primary(PrimaryHarm::Kill)],
                vec![Fault::Broker(BrokerHarm::Kill)],
                vec![Fault::Pod(Whom::Standby, Oversleep)],
            ],
        }
    }

    /// Pods die in quick succession, leaders and others alike.
    pub fn dead_pods() -> Self {
        let dead = |whom| (1, vec![Fault::Pod(whom, PodHarm::Kill)]);
        Self {
            name: "dead pods",
            every: millis(500, 900),
            blows: [Whom::Leader, Whom::Standby].map(dead).into(),
            ..Self::kills()
        }
    }

    /// Nothing happens.
    pub fn peace() -> Self {
        let (name, never) = ("peace", millis(0, 0));
        Self { name, every: never.clone(), lasts: never.clone(), blows: vec![], within: never, once: vec![] }
    }

    /// One pod sleeps until another has its sessions, and nothing else happens.
    pub fn sleep() -> Self {
        let asleep = vec![vec![Fault::Pod(Whom::Standby, PodHarm::Oversleep)]];
        Self { name: "sleep", every: millis(500, 1_500), once: asleep, ..Self::peace() }
    }

    /// Links to MongoDB stand still for longer than a lease, and then deliver what they held: the late saves of a deposed leader. Wants a
    /// store whose links are [proxied](crate::cluster::StoreKind::One).
    pub fn late_saves() -> Self {
        let freeze = vec![Fault::Link(Whom::Leader, FarEnd::Store, LinkHarm::Freeze)];
        Self {
            name: "late saves",
            every: millis(4_500, 6_000),
            lasts: millis(2_800, 4_000),
            blows: vec![(1, freeze)],
            within: millis(0, 0),
            once: vec![],
        }
    }

    /// What was sent is lost on its way to the broker, and before anybody can send it again its sender dies.
    pub fn lost_sends() -> Self {
        let lost =
            |harm| vec![Fault::Link(Whom::Leader, FarEnd::Broker, harm), Fault::Pod(Whom::Leader, PodHarm::Kill)];
        Self {
            name: "lost sends",
            every: millis(3_000, 4_500),
            lasts: millis(700, 1_000),
            blows: vec![(1, lost(LinkHarm::BlackHole)), (1, lost(LinkHarm::LoseRequests))],
            within: millis(300, 700),
            once: vec![],
        }
    }

    /// The broker refuses one send in eight, in the middle of runs.
    pub fn busy_broker() -> Self {
        Self {
            name: "busy broker",
            every: millis(300, 800),
            lasts: millis(600, 900),
            // Its answers come late besides, so that on a quick machine too a refused send has a successor on its way.
            blows: vec![(
                1,
                vec![Fault::Link(Whom::Leader, FarEnd::Broker, LinkHarm::Delay), Fault::Broker(BrokerHarm::Throttle)],
            )],
            within: millis(0, 0),
            once: vec![],
        }
    }

    /// The broker refuses some sends and loses the acknowledgement of others, and leaders are killed meanwhile. Its answers come late besides:
    /// whatever is refused or lost has successors.
    pub fn unkind_broker() -> Self {
        let late = Fault::Link(Whom::Leader, FarEnd::Broker, LinkHarm::Delay);
        let broker = |harm| vec![late, Fault::Broker(harm)];
        Self {
            name: "unkind broker",
            every: millis(200, 600),
            lasts: millis(900, 1_500),
            blows: vec![
                (3, broker(BrokerHarm::Throttle)),
                (3, broker(BrokerHarm::LoseAcknowledgements)),
                (1, vec![Fault::Pod(Whom::Leader, PodHarm::Kill)]),
            ],
            within: millis(0, 0),
            once: vec![],
        }
    }

    /// Leaders are killed in quick succession.
    pub fn kills() -> Self {
        Self {
            name: "kills",
            every: millis(2_500, 4_000),
            lasts: millis(100, 300),
            blows: vec![(1, vec![Fault::Pod(Whom::Leader, PodHarm::Kill)])],
            within: millis(0, 0),
            once: vec![],
        }
    }
}

impl Plan {
    /// A plan for a run that should take `length`, and then some: faults hold a run up. The same for the same seed and profile.
    pub fn draw(profile: &Profile, seed: u64, length: Duration) -> Self {
        let mut dice = StdRng::seed_from_u64(seed);
        // Other dice, so that what happens does not change with what is left to chance in it.
        let mut seeds = StdRng::seed_from_u64(!seed);
        let mut strikes = vec![];
        let mut spent = Duration::ZERO;
        let mut half = 0;
        while spent < length * RESERVE && !profile.blows.is_empty() {
            if spent < length / 2 {
                half = strikes.len();
            }
            let mut after = dice.random_range(profile.every.clone());
            for fault in blow(profile, &mut dice).to_vec() {
                let lasts = dice.random_range(profile.lasts.clone());
                strikes.push(Strike { after, fault, lasts, seed: seeds.random() });
                spent += after;
                after = dice.random_range(profile.within.clone());
            }
        }
        for blow in &profile.once {
            let place = dice.random_range(0..=half);
            let mut after = dice.random_range(profile.every.clone());
            for (place, fault) in (place..).zip(blow) {
                let lasts = dice.random_range(profile.lasts.clone());
                strikes.insert(place, Strike { after, fault: *fault, lasts, seed: seeds.random() });
                after = dice.random_range(profile.within.clone());
            }
        }
        Self { strikes }
    }
}

fn blow<'a>(profile: &'a Profile, dice: &mut StdRng) -> &'a [Fault] {
    let total: u32 = profile.blows.iter().map(|(weight, _)| weight).sum();
    let mut drawn = dice.random_range(0..total);
    for (weight, faults) in &profile.blows {
        match drawn.checked_sub(*weight) {
            None => return faults,
            Some(rest) => drawn = rest,
        }
    }
    unreachable!("the dice stay below the sum of all weights")
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut at = Duration::ZERO;
        for Strike { after, fault, lasts, .. } in &self.strikes {
            at += *after;
            writeln!(f, "{:8.3} s  {fault} ({:.1} s)", at.as_secs_f64(), lasts.as_secs_f64())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    fn profiles() -> [Profile; 9] {
        [
            Profile::consumers(),
            Profile::dead_pods(),
            Profile::leaders(),
            Profile::everything(),
            Profile::late_saves(),
            Profile::lost_sends(),
            Profile::busy_broker(),
            Profile::unkind_broker(),
            Profile::kills(),
        ]
    }

    #[test]
    fn a_seed_is_a_plan() {
        for profile in profiles() {
            let plan = Plan::draw(&profile, 7, MINUTE);
            assert_eq!(plan, Plan::draw(&profile, 7, MINUTE), "{}", profile.name);
            assert_ne!(plan, Plan::draw(&profile, 8, MINUTE), "{}", profile.name);
        }
    }

    #[test]
    fn a_plan_fills_its_time_and_keeps_to_its_profile() {
        for profile in profiles() {
            let plan = Plan::draw(&profile, 3, MINUTE);
            let length: Duration = plan.strikes.iter().map(|strike| strike.after).sum();
            assert!(length >= MINUTE, "{}: {length:?}", profile.name);
            assert!(plan.strikes.iter().all(|strike| profile.lasts.contains(&strike.lasts)), "{}", profile.name);
        }
    }

    #[test]
    fn what_happens_once_happens_once_and_every_blow_has_its_turn() {
        let profile = Profile::everything();
        let plan = Plan::draw(&profile, 11, MINUTE * 20);
        let times = |fault: &Fault| plan.strikes.iter().filter(|strike| strike.fault == *fault).count();
        let once: Vec<_> = profile.once.iter().filter_map(|blow| blow.last()).collect();
        assert!(once == [&Fault::Primary(PrimaryHarm::Kill)] && once.iter().all(|fault| times(fault) == 1));
        let mut at = Duration::ZERO;
        let starts = plan.strikes.iter().map(|strike| {
            (strike.fault, {
                at += strike.after;
                at
            })
        });
        let soon = |fault: &Fault, at: Duration| !once.contains(&fault) || at < MINUTE * 11;
        assert!(starts.into_iter().all(|(fault, at)| soon(&fault, at)));
        assert!(profile.blows.iter().flat_map(|(_, faults)| faults).all(|fault| times(fault) > 0));
    }

    #[test]
    fn a_plan_can_be_read() {
        let strikes = vec![
            Strike {
                after: Duration::from_millis(1500),
                fault: Fault::Pod(Whom::Leader, PodHarm::Kill),
                lasts: Duration::from_millis(300),
                seed: 1,
            },
            Strike {
                after: Duration::from_secs(1),
                fault: Fault::Link(Whom::Standby, FarEnd::Broker, LinkHarm::BlackHole),
                lasts: Duration::from_secs(2),
                seed: 2,
            },
        ];
        let shown = Plan { strikes }.to_string();
        let expected =
            "   1.500 s  kill the leader (0.3 s)\n   2.500 s  black hole between the standby and the broker (2.0 s)\n";
        assert_eq!(shown, expected);
    }
}
