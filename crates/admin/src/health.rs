//! Live and ready: what the loops and services of a pod say of themselves, and what follows from it.
//!
//! *Live* means that no loop is wedged: a pod that is not should be started anew. *Ready* means that every service does what its role asks: a
//! standby whose producer rests is ready, a leader whose producer waits for an operator is not. Pure; `now` is an argument.

use std::time::Instant;

use serde::Serialize;

use crate::liveness::{Liveness, LoopLiveness};

/// What a pod says of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodHealth {
    pub services: Vec<ServiceHealth>,
    /// Set from the first signal on: not ready, and live as long as the loops drain.
    pub stopping: bool,
}

/// One of a pod's services, in the role it has now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceHealth {
    pub name: &'static str,
    /// `leader`, `standby`, …
    pub role: &'static str,
    pub readiness: Readiness,
    pub loops: Vec<LoopLiveness>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Readiness {
    Ready,
    /// Why, for people.
    NotReady(String),
}

/// What follows from it: the body of `/healthz` and `/readyz`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct HealthReport {
    pub live: bool,
    pub ready: bool,
    pub stopping: bool,
    pub services: Vec<ServiceReport>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ServiceReport {
    pub name: &'static str,
    pub role: &'static str,
    pub ready: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    pub loops: Vec<LoopReport>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LoopReport {
    pub name: &'static str,
    pub state: LoopState,
    /// Since its last sign of life; only of a loop that is wedged.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub for_seconds: Option<f64>,
    pub limit_seconds: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum LoopState {
    Idle,
    Running,
    Stalled,
}

impl PodHealth {
    pub fn evaluate(&self, now: Instant) -> HealthReport {
        let services: Vec<_> = self.services.iter().map(|service| service.evaluate(now)).collect();
        let live = services.iter().all(|service| service.stalled().next().is_none());
        let ready = live && !self.stopping && services.iter().all(|service| service.ready);
        HealthReport { live, ready, stopping: self.stopping, services }
    }
}

impl ServiceHealth {
    fn evaluate(&self, now: Instant) -> ServiceReport {
        let loops: Vec<_> = self.loops.iter().map(|one| LoopReport::new(one, now)).collect();
        let wedged = loops.iter().find(|one| one.state == LoopState::Stalled);
        let why = match (&self.readiness, wedged) {
            (Readiness::NotReady(why), _) => Some(why.clone()),
            (Readiness::Ready, Some(one)) => Some(format!("{} does not move", one.name)),
            (Readiness::Ready, None) => None,
        };
        ServiceReport { name: self.name, role: self.role, ready: why.is_none(), why, loops }
    }
}

impl ServiceReport {
    pub fn stalled(&self) -> impl Iterator<Item = &LoopReport> {
        self.loops.iter().filter(|one| one.state == LoopState::Stalled)
    }
}

impl LoopReport {
    fn new(one: &LoopLiveness, now: Instant) -> Self {
        let (state, for_seconds) = match one.evaluate(now) {
            Liveness::Idle => (LoopState::Idle, None),
            Liveness::Running => (LoopState::Running, None),
            Liveness::Stalled(still) => (LoopState::Stalled, Some(still.as_secs_f64())),
        };
        Self { name: one.name, state, for_seconds, limit_seconds: one.limit.as_secs_f64() }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::liveness::Activity;

    const LIMIT: Duration = Duration::from_secs(30);

    /// Every loop a pod has, all of them moving at `at`.
    fn leader(at: Instant) -> PodHealth {
        let moving = |name| LoopLiveness { name, activity: Activity::Active { at }, limit: LIMIT };
        let service =
            |name, role, loops| ServiceHealth { name, role, readiness: Readiness::Ready, loops: Vec::from_iter(loops) };
        PodHealth {
            services: vec![
                service("lease", "leader", vec![moving("elector")]),
                service("producer", "leader", vec![moving("capture"), moving("publish")]),
                service("consumer", "every pod", vec![moving("sessions"), moving("applier")]),
            ],
            stopping: false,
        }
    }

    #[test]
    fn a_pod_is_live_while_all_its_loops_move() {
        let start = Instant::now();
        let report = leader(start).evaluate(start + LIMIT);
        assert!(report.live && report.ready, "{report:?}");
    }

    #[test]
    fn each_loop_that_is_wedged_is_named_and_makes_the_pod_neither_live_nor_ready() {
        let start = Instant::now();
        for (at, name) in [(0, "elector"), (1, "capture"), (1, "publish"), (2, "sessions"), (2, "applier")] {
            let mut health = leader(start + LIMIT);
            let wedged = health.services[at].loops.iter_mut().find(|one| one.name == name).unwrap();
            wedged.activity = Activity::Active { at: start };
            let report = health.evaluate(start + LIMIT + Duration::from_secs(1));
            assert!(!report.live && !report.ready, "{name}");
            let found: Vec<_> = report.services.iter().flat_map(ServiceReport::stalled).map(|one| one.name).collect();
            assert_eq!(found, [name]);
            assert_eq!(report.services[at].why.as_deref(), Some(&*format!("{name} does not move")));
        }
    }

    #[test]
    fn a_service_that_cannot_do_its_part_is_not_ready_and_still_live() {
        let start = Instant::now();
        let mut health = leader(start);
        health.services[1].readiness = Readiness::NotReady("waits for an operator: E0001".into());
        let report = health.evaluate(start);
        assert!(report.live && !report.ready);
        assert_eq!(report.services[1].why.as_deref(), Some("waits for an operator: E0001"));
    }

    #[test]
    fn a_pod_that_stops_is_not_ready_and_live_while_it_drains() {
        let start = Instant::now();
        let report = PodHealth { stopping: true, ..leader(start) }.evaluate(start);
        assert!(report.live && !report.ready);
    }
}
