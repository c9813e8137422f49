//! The open connections of the server, limited without ever making a new one wait.
//!
//! A probe must get through whatever other peers do. A connection that waits for its peer (for a handshake, a request head, or the reading
//! of a response) can be closed at any time. If the table is full, the peer address with the most waiting connections makes room, with the one
//! that has waited longest: a flood from one address closes only its own. Only a request in work is kept, and [`RequestGuard`] limits those that may take long.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio_util::sync::CancellationToken;

/// A dashboard holds a few connections, a scraper and a probe one each. Each costs at most [`crate::server::MAX_BUFFER`] and a few KiB.
pub(crate) const MAX_CONNECTIONS: usize = 256;
/// Operator actions in work. Far below the connections, so that waiting ones are always left to close.
pub(crate) const MAX_ACTIONS: usize = 16;
/// Requests that wait for an event: each is a small read now and then. Still far below the connections.
pub(crate) const MAX_WAITS: usize = 128;

#[derive(Default)]
pub(crate) struct OpenConnections(Mutex<ConnectionTable>);

#[derive(Default)]
struct ConnectionTable {
    /// By the order in which they began to wait.
    waiting: BTreeMap<u64, WaitingConnection>,
    in_work: usize,
    actions: usize,
    waits: usize,
    next: u64,
}

#[derive(Clone)]
struct WaitingConnection {
    peer: IpAddr,
    closed: CancellationToken,
}

/// One connection; leaves the table when dropped.
pub(crate) struct ConnectionSlot {
    table: Arc<OpenConnections>,
    connection: WaitingConnection,
    /// Its key while it waits.
    order: Mutex<Option<u64>>,
}

/// While it lives, the connection works on a request and is not closed.
pub(crate) struct RequestGuard<'a>(&'a ConnectionSlot);

/// While it lives, an operator action is in work, or a request waits for an event.
pub(crate) struct ActionGuard<'a> {
    table: &'a OpenConnections,
    is_wait: bool,
}

impl OpenConnections {
    pub(crate) fn open(self: &Arc<Self>, peer: IpAddr) -> ConnectionSlot {
        let connection = WaitingConnection { peer, closed: CancellationToken::new() };
        let mut table = self.lock();
        if table.waiting.len() + table.in_work >= MAX_CONNECTIONS {
            table.close_one();
        }
        let order = table.add_waiting(connection.clone());
        ConnectionSlot { table: Arc::clone(self), connection, order: Mutex::new(Some(order)) }
    }

    /// `None` if too many operator actions are in work.
    pub(crate) fn begin_action(&self) -> Option<ActionGuard<'_>> {
        let mut table = self.lock();
        (table.actions < MAX_ACTIONS).then(|| {
            table.actions += 1;
            ActionGuard { table: self, is_wait: false }
        })
    }

    /// `None` if too many requests wait for events.
    pub(crate) fn begin_wait(&self) -> Option<ActionGuard<'_>> {
        let mut table = self.lock();
        (table.waits < MAX_WAITS).then(|| {
            table.waits += 1;
            ActionGuard { table: self, is_wait: true }
        })
    }

    fn lock(&self) -> MutexGuard<'_, ConnectionTable> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ConnectionTable {
    fn add_waiting(&mut self, connection: WaitingConnection) -> u64 {
        self.next += 1;
        self.waiting.insert(self.next, connection);
        self.next
    }

    fn close_one(&mut self) {
        let mut by_peer: HashMap<IpAddr, usize> = HashMap::new();
        for connection in self.waiting.values() {
            *by_peer.entry(connection.peer).or_default() += 1;
        }
        let most = by_peer.values().copied().max();
        // Of two peers with as many, the one that waited longest.
        let chosen = self.waiting.iter().find(|(_, connection)| by_peer.get(&connection.peer).copied() == most);
        if let Some((order, connection)) = chosen {
            connection.closed.cancel();
            let order = *order;
            self.waiting.remove(&order);
        }
    }
}

impl ConnectionSlot {
    /// Resolves when the connection has to make room.
    pub(crate) async fn closed(&self) {
        self.connection.closed.cancelled().await;
    }

    pub(crate) fn begin_request(&self) -> RequestGuard<'_> {
        let mut table = self.table.lock();
        self.leave_waiting(&mut table);
        table.in_work += 1;
        RequestGuard(self)
    }

    fn leave_waiting(&self, table: &mut ConnectionTable) {
        let order = self.order.lock().unwrap_or_else(PoisonError::into_inner).take();
        order.and_then(|order| table.waiting.remove(&order));
    }
}

impl Drop for RequestGuard<'_> {
    fn drop(&mut self) {
        let slot = self.0;
        let mut table = slot.table.lock();
        table.in_work -= 1;
        let order = table.add_waiting(slot.connection.clone());
        *slot.order.lock().unwrap_or_else(PoisonError::into_inner) = Some(order);
    }
}

impl Drop for ActionGuard<'_> {
    fn drop(&mut self) {
        let mut table = self.table.lock();
        let count = if self.is_wait { &mut table.waits } else { &mut table.actions };
        *count -= 1;
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        let table = Arc::clone(&self.table);
        self.leave_waiting(&mut table.lock());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PEER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

    fn is_closed(slot: &ConnectionSlot) -> bool {
        slot.connection.closed.is_cancelled()
    }

    #[test]
    fn a_full_table_closes_the_one_that_waited_longest() {
        let table = Arc::new(OpenConnections::default());
        let mut slots: Vec<_> = (0..MAX_CONNECTIONS).map(|_| table.open(PEER)).collect();
        // The first works on a request: it is not closed, and waits anew afterwards.
        drop(slots[0].begin_request());
        let in_work = slots[1].begin_request();
        let newest = table.open(PEER);
        assert!(is_closed(&slots[2]));
        assert!([0, 1, 3].iter().all(|at| !is_closed(&slots[*at])));
        drop((in_work, newest));
        slots.clear();
        let table = table.lock();
        assert_eq!((table.waiting.len(), table.in_work), (0, 0));
    }

    #[test]
    fn a_flood_from_one_address_closes_only_its_own() {
        let table = Arc::new(OpenConnections::default());
        let kubelet = table.open(IpAddr::from([10, 0, 0, 1]));
        let flood: Vec<_> = (0..3 * MAX_CONNECTIONS).map(|_| table.open(PEER)).collect();
        assert!(!is_closed(&kubelet));
        assert_eq!(flood.iter().filter(|slot| !is_closed(slot)).count(), MAX_CONNECTIONS - 1);
    }

    #[test]
    fn operator_actions_are_limited() {
        let table = OpenConnections::default();
        let running: Vec<_> = (0..MAX_ACTIONS).map(|_| table.begin_action().unwrap()).collect();
        assert!(table.begin_action().is_none());
        drop(running);
        assert!(table.begin_action().is_some());
    }
}
