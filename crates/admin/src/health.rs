//! Liveness and readiness of a pod, derived from its loops and services.
//!
//! *Live* means that no loop is stalled; a pod that is not live should be restarted. *Ready* means that every service does the work of its role: a
//! standby with an idle producer is ready, a leader whose producer needs operator action is not. Pure: `now` is an argument.

use std::time::Instant;

use serde::Serialize;

use crate::liveness::{Liveness, LoopLiveness};

/// The state of a pod's services.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodHealth {
    pub services: Vec<PodServiceHealth>,
    /// Set by the first stop signal: the pod is not ready, and live while its loops drain.
    pub stopping: bool,
}

/// One service of a pod, in its present role.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodServiceHealth {
    pub name: &'static str,
    /// `leader`, `standby`, …
    pub role: &'static str,
    pub readiness: Readiness,
    pub loops: Vec<LoopLiveness>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Readiness {
    Ready,
    /// With the reason.
    NotReady(String),
}

/// The body of `/healthz` and `/readyz`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct HealthReport {
    pub live: bool,
    pub ready: bool,
    pub stopping: bool,
    pub services: Vec<PodServiceHealthReport>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PodServiceHealthReport {
    pub name: &'static str,
    pub role: &'static str,
    pub ready: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    pub loops: Vec<LoopReport>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LoopReport {
    pub name: &'static str,
    pub state: LoopState,
    /// Time since the last heartbeat; only of a stalled loop.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stalled_seconds: Option<f64>,
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

impl PodServiceHealth {
    fn evaluate(&self, now: Instant) -> PodServiceHealthReport {
        let loops: Vec<_> = self.loops.iter().map(|one| LoopReport::new(one, now)).collect();
        let stalled = loops.iter().find(|one| one.state == LoopState::Stalled);
        let reason = match (&self.readiness, stalled) {
            (Readiness::NotReady(reason), _) => Some(reason.clone()),
            (Readiness::Ready, Some(one)) => Some(format!("{} is stalled", one.name)),
            (Readiness::Ready, None) => None,
        };
        PodServiceHealthReport { name: self.name, role: self.role, ready: reason.is_none(), reason, loops }
    }
}

impl PodServiceHealthReport {
    pub fn stalled(&self) -> impl Iterator<Item = &LoopReport> {
        self.loops.iter().filter(|one| one.state == LoopState::Stalled)
    }
}

impl LoopReport {
    fn new(one: &LoopLiveness, now: Instant) -> Self {
        let (state, stalled_seconds) = match one.evaluate(now) {
            Liveness::Idle => (LoopState::Idle, None),
            Liveness::Running => (LoopState::Running, None),
            Liveness::Stalled(silence) => (LoopState::Stalled, Some(silence.as_secs_f64())),
        };
        Self { name: one.name, state, stalled_seconds, limit_seconds: one.limit.as_secs_f64() }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::liveness::LoopActivity;

    const LIMIT: Duration = Duration::from_secs(30);

    /// All loops of a leader, with a heartbeat at `at`.
    fn leader(at: Instant) -> PodHealth {
        let running = |name| LoopLiveness { name, activity: LoopActivity::Active { at }, limit: LIMIT };
        let service = |name, role, loops| PodServiceHealth {
            name,
            role,
            readiness: Readiness::Ready,
            loops: Vec::from_iter(loops),
        };
        PodHealth {
            services: vec![
                service("lease", "leader", vec![running("elector")]),
                service("producer", "leader", vec![running("capture"), running("publish")]),
                service("consumer", "active", vec![running("sessions"), running("applier")]),
            ],
            stopping: false,
        }
    }

    #[test]
    fn a_pod_is_live_while_all_loops_run() {
        let start = Instant::now();
        let report = leader(start).evaluate(start + LIMIT);
        assert!(report.live && report.ready, "{report:?}");
    }

    #[test]
    fn a_stalled_loop_is_named_and_the_pod_not_live_or_ready() {
        let start = Instant::now();
        for (at, name) in [(0, "elector"), (1, "capture"), (1, "publish"), (2, "sessions"), (2, "applier")] {
            let mut health = leader(start + LIMIT);
            let stalled = health.services[at].loops.iter_mut().find(|one| one.name == name).unwrap();
            stalled.activity = LoopActivity::Active { at: start };
            let report = health.evaluate(start + LIMIT + Duration::from_secs(1));
            assert!(!report.live && !report.ready, "{name}");
            let found: Vec<_> =
                report.services.iter().flat_map(PodServiceHealthReport::stalled).map(|one| one.name).collect();
            assert_eq!(found, [name]);
            assert_eq!(report.services[at].reason.as_deref(), Some(&*format!("{name} is stalled")));
        }
    }

    #[test]
    fn a_service_that_is_not_ready_leaves_the_pod_live() {
        let start = Instant::now();
        let mut health = leader(start);
        health.services[1].readiness = Readiness::NotReady("operator action required: E0001".into());
        let report = health.evaluate(start);
        assert!(report.live && !report.ready);
        assert_eq!(report.services[1].reason.as_deref(), Some("operator action required: E0001"));
    }

    #[test]
    fn a_stopping_pod_is_live_but_not_ready() {
        let start = Instant::now();
        let report = PodHealth { stopping: true, ..leader(start) }.evaluate(start);
        assert!(report.live && !report.ready);
    }
}
