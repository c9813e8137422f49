//! What is on its way to the peers: handed out, and not yet written to their sockets.
//!
//! Credit is a peer's word, and it may have thousands of links. So what decides whether more is handed out is neither: it is how much a
//! connection has not taken yet of what it was given. Each may have a quarter of what is still free. One alone may so have much, and many
//! that do not read have together no more than the bound, and the little beyond it that is everyone's. A link that has to wait is served as soon as its
//! connection has taken something; those of others never wait for it.

use std::collections::{BTreeSet, HashMap};

use super::Core;
use super::call_context::CallContext;
use super::id::{ConnectionId, CoreLinkId};

/// What every connection may have, however greedy the others are; and a message more, for it is not known how large the next one is.
const MIN_PER_CONNECTION: usize = 256 << 10;

#[derive(Debug)]
pub(super) struct OutgoingBudget {
    most: usize,
    all: usize,
    connections: HashMap<ConnectionId, ConnectionUsage>,
}

#[derive(Debug, Default)]
struct ConnectionUsage {
    bytes: usize,
    /// Links for which there was a message, and no room.
    waiting: BTreeSet<CoreLinkId>,
}

impl OutgoingBudget {
    pub(super) fn new(most: usize) -> Self {
        Self { most, all: 0, connections: HashMap::new() }
    }

    pub(super) fn has_room(&self, link: CoreLinkId) -> bool {
        self.connection_has_room(link.connection())
    }

    fn connection_has_room(&self, connection: ConnectionId) -> bool {
        self.uses_less_than(connection, self.share())
    }

    fn share(&self) -> usize {
        (self.most.saturating_sub(self.all) / 4).max(MIN_PER_CONNECTION)
    }

    fn uses_less_than(&self, connection: ConnectionId, bytes: usize) -> bool {
        self.connections.get(&connection).is_none_or(|usage| usage.bytes < bytes)
    }

    pub(super) fn add(&mut self, connection: ConnectionId, bytes: usize) {
        self.all += bytes;
        self.connections.entry(connection).or_default().bytes += bytes;
    }

    /// A link is to be served when there is room.
    pub(super) fn wait_for_room(&mut self, link: CoreLinkId) {
        self.connections.entry(link.connection()).or_default().waiting.insert(link);
    }

    pub(super) fn is_waiting(&self, link: CoreLinkId) -> bool {
        self.connections.get(&link.connection()).is_some_and(|usage| usage.waiting.contains(&link))
    }

    /// A link waits no more: it is gone.
    pub(super) fn stop_waiting(&mut self, link: CoreLinkId) {
        if let Some(usage) = self.connections.get_mut(&link.connection()) {
            usage.waiting.remove(&link);
        }
    }

    fn record_written(&mut self, connection: ConnectionId, bytes: usize) {
        let Some(usage) = self.connections.get_mut(&connection) else { return };
        let bytes = bytes.min(usage.bytes);
        usage.bytes -= bytes;
        self.all -= bytes;
    }

    /// A link that waits, while its connection has room. It waits no more.
    fn next_waiting_link(&mut self, connection: ConnectionId) -> Option<CoreLinkId> {
        if !self.connection_has_room(connection) {
            return None;
        }
        self.connections.get_mut(&connection)?.waiting.pop_first()
    }

    fn remove_connection(&mut self, connection: ConnectionId) {
        if let Some(usage) = self.connections.remove(&connection) {
            self.all -= usage.bytes;
        }
    }
}

impl Core {
    /// A connection has written so many bytes of what it was given: the [weights](super::MessageDelivery::outgoing_size) of deliveries, and what was
    /// [told](Self::tell) besides. Its links that waited for room are served.
    pub fn record_written(&mut self, call: &mut CallContext<'_>, connection: ConnectionId, bytes: usize) {
        self.handle_due_timers(call);
        self.state.outgoing.record_written(connection, bytes);
        while let Some(link) = self.state.outgoing.next_waiting_link(connection) {
            if let Some(mut context) = self.queue_context_of_link(call, link) {
                context.serve_link(link);
            }
        }
    }

    /// Whether a connection takes what it is given: only then is it told more than a few words. One that is only busy with its deliveries,
    /// which fill a share and no more, does.
    pub fn is_reading(&self, connection: ConnectionId) -> bool {
        let outgoing = &self.state.outgoing;
        outgoing.uses_less_than(connection, outgoing.share().saturating_mul(2))
    }

    /// So many bytes are on their way to a connection besides its deliveries.
    pub fn record_output(&mut self, connection: ConnectionId, bytes: usize) {
        self.state.outgoing.add(connection, bytes);
    }

    /// A connection is gone, and all its links have been [detached](Self::detach).
    pub fn remove_connection(&mut self, connection: ConnectionId) {
        self.state.outgoing.remove_connection(connection);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOST: usize = 64 << 20;

    /// Hands out messages of a megabyte for as long as a connection has room.
    fn fill(outgoing: &mut OutgoingBudget, connection: ConnectionId) -> usize {
        let mut count = 0;
        while outgoing.connection_has_room(connection) {
            outgoing.add(connection, 1 << 20);
            count += 1;
        }
        count
    }

    #[test]
    fn one_alone_may_have_much_and_many_together_no_more_than_the_bound() {
        let mut outgoing = OutgoingBudget::new(MOST);
        assert!(fill(&mut outgoing, ConnectionId(1)) >= 12);
        for connection in 2..100 {
            assert!(fill(&mut outgoing, ConnectionId(connection)) >= 1, "everyone gets something");
        }
        assert!(outgoing.all <= MOST + (100 << 20), "{}", outgoing.all);
        (1..100).for_each(|connection| outgoing.remove_connection(ConnectionId(connection)));
        assert_eq!((outgoing.all, outgoing.connections.len()), (0, 0));
    }

    #[test]
    fn who_waits_is_next_when_something_was_written() {
        let mut outgoing = OutgoingBudget::new(MOST);
        let connection = ConnectionId(1);
        fill(&mut outgoing, connection);
        let (one, other) = (connection.link(1), connection.link(2));
        outgoing.wait_for_room(one);
        outgoing.wait_for_room(other);
        assert_eq!(outgoing.next_waiting_link(connection), None);
        outgoing.record_written(connection, 4 << 20);
        outgoing.stop_waiting(one);
        assert_eq!(outgoing.next_waiting_link(connection), Some(other));
        assert!(!outgoing.is_waiting(other));
        assert_eq!(outgoing.next_waiting_link(connection), None);
        outgoing.record_written(connection, usize::MAX);
        assert_eq!(outgoing.all, 0);
    }
}
