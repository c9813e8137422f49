//! The faults of a test cluster, as plain data.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::proxy::{Direction, NetworkFault};

/// One fault. Its target is resolved when it is injected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum ClusterFault {
    Pod(PodSelector, PodFault),
    Primary(PrimaryFault),
    Broker(BrokerProcessFault),
    /// Between one pod and MongoDB or the broker.
    Link(PodSelector, LinkTarget, LinkFault),
    /// Writes most of an oplog that holds the checkpoint, and nothing else of it.
    FillOplog,
    /// Restarts pod by pod with the next configuration of the [cluster](crate::cluster::TestClusterConfig::rollouts).
    Rollout,
    Operator(OperatorAction),
}

/// Which pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum PodSelector {
    /// The holder of the lease.
    Leader,
    /// A running pod that does not lead.
    Standby,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum PodFault {
    /// SIGKILL, then a restart.
    Kill,
    /// SIGSTOP, then SIGCONT.
    Pause,
    /// SIGSTOP with unsettled messages, then SIGCONT after another pod has the sessions, however long the locks last. Needs
    /// isolation. Its effects are the locks it lost.
    PausePastLocks,
    /// SIGTERM, then a restart after the pod has ended.
    Terminate,
    /// Clears the lease holder while the pod runs, as an operator would.
    RevokeLease,
    /// The wall clock of the pod jumps, forwards or backwards, and back at the repair.
    ClockJump,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum PrimaryFault {
    Kill,
    Pause,
    StepDown,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum BrokerProcessFault {
    /// SIGKILL, then a restart on the same folder and port.
    Kill,
    Pause,
    /// Refuses one send in eight with `server-busy`.
    Throttle,
    /// Stores one send in forty and closes its connection before it acknowledges.
    LoseAcknowledgements,
    /// Acknowledges one send in a hundred and loses it. Only an audit repairs that.
    LoseMessages,
    /// The disk of the broker has no free space.
    DiskFull,
    /// Every sync of the broker takes 200 ms.
    SlowDisk,
    /// The wall clock of the broker jumps, forwards or backwards, and back at the repair.
    ClockJump,
}

/// What an operator does with the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum OperatorAction {
    StepDown,
    /// Resumed at the repair.
    PauseProducer,
    /// Resumed at the repair.
    PauseConsumer,
    /// Pauses one read model; resumed at the repair.
    PauseReadModel,
    RebuildReadModel,
    VerifyReadModel,
    Audit,
    Status,
    Explain,
}

/// The far end of a pod's link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum LinkTarget {
    Mongo,
    Broker,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum LinkFault {
    Cut,
    Reset,
    /// Accepts and drops everything.
    BlackHole,
    /// Requests arrive, responses are lost.
    LoseResponses,
    LoseRequests,
    /// Nothing moves; the repair delivers what was held.
    Freeze,
    /// Requests arrive, responses arrive after the repair.
    HoldResponses,
    /// Every response arrives 50 ms late.
    Delay,
    /// Every request arrives 50 ms late.
    DelayRequests,
}

impl ClusterFault {
    /// Whether every other fault must be repaired before this one and until its end.
    pub(super) fn needs_isolation(self) -> bool {
        matches!(self, Self::Pod(_, PodFault::PausePastLocks))
    }
}

impl LinkFault {
    pub(crate) fn network_fault(self) -> NetworkFault {
        match self {
            Self::Cut => NetworkFault::Cut,
            Self::Reset => NetworkFault::Reset,
            Self::BlackHole => NetworkFault::BlackHole,
            Self::LoseResponses => NetworkFault::HalfOpen { dead: Direction::ToClient },
            Self::LoseRequests => NetworkFault::HalfOpen { dead: Direction::ToTarget },
            Self::Freeze => NetworkFault::Freeze,
            Self::HoldResponses => NetworkFault::Withhold(Direction::ToClient),
            Self::Delay => NetworkFault::Delay(Direction::ToClient, Duration::from_millis(50)),
            Self::DelayRequests => NetworkFault::Delay(Direction::ToTarget, Duration::from_millis(50)),
        }
    }
}

impl fmt::Display for ClusterFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pod(selector, PodFault::PausePastLocks) => write!(f, "pause the {selector} past its locks"),
            Self::Pod(selector, fault) => write!(f, "{} the {selector}", fault.verb()),
            Self::Primary(PrimaryFault::Kill) => f.write_str("kill the primary"),
            Self::Primary(PrimaryFault::Pause) => f.write_str("pause the primary"),
            Self::Primary(PrimaryFault::StepDown) => f.write_str("step the primary down"),
            Self::Broker(BrokerProcessFault::Kill) => f.write_str("kill the broker"),
            Self::Broker(BrokerProcessFault::Pause) => f.write_str("pause the broker"),
            Self::Broker(BrokerProcessFault::Throttle) => f.write_str("throttle at the broker"),
            Self::Broker(BrokerProcessFault::LoseAcknowledgements) => {
                f.write_str("lose acknowledgements at the broker")
            }
            Self::Broker(BrokerProcessFault::LoseMessages) => f.write_str("lose messages at the broker"),
            Self::Broker(BrokerProcessFault::DiskFull) => f.write_str("fill the disk of the broker"),
            Self::Broker(BrokerProcessFault::SlowDisk) => f.write_str("slow the disk of the broker"),
            Self::Broker(BrokerProcessFault::ClockJump) => f.write_str("change the clock of the broker"),
            Self::FillOplog => f.write_str("fill the oplog"),
            Self::Rollout => f.write_str("roll out other read models"),
            Self::Operator(action) => f.write_str(match action {
                OperatorAction::StepDown => "step-down by an operator",
                OperatorAction::PauseProducer => "pause the producer",
                OperatorAction::PauseConsumer => "pause the consumer",
                OperatorAction::PauseReadModel => "pause a read model",
                OperatorAction::RebuildReadModel => "rebuild a read model",
                OperatorAction::VerifyReadModel => "verify a read model",
                OperatorAction::Audit => "audit by an operator",
                OperatorAction::Status => "status by an operator",
                OperatorAction::Explain => "explain by an operator",
            }),
            Self::Link(selector, target, fault) => {
                let target = match target {
                    LinkTarget::Mongo => "MongoDB",
                    LinkTarget::Broker => "the broker",
                };
                write!(f, "{} between the {selector} and {target}", fault.verb())
            }
        }
    }
}

impl fmt::Display for PodSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Leader => "leader",
            Self::Standby => "standby",
        })
    }
}

impl PodFault {
    fn verb(self) -> &'static str {
        match self {
            Self::Kill => "kill",
            Self::Pause | Self::PausePastLocks => "pause",
            Self::Terminate => "terminate",
            Self::RevokeLease => "revoke the lease of",
            Self::ClockJump => "change the clock of",
        }
    }
}

impl LinkFault {
    fn verb(self) -> &'static str {
        match self {
            Self::Cut => "cut",
            Self::Reset => "reset",
            Self::BlackHole => "black hole",
            Self::LoseResponses => "lose responses",
            Self::LoseRequests => "lose requests",
            Self::Freeze => "freeze",
            Self::HoldResponses => "hold responses",
            Self::Delay => "delay",
            Self::DelayRequests => "delay requests",
        }
    }
}
