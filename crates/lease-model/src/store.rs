//! MongoDB as the lease sees it: one document, written by the primary first and replicated to a majority later.
//!
//! The primary applies statements to its own latest write. A write on a majority is never lost, and reads return only those. At a
//! failover, the new primary may lack any number of the last unreplicated writes; a driver that still waits for a lost write sends it
//! again. The server's wall clock is that of the current primary.

use crate::bounds::ModelBounds;
use crate::compact::{CandidateNumber, CompactLease, CompactStatement, CompactVersion, SentStatement};
use crate::pod::RequestStage;
use crate::protocol_defect::ProtocolDefect;

/// The maximum number of unreplicated writes.
pub const MAX_UNREPLICATED: usize = 2;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ModelStore {
    /// The lease that a majority has.
    pub majority: Option<CompactLease>,
    /// Writes that only the primary has, oldest first.
    pub unreplicated: [Option<UnreplicatedWrite>; MAX_UNREPLICATED],
    /// How far the primary's wall clock is from true time, in ticks.
    pub offset: i8,
}

/// A write that a majority does not have yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UnreplicatedWrite {
    pub lease: CompactLease,
    /// The candidate that waits for its acknowledgement.
    pub awaited_by: CandidateNumber,
}

impl ModelStore {
    /// The lease that the primary has.
    pub fn current(&self) -> Option<CompactLease> {
        self.unreplicated.iter().flatten().last().map(|write| write.lease).or(self.majority)
    }

    pub fn unreplicated_writes(&self) -> usize {
        self.unreplicated.iter().flatten().count()
    }

    /// Applies or refuses a statement. `clock` is the deciding wall clock: the server's, unless a defect changes it.
    pub fn receive(
        &mut self,
        statement: &SentStatement,
        awaited_by: CandidateNumber,
        clock: i8,
        defect: Option<ProtocolDefect>,
    ) -> RequestStage {
        let current = self.current();
        let statement = with_defect(statement, current.as_ref(), defect);
        let Some(lease) = statement.apply(current.as_ref(), clock) else { return RequestStage::Refused };
        let next = self.unreplicated_writes();
        if let Some(slot) = self.unreplicated.get_mut(next) {
            *slot = Some(UnreplicatedWrite { lease, awaited_by });
        }
        RequestStage::Written
    }

    /// Replicates the oldest write of the primary. Returns the candidate that waits for it.
    pub fn replicate(&mut self) -> Option<CandidateNumber> {
        let write = self.unreplicated[0]?;
        self.majority = Some(write.lease);
        // The oldest write leaves at the front; the array stays dense.
        self.unreplicated.rotate_left(1);
        self.unreplicated[MAX_UNREPLICATED - 1] = None;
        Some(write.awaited_by)
    }

    /// A tick passes: every write is one tick older.
    pub fn add_tick(&mut self) {
        self.leases().for_each(|lease| lease.written -= 1);
    }

    /// Removes the write time if no statement reads it, or if the lease has expired on every server.
    pub fn normalize(&mut self, bounds: &ModelBounds) {
        if !bounds.wall_clocks_matter() {
            self.offset = 0;
            self.leases().for_each(|lease| lease.written = 0);
        }
        let oldest = bounds.oldest_write();
        self.leases().for_each(|lease| lease.written = lease.written.max(oldest));
    }

    fn leases(&mut self) -> impl Iterator<Item = &mut CompactLease> {
        self.majority.iter_mut().chain(self.unreplicated.iter_mut().flatten().map(|write| &mut write.lease))
    }

    /// Another primary, with the first `kept` of the writes. Returns the candidates that wait for a lost write.
    pub fn fail_over(&mut self, kept: usize, offset: i8) -> impl Iterator<Item = CandidateNumber> {
        let lost = self.unreplicated;
        for write in &mut self.unreplicated[kept..] {
            *write = None;
        }
        self.offset = offset;
        lost.into_iter().skip(kept).flatten().map(|write| write.awaited_by)
    }
}

/// The statement as a store with a planted defect applies it.
fn with_defect(
    statement: &SentStatement,
    current: Option<&CompactLease>,
    defect: Option<ProtocolDefect>,
) -> SentStatement {
    let stored = current.map(|lease| lease.record.version);
    match (defect, statement.statement, stored) {
        (Some(ProtocolDefect::CompareTermOnly), CompactStatement::Take { expected, term, heartbeat }, Some(stored))
            if (expected.holder, expected.term) == (stored.holder, stored.term) =>
        {
            SentStatement {
                statement: CompactStatement::Take {
                    expected: CompactVersion { heartbeat: stored.heartbeat, ..expected },
                    term,
                    heartbeat,
                },
                ..*statement
            }
        }
        (Some(ProtocolDefect::ClientClock), CompactStatement::Take { heartbeat, .. }, Some(expected)) => {
            SentStatement {
                statement: CompactStatement::TakeIfExpired { expected, skew: 0, term: expected.term + 1, heartbeat },
                ..*statement
            }
        }
        _ => *statement,
    }
}
