//! Fault plans: which fault, when, for how long. The same seed and profile always give the same plan.

use std::fmt;
use std::ops::RangeInclusive;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde::{Deserialize, Serialize};

use super::fault::{
    BrokerProcessFault, ClusterFault, LinkFault, LinkTarget, OperatorAction, PodFault, PodSelector, PrimaryFault,
};

/// One step of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlannedFault {
    /// After the previous fault, or after the start. When it is shorter than the previous `duration`, the two overlap.
    pub after: Duration,
    pub fault: ClusterFault,
    /// Until the repair.
    pub duration: Duration,
    /// For the random part of a fault: which messages a busy broker refuses.
    pub seed: u32,
}

/// Planned faults, in order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FaultPlan {
    pub faults: Vec<PlannedFault>,
}

/// Which faults a plan draws from, and how often.
#[derive(Clone, Debug)]
pub struct FaultProfile {
    pub name: &'static str,
    /// From one group to the next.
    pub interval: RangeInclusive<Duration>,
    /// How long a fault lasts.
    pub duration: RangeInclusive<Duration>,
    /// A group is one fault, or several in quick succession. Groups are drawn by weight.
    pub groups: Vec<(u32, Vec<ClusterFault>)>,
    /// Between the faults of one group.
    pub gap: RangeInclusive<Duration>,
    /// Groups that occur exactly once, in the first half of the run's planned length.
    pub once: Vec<Vec<ClusterFault>>,
}

/// A plan is this many times longer than the planned run: faults slow a run down.
const LENGTH_FACTOR: u32 = 4;

const fn millis(from: u64, to: u64) -> RangeInclusive<Duration> {
    Duration::from_millis(from)..=Duration::from_millis(to)
}

impl FaultProfile {
    /// Kills and pauses leaders and revokes their lease at random, hits standbys sometimes, and kills the primary once. About half of
    /// the pauses outlast a lease of two seconds. Before each fault the leader's requests are delayed, so that events are in flight
    /// even on a fast machine.
    pub fn leaders() -> Self {
        use PodFault::{Kill, Pause, RevokeLease, Terminate};
        let late = ClusterFault::Link(PodSelector::Leader, LinkTarget::Broker, LinkFault::DelayRequests);
        let leader = |fault| vec![late, ClusterFault::Pod(PodSelector::Leader, fault)];
        let standby = |fault| vec![ClusterFault::Pod(PodSelector::Standby, fault)];
        Self {
            name: "leaders",
            interval: millis(1_500, 5_000),
            duration: millis(300, 4_000),
            groups: vec![
                (4, leader(Kill)),
                (4, leader(Pause)),
                (3, leader(RevokeLease)),
                (2, leader(Terminate)),
                (1, standby(Kill)),
                (1, standby(Pause)),
            ],
            gap: millis(100, 300),
            once: vec![vec![late, ClusterFault::Primary(PrimaryFault::Kill)]],
        }
    }

    /// The same with shorter intervals, for a run of seconds.
    #[must_use]
    pub fn shortened(mut self) -> Self {
        self.interval = millis(700, 2_000);
        self.duration = millis(200, 2_800);
        self
    }

    /// [`Self::leaders`], plus faults of the broker and of the links to it.
    pub fn everything() -> Self {
        let mut profile = Self::leaders();
        profile.name = "everything";
        let broker = |fault| vec![ClusterFault::Broker(fault)];
        let link = |fault| vec![ClusterFault::Link(PodSelector::Leader, LinkTarget::Broker, fault)];
        profile.groups.extend([
            (2, broker(BrokerProcessFault::Kill)),
            (1, broker(BrokerProcessFault::Pause)),
            (2, broker(BrokerProcessFault::Throttle)),
            (2, broker(BrokerProcessFault::LoseAcknowledgements)),
            (1, link(LinkFault::Cut)),
            (1, link(LinkFault::Reset)),
            (1, link(LinkFault::BlackHole)),
            (1, link(LinkFault::LoseResponses)),
            (1, link(LinkFault::Freeze)),
            (1, link(LinkFault::Delay)),
        ]);
        profile
    }

    /// Kills, pauses and stops all pods, breaks their links, and kills primary and broker once. Some pauses outlast a session lock of
    /// five seconds, and once a pod is paused until another has its sessions.
    pub fn consumers() -> Self {
        use PodFault::{Kill, Pause, PausePastLocks, RevokeLease, Terminate};
        let mut groups = vec![(1, vec![ClusterFault::Pod(PodSelector::Leader, RevokeLease)])];
        for selector in [PodSelector::Leader, PodSelector::Standby] {
            groups.extend([Kill, Pause, Terminate].map(|fault| (3, vec![ClusterFault::Pod(selector, fault)])));
            let harms = [LinkFault::Cut, LinkFault::Reset, LinkFault::Freeze, LinkFault::LoseResponses];
            groups.extend(harms.map(|fault| (1, vec![ClusterFault::Link(selector, LinkTarget::Broker, fault)])));
        }
        Self {
            name: "consumers",
            interval: millis(1_500, 5_000),
            duration: millis(300, 7_000),
            groups,
            gap: millis(0, 0),
            once: vec![
                vec![ClusterFault::Primary(PrimaryFault::Kill)],
                vec![ClusterFault::Broker(BrokerProcessFault::Kill)],
                vec![ClusterFault::Pod(PodSelector::Standby, PausePastLocks)],
            ],
        }
    }

    /// Every fault there is. `has_members`: MongoDB has members that may be killed; `has_links`: pods reach it through proxies.
    pub fn chaos(has_members: bool, has_links: bool) -> Self {
        use PodFault::{ClockJump, Kill, Pause, RevokeLease, Terminate};
        let mut groups: Vec<(u32, Vec<ClusterFault>)> = vec![];
        for selector in [PodSelector::Leader, PodSelector::Standby] {
            groups.extend([Kill, Pause, Terminate].map(|fault| (3, vec![ClusterFault::Pod(selector, fault)])));
            groups.push((2, vec![ClusterFault::Pod(selector, ClockJump)]));
            let faults = [
                LinkFault::Cut,
                LinkFault::Reset,
                LinkFault::BlackHole,
                LinkFault::LoseResponses,
                LinkFault::LoseRequests,
                LinkFault::Freeze,
                LinkFault::Delay,
            ];
            for target in [Some(LinkTarget::Broker), has_links.then_some(LinkTarget::Mongo)].into_iter().flatten() {
                groups.extend(faults.map(|fault| (1, vec![ClusterFault::Link(selector, target, fault)])));
            }
        }
        groups.push((2, vec![ClusterFault::Pod(PodSelector::Leader, RevokeLease)]));
        let broker = [
            (3, BrokerProcessFault::Kill),
            (2, BrokerProcessFault::Pause),
            (2, BrokerProcessFault::Throttle),
            (2, BrokerProcessFault::LoseAcknowledgements),
            (2, BrokerProcessFault::LoseMessages),
            (2, BrokerProcessFault::DiskFull),
            (2, BrokerProcessFault::SlowDisk),
        ];
        groups.extend(broker.map(|(weight, fault)| (weight, vec![ClusterFault::Broker(fault)])));
        // The broker reads the wall clock only when it starts.
        let [jump, kill] = [BrokerProcessFault::ClockJump, BrokerProcessFault::Kill].map(ClusterFault::Broker);
        groups.push((2, vec![jump, kill]));
        let operator = [
            (2, OperatorAction::StepDown),
            (1, OperatorAction::PauseProducer),
            (1, OperatorAction::PauseConsumer),
            (2, OperatorAction::PauseReadModel),
            (1, OperatorAction::RebuildReadModel),
            (2, OperatorAction::VerifyReadModel),
            (1, OperatorAction::Audit),
            (1, OperatorAction::Status),
            (1, OperatorAction::Explain),
        ];
        groups.extend(operator.map(|(weight, action)| (weight, vec![ClusterFault::Operator(action)])));
        let mut once = vec![
            vec![ClusterFault::Rollout, ClusterFault::Pod(PodSelector::Leader, Kill)],
            vec![
                ClusterFault::Operator(OperatorAction::RebuildReadModel),
                ClusterFault::Pod(PodSelector::Leader, Kill),
            ],
            vec![ClusterFault::Broker(BrokerProcessFault::Kill)],
            vec![ClusterFault::Broker(BrokerProcessFault::DiskFull)],
        ];
        if has_members {
            let primary = [PrimaryFault::Kill, PrimaryFault::Pause, PrimaryFault::StepDown];
            groups.extend(primary.map(|fault| (3, vec![ClusterFault::Primary(fault)])));
            // The leader is away while most of the oplog is written.
            once.push(vec![ClusterFault::Pod(PodSelector::Leader, Pause), ClusterFault::FillOplog]);
            once.push(vec![ClusterFault::Primary(PrimaryFault::Kill)]);
        }
        Self {
            name: "chaos",
            interval: millis(500, 4_000),
            duration: millis(300, 7_000),
            groups,
            gap: millis(0, 1_000),
            once,
        }
    }

    /// Kills the broker while its disk is slow: what it has not synced is in its memory only.
    pub fn broker_kills_on_a_slow_disk() -> Self {
        let faults = [BrokerProcessFault::SlowDisk, BrokerProcessFault::Kill].map(ClusterFault::Broker);
        Self {
            name: "broker kills on a slow disk",
            interval: millis(1_500, 2_500),
            duration: millis(500, 900),
            groups: vec![(1, faults.into())],
            gap: millis(200, 400),
            once: vec![],
        }
    }

    /// Whether a cluster needs [system faults](crate::cluster::TestClusterConfig::system_faults) for it.
    pub fn needs_system_faults(&self) -> bool {
        use BrokerProcessFault::{ClockJump, DiskFull, SlowDisk};
        let is_system_fault = |fault: &ClusterFault| {
            matches!(
                fault,
                ClusterFault::Pod(_, PodFault::ClockJump) | ClusterFault::Broker(ClockJump | DiskFull | SlowDisk)
            )
        };
        self.groups.iter().map(|(_, group)| group).chain(&self.once).flatten().any(is_system_fault)
    }

    /// Kills pods in quick succession, leaders and standbys.
    pub fn pod_kills() -> Self {
        let dead = |selector| (1, vec![ClusterFault::Pod(selector, PodFault::Kill)]);
        Self {
            name: "pod kills",
            interval: millis(500, 900),
            groups: [PodSelector::Leader, PodSelector::Standby].map(dead).into(),
            ..Self::leader_kills()
        }
    }

    /// No faults.
    pub fn none() -> Self {
        let (name, never) = ("none", millis(0, 0));
        Self { name, interval: never.clone(), duration: never.clone(), groups: vec![], gap: never, once: vec![] }
    }

    /// Pauses one pod until another has its sessions; no other fault.
    pub fn pause_past_locks() -> Self {
        let paused = vec![vec![ClusterFault::Pod(PodSelector::Standby, PodFault::PausePastLocks)]];
        Self { name: "pause past locks", interval: millis(500, 1_500), once: paused, ..Self::none() }
    }

    /// Freezes links to MongoDB for longer than a lease, then delivers what they held: the late saves of a deposed leader. Needs a
    /// topology whose links are [proxied](crate::cluster::MongoTopology::SingleNode).
    pub fn late_saves() -> Self {
        let freeze = vec![ClusterFault::Link(PodSelector::Leader, LinkTarget::Mongo, LinkFault::Freeze)];
        Self {
            name: "late saves",
            interval: millis(4_500, 6_000),
            duration: millis(2_800, 4_000),
            groups: vec![(1, freeze)],
            gap: millis(0, 0),
            once: vec![],
        }
    }

    /// Loses sends on their way to the broker, and kills the sender before it can retry.
    pub fn lost_sends() -> Self {
        let lost = |fault| {
            vec![
                ClusterFault::Link(PodSelector::Leader, LinkTarget::Broker, fault),
                ClusterFault::Pod(PodSelector::Leader, PodFault::Kill),
            ]
        };
        Self {
            name: "lost sends",
            interval: millis(3_000, 4_500),
            duration: millis(700, 1_000),
            groups: vec![(1, lost(LinkFault::BlackHole)), (1, lost(LinkFault::LoseRequests))],
            gap: millis(300, 700),
            once: vec![],
        }
    }

    /// The broker refuses one send in eight, in the middle of runs.
    pub fn busy_broker() -> Self {
        Self {
            name: "busy broker",
            interval: millis(300, 800),
            duration: millis(600, 900),
            // Responses are delayed too, so that a refused send has a successor in flight even on a fast machine.
            groups: vec![(
                1,
                vec![
                    ClusterFault::Link(PodSelector::Leader, LinkTarget::Broker, LinkFault::Delay),
                    ClusterFault::Broker(BrokerProcessFault::Throttle),
                ],
            )],
            gap: millis(0, 0),
            once: vec![],
        }
    }

    /// The broker refuses some sends and loses the acknowledgement of others while leaders are killed. Responses are delayed too, so
    /// that every refused or lost send has successors in flight.
    pub fn faulty_broker() -> Self {
        let late = ClusterFault::Link(PodSelector::Leader, LinkTarget::Broker, LinkFault::Delay);
        let broker = |fault| vec![late, ClusterFault::Broker(fault)];
        Self {
            name: "faulty broker",
            interval: millis(200, 600),
            duration: millis(900, 1_500),
            groups: vec![
                (3, broker(BrokerProcessFault::Throttle)),
                (3, broker(BrokerProcessFault::LoseAcknowledgements)),
                (1, vec![ClusterFault::Pod(PodSelector::Leader, PodFault::Kill)]),
            ],
            gap: millis(0, 0),
            once: vec![],
        }
    }

    /// Kills leaders in quick succession.
    pub fn leader_kills() -> Self {
        Self {
            name: "leader kills",
            interval: millis(2_500, 4_000),
            duration: millis(100, 300),
            groups: vec![(1, vec![ClusterFault::Pod(PodSelector::Leader, PodFault::Kill)])],
            gap: millis(0, 0),
            once: vec![],
        }
    }
}

impl FaultPlan {
    /// A plan for a run of `length`, with a reserve because faults slow a run down. The same for the same seed and profile.
    pub fn draw(profile: &FaultProfile, seed: u64, length: Duration) -> Self {
        let mut rng = StdRng::seed_from_u64(seed);
        // A second generator, so that the faults of a plan do not depend on their random parts.
        let mut seeds = StdRng::seed_from_u64(!seed);
        let mut faults = vec![];
        let mut spent = Duration::ZERO;
        let mut half = 0;
        while spent < length * LENGTH_FACTOR && !profile.groups.is_empty() {
            if spent < length / 2 {
                half = faults.len();
            }
            let mut after = rng.random_range(profile.interval.clone());
            for fault in draw_group(profile, &mut rng).to_vec() {
                let duration = rng.random_range(profile.duration.clone());
                faults.push(PlannedFault { after, fault, duration, seed: seeds.random() });
                spent += after;
                after = rng.random_range(profile.gap.clone());
            }
        }
        for group in &profile.once {
            let place = rng.random_range(0..=half);
            let mut after = rng.random_range(profile.interval.clone());
            for (place, fault) in (place..).zip(group) {
                let duration = rng.random_range(profile.duration.clone());
                faults.insert(place, PlannedFault { after, fault: *fault, duration, seed: seeds.random() });
                after = rng.random_range(profile.gap.clone());
            }
        }
        Self { faults }
    }
}

impl FaultPlan {
    /// Only the faults before this time.
    #[must_use]
    pub fn until(mut self, length: Duration) -> Self {
        let mut at = Duration::ZERO;
        self.faults.retain(|planned| {
            at += planned.after;
            at < length
        });
        self
    }
}

fn draw_group<'a>(profile: &'a FaultProfile, rng: &mut StdRng) -> &'a [ClusterFault] {
    let total: u32 = profile.groups.iter().map(|(weight, _)| weight).sum();
    let mut drawn = rng.random_range(0..total);
    for (weight, faults) in &profile.groups {
        match drawn.checked_sub(*weight) {
            None => return faults,
            Some(rest) => drawn = rest,
        }
    }
    unreachable!("the drawn number is below the sum of all weights")
}

impl fmt::Display for FaultPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut at = Duration::ZERO;
        for PlannedFault { after, fault, duration, .. } in &self.faults {
            at += *after;
            writeln!(f, "{:8.3} s  {fault} ({:.1} s)", at.as_secs_f64(), duration.as_secs_f64())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    fn profiles() -> [FaultProfile; 11] {
        [
            FaultProfile::broker_kills_on_a_slow_disk(),
            FaultProfile::chaos(true, true),
            FaultProfile::consumers(),
            FaultProfile::pod_kills(),
            FaultProfile::leaders(),
            FaultProfile::everything(),
            FaultProfile::late_saves(),
            FaultProfile::lost_sends(),
            FaultProfile::busy_broker(),
            FaultProfile::faulty_broker(),
            FaultProfile::leader_kills(),
        ]
    }

    #[test]
    fn a_seed_is_a_plan() {
        for profile in profiles() {
            let plan = FaultPlan::draw(&profile, 7, MINUTE);
            assert_eq!(plan, FaultPlan::draw(&profile, 7, MINUTE), "{}", profile.name);
            assert_ne!(plan, FaultPlan::draw(&profile, 8, MINUTE), "{}", profile.name);
        }
    }

    #[test]
    fn a_plan_fills_its_time_and_keeps_to_its_profile() {
        for profile in profiles() {
            let plan = FaultPlan::draw(&profile, 3, MINUTE);
            let length: Duration = plan.faults.iter().map(|inject| inject.after).sum();
            assert!(length >= MINUTE, "{}: {length:?}", profile.name);
            assert!(plan.faults.iter().all(|inject| profile.duration.contains(&inject.duration)), "{}", profile.name);
        }
    }

    #[test]
    fn once_groups_occur_once_and_every_group_occurs() {
        let profile = FaultProfile::everything();
        let plan = FaultPlan::draw(&profile, 11, MINUTE * 20);
        let times = |fault: &ClusterFault| plan.faults.iter().filter(|inject| inject.fault == *fault).count();
        let once: Vec<_> = profile.once.iter().filter_map(|group| group.last()).collect();
        assert!(once == [&ClusterFault::Primary(PrimaryFault::Kill)] && once.iter().all(|fault| times(fault) == 1));
        let mut at = Duration::ZERO;
        let starts = plan.faults.iter().map(|inject| {
            (inject.fault, {
                at += inject.after;
                at
            })
        });
        let soon = |fault: &ClusterFault, at: Duration| !once.contains(&fault) || at < MINUTE * 11;
        assert!(starts.into_iter().all(|(fault, at)| soon(&fault, at)));
        assert!(profile.groups.iter().flat_map(|(_, faults)| faults).all(|fault| times(fault) > 0));
    }

    #[test]
    fn a_plan_can_be_read() {
        let faults = vec![
            PlannedFault {
                after: Duration::from_millis(1500),
                fault: ClusterFault::Pod(PodSelector::Leader, PodFault::Kill),
                duration: Duration::from_millis(300),
                seed: 1,
            },
            PlannedFault {
                after: Duration::from_secs(1),
                fault: ClusterFault::Link(PodSelector::Standby, LinkTarget::Broker, LinkFault::BlackHole),
                duration: Duration::from_secs(2),
                seed: 2,
            },
        ];
        let shown = FaultPlan { faults }.to_string();
        let expected =
            "   1.500 s  kill the leader (0.3 s)\n   2.500 s  black hole between the standby and the broker (2.0 s)\n";
        assert_eq!(shown, expected);
    }
}
