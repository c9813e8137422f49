//! What is on its way to the peers: handed out, and not yet written to their sockets.
//!
//! Credit is a peer's word, and it may have thousands of links. So what decides whether more is handed out is neither: it is how much a
//! connection has not taken yet of what it was given. Each may have a quarter of what is still free. One alone may so have much, and many
//! that do not read have together no more than the bound, and the little beyond it that is everyone's. A link that has to wait is served as soon as its
//! connection has taken something; those of others never wait for it.

use std::collections::{BTreeSet, HashMap};

use super::Core;
use super::id::{ConnectionId, LinkId};
use super::turn::Turn;

/// What every connection may have, however greedy the others are; and a message more, for it is not known how large the next one is.
const OWN: usize = 256 << 10;

#[derive(Debug)]
pub(super) struct Outgoing {
    most: usize,
    all: usize,
    connections: HashMap<ConnectionId, Underway>,
}

#[derive(Debug, Default)]
struct Underway {
    bytes: usize,
    /// Links for which there was a message, and no room.
    waiting: BTreeSet<LinkId>,
}

impl Outgoing {
    pub(super) fn new(most: usize) -> Self {
        Self { most, all: 0, connections: HashMap::new() }
    }

    pub(super) fn has_room(&self, link: LinkId) -> bool {
        self.has_room_for(link.connection())
    }

    fn has_room_for(&self, connection: ConnectionId) -> bool {
        self.has_less_than(connection, self.share())
    }

    fn share(&self) -> usize {
        (self.most.saturating_sub(self.all) / 4).max(OWN)
    }

    fn has_less_than(&self, connection: ConnectionId, bytes: usize) -> bool {
        self.connections.get(&connection).is_none_or(|underway| underway.bytes < bytes)
    }

    pub(super) fn add(&mut self, connection: ConnectionId, bytes: usize) {
        self.all += bytes;
        self.connections.entry(connection).or_default().bytes += bytes;
    }

    /// A link is to be served when there is room.
    pub(super) fn wait(&mut self, link: LinkId) {
        self.connections.entry(link.connection()).or_default().waiting.insert(link);
    }

    pub(super) fn is_waiting(&self, link: LinkId) -> bool {
        self.connections.get(&link.connection()).is_some_and(|underway| underway.waiting.contains(&link))
    }

    /// A link waits no more: it is gone.
    pub(super) fn forget(&mut self, link: LinkId) {
        if let Some(underway) = self.connections.get_mut(&link.connection()) {
            underway.waiting.remove(&link);
        }
    }

    fn written(&mut self, connection: ConnectionId, bytes: usize) {
        let Some(underway) = self.connections.get_mut(&connection) else { return };
        let bytes = bytes.min(underway.bytes);
        underway.bytes -= bytes;
        self.all -= bytes;
    }

    /// A link that waits, while its connection has room. It waits no more.
    fn next(&mut self, connection: ConnectionId) -> Option<LinkId> {
        if !self.has_room_for(connection) {
            return None;
        }
        self.connections.get_mut(&connection)?.waiting.pop_first()
    }

    fn gone(&mut self, connection: ConnectionId) {
        if let Some(underway) = self.connections.remove(&connection) {
            self.all -= underway.bytes;
        }
    }
}

impl Core {
    /// A connection has written so many bytes of what it was given: the [weights](super::Delivery::weight) of deliveries, and what was
    /// [told](Self::tell) besides. Its links that waited for room are served.
    pub fn written(&mut self, turn: &mut Turn<'_>, connection: ConnectionId, bytes: usize) {
        self.begin(turn);
        self.tools.outgoing.written(connection, bytes);
        while let Some(link) = self.tools.outgoing.next(connection) {
            if let Some(mut desk) = self.desk_of(turn, link) {
                desk.serve_link(link);
            }
        }
    }

    /// Whether a connection takes what it is given: only then is it told more than a few words. One that is only busy with its deliveries,
    /// which fill a share and no more, does.
    pub fn listens(&self, connection: ConnectionId) -> bool {
        let outgoing = &self.tools.outgoing;
        outgoing.has_less_than(connection, outgoing.share().saturating_mul(2))
    }

    /// So many bytes are on their way to a connection besides its deliveries.
    pub fn tell(&mut self, connection: ConnectionId, bytes: usize) {
        self.tools.outgoing.add(connection, bytes);
    }

    /// A connection is gone, and all its links have been [detached](Self::detach).
    pub fn hang_up(&mut self, connection: ConnectionId) {
        self.tools.outgoing.gone(connection);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOST: usize = 64 << 20;

    /// Hands out messages of a megabyte for as long as a connection has room.
    fn fill(outgoing: &mut Outgoing, connection: ConnectionId) -> usize {
        let mut count = 0;
        while outgoing.has_room_for(connection) {
            outgoing.add(connection, 1 << 20);
            count += 1;
        }
        count
    }

    #[test]
    fn one_alone_may_have_much_and_many_together_no_more_than_the_bound() {
        let mut outgoing = Outgoing::new(MOST);
        assert!(fill(&mut outgoing, ConnectionId(1)) >= 12);
        for connection in 2..100 {
            assert!(fill(&mut outgoing, ConnectionId(connection)) >= 1, "everyone gets something");
        }
        assert!(outgoing.all <= MOST + (100 << 20), "{}", outgoing.all);
        (1..100).for_each(|connection| outgoing.gone(ConnectionId(connection)));
        assert_eq!((outgoing.all, outgoing.connections.len()), (0, 0));
    }

    #[test]
    fn who_waits_is_next_when_something_was_written() {
        let mut outgoing = Outgoing::new(MOST);
        let connection = ConnectionId(1);
        fill(&mut outgoing, connection);
        let (one, other) = (connection.link(1), connection.link(2));
        outgoing.wait(one);
        outgoing.wait(other);
        assert_eq!(outgoing.next(connection), None);
        outgoing.written(connection, 4 << 20);
        outgoing.forget(one);
        assert_eq!(outgoing.next(connection), Some(other));
        assert!(!outgoing.is_waiting(other));
        assert_eq!(outgoing.next(connection), None);
        outgoing.written(connection, usize::MAX);
        assert_eq!(outgoing.all, 0);
    }
}
