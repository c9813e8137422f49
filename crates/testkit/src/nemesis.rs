//! The nemesis: breaks a house by plan, counts what it broke, and mends it.
//!
//! A [`Plan`] is drawn from a seed and a [`Profile`] and is plain data, so that a run that found something can be run again. Whom a fault
//! strikes is decided when it strikes: the leader of that moment. Faults may overlap, but nobody is struck who is down already, and never two
//! members of a replica set at once. One that wants to be seen alone is: everything is mended before it, and it before the next.

mod fault;
mod oversleep;
mod plan;
mod strike;

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use crate::cluster::{Error, House};

pub use fault::{BrokerHarm, FarEnd, Fault, LinkHarm, PodHarm, PrimaryHarm, Whom};
pub use plan::{Plan, Profile, Strike};
use strike::{Mend, Victim, mend, strike};

/// How often the house is looked after between two strikes.
const ROUNDS: Duration = Duration::from_millis(200);

/// What a nemesis did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    pub faults: BTreeMap<Fault, Hits>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hits {
    pub struck: u64,
    /// Of these, while events were in flight.
    pub in_flight: u64,
    /// There was nobody to strike: no leader just then, or down already.
    pub missed: u64,
    /// Of a fault that waits for its occasion, as those inside the broker do: how often it found one. Messages, or locks that were lost.
    pub bites: u64,
}

/// What was broken and is to be mended.
struct Open {
    due: Instant,
    fault: Fault,
    mend: Mend,
}

/// Carries the plan out until it ends, or until `until` does; then mends everything. `in_flight` tells how many events are under way.
pub async fn haunt(
    house: &mut House,
    plan: &Plan,
    in_flight: impl Fn() -> u64,
    until: impl Future<Output = ()>,
) -> Result<Report, Error> {
    let mut report = Report::default();
    let mut open: Vec<Open> = vec![];
    let mut last = Instant::now();
    tokio::pin!(until);
    let mut undisturbed = true;
    for Strike { after, fault, lasts, seed } in &plan.strikes {
        undisturbed = wait(house, &mut open, &mut report, last + *after, until.as_mut()).await?;
        if !undisturbed {
            break;
        }
        if fault.stands_alone() {
            report.mend(house, std::mem::take(&mut open)).await?;
        }
        last = Instant::now();
        let in_flight = in_flight();
        let hits = report.faults.entry(*fault).or_default();
        let victim = Victim { house, seed: *seed, open: open.iter().map(|open| open.mend).collect() };
        match strike(victim, *fault).await? {
            None => hits.missed += 1,
            Some(mend) => {
                hits.struck += 1;
                hits.in_flight += u64::from(in_flight > 0);
                tracing::info!(%fault, in_flight, "struck");
                let due = if fault.stands_alone() { last } else { last + *lasts };
                open.extend(mend.map(|mend| Open { due, fault: *fault, mend }));
            }
        }
    }
    if undisturbed && let Some(latest) = open.iter().map(|open| open.due).max() {
        wait(house, &mut open, &mut report, latest, until.as_mut()).await?;
    }
    report.mend(house, open).await?;
    house.heal().await?;
    Ok(report)
}

/// Mends what is due and looks after the house until `at`; false when `until` was there first.
async fn wait(
    house: &mut House,
    open: &mut Vec<Open>,
    report: &mut Report,
    at: Instant,
    mut until: std::pin::Pin<&mut impl Future<Output = ()>>,
) -> Result<bool, Error> {
    loop {
        house.bury()?;
        let now = Instant::now();
        let (due, rest) = std::mem::take(open).into_iter().partition(|open| open.due <= now);
        *open = rest;
        report.mend(house, due).await?;
        if Instant::now() >= at {
            return Ok(true);
        }
        let next = open.iter().map(|open| open.due).chain([at, now + ROUNDS]).min().unwrap_or(at);
        tokio::select! {
            // cancel-safe: a sleep, and a future that is pinned outside
            biased;
            () = &mut until => return Ok(false),
            () = sleep_until(next) => {}
        }
    }
}

impl Report {
    pub fn struck(&self) -> u64 {
        self.faults.values().map(|hits| hits.struck).sum()
    }

    pub fn in_flight(&self) -> u64 {
        self.faults.values().map(|hits| hits.in_flight).sum()
    }

    pub fn hits(&self, fault: Fault) -> Hits {
        self.faults.get(&fault).copied().unwrap_or_default()
    }

    /// This, and what was done after it.
    #[must_use]
    pub fn and(mut self, later: Self) -> Self {
        for (fault, Hits { struck, in_flight, missed, bites }) in later.faults {
            let hits = self.faults.entry(fault).or_default();
            hits.struck += struck;
            hits.in_flight += in_flight;
            hits.missed += missed;
            hits.bites += bites;
        }
        self
    }

    async fn mend(&mut self, house: &mut House, open: Vec<Open>) -> Result<(), Error> {
        for Open { fault, mend: undone, .. } in open {
            let bites = mend(house, undone).await?;
            self.faults.entry(fault).or_default().bites += bites;
        }
        Ok(())
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} faults, {} while events were in flight", self.struck(), self.in_flight())?;
        for (fault, Hits { struck, in_flight, missed, bites }) in &self.faults {
            write!(f, "\n  {fault}: {struck}, {in_flight} in flight, {missed} missed")?;
            if *bites > 0 {
                let what = if fault.stands_alone() { "locks lost" } else { "messages" };
                write!(f, ", {bites} {what}")?;
            }
        }
        Ok(())
    }
}
