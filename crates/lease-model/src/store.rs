//! MongoDB, as far as the lease sees it: one document, written by the primary first and by a majority later.
//!
//! Statements are judged against what the primary has. What a majority has is never lost and is all that reads show. At a
//! failover the new primary may lack any end of what the old one had alone; a driver that still waits for a lost write sends
//! it again. The server's wall clock is the current primary's, and changes with it.

use crate::bounds::Bounds;
use crate::defect::Defect;
use crate::pod::Stage;
use crate::stored::{Ask, Edition, Lease, Nonce, What};

/// The most writes a primary may have alone.
pub const ALONE: usize = 2;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Store {
    /// What a majority has.
    pub majority: Option<Lease>,
    /// What only the primary has, oldest first.
    pub alone: [Option<Write>; ALONE],
    /// How far the primary's wall clock is from true time, in ticks.
    pub offset: i8,
}

/// A write that a majority does not have yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Write {
    pub lease: Lease,
    /// Who waits to hear of it.
    pub awaited_by: Nonce,
}

impl Store {
    /// What the primary has.
    pub fn current(&self) -> Option<Lease> {
        self.alone.iter().flatten().last().map(|write| write.lease).or(self.majority)
    }

    pub fn writes_alone(&self) -> usize {
        self.alone.iter().flatten().count()
    }

    /// Judges a statement. `clock` is the wall clock that decides: the server's, unless a defect says otherwise.
    pub fn receive(&mut self, ask: &Ask, awaited_by: Nonce, clock: i8, defect: Option<Defect>) -> Stage {
        let current = self.current();
        let ask = misjudged(ask, current.as_ref(), defect);
        let Some(lease) = ask.apply(current.as_ref(), clock) else { return Stage::Refused };
        let free = self.writes_alone();
        if let Some(place) = self.alone.get_mut(free) {
            *place = Some(Write { lease, awaited_by });
        }
        Stage::Written
    }

    /// A majority has the oldest of the primary's writes. Returns who waited for it.
    pub fn replicate(&mut self) -> Option<Nonce> {
        let write = self.alone[0]?;
        self.majority = Some(write.lease);
        self.alone.rotate_left(1);
        self.alone[ALONE - 1] = None;
        Some(write.awaited_by)
    }

    /// A tick passes: what was written is one tick further back.
    pub fn grow_older(&mut self) {
        self.leases().for_each(|lease| lease.written -= 1);
    }

    /// Forgets when a lease was written, if nobody will ask, or could call it unexpired.
    pub fn settle(&mut self, bounds: &Bounds) {
        if !bounds.wall_clocks_matter() {
            self.offset = 0;
            self.leases().for_each(|lease| lease.written = 0);
        }
        let oldest = bounds.oldest_write();
        self.leases().for_each(|lease| lease.written = lease.written.max(oldest));
    }

    fn leases(&mut self) -> impl Iterator<Item = &mut Lease> {
        self.majority.iter_mut().chain(self.alone.iter_mut().flatten().map(|write| &mut write.lease))
    }

    /// Another primary, with the first `kept` of the writes. Returns who waits for a write that is lost.
    pub fn fail_over(&mut self, kept: usize, offset: i8) -> impl Iterator<Item = Nonce> {
        let lost = self.alone;
        for write in &mut self.alone[kept..] {
            *write = None;
        }
        self.offset = offset;
        lost.into_iter().skip(kept).flatten().map(|write| write.awaited_by)
    }
}

/// The statement as a store with a planted defect would read it.
fn misjudged(ask: &Ask, current: Option<&Lease>, defect: Option<Defect>) -> Ask {
    let stored = current.map(|lease| lease.glance.edition);
    match (defect, ask.what, stored) {
        (Some(Defect::CompareTermOnly), What::Take { seen, term, beat }, Some(stored))
            if (seen.holder, seen.term) == (stored.holder, stored.term) =>
        {
            Ask { what: What::Take { seen: Edition { beat: stored.beat, ..seen }, term, beat }, ..*ask }
        }
        (Some(Defect::ClientClock), What::Take { beat, .. }, Some(seen)) => {
            Ask { what: What::TakeIfExpired { seen, skew: 0, term: seen.term + 1, beat }, ..*ask }
        }
        _ => *ask,
    }
}
