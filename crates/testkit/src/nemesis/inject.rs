//! Injects one fault, and repairs it.

use std::time::Duration;

use super::fault::{
    BrokerProcessFault, ClusterFault, LinkFault, LinkTarget, OperatorAction, PodFault, PodSelector, PrimaryFault,
};
use super::pause_past_locks::{PausedPod, pause_with_unsettled, resume_after_takeover};
use crate::cluster::{Error, ProcessState, TestCluster};
use crate::disk_fault::DiskFault;

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
    HealDisk,
    SetPodClock(usize),
    SetBrokerClock,
    /// An operator resumes what one has paused.
    Resume(OperatorAction),
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
        ClusterFault::Pod(selector, fault) => Ok(inject_into_pod(target, selector, fault).await),
        ClusterFault::Primary(fault) => inject_into_primary(target.cluster, fault).await,
        ClusterFault::Broker(fault) => Ok(inject_into_broker(target, fault).await),
        ClusterFault::Link(selector, far_end, fault) => Ok(inject_into_link(target, selector, far_end, fault).await),
        ClusterFault::FillOplog => Ok(done_if(target.cluster.fill_oplog().await?)),
        ClusterFault::Rollout => Ok(done_if(target.cluster.roll_out().await?)),
        ClusterFault::Operator(action) => act_as_operator(target, action),
    }
}

fn done_if(is_done: bool) -> InjectionResult {
    if is_done { InjectionResult::Done } else { InjectionResult::NoTarget }
}

/// Seconds by which a clock jumps: small and large steps, both ways.
const CLOCK_JUMPS: [i64; 6] = [-86_400, -3_600, -20, 20, 3_600, 86_400];

fn clock_jump(seed: u32) -> i64 {
    CLOCK_JUMPS[seed as usize % CLOCK_JUMPS.len()]
}

async fn inject_into_pod(target: FaultTarget<'_>, selector: PodSelector, fault: PodFault) -> InjectionResult {
    let FaultTarget { cluster, seed, active } = target;
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
        PodFault::ClockJump => {
            let repair = FaultRepair::SetPodClock(pod);
            match !active.contains(&repair) && cluster.pod(pod).set_clock(clock_jump(seed)) {
                true => InjectionResult::Active(repair),
                false => InjectionResult::NoTarget,
            }
        }
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
        BrokerProcessFault::LoseMessages => ("lose_messages", 100),
        BrokerProcessFault::DiskFull | BrokerProcessFault::SlowDisk => {
            let slow = if fault == BrokerProcessFault::SlowDisk { SLOW_SYNC } else { Duration::ZERO };
            let fault =
                DiskFault { is_full: fault == BrokerProcessFault::DiskFull, sync_delay: slow, ..DiskFault::default() };
            let is_free = !target.active.contains(&FaultRepair::HealDisk);
            return active_if(is_free && broker.set_disk(fault), FaultRepair::HealDisk);
        }
        BrokerProcessFault::ClockJump => {
            let is_free = !target.active.contains(&FaultRepair::SetBrokerClock);
            return active_if(is_free && broker.set_clock(clock_jump(target.seed)), FaultRepair::SetBrokerClock);
        }
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

fn active_if(is_done: bool, repair: FaultRepair) -> InjectionResult {
    if is_done { InjectionResult::Active(repair) } else { InjectionResult::NoTarget }
}

/// How late a sync of a slow disk is.
const SLOW_SYNC: Duration = Duration::from_millis(200);
/// Read models that every configuration of a rollout declares alike.
const PAUSED_MODEL: &str = "chain";
const REBUILT_MODEL: &str = "history";

fn act_as_operator(target: FaultTarget<'_>, action: OperatorAction) -> Result<InjectionResult, Error> {
    let repair = FaultRepair::Resume(action);
    if target.active.contains(&repair) {
        return Ok(InjectionResult::NoTarget);
    }
    let aggregate = crate::load::aggregate(u64::from(target.seed % 50));
    let arguments: &[&str] = match action {
        OperatorAction::StepDown => &["step-down", "--within", "5s"],
        OperatorAction::PauseProducer => &["pause", "producer"],
        OperatorAction::PauseConsumer => &["pause", "consumer"],
        OperatorAction::PauseReadModel => &["pause", "read-model", PAUSED_MODEL],
        OperatorAction::RebuildReadModel => &["read-model", "rebuild", REBUILT_MODEL],
        OperatorAction::VerifyReadModel => &["read-model", "verify", PAUSED_MODEL, "--sample", "20"],
        OperatorAction::Audit => &["audit"],
        OperatorAction::Status => &["status", "--json"],
        OperatorAction::Explain => &["explain", &aggregate],
    };
    target.cluster.start_command(arguments)?;
    Ok(match resume_arguments(action) {
        Some(_) => InjectionResult::Active(repair),
        None => InjectionResult::Done,
    })
}

/// The command that takes back an action which lasts.
fn resume_arguments(action: OperatorAction) -> Option<&'static [&'static str]> {
    match action {
        OperatorAction::PauseProducer => Some(&["resume", "producer"]),
        OperatorAction::PauseConsumer => Some(&["resume", "consumer"]),
        OperatorAction::PauseReadModel => Some(&["resume", "read-model", PAUSED_MODEL]),
        OperatorAction::StepDown
        | OperatorAction::RebuildReadModel
        | OperatorAction::VerifyReadModel
        | OperatorAction::Audit
        | OperatorAction::Status
        | OperatorAction::Explain => None,
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
        FaultRepair::HealDisk => drop(cluster.broker().set_disk(DiskFault::default())),
        FaultRepair::SetPodClock(pod) => drop(cluster.pod(pod).set_clock(0)),
        FaultRepair::SetBrokerClock => drop(cluster.broker().set_clock(0)),
        FaultRepair::Resume(action) => {
            if let Some(arguments) = resume_arguments(action) {
                cluster.start_command(arguments)?;
            }
        }
        FaultRepair::StartPod(_) | FaultRepair::RestartBroker => {}
    }
    Ok(0)
}
