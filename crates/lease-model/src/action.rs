//! Everything that can happen next, each as one sentence.

use std::fmt;

use crate::bounds::PODS;
use crate::time::ClockRate;

/// One step. Pods are numbered from zero here and from one when shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ModelAction {
    /// Time passes, for each pod at its own pace.
    Tick([ClockRate; PODS]),
    /// A standby reads the lease; the answer is on its way with what a majority has now.
    SendRead(usize),
    /// The answer arrives; the standby decides, and sends what it decided.
    ReceiveRead(usize),
    Renew(usize),
    Raise(usize),
    StepDown(usize),
    /// The process dies; another one starts in its place.
    Crash(usize),
    /// The statement a pod waits for reaches the primary.
    StatementArrives(usize),
    /// A statement nobody waits for reaches the primary.
    LateStatementArrives(usize),
    /// A majority has the primary's oldest write.
    Replicate,
    /// The answer reaches the pod.
    ReceiveReply(usize),
    /// The pod waits no longer.
    AbandonStatement(usize, AbandonedRequest),
    FailOver {
        kept: usize,
        offset: i8,
    },
    Delete,
    Claim(usize),
    Save(usize),
    CheckpointRequestArrives(usize),
    ReceiveCheckpointReply(usize),
    AbandonCheckpointRequest(usize, AbandonedRequest),
    LateCheckpointRequestArrives(usize),
}

/// What becomes of a request that nobody waits for any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AbandonedRequest {
    /// It may still arrive.
    InFlight,
    Lost,
}

impl fmt::Display for ModelAction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pod = |index: usize| format!("pod {}", index + 1);
        match *self {
            Self::Tick(rates) => {
                f.write_str("a tick passes")?;
                for (index, rate) in rates.into_iter().enumerate() {
                    match rate {
                        ClockRate::Fast => {}
                        ClockRate::Slow => write!(f, ", slow for {}", pod(index))?,
                        ClockRate::Stopped => write!(f, ", not counted by {}", pod(index))?,
                    }
                }
                Ok(())
            }
            Self::SendRead(p) => write!(f, "{} reads the lease", pod(p)),
            Self::ReceiveRead(p) => write!(f, "{} sees what it read, and decides", pod(p)),
            Self::Renew(p) => write!(f, "{} sends a renewal", pod(p)),
            Self::Raise(p) => write!(f, "{} asks to raise its term", pod(p)),
            Self::StepDown(p) => write!(f, "{} steps down and sends a release", pod(p)),
            Self::Crash(p) => write!(f, "{} crashes and starts anew", pod(p)),
            Self::StatementArrives(p) => write!(f, "the statement of {} reaches the primary", pod(p)),
            Self::LateStatementArrives(_) => f.write_str("a late statement reaches the primary"),
            Self::Replicate => f.write_str("a majority has the write"),
            Self::ReceiveReply(p) => write!(f, "{} gets its answer", pod(p)),
            Self::AbandonStatement(p, AbandonedRequest::InFlight) => {
                write!(f, "{} waits no longer; the statement is still on its way", pod(p))
            }
            Self::AbandonStatement(p, AbandonedRequest::Lost) => {
                write!(f, "{} waits no longer; nothing more comes of it", pod(p))
            }
            Self::FailOver { kept, offset } => {
                write!(
                    f,
                    "failover: the new primary has {kept} of the unreplicated writes, its clock is {offset:+} ticks off"
                )
            }
            Self::Delete => f.write_str("an operator deletes the lease"),
            Self::Claim(p) => write!(f, "{} claims the checkpoint", pod(p)),
            Self::Save(p) => write!(f, "{} publishes on, and sends a save", pod(p)),
            Self::CheckpointRequestArrives(p) => write!(f, "what {} asked reaches the checkpoint", pod(p)),
            Self::ReceiveCheckpointReply(p) => write!(f, "{} hears from the checkpoint", pod(p)),
            Self::AbandonCheckpointRequest(p, AbandonedRequest::InFlight) => {
                write!(f, "{} waits no longer for the checkpoint", pod(p))
            }
            Self::AbandonCheckpointRequest(p, AbandonedRequest::Lost) => {
                write!(f, "what {} asked of the checkpoint is lost", pod(p))
            }
            Self::LateCheckpointRequestArrives(_) => f.write_str("a late claim or save reaches the checkpoint"),
        }
    }
}
