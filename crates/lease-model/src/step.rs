//! What each action does. Production code makes every decision of a pod ([`decide::decide_standby`], [`decide::decide_leader`], the
//! statements of [`CandidateState`]) and of the store ([`LeaseStatement::apply`](lease::record::LeaseStatement::apply)).

use lease::Term;
use lease::decide::{self, CandidateState, StandbyAction, TakeoverReason};
use lease::record::{LeaseStatement, LeaseVersion};

use crate::action::{AbandonedRequest, ModelAction};
use crate::bounds::{ClockModel, ModelBounds};
use crate::checkpoint::{CheckpointOperation, CheckpointReply, CheckpointRequest};
use crate::compact::{
    CandidateNumber, CompactLeaseRecord, CompactStatement, CompactVersion, SentStatement, compact_term,
};
use crate::enabled::is_term_allowed;
use crate::normalize::{after_tick, normalized};
use crate::pod::{
    CompactHeldLease, CompactObservation, ModelPod, PendingRead, PendingStatement, RequestStage, VoluntaryStepDown,
};
use crate::protocol_defect::ProtocolDefect;
use crate::state::{MAX_LATE, ModelState, is_valid};
use crate::time::{LeaseAge, WaitAge, now};

/// The state after `action`, not yet in its canonical form.
pub fn step(state: &ModelState, action: ModelAction, bounds: &ModelBounds) -> ModelState {
    let mut next = *state;
    next.apply(action, bounds);
    for pod in &mut next.pods {
        *pod = normalized(pod, bounds);
    }
    next.store.normalize(bounds);
    next
}

impl ModelState {
    fn apply(&mut self, action: ModelAction, bounds: &ModelBounds) {
        match action {
            ModelAction::Tick(rates) => {
                for (pod, rate) in self.pods.iter_mut().zip(rates) {
                    *pod = after_tick(pod, rate, bounds);
                }
                self.store.add_tick();
            }
            ModelAction::SendRead(p) => {
                let found = self.store.majority.map(|lease| lease.record);
                self.pods[p].pending_read = Some(PendingRead { found, age: WaitAge::ZERO });
            }
            ModelAction::ReceiveRead(p) => self.receive_read(p, bounds),
            ModelAction::Renew(p) => self.send(p, |pod, me| me.renew_statement(Term::new(pod.term().into()))),
            ModelAction::Raise(p) => {
                self.send(p, |pod, me| me.raise_statement(Term::new(pod.term().into()), pod.floor()))
            }
            ModelAction::StepDown(p) => self.step_down(p, bounds),
            ModelAction::Crash(p) => self.crash(p, bounds),
            ModelAction::StatementArrives(p) => self.statement_arrives(p, bounds),
            ModelAction::LateStatementArrives(index) => {
                if let Some(statement) = self.late[index].take() {
                    self.receive(&statement, CandidateNumber::NOBODY, bounds);
                }
            }
            ModelAction::Replicate => self.replicate(),
            ModelAction::ReceiveReply(p) => self.receive_reply(p, bounds),
            ModelAction::AbandonStatement(p, fate) => self.abandon_statement(p, fate),
            ModelAction::FailOver { kept, offset } => self.fail_over(kept, offset, bounds),
            ModelAction::Delete => self.delete(),
            ModelAction::Claim(p) => self.send_checkpoint_request(p, CheckpointOperation::Claim),
            ModelAction::Save(p) => self.save(p),
            ModelAction::CheckpointRequestArrives(p) => self.checkpoint_request_arrives(p, bounds),
            ModelAction::ReceiveCheckpointReply(p) => self.receive_checkpoint_reply(p),
            ModelAction::AbandonCheckpointRequest(p, fate) => {
                let request = self.pods[p].work.request.take();
                if fate == AbandonedRequest::InFlight {
                    store_in_free_slot(&mut self.late_checkpoint_requests, request);
                }
            }
            ModelAction::LateCheckpointRequestArrives(index) => {
                if let Some(request) = self.late_checkpoint_requests[index].take() {
                    self.apply_checkpoint_request(&request, bounds);
                }
            }
        }
    }

    /// The read arrives: production code observes and decides, and the decision is sent.
    fn receive_read(&mut self, p: usize, bounds: &ModelBounds) {
        let Some(read) = self.pods[p].pending_read.take() else { return };
        let (found, at) = match bounds.defect {
            Some(ProtocolDefect::WaitFromRequest) => (self.store.majority.map(|lease| lease.record), read.age),
            _ => (read.found, WaitAge::ZERO),
        };
        let pod = &mut self.pods[p];
        let compact = CompactObservation::after(pod.observation, found, at);
        pod.observation = Some(compact);
        let rules = bounds.rules(pod.timing);
        let candidate = pod.candidate_state(&rules.timing);
        let over = CompactObservation { since: bounds.horizon().over(), ..compact };
        let seen = if bounds.clocks == ClockModel::Unreliable { over } else { compact };
        let mut observation = seen.to_observation();
        if bounds.has(ProtocolDefect::OwnTtlOnly) {
            let own = |record: CompactLeaseRecord| CompactLeaseRecord { timing: pod.timing, ..record };
            observation = CompactObservation { record: compact.record.map(own), ..compact }.to_observation();
        }
        let mut decided = decide::decide_standby(&candidate, &observation, &rules, now());
        if bounds.has(ProtocolDefect::ClientClock) {
            decided = take_by_client_clock(decided, &candidate, found);
        }
        let StandbyAction::Try { statement, reason } = decided else { return };
        if reason == TakeoverReason::HolderSilent && bounds.has(ProtocolDefect::WaitsForRelease) {
            return;
        }
        // A pod takes no new term before the work of its lost term has ended.
        if pod.work.request.is_some() {
            return;
        }
        if statement.granted_term().is_some_and(|term| !is_term_allowed(compact_term(term), bounds)) {
            return;
        }
        self.history.created_after_deletion |= reason == TakeoverReason::NoLease && self.faults.deletions > 0;
        self.send(p, |_, _| statement);
    }

    fn send(&mut self, p: usize, statement: impl Fn(&ModelPod, &CandidateState) -> LeaseStatement) {
        let pod = &mut self.pods[p];
        let timing = pod.timing.to_timing();
        let statement = statement(pod, &pod.candidate_state(&timing));
        pod.send(&statement, &timing);
    }

    fn step_down(&mut self, p: usize, bounds: &ModelBounds) {
        self.faults.step_downs += u8::from(bounds.step_downs.is_some());
        let pod = &mut self.pods[p];
        let term = pod.term();
        // Set before the release is sent: the pod must not take its own lease back.
        pod.step_down_pause = Some(VoluntaryStepDown { term, age: WaitAge::ZERO });
        if !bounds.has(ProtocolDefect::ReleaseBeforeGateCloses) {
            pod.held = None;
        }
        self.send(p, |_, me| me.release_statement(Term::new(term.into())));
    }

    fn crash(&mut self, p: usize, bounds: &ModelBounds) {
        self.faults.crashes += u8::from(bounds.crashes.is_some());
        self.stop_waiting(self.pods[p].candidate);
        let timing = self.pods[p].timing;
        // A candidate number that the state no longer contains may be used again.
        self.pods[p] = ModelPod::new(CandidateNumber::NOBODY, timing);
        self.pods[p].candidate = self.unused_candidate();
    }

    fn statement_arrives(&mut self, p: usize, bounds: &ModelBounds) {
        let ModelPod { candidate, pending, .. } = self.pods[p];
        let Some(pending) = pending else { return };
        let mut stage = self.receive(&pending.statement, candidate, bounds);
        if bounds.has(ProtocolDefect::PrimaryAckTrusted) && stage == RequestStage::Written {
            self.stop_waiting(candidate);
            stage = RequestStage::Acknowledged;
        }
        self.pods[p].pending = Some(PendingStatement { stage, ..pending });
    }

    fn receive(
        &mut self,
        statement: &SentStatement,
        awaited_by: CandidateNumber,
        bounds: &ModelBounds,
    ) -> RequestStage {
        // With this defect, the wall clock of the sender decides; the third pod's clock is far ahead.
        let clock = match bounds.defect {
            Some(ProtocolDefect::ClientClock) if statement.by == CandidateNumber(3) => 9,
            _ => self.store.offset,
        };
        self.store.receive(statement, awaited_by, clock, bounds.defect)
    }

    fn replicate(&mut self) {
        let before = self.store.majority.map_or(0, |lease| lease.record.version.term);
        let Some(waiting) = self.store.replicate() else { return };
        let after = self.store.majority.map_or(0, |lease| lease.record.version.term);
        self.history.term_reused |= after < before;
        self.set_stage(waiting, RequestStage::Acknowledged);
    }

    fn receive_reply(&mut self, p: usize, bounds: &ModelBounds) {
        let Some(pending) = self.pods[p].pending.take() else { return };
        let pod = &mut self.pods[p];
        if pending.stage == RequestStage::Refused {
            pod.held = None;
            return;
        }
        let (term, heartbeat) = match pending.statement.statement {
            CompactStatement::Create { term, heartbeat }
            | CompactStatement::Take { term, heartbeat, .. }
            | CompactStatement::TakeIfExpired { term, heartbeat, .. }
            | CompactStatement::Renew { term, heartbeat } => (term, heartbeat),
            CompactStatement::Raise { to, heartbeat, .. } => (to, heartbeat),
            CompactStatement::Release { .. } | CompactStatement::AlwaysRefused => {
                pod.held = None;
                return;
            }
        };
        let version = CompactVersion { holder: pod.candidate, term, heartbeat };
        pod.observation = Some(CompactObservation::after(
            pod.observation,
            Some(CompactLeaseRecord { version, timing: pod.timing }),
            WaitAge::ZERO,
        ));
        let sent = if bounds.has(ProtocolDefect::ValidFromReply) { LeaseAge::ZERO } else { pending.sent };
        match &mut pod.held {
            Some(held) if held.term == term => {
                // A reply after the deadline changes nothing.
                let renewed = CompactHeldLease { sent, ..*held };
                if is_valid(pod, bounds) {
                    pod.held = Some(renewed);
                }
            }
            _ => self.begin_term(
                p,
                CompactHeldLease { term, sent, raising_above: None, lease_deleted: pending.lease_deleted },
                bounds,
            ),
        }
    }

    /// Starts a term, unless its deadline has passed already.
    fn begin_term(&mut self, p: usize, held: CompactHeldLease, bounds: &ModelBounds) {
        let pod = &mut self.pods[p];
        pod.held = Some(held);
        if !is_valid(pod, bounds) {
            pod.held = None;
        } else if !held.lease_deleted && bounds.clocks == ClockModel::Drifting {
            self.history.term_reused |= held.term <= self.history.granted;
            self.history.granted = held.term;
        }
    }

    fn abandon_statement(&mut self, p: usize, fate: AbandonedRequest) {
        let Some(pending) = self.pods[p].pending.take() else { return };
        self.stop_waiting(self.pods[p].candidate);
        if fate == AbandonedRequest::InFlight {
            store_in_free_slot(&mut self.late, Some(pending.statement));
        }
    }

    fn fail_over(&mut self, kept: usize, offset: i8, bounds: &ModelBounds) {
        self.faults.failovers += u8::from(bounds.failovers.is_some());
        let lost: Vec<CandidateNumber> = self.store.fail_over(kept, offset).collect();
        for waiting in lost {
            self.set_stage(waiting, RequestStage::Sent);
        }
    }

    fn delete(&mut self) {
        self.faults.deletions += 1;
        self.store.majority = None;
        // After a deletion terms may start at one again; reuse is only checked since then.
        self.history.granted = 0;
        for pod in &mut self.pods {
            if let Some(held) = &mut pod.held {
                held.lease_deleted = true;
            }
            if let Some(pending) = &mut pod.pending {
                pending.lease_deleted |= pending.stage == RequestStage::Acknowledged;
            }
        }
        let pending = self.pods.iter().filter_map(|pod| pod.pending.map(|pending| pending.statement));
        let mut in_flight = pending.chain(self.late.into_iter().flatten());
        self.history.created_after_deletion |=
            in_flight.any(|statement| matches!(statement.statement, CompactStatement::Create { .. }));
    }

    /// Sets the stage of a statement, if a candidate waits for it.
    fn set_stage(&mut self, waiting: CandidateNumber, stage: RequestStage) {
        let pod = self.pods.iter_mut().find(|pod| waiting != CandidateNumber::NOBODY && pod.candidate == waiting);
        if let Some(pending) = pod.and_then(|pod| pod.pending.as_mut()) {
            pending.stage = stage;
        }
    }

    fn stop_waiting(&mut self, candidate: CandidateNumber) {
        for write in self.store.unreplicated.iter_mut().flatten().filter(|write| write.awaited_by == candidate) {
            write.awaited_by = CandidateNumber::NOBODY;
        }
    }

    fn send_checkpoint_request(&mut self, p: usize, task: CheckpointOperation) {
        let pod = &mut self.pods[p];
        pod.work.request = Some(CheckpointRequest { by: pod.candidate, term: pod.term(), task, reply: None });
    }

    fn save(&mut self, p: usize) {
        let position = self.pods[p].work.claimed.unwrap_or(0) + 1;
        self.pods[p].work.claimed = Some(position);
        self.send_checkpoint_request(p, CheckpointOperation::Save { position });
    }

    fn checkpoint_request_arrives(&mut self, p: usize, bounds: &ModelBounds) {
        let Some(request) = self.pods[p].work.request else { return };
        let reply = self.apply_checkpoint_request(&request, bounds);
        self.pods[p].work.request = Some(CheckpointRequest { reply: Some(reply), ..request });
    }

    fn apply_checkpoint_request(&mut self, request: &CheckpointRequest, bounds: &ModelBounds) -> CheckpointReply {
        let (reply, violations) = self.checkpoint.apply(request, bounds.defect);
        violations.into_iter().for_each(|violation| self.history.record(violation));
        reply
    }

    /// The producer receives the result of its claim or save, if its term continues.
    fn receive_checkpoint_reply(&mut self, p: usize) {
        let pod = &mut self.pods[p];
        let Some(CheckpointRequest { task, reply, .. }) = pod.work.request.take() else { return };
        let Some(held) = &mut pod.held else { return };
        match (reply, task) {
            (Some(CheckpointReply::Claimed { position }), _) => pod.work.claimed = Some(position),
            (Some(CheckpointReply::Refused { seen }), CheckpointOperation::Claim) => held.raising_above = Some(seen),
            (Some(CheckpointReply::Refused { .. }), CheckpointOperation::Save { .. }) => pod.held = None,
            (Some(CheckpointReply::Saved) | None, _) => {}
        }
    }
}

impl ModelPod {
    fn term(&self) -> u8 {
        self.held.expect("only a leader has a term").term
    }

    fn floor(&self) -> Term {
        let floor = self.held.and_then(|held| held.raising_above);
        Term::new(floor.expect("only a term that is behind is raised").into())
    }
}

fn store_in_free_slot<T>(slots: &mut [Option<T>; MAX_LATE], value: Option<T>) {
    if let Some(free) = slots.iter_mut().find(|slot| slot.is_none()) {
        *free = value;
    }
}

/// The unsafe election checks only `expiresAt`: it always tries.
fn take_by_client_clock(
    decided: StandbyAction,
    me: &CandidateState,
    found: Option<CompactLeaseRecord>,
) -> StandbyAction {
    let Some(record) = found else { return decided };
    let LeaseVersion { term, heartbeat, .. } = record.version.to_version();
    let expected = record.version.to_version();
    let statement = LeaseStatement::Take { expected, candidate: me.id(), term: term.next(), heartbeat: heartbeat + 1 };
    StandbyAction::Try { statement, reason: TakeoverReason::ServerClockExpired }
}
