//! The budget for outgoing bytes: delivered to connections and not yet written to their sockets.
//!
//! Credit alone cannot bound these bytes: a peer may grant any credit on thousands of links. Instead each connection
//! may use a quarter of the budget that is still free. One busy connection can use much of it; many connections that do
//! not read stay within the limit, plus a small minimum that every connection always has. A link without budget waits
//! until its connection has written something. It never delays the links of other connections.

use std::collections::{BTreeSet, HashMap};

use super::Core;
use super::call_context::CallContext;
use super::id::{ConnectionId, CoreLinkId};

/// Every connection may use this much, whatever the others use. One message more is possible, because the size of the
/// next message is unknown when the budget is checked.
const MIN_PER_CONNECTION: usize = 256 << 10;

#[derive(Debug)]
pub(super) struct OutgoingByteBudget {
    limit: usize,
    used: usize,
    connections: HashMap<ConnectionId, ConnectionUsage>,
}

#[derive(Debug, Default)]
struct ConnectionUsage {
    bytes: usize,
    /// Links that have a message to deliver and no budget.
    waiting: BTreeSet<CoreLinkId>,
}

impl OutgoingByteBudget {
    pub(super) fn new(limit: usize) -> Self {
        Self { limit, used: 0, connections: HashMap::new() }
    }

    pub(super) fn has_room(&self, link: CoreLinkId) -> bool {
        self.connection_has_room(link.connection())
    }

    fn connection_has_room(&self, connection: ConnectionId) -> bool {
        self.uses_less_than(connection, self.fair_share())
    }

    fn fair_share(&self) -> usize {
        (self.limit.saturating_sub(self.used) / 4).max(MIN_PER_CONNECTION)
    }

    fn uses_less_than(&self, connection: ConnectionId, bytes: usize) -> bool {
        self.connections.get(&connection).is_none_or(|usage| usage.bytes < bytes)
    }

    pub(super) fn add(&mut self, connection: ConnectionId, bytes: usize) {
        self.used += bytes;
        self.connections.entry(connection).or_default().bytes += bytes;
    }

    /// The link is served again when its connection has budget.
    pub(super) fn wait_for_room(&mut self, link: CoreLinkId) {
        self.connections.entry(link.connection()).or_default().waiting.insert(link);
    }

    pub(super) fn is_waiting(&self, link: CoreLinkId) -> bool {
        self.connections.get(&link.connection()).is_some_and(|usage| usage.waiting.contains(&link))
    }

    /// Removes a link from the waiting list.
    pub(super) fn stop_waiting(&mut self, link: CoreLinkId) {
        if let Some(usage) = self.connections.get_mut(&link.connection()) {
            usage.waiting.remove(&link);
        }
    }

    fn record_written(&mut self, connection: ConnectionId, bytes: usize) {
        let Some(usage) = self.connections.get_mut(&connection) else { return };
        // A connection may report more than was counted: its frames are only estimated.
        let bytes = bytes.min(usage.bytes);
        usage.bytes -= bytes;
        self.used -= bytes;
    }

    /// Removes and returns a waiting link, if its connection has budget.
    fn next_waiting_link(&mut self, connection: ConnectionId) -> Option<CoreLinkId> {
        if !self.connection_has_room(connection) {
            return None;
        }
        self.connections.get_mut(&connection)?.waiting.pop_first()
    }

    fn remove_connection(&mut self, connection: ConnectionId) {
        if let Some(usage) = self.connections.remove(&connection) {
            self.used -= usage.bytes;
        }
    }
}

impl Core {
    /// A connection has written `bytes` of its output: [deliveries](super::MessageDelivery::outgoing_size) and [other
    /// output](Self::record_output). Serves its links that waited for budget.
    pub fn record_written(&mut self, call: &mut CallContext<'_>, connection: ConnectionId, bytes: usize) {
        self.handle_due_timers(call);
        self.state.outgoing.record_written(connection, bytes);
        while let Some(link) = self.state.outgoing.next_waiting_link(connection) {
            if let Some(mut context) = self.queue_context_of_link(call, link) {
                context.serve_link(link);
            }
        }
    }

    /// Whether a connection reads its output. One that only has deliveries in flight does: they never use more than its
    /// share.
    pub fn is_reading(&self, connection: ConnectionId) -> bool {
        let outgoing = &self.state.outgoing;
        outgoing.uses_less_than(connection, outgoing.fair_share().saturating_mul(2))
    }

    /// Counts `bytes` of output to a connection that are not deliveries.
    pub fn record_output(&mut self, connection: ConnectionId, bytes: usize) {
        self.state.outgoing.add(connection, bytes);
    }

    /// Removes a closed connection. All its links must be [detached](Self::detach) already.
    pub fn remove_connection(&mut self, connection: ConnectionId) {
        self.state.outgoing.remove_connection(connection);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: usize = 64 << 20;

    /// Delivers 1 MiB messages while the connection has budget.
    fn fill(outgoing: &mut OutgoingByteBudget, connection: ConnectionId) -> usize {
        let mut count = 0;
        while outgoing.connection_has_room(connection) {
            outgoing.add(connection, 1 << 20);
            count += 1;
        }
        count
    }

    #[test]
    fn one_connection_may_use_much_and_many_stay_within_the_limit() {
        let mut outgoing = OutgoingByteBudget::new(LIMIT);
        assert!(fill(&mut outgoing, ConnectionId(1)) >= 12);
        for connection in 2..100 {
            assert!(fill(&mut outgoing, ConnectionId(connection)) >= 1, "everyone gets something");
        }
        assert!(outgoing.used <= LIMIT + (100 << 20), "{}", outgoing.used);
        (1..100).for_each(|connection| outgoing.remove_connection(ConnectionId(connection)));
        assert_eq!((outgoing.used, outgoing.connections.len()), (0, 0));
    }

    #[test]
    fn a_waiting_link_is_next_after_a_write() {
        let mut outgoing = OutgoingByteBudget::new(LIMIT);
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
        assert_eq!(outgoing.used, 0);
    }
}
