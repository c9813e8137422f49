//! Live and ready: what the loops and services of a pod say of themselves, and what follows from it.
//!
//! *Live* means that no loop is wedged: a pod that is not should be started anew. *Ready* means that every service does what its role asks: a
//! standby whose producer rests is ready, a leader whose producer waits for an operator is not. Pure; `now` is an argument.

use std::time::Instant;

use serde::Serialize;

use crate::progress::{Loop, Verdict};

/// What a pod says of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Health {
    pub services: Vec<Service>,
    /// Set from the first signal on: not ready, and live as long as the loops drain.
    pub stopping: bool,
}

/// One of a pod's services, in the role it has now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Service {
    pub name: &'static str,
    /// `leader`, `standby`, …
    pub role: &'static str,
    pub readiness: Readiness,
    pub loops: Vec<Loop>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Readiness {
    Ready,
    /// Why, for people.
    Not(String),
}

/// What follows from it: the body of `/healthz` and `/readyz`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
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
    Resting,
    Moving,
    Wedged,
}

impl Health {
    pub fn judge(&self, now: Instant) -> Report {
        let services: Vec<_> = self.services.iter().map(|service| service.judge(now)).collect();
        let live = services.iter().all(|service| service.wedged().next().is_none());
        let ready = live && !self.stopping && services.iter().all(|service| service.ready);
        Report { live, ready, stopping: self.stopping, services }
    }
}

impl Service {
    fn judge(&self, now: Instant) -> ServiceReport {
        let loops: Vec<_> = self.loops.iter().map(|one| LoopReport::new(one, now)).collect();
        let wedged = loops.iter().find(|one| one.state == LoopState::Wedged);
        let why = match (&self.readiness, wedged) {
            (Readiness::Not(why), _) => Some(why.clone()),
            (Readiness::Ready, Some(one)) => Some(format!("{} does not move", one.name)),
            (Readiness::Ready, None) => None,
        };
        ServiceReport { name: self.name, role: self.role, ready: why.is_none(), why, loops }
    }
}

impl ServiceReport {
    pub fn wedged(&self) -> impl Iterator<Item = &LoopReport> {
        self.loops.iter().filter(|one| one.state == LoopState::Wedged)
    }
}

impl LoopReport {
    fn new(one: &Loop, now: Instant) -> Self {
        let (state, for_seconds) = match one.judge(now) {
            Verdict::Resting => (LoopState::Resting, None),
            Verdict::Moving => (LoopState::Moving, None),
            Verdict::Wedged(still) => (LoopState::Wedged, Some(still.as_secs_f64())),
        };
        Self { name: one.name, state, for_seconds, limit_seconds: one.limit.as_secs_f64() }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::progress::Pulse;

    const LIMIT: Duration = Duration::from_secs(30);

    /// Every loop a pod has, all of them moving at `at`.
    fn leader(at: Instant) -> Health {
        let moving = |name| Loop { name, pulse: Pulse::Alive { at }, limit: LIMIT };
        let service =
            |name, role, loops| Service { name, role, readiness: Readiness::Ready, loops: Vec::from_iter(loops) };
        Health {
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
        let report = leader(start).judge(start + LIMIT);
        assert!(report.live && report.ready, "{report:?}");
    }

    #[test]
    fn each_loop_that_is_wedged_is_named_and_makes_the_pod_neither_live_nor_ready() {
        let start = Instant::now();
        for (at, name) in [(0, "elector"), (1, "capture"), (1, "publish"), (2, "sessions"), (2, "applier")] {
            let mut health = leader(start + LIMIT);
            let wedged = health.services[at].loops.iter_mut().find(|one| one.name == name).unwrap();
            wedged.pulse = Pulse::Alive { at: start };
            let report = health.judge(start + LIMIT + Duration::from_secs(1));
            assert!(!report.live && !report.ready, "{name}");
            let found: Vec<_> = report.services.iter().flat_map(ServiceReport::wedged).map(|one| one.name).collect();
            assert_eq!(found, [name]);
            assert_eq!(report.services[at].why.as_deref(), Some(&*format!("{name} does not move")));
        }
    }

    #[test]
    fn a_service_that_cannot_do_its_part_is_not_ready_and_still_live() {
        let start = Instant::now();
        let mut health = leader(start);
        health.services[1].readiness = Readiness::Not("waits for an operator: E0001".into());
        let report = health.judge(start);
        assert!(report.live && !report.ready);
        assert_eq!(report.services[1].why.as_deref(), Some("waits for an operator: E0001"));
    }

    #[test]
    fn a_pod_that_stops_is_not_ready_and_live_while_it_drains() {
        let start = Instant::now();
        let report = Health { stopping: true, ..leader(start) }.judge(start);
        assert!(report.live && !report.ready);
    }
}
