//! The steps of the model, each displayed as one sentence.

use std::fmt;

use crate::bounds::PODS;
use crate::time::ClockRate;

/// One step. Pods are numbered from zero in code, and from one in output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ModelAction {
    /// Time passes, for each pod at its own clock rate.
    Tick([ClockRate; PODS]),
    /// A standby reads the lease; the reply, with the majority's lease, is in flight.
    SendRead(usize),
    /// The reply arrives; the standby decides and sends its statement.
    ReceiveRead(usize),
    Renew(usize),
    Raise(usize),
    StepDown(usize),
    /// The process crashes; a new one starts in its place.
    Crash(usize),
    /// The statement a pod waits for reaches the primary.
    StatementArrives(usize),
    /// An abandoned statement reaches the primary.
    LateStatementArrives(usize),
    /// The primary's oldest write is replicated to a majority.
    Replicate,
    /// The reply reaches the pod.
    ReceiveReply(usize),
    /// The pod no longer waits for the reply.
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

/// What happens to an abandoned request.
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
            Self::ReceiveRead(p) => write!(f, "{} receives the read and decides", pod(p)),
            Self::Renew(p) => write!(f, "{} sends a renewal", pod(p)),
            Self::Raise(p) => write!(f, "{} sends a raise of its term", pod(p)),
            Self::StepDown(p) => write!(f, "{} steps down and sends a release", pod(p)),
            Self::Crash(p) => write!(f, "{} crashes and restarts", pod(p)),
            Self::StatementArrives(p) => write!(f, "the statement of {} reaches the primary", pod(p)),
            Self::LateStatementArrives(_) => f.write_str("a late statement reaches the primary"),
            Self::Replicate => f.write_str("the write reaches a majority"),
            Self::ReceiveReply(p) => write!(f, "{} receives the reply", pod(p)),
            Self::AbandonStatement(p, AbandonedRequest::InFlight) => {
                write!(f, "{} times out; the statement is still in flight", pod(p))
            }
            Self::AbandonStatement(p, AbandonedRequest::Lost) => {
                write!(f, "{} times out; the statement is lost", pod(p))
            }
            Self::FailOver { kept, offset } => {
                write!(
                    f,
                    "failover: the new primary has {kept} of the unreplicated writes, its clock is {offset:+} ticks off"
                )
            }
            Self::Delete => f.write_str("an operator deletes the lease"),
            Self::Claim(p) => write!(f, "{} claims the checkpoint", pod(p)),
            Self::Save(p) => write!(f, "{} publishes and sends a save", pod(p)),
            Self::CheckpointRequestArrives(p) => write!(f, "the request of {} reaches the checkpoint", pod(p)),
            Self::ReceiveCheckpointReply(p) => write!(f, "{} receives the reply of the checkpoint", pod(p)),
            Self::AbandonCheckpointRequest(p, AbandonedRequest::InFlight) => {
                write!(f, "{} times out on the checkpoint; the request is still in flight", pod(p))
            }
            Self::AbandonCheckpointRequest(p, AbandonedRequest::Lost) => {
                write!(f, "the request of {} to the checkpoint is lost", pod(p))
            }
            Self::LateCheckpointRequestArrives(_) => f.write_str("a late claim or save reaches the checkpoint"),
        }
    }
}
