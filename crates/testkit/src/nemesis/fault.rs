//! What can befall a house, as plain data.

use std::fmt;
use std::time::Duration;

use crate::proxy::{self, Direction};

/// One fault; whom it strikes is found out at the moment it strikes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Fault {
    Pod(Whom, PodHarm),
    Primary(PrimaryHarm),
    Broker(BrokerHarm),
    /// Between one pod and what it talks to.
    Link(Whom, FarEnd, LinkHarm),
}

/// Which pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Whom {
    /// The one the lease names.
    Leader,
    /// One that runs and does not lead.
    Standby,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PodHarm {
    /// SIGKILL, and started again after a while.
    Kill,
    /// SIGSTOP, and SIGCONT after a while.
    Pause,
    /// SIGSTOP with messages in hand, and SIGCONT when another has its sessions: however long the locks last. Nothing else is broken
    /// meanwhile. Bites as often as it lost a lock so.
    Oversleep,
    /// SIGTERM, and started again after it has ended and a while has passed.
    Terminate,
    /// The lease is taken from its hands while it works on, as an operator would take it.
    Depose,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PrimaryHarm {
    Kill,
    Pause,
    StepDown,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum BrokerHarm {
    /// SIGKILL, and started again on the same folder and port.
    Kill,
    Pause,
    /// One send in eight is refused as `server-busy`.
    Throttle,
    /// One send in forty is stored, and its connection cut before the sender hears of it.
    LoseAcknowledgements,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FarEnd {
    Store,
    Broker,
}

/// What a network does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LinkHarm {
    Cut,
    Reset,
    /// Everything is taken and lost.
    BlackHole,
    /// Requests arrive, answers are lost.
    LoseAnswers,
    /// Requests are lost.
    LoseRequests,
    /// Nothing moves; when it is over, what was held is delivered.
    Freeze,
    /// Requests arrive, answers come when it is over.
    HoldAnswers,
    /// Every answer comes 50 ms late.
    Delay,
    /// Every request arrives 50 ms late.
    DelayRequests,
}

impl Fault {
    /// Whether it wants everything else to be whole, until it is mended.
    pub(super) fn stands_alone(self) -> bool {
        matches!(self, Self::Pod(_, PodHarm::Oversleep))
    }
}

impl LinkHarm {
    pub(crate) fn fault(self) -> proxy::Fault {
        match self {
            Self::Cut => proxy::Fault::Cut,
            Self::Reset => proxy::Fault::Reset,
            Self::BlackHole => proxy::Fault::BlackHole,
            Self::LoseAnswers => proxy::Fault::HalfOpen { dead: Direction::ToClient },
            Self::LoseRequests => proxy::Fault::HalfOpen { dead: Direction::ToTarget },
            Self::Freeze => proxy::Fault::Freeze,
            Self::HoldAnswers => proxy::Fault::Withhold(Direction::ToClient),
            Self::Delay => proxy::Fault::Delay(Direction::ToClient, Duration::from_millis(50)),
            Self::DelayRequests => proxy::Fault::Delay(Direction::ToTarget, Duration::from_millis(50)),
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pod(whom, PodHarm::Oversleep) => write!(f, "pause the {whom} past its locks"),
            Self::Pod(whom, harm) => write!(f, "{} the {whom}", harm.verb()),
            Self::Primary(PrimaryHarm::Kill) => f.write_str("kill the primary"),
            Self::Primary(PrimaryHarm::Pause) => f.write_str("pause the primary"),
            Self::Primary(PrimaryHarm::StepDown) => f.write_str("step the primary down"),
            Self::Broker(BrokerHarm::Kill) => f.write_str("kill the broker"),
            Self::Broker(BrokerHarm::Pause) => f.write_str("pause the broker"),
            Self::Broker(BrokerHarm::Throttle) => f.write_str("throttle at the broker"),
            Self::Broker(BrokerHarm::LoseAcknowledgements) => f.write_str("lose acknowledgements at the broker"),
            Self::Link(whom, far_end, harm) => {
                let far_end = match far_end {
                    FarEnd::Store => "MongoDB",
                    FarEnd::Broker => "the broker",
                };
                write!(f, "{} between the {whom} and {far_end}", harm.verb())
            }
        }
    }
}

impl fmt::Display for Whom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Leader => "leader",
            Self::Standby => "standby",
        })
    }
}

impl PodHarm {
    fn verb(self) -> &'static str {
        match self {
            Self::Kill => "kill",
            Self::Pause | Self::Oversleep => "pause",
            Self::Terminate => "terminate",
            Self::Depose => "depose",
        }
    }
}

impl LinkHarm {
    fn verb(self) -> &'static str {
        match self {
            Self::Cut => "cut",
            Self::Reset => "reset",
            Self::BlackHole => "black hole",
            Self::LoseAnswers => "lose answers",
            Self::LoseRequests => "lose requests",
            Self::Freeze => "freeze",
            Self::HoldAnswers => "hold answers",
            Self::Delay => "delay",
            Self::DelayRequests => "delay requests",
        }
    }
}
