//! Visits every candidate, term and heartbeat of a state, in a fixed order.

use crate::checkpoint::{CheckpointReply, CheckpointRequest};
use crate::compact::{CandidateNumber, CompactStatement, CompactVersion, SentStatement};
use crate::pod::ModelPod;
use crate::state::ModelState;

/// Called for every value of a kind.
pub trait StateFieldVisitor {
    fn candidate(&mut self, _: &mut CandidateNumber) {}
    fn term(&mut self, _: &mut u8) {}
    fn heartbeat(&mut self, _owner: CandidateNumber, _: &mut u8) {}
    /// The highest heartbeat a pod ever tried to write.
    fn last_heartbeat(&mut self, _owner: CandidateNumber, _: &mut u8) {}
}

impl ModelState {
    pub fn visit(&mut self, visitor: &mut impl StateFieldVisitor) {
        if let Some(lease) = &mut self.store.majority {
            lease.record.version.visit(visitor);
        }
        for write in self.store.unreplicated.iter_mut().flatten() {
            write.lease.record.version.visit(visitor);
            visitor.candidate(&mut write.awaited_by);
        }
        self.pods.iter_mut().for_each(|pod| pod.visit(visitor));
        self.late.iter_mut().flatten().for_each(|statement| statement.visit(visitor));
        self.late_checkpoint_requests.iter_mut().flatten().for_each(|request| request.visit(visitor));
        visitor.term(&mut self.checkpoint.term);
        visitor.candidate(&mut self.checkpoint.claimant);
        visitor.term(&mut self.history.granted);
    }

    /// A candidate number that the state does not contain.
    pub fn unused_candidate(&self) -> CandidateNumber {
        let mut known = KnownCandidates([false; 256]);
        { *self }.visit(&mut known);
        let unused = (1..=u8::MAX).find(|number| !known.0[usize::from(*number)]);
        CandidateNumber(unused.expect("there are few candidates"))
    }
}

struct KnownCandidates([bool; 256]);

impl StateFieldVisitor for KnownCandidates {
    fn candidate(&mut self, candidate: &mut CandidateNumber) {
        self.0[usize::from(candidate.0)] = true;
    }
}

impl ModelPod {
    pub fn visit(&mut self, visitor: &mut impl StateFieldVisitor) {
        visitor.last_heartbeat(self.candidate, &mut self.last_heartbeat);
        if let Some(step_down_pause) = &mut self.step_down_pause {
            visitor.term(&mut step_down_pause.term);
        }
        if let Some(observation) = &mut self.observation {
            visitor.term(&mut observation.highest_term);
            observation.record.iter_mut().for_each(|record| record.version.visit(visitor));
        }
        if let Some(read) = &mut self.pending_read {
            read.found.iter_mut().for_each(|record| record.version.visit(visitor));
        }
        if let Some(held) = &mut self.held {
            visitor.term(&mut held.term);
            held.raising_above.iter_mut().for_each(|floor| visitor.term(floor));
        }
        if let Some(pending) = &mut self.pending {
            pending.statement.visit(visitor);
        }
        if let Some(request) = &mut self.work.request {
            request.visit(visitor);
        }
        visitor.candidate(&mut self.candidate);
    }
}

impl CompactVersion {
    fn visit(&mut self, visitor: &mut impl StateFieldVisitor) {
        visitor.heartbeat(self.holder, &mut self.heartbeat);
        visitor.term(&mut self.term);
        visitor.candidate(&mut self.holder);
    }
}

impl SentStatement {
    fn visit(&mut self, visitor: &mut impl StateFieldVisitor) {
        let by = self.by;
        match &mut self.statement {
            CompactStatement::Create { term, heartbeat } | CompactStatement::Renew { term, heartbeat } => {
                visitor.term(term);
                visitor.heartbeat(by, heartbeat);
            }
            CompactStatement::Take { expected, term, heartbeat }
            | CompactStatement::TakeIfExpired { expected, term, heartbeat, .. } => {
                expected.visit(visitor);
                visitor.term(term);
                visitor.heartbeat(by, heartbeat);
            }
            CompactStatement::Raise { term, to, heartbeat } => {
                visitor.term(term);
                visitor.term(to);
                visitor.heartbeat(by, heartbeat);
            }
            CompactStatement::Release { term } => visitor.term(term),
            CompactStatement::AlwaysRefused => {}
        }
        visitor.candidate(&mut self.by);
    }
}

impl CheckpointRequest {
    fn visit(&mut self, visitor: &mut impl StateFieldVisitor) {
        visitor.term(&mut self.term);
        if let Some(CheckpointReply::Refused { seen }) = &mut self.reply {
            visitor.term(seen);
        }
        visitor.candidate(&mut self.by);
    }
}
