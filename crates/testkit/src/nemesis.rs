//! The nemesis: injects faults into a test cluster by plan, counts them, and repairs them.
//!
//! A [`FaultPlan`] is drawn from a seed and a [`FaultProfile`]. It is plain data, so a run that found a defect can be repeated.
//! The pod that a fault hits is chosen when the fault is injected: the leader of that moment. Faults may overlap. The nemesis
//! never hits a process that is already down, and never two members of a replica set at once. A fault that needs isolation runs
//! alone: the nemesis repairs everything before it, and repairs it before the next one.

mod fault;
mod inject;
mod pause_past_locks;
mod plan;

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use crate::cluster::{Error, TestCluster};

pub use fault::{
    BrokerProcessFault, ClusterFault, LinkFault, LinkTarget, OperatorAction, PodFault, PodSelector, PrimaryFault,
};
use inject::{FaultRepair, FaultTarget, InjectionResult, inject, repair};
pub use plan::{FaultPlan, FaultProfile, PlannedFault};

/// How often the nemesis restarts exited pods between two faults.
const CHECK_INTERVAL: Duration = Duration::from_millis(200);

/// What the nemesis did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FaultReport {
    pub faults: BTreeMap<ClusterFault, FaultCounts>,
    /// Every injected fault, in order.
    pub log: Vec<InjectedFault>,
}

/// One fault that was injected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InjectedFault {
    pub fault: ClusterFault,
    pub at: Instant,
    /// When it was repaired; the time of injection if it needed no repair.
    pub until: Instant,
    /// Events in flight when it was injected.
    pub in_flight: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultCounts {
    pub injected: u64,
    /// Of these, while events were in flight.
    pub in_flight: u64,
    /// There was no target: no leader at that moment, or the target was already down.
    pub skipped: u64,
    /// How often an armed fault took effect: messages refused by the broker, or session locks lost.
    pub effects: u64,
}

/// A fault that is in force, and how to repair it.
struct ActiveFault {
    due: Instant,
    fault: ClusterFault,
    repair: FaultRepair,
    /// Its place in the report's log.
    entry: usize,
}

/// Carries out the plan until it ends or `until` completes, then repairs everything. `in_flight` returns the number of unprocessed
/// events.
pub async fn run_plan(
    cluster: &mut TestCluster,
    plan: &FaultPlan,
    in_flight: impl Fn() -> u64,
    until: impl Future<Output = ()>,
) -> Result<FaultReport, Error> {
    let mut report = FaultReport::default();
    let mut active: Vec<ActiveFault> = vec![];
    let mut last = Instant::now();
    tokio::pin!(until);
    let mut is_running = true;
    for PlannedFault { after, fault, duration, seed } in &plan.faults {
        is_running = wait(cluster, &mut active, &mut report, last + *after, until.as_mut()).await?;
        if !is_running {
            break;
        }
        if fault.needs_isolation() {
            report.repair(cluster, std::mem::take(&mut active)).await?;
        }
        last = Instant::now();
        let in_flight = in_flight();
        let counts = report.faults.entry(*fault).or_default();
        let target = FaultTarget { cluster, seed: *seed, active: active.iter().map(|active| active.repair).collect() };
        let repair = match inject(target, *fault).await? {
            InjectionResult::NoTarget => {
                counts.skipped += 1;
                continue;
            }
            InjectionResult::Done => None,
            InjectionResult::Active(repair) => Some(repair),
        };
        counts.injected += 1;
        counts.in_flight += u64::from(in_flight > 0);
        tracing::info!(%fault, in_flight, "fault injected");
        let due = if fault.needs_isolation() { last } else { last + *duration };
        let entry = report.log.len();
        report.log.push(InjectedFault { fault: *fault, at: last, until: Instant::now(), in_flight });
        active.extend(repair.map(|repair| ActiveFault { due, fault: *fault, repair, entry }));
    }
    if is_running && let Some(latest) = active.iter().map(|active| active.due).max() {
        wait(cluster, &mut active, &mut report, latest, until.as_mut()).await?;
    }
    report.repair(cluster, active).await?;
    cluster.heal().await?;
    Ok(report)
}

/// Repairs what is due and restarts exited pods until `at`. Returns false when `until` completed first.
async fn wait(
    cluster: &mut TestCluster,
    active: &mut Vec<ActiveFault>,
    report: &mut FaultReport,
    at: Instant,
    mut until: std::pin::Pin<&mut impl Future<Output = ()>>,
) -> Result<bool, Error> {
    loop {
        cluster.restart_exited_pods()?;
        let now = Instant::now();
        let (due, rest) = std::mem::take(active).into_iter().partition(|active| active.due <= now);
        *active = rest;
        report.repair(cluster, due).await?;
        if Instant::now() >= at {
            return Ok(true);
        }
        let next = active.iter().map(|active| active.due).chain([at, now + CHECK_INTERVAL]).min().unwrap_or(at);
        tokio::select! {
            // cancel-safe: a sleep, and a future that is pinned outside
            biased;
            () = &mut until => return Ok(false),
            () = sleep_until(next) => {}
        }
    }
}

impl FaultReport {
    pub fn injected(&self) -> u64 {
        self.faults.values().map(|counts| counts.injected).sum()
    }

    pub fn in_flight(&self) -> u64 {
        self.faults.values().map(|counts| counts.in_flight).sum()
    }

    pub fn counts(&self, fault: ClusterFault) -> FaultCounts {
        self.faults.get(&fault).copied().unwrap_or_default()
    }

    /// This report plus a later one.
    #[must_use]
    pub fn and(mut self, later: Self) -> Self {
        self.log.extend(later.log);
        for (fault, FaultCounts { injected, in_flight, skipped, effects }) in later.faults {
            let counts = self.faults.entry(fault).or_default();
            counts.injected += injected;
            counts.in_flight += in_flight;
            counts.skipped += skipped;
            counts.effects += effects;
        }
        self
    }

    async fn repair(&mut self, cluster: &mut TestCluster, active: Vec<ActiveFault>) -> Result<(), Error> {
        for ActiveFault { fault, repair: action, entry, .. } in active {
            let effects = repair(cluster, action).await?;
            self.log[entry].until = Instant::now();
            self.faults.entry(fault).or_default().effects += effects;
        }
        Ok(())
    }
}

impl fmt::Display for FaultReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} faults, {} while events were in flight", self.injected(), self.in_flight())?;
        for (fault, FaultCounts { injected, in_flight, skipped, effects }) in &self.faults {
            write!(f, "\n  {fault}: {injected}, {in_flight} in flight, {skipped} skipped")?;
            if *effects > 0 {
                let unit = if fault.needs_isolation() { "locks lost" } else { "messages" };
                write!(f, ", {effects} {unit}")?;
            }
        }
        Ok(())
    }
}
