//! Shrinks the plan of a failing run: the fewest faults that still break a guarantee.
//!
//! Removes ever smaller parts of the plan and keeps what still fails, as delta debugging does. The remaining faults keep their times.

use std::time::Duration;

use testkit::nemesis::{FaultPlan, PlannedFault};

/// The shrunken plan, and how it was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShrunkenPlan {
    pub plan: FaultPlan,
    pub runs: usize,
    /// No single fault can be removed. False if the runs were used up before.
    pub is_minimal: bool,
}

/// Calls `fails` at most `max_runs` times. The given plan is known to fail.
pub async fn shrink(plan: &FaultPlan, max_runs: usize, fails: impl AsyncFn(&FaultPlan) -> bool) -> ShrunkenPlan {
    let (mut plan, mut runs, mut parts) = (plan.clone(), 0, 2);
    while !plan.faults.is_empty() {
        let size = plan.faults.len().div_ceil(parts);
        let mut is_smaller = false;
        for start in (0..plan.faults.len()).step_by(size) {
            if runs == max_runs {
                return ShrunkenPlan { plan, runs, is_minimal: false };
            }
            let candidate = without(&plan, start, start + size);
            runs += 1;
            if fails(&candidate).await {
                (plan, is_smaller) = (candidate, true);
                break;
            }
        }
        match is_smaller {
            true => parts = 2.max(parts - 1),
            false if size == 1 => break,
            false => parts = (parts * 2).min(plan.faults.len()),
        }
    }
    ShrunkenPlan { plan, runs, is_minimal: true }
}

/// The plan without the faults of this range.
fn without(plan: &FaultPlan, from: usize, to: usize) -> FaultPlan {
    let (mut faults, mut waited) = (vec![], Duration::ZERO);
    for (index, fault) in plan.faults.iter().enumerate() {
        waited += fault.after;
        if !(from..to).contains(&index) {
            faults.push(PlannedFault { after: waited, ..*fault });
            waited = Duration::ZERO;
        }
    }
    FaultPlan { faults }
}

#[cfg(test)]
mod tests {
    use testkit::nemesis::{ClusterFault, PodFault, PodSelector};

    use super::*;

    fn plan(faults: u32) -> FaultPlan {
        let fault = |number| PlannedFault {
            after: Duration::from_secs(1),
            fault: ClusterFault::Pod(PodSelector::Leader, PodFault::Kill),
            duration: Duration::from_secs(1),
            seed: number,
        };
        FaultPlan { faults: (0..faults).map(fault).collect() }
    }

    fn seeds(plan: &FaultPlan) -> Vec<u32> {
        plan.faults.iter().map(|fault| fault.seed).collect()
    }

    #[tokio::test]
    async fn the_faults_that_matter_remain_at_their_times() {
        let needs_both = |plan: &FaultPlan| [3, 17].iter().all(|seed| seeds(plan).contains(seed));
        let shrunken = shrink(&plan(40), 100, async |plan| needs_both(plan)).await;
        assert_eq!((seeds(&shrunken.plan), shrunken.is_minimal), (vec![3, 17], true));
        let times: Vec<_> = shrunken.plan.faults.iter().map(|fault| fault.after.as_secs()).collect();
        assert_eq!(times, [4, 14]);
        assert!(shrunken.runs < 40, "{}", shrunken.runs);
    }

    #[tokio::test]
    async fn a_plan_that_fails_without_faults_shrinks_to_none() {
        let shrunken = shrink(&plan(5), 100, async |_| true).await;
        assert_eq!((seeds(&shrunken.plan), shrunken.is_minimal), (vec![], true));
    }

    #[tokio::test]
    async fn shrinking_stops_when_its_runs_are_used_up() {
        let shrunken = shrink(&plan(40), 3, async |_| false).await;
        assert_eq!((shrunken.plan.faults.len(), shrunken.runs, shrunken.is_minimal), (40, 3, false));
    }
}
