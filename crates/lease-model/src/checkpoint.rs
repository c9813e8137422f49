//! The leader's work in the model: a checkpoint that a leader claims with its term, and then moves.
//!
//! A new leader claims. The store refuses a claim whose term is behind, or was claimed by another candidate; the refusal names the term
//! to rise above. Every save carries the term of its leader and is refused after a later claim; a save never lowers the position.
//! Claims and saves may arrive long after their sender was deposed. The store decides each at once: a claim or save that a failover
//! rolls back counts as one that never arrived.

use crate::compact::CandidateNumber;
use crate::protocol_defect::ProtocolDefect;

/// The stored checkpoint, within one epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ModelCheckpoint {
    /// The term of the last claim; zero if there was none.
    pub term: u8,
    pub claimant: CandidateNumber,
    pub position: u8,
}

/// The producer of one pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ModelProducer {
    /// The position it has published up to, if it has claimed the checkpoint in its term.
    pub claimed: Option<u8>,
    pub request: Option<CheckpointRequest>,
}

impl ModelProducer {
    pub const NONE: Self = Self { claimed: None, request: None };
}

/// A claim or a save in flight. It may outlive its term.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CheckpointRequest {
    pub by: CandidateNumber,
    pub term: u8,
    pub task: CheckpointOperation,
    pub reply: Option<CheckpointReply>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CheckpointOperation {
    Claim,
    Save { position: u8 },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CheckpointReply {
    /// Continue from this position.
    Claimed {
        position: u8,
    },
    Saved,
    Refused {
        seen: u8,
    },
}

/// An invariant of the checkpoint that a request violated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InvariantViolation {
    /// A claim was accepted although its term is not above the last one claimed.
    TermReused,
    /// A save was accepted from a leader that is not the last one to have claimed.
    DeposedSaved,
    /// The position moved back.
    MovedBack,
}

impl ModelCheckpoint {
    /// Accepts or refuses one request. Also returns the invariants it violated; without a defect there are none.
    pub fn apply(
        &mut self,
        request: &CheckpointRequest,
        defect: Option<ProtocolDefect>,
    ) -> (CheckpointReply, Vec<InvariantViolation>) {
        let before = *self;
        let own = request.term == before.term && request.by == before.claimant;
        let mut violations = Vec::new();
        let reply = match request.task {
            CheckpointOperation::Claim => {
                let rises = request.term > before.term;
                let blind = defect == Some(ProtocolDefect::ClaimByTermAlone) && request.term == before.term;
                if !(rises || own || blind) {
                    return (CheckpointReply::Refused { seen: before.term }, violations);
                }
                *self = Self { term: request.term, claimant: request.by, ..before };
                if !own && request.term <= before.term {
                    violations.push(InvariantViolation::TermReused);
                }
                CheckpointReply::Claimed { position: before.position }
            }
            CheckpointOperation::Save { position } => {
                let fenced = match defect {
                    Some(ProtocolDefect::NoFence | ProtocolDefect::UncheckedSave) => false,
                    Some(ProtocolDefect::ClaimByTermAlone) => request.term < before.term,
                    _ => !own,
                };
                let falls = position < before.position && defect != Some(ProtocolDefect::UncheckedSave);
                if fenced || falls {
                    return (CheckpointReply::Refused { seen: before.term }, violations);
                }
                self.position = position;
                if !own {
                    violations.push(InvariantViolation::DeposedSaved);
                }
                if position < before.position {
                    violations.push(InvariantViolation::MovedBack);
                }
                CheckpointReply::Saved
            }
        };
        (reply, violations)
    }
}
