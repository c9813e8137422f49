//! MongoDB, as far as the lease sees it: one document, written by the primary first and by a majority later.
//!
//! Statements are judged against what the primary has. What a majority has is never lost and is all that reads show. At a
//! failover the new primary may lack any end of what the old one had alone; a driver that still waits for a lost write sends
//! it again. The server's wall clock is the current primary's, and changes with it.

use crate::bounds::Bounds;
use crate::compact::{CandidateNumber, CompactLease, CompactStatement, CompactVersion, SentStatement};
use crate::pod::RequestStage;
use crate::protocol_defect::ProtocolDefect;

/// The most writes a primary may have alone.
pub const MAX_UNREPLICATED: usize = 2;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ModelStore {
    /// What a majority has.
    pub majority: Option<CompactLease>,
    /// What only the primary has, oldest first.
    pub unreplicated: [Option<UnreplicatedWrite>; MAX_UNREPLICATED],
    /// How far the primary's wall clock is from true time, in ticks.
    pub offset: i8,
}

/// A write that a majority does not have yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UnreplicatedWrite {
    pub lease: CompactLease,
    /// Who waits to hear of it.
    pub awaited_by: CandidateNumber,
}

impl ModelStore {
    /// What the primary has.
    pub fn current(&self) -> Option<CompactLease> {
        self.unreplicated.iter().flatten().last().map(|write| write.lease).or(self.majority)
    }

    pub fn unreplicated_writes(&self) -> usize {
        self.unreplicated.iter().flatten().count()
    }

    /// Judges a statement. `clock` is the wall clock that decides: the server's, unless a defect says otherwise.
    pub fn receive(
        &mut self,
        statement: &SentStatement,
        awaited_by: CandidateNumber,
        clock: i8,
        defect: Option<ProtocolDefect>,
    ) -> RequestStage {
        let current = self.current();
        let statement = misjudged(statement, current.as_ref(), defect);
        let Some(lease) = statement.apply(current.as_ref(), clock) else { return RequestStage::Refused };
        let free = self.unreplicated_writes();
        if let Some(place) = self.unreplicated.get_mut(free) {
            *place = Some(UnreplicatedWrite { lease, awaited_by });
        }
        RequestStage::Written
    }

    /// A majority has the oldest of the primary's writes. Returns who waited for it.
    pub fn replicate(&mut self) -> Option<CandidateNumber> {
        let write = self.unreplicated[0]?;
        self.majority = Some(write.lease);
        self.unreplicated.rotate_left(1);
        self.unreplicated[MAX_UNREPLICATED - 1] = None;
        Some(write.awaited_by)
    }

    /// A tick passes: what was written is one tick further back.
    pub fn add_tick(&mut self) {
        self.leases().for_each(|lease| lease.written -= 1);
    }

    /// Forgets when a lease was written, if nobody will ask, or could call it unexpired.
    pub fn normalize(&mut self, bounds: &Bounds) {
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

    /// Another primary, with the first `kept` of the writes. Returns who waits for a write that is lost.
    pub fn fail_over(&mut self, kept: usize, offset: i8) -> impl Iterator<Item = CandidateNumber> {
        let lost = self.unreplicated;
        for write in &mut self.unreplicated[kept..] {
            *write = None;
        }
        self.offset = offset;
        lost.into_iter().skip(kept).flatten().map(|write| write.awaited_by)
    }
}

/// The statement as a store with a planted defect would read it.
fn misjudged(
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
