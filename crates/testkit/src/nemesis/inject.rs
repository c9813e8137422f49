//! Injects one fault, and repairs it.

use super::fault::{BrokerProcessFault, ClusterFault, LinkFault, LinkTarget, PodFault, PodSelector, PrimaryFault};
use super::pause_past_locks::{PausedPod, pause_with_unsettled, resume_after_takeover};
use crate::cluster::{Error, ProcessState, TestCluster};

/// How to repair a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FaultRepair {
    StartPod(usize),
    ResumePod(usize),
    ResumeAfterTakeover(PausedPod),
    HealLink(usize, LinkTarget),
    HealMongo,
    RestartBroker,
    ResumeBroker,
    /// Holds the broker's count of fault effects from before this fault.
    ClearBrokerFaults(u64),
}

/// The result of one injection.
pub(super) enum InjectionResult {
    NoTarget,
    /// Needs no repair.
    Done,
    Active(FaultRepair),
}

pub(super) struct FaultTarget<'a> {
    pub(super) cluster: &'a mut TestCluster,
    /// For the random part of a fault.
    pub(super) seed: u32,
    /// The faults that are already in force.
    pub(super) active: Vec<FaultRepair>,
}

/// An armed broker fault fires this often: it lasts until it is cleared.
const UNLIMITED: &str = "1000000000";

pub(super) async fn inject(target: FaultTarget<'_>, fault: ClusterFault) -> Result<InjectionResult, Error> {
    match fault {
        ClusterFault::Pod(selector, fault) => Ok(inject_into_pod(target.cluster, selector, fault).await),
        ClusterFault::Primary(fault) => inject_into_primary(target.cluster, fault).await,
        ClusterFault::Broker(fault) => Ok(inject_into_broker(target, fault).await),
        ClusterFault::Link(selector, far_end, fault) => Ok(inject_into_link(target, selector, far_end, fault).await),
    }
}

async fn inject_into_pod(cluster: &mut TestCluster, selector: PodSelector, fault: PodFault) -> InjectionResult {
    let Some(pod) = find_pod(cluster, selector).await else { return InjectionResult::NoTarget };
    match fault {
        PodFault::Kill if cluster.pod_mut(pod).kill().await => InjectionResult::Active(FaultRepair::StartPod(pod)),
        PodFault::Pause => {
            cluster.pod_mut(pod).pause().await;
            InjectionResult::Active(FaultRepair::ResumePod(pod))
        }
        PodFault::PausePastLocks => match pause_with_unsettled(cluster, pod).await {
            Some(paused) => InjectionResult::Active(FaultRepair::ResumeAfterTakeover(paused)),
            None => InjectionResult::NoTarget,
        },
        PodFault::Terminate => {
            cluster.pod_mut(pod).terminate();
            InjectionResult::Active(FaultRepair::StartPod(pod))
        }
        // Without a primary nobody can write the lease; then this fault is skipped.
        PodFault::RevokeLease if cluster.revoke_lease().await.unwrap_or(false) => InjectionResult::Done,
        PodFault::Kill | PodFault::RevokeLease => InjectionResult::NoTarget,
    }
}

async fn inject_into_primary(cluster: &mut TestCluster, fault: PrimaryFault) -> Result<InjectionResult, Error> {
    let mongo = cluster.mongo_mut();
    if !mongo.is_whole() {
        return Ok(InjectionResult::NoTarget);
    }
    match fault {
        PrimaryFault::Kill => mongo.kill_primary().await?,
        PrimaryFault::Pause => mongo.pause_primary().await?,
        PrimaryFault::StepDown => {
            let is_done = mongo.step_down().await.is_ok();
            return Ok(if is_done { InjectionResult::Done } else { InjectionResult::NoTarget });
        }
    }
    Ok(InjectionResult::Active(FaultRepair::HealMongo))
}

async fn inject_into_broker(target: FaultTarget<'_>, fault: BrokerProcessFault) -> InjectionResult {
    let broker = target.cluster.broker_mut();
    if broker.state() != ProcessState::Running {
        return InjectionResult::NoTarget;
    }
    let (kind, one_in) = match fault {
        BrokerProcessFault::Kill => {
            broker.kill().await;
            return InjectionResult::Active(FaultRepair::RestartBroker);
        }
        BrokerProcessFault::Pause => {
            broker.pause().await;
            return InjectionResult::Active(FaultRepair::ResumeBroker);
        }
        BrokerProcessFault::Throttle => ("server_busy", 8),
        BrokerProcessFault::LoseAcknowledgements => ("lose_acknowledgement", 40),
    };
    // One at a time, so that every effect counted from now on belongs to this fault.
    if target.active.iter().any(|active| matches!(active, FaultRepair::ClearBrokerFaults(_))) {
        return InjectionResult::NoTarget;
    }
    // A broker that is too busy to respond is left alone.
    let Ok(before) = broker.injected_faults().await else { return InjectionResult::NoTarget };
    let (topic, seed) = (broker.topic(), target.seed);
    let fault = format!(
        r#"{{"kind": "{kind}", "entity": "{topic}", "times": {UNLIMITED}, "one_in": {one_in}, "seed": {seed}}}"#
    );
    match broker.inject_fault(&fault).await {
        Ok(()) => InjectionResult::Active(FaultRepair::ClearBrokerFaults(before)),
        Err(_) => InjectionResult::NoTarget,
    }
}

async fn inject_into_link(
    FaultTarget { cluster, active, .. }: FaultTarget<'_>,
    selector: PodSelector,
    far_end: LinkTarget,
    fault: LinkFault,
) -> InjectionResult {
    let Some(pod) = find_pod(cluster, selector).await else { return InjectionResult::NoTarget };
    let repair = FaultRepair::HealLink(pod, far_end);
    match cluster.pod(pod).link(far_end).filter(|_| !active.contains(&repair)) {
        None => InjectionResult::NoTarget,
        Some(link) => {
            link.inject(fault.network_fault()).await;
            InjectionResult::Active(repair)
        }
    }
}

/// A running pod that matches the selector.
async fn find_pod(cluster: &mut TestCluster, selector: PodSelector) -> Option<usize> {
    let leader = cluster.leader().await;
    let is_running = |number: &usize| cluster.pod(*number).state() == ProcessState::Running;
    match selector {
        PodSelector::Leader => leader.filter(is_running),
        PodSelector::Standby => (0..cluster.pods().len()).filter(|number| Some(*number) != leader).find(is_running),
    }
}

/// Repairs a fault; returns how often it took effect, where that is known.
pub(super) async fn repair(cluster: &mut TestCluster, repair: FaultRepair) -> Result<u64, Error> {
    match repair {
        FaultRepair::StartPod(pod) if cluster.pod(pod).state() == ProcessState::Stopped => {
            cluster.restart_pod(pod).await?
        }
        FaultRepair::ResumePod(pod) => cluster.pod_mut(pod).resume(),
        FaultRepair::ResumeAfterTakeover(paused) => return Ok(resume_after_takeover(cluster, paused).await),
        FaultRepair::HealLink(pod, far_end) => {
            if let Some(link) = cluster.pod(pod).link(far_end) {
                link.heal().await;
            }
        }
        FaultRepair::HealMongo => cluster.mongo_mut().heal().await?,
        FaultRepair::RestartBroker if cluster.broker().state() == ProcessState::Stopped => {
            cluster.broker_mut().restart().await?;
        }
        FaultRepair::ResumeBroker => cluster.broker_mut().resume(),
        FaultRepair::ClearBrokerFaults(before) => {
            // A broker that was killed meanwhile has lost its faults and their count. One that does not respond now is
            // healed at the end of the plan.
            let now = cluster.broker().injected_faults().await.unwrap_or(0);
            let _ = cluster.broker().clear_faults().await;
            return Ok(now.saturating_sub(before));
        }
        FaultRepair::StartPod(_) | FaultRepair::RestartBroker => {}
    }
    Ok(0)
}
