//! Spreads the pipelines of a deployment over its pods: a pod that leads at least two more than another one hands one over.
//!
//! Only asks the elector to step down, as an operator would. Who leads next is decided by the election, in which the pod with fewer leases is first
//! (`lease::LeaseSpread`). Uses the announcements of the pods, which may be seconds old, so it moves one lease at a time.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use lease::LeaseSpread;
use mongodb::Database;
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};
use tokio_util::sync::CancellationToken;

use crate::pods::{self, ANNOUNCE_INTERVAL, AnnouncedLeases};

/// A read that takes longer is abandoned, and the next one tries again.
const READ_TIMEOUT: Duration = Duration::from_secs(5);
/// From this difference on, a lease moves. With one less, it would move for ever.
const MIN_DIFFERENCE: usize = 2;

/// The electors of this process, by pipeline. A pipeline that restarts replaces its entry.
#[derive(Debug, Default)]
pub(crate) struct PipelineLeases(Mutex<BTreeMap<String, lease::Handle>>);

impl PipelineLeases {
    pub(crate) fn insert(&self, pipeline: &str, handle: lease::Handle) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(pipeline.to_owned(), handle);
    }

    /// The pipelines that this process leads, in the order of their names.
    fn led(&self) -> Vec<String> {
        let handles = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        handles.iter().filter(|(_, handle)| handle.is_leader()).map(|(pipeline, _)| pipeline.clone()).collect()
    }

    fn step_down(&self, pipeline: &str) -> Option<lease::Term> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(pipeline)?.step_down()
    }
}

pub(crate) struct LeaseBalancer {
    pub(crate) coordination: Database,
    pub(crate) pipelines: Vec<String>,
    pub(crate) pod_id: String,
    pub(crate) spread: LeaseSpread,
    pub(crate) interval: Duration,
}

impl LeaseBalancer {
    /// Runs until `stop`.
    pub(crate) async fn run(self, leases: &PipelineLeases, stop: CancellationToken) {
        let mut ticks = interval(ANNOUNCE_INTERVAL.min(self.interval));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut last_move = Instant::now();
        // cancel-safe: tick
        while stop.run_until_cancelled(ticks.tick()).await.is_some() {
            let read = timeout(READ_TIMEOUT, pods::read_leases(&self.coordination, &self.pipelines));
            // Without a reading nothing moves.
            let Some(Ok(Ok(announced))) = stop.run_until_cancelled(read).await else { continue };
            let others: Vec<_> = announced.into_iter().filter(|one| one.pod != self.pod_id).collect();
            self.spread.set_least_elsewhere(others.iter().map(|one| one.leads).min());
            if last_move.elapsed() < self.interval {
                continue;
            }
            let led = leases.led();
            let Some(pipeline) = choose_lease(&led, &others) else { continue };
            if let Some(term) = leases.step_down(pipeline) {
                tracing::info!(pipeline, %term, "handing a pipeline over to a pod that leads fewer");
                last_move = Instant::now();
            }
        }
    }
}

/// The lease to hand over: one that a pod with the fewest leases can take, if it has at least two less. Only pods that run the pipeline count.
fn choose_lease<'a>(led: &'a [String], others: &[AnnouncedLeases]) -> Option<&'a str> {
    let least = |pipeline: &String| others.iter().filter(|one| one.pipeline == *pipeline).map(|one| one.leads).min();
    let (fewest, pipeline) = led.iter().filter_map(|pipeline| Some((least(pipeline)?, pipeline))).min()?;
    (led.len() >= fewest + MIN_DIFFERENCE).then_some(pipeline.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_moves_to_a_pod_with_at_least_two_less() {
        let led = |count| ["a", "b", "c"][..count].iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let other = |pipeline: &str, leads| AnnouncedLeases { pipeline: pipeline.into(), pod: "other".into(), leads };
        assert_eq!(choose_lease(&led(3), &[]), None, "no other pod");
        assert_eq!(choose_lease(&led(3), &[other("b", 1)]), Some("b"));
        assert_eq!(choose_lease(&led(3), &[other("b", 2)]), None, "within one");
        assert_eq!(choose_lease(&led(3), &[other("d", 0)]), None, "runs none of the pipelines");
        assert_eq!(choose_lease(&led(3), &[other("a", 1), other("c", 0)]), Some("c"), "the fewest");
        assert_eq!(choose_lease(&led(1), &[other("a", 0)]), None);
    }
}
