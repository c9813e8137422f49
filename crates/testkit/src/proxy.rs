//! A TCP proxy on loopback with faults that can be switched while it runs.
//!
//! Put between a client and any server, it shows the client (and the server) what a network can do: connections cut,
//! reset, swallowed, frozen, late, or dead in one direction. A fault is in force when the call that injects it returns,
//! and [`Counters`] tell whether it hit anything.
//!
//! Back-pressure is real: a connection holds at most 256 KiB per direction, then the sender waits. A stream is never
//! delivered with a hole in it: a connection that lost bytes ends when the fault is healed. Knows nothing of what it
//! carries.
//!
//! ```no_run
//! # async fn example(mongod: std::net::SocketAddr) -> std::io::Result<()> {
//! use testkit::proxy::{Direction::ToClient, Fault, Proxy};
//!
//! let proxy = Proxy::start(mongod).await?;
//! proxy.inject(Fault::HalfOpen { dead: ToClient }).await; // requests arrive, answers are lost
//! proxy.heal().await;
//! proxy.on_next_connection(Fault::Cut.after(100, ToClient)).await;
//! # Ok(()) }
//! ```

mod acceptor;
mod connection;
mod counters;
mod fault;
mod line;
mod pump;

use std::{io, net::SocketAddr, sync::Arc};

use tokio::{
    net::{ToSocketAddrs, lookup_host},
    sync::{mpsc, oneshot},
    task::JoinSet,
};

use acceptor::{Acceptor, Links, Order, Port};
pub use connection::Connection;
pub use counters::{Counters, Traffic};
pub use fault::{Direction, Ending, Fault, Rule};

/// A running proxy. Dropping it closes its port and all its connections.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    links: Links,
    orders: mpsc::Sender<(Order, oneshot::Sender<()>)>,
    /// The acceptor, which owns the tasks of all connections: one abort ends them all.
    task: JoinSet<()>,
}

impl Proxy {
    /// Listens on a port of its own and carries every connection to `target`, which need not be there yet.
    ///
    /// Runs on the caller's runtime.
    pub async fn start(target: impl ToSocketAddrs) -> io::Result<Self> {
        let target: Arc<[SocketAddr]> = lookup_host(target).await?.collect();
        let port = Port::reserve()?;
        let address = port.address();
        let links = Links::default();
        let (orders, received) = mpsc::channel(1);
        let acceptor = Acceptor::new(port, target, Arc::clone(&links), received)?;
        let mut task = JoinSet::new();
        task.spawn(acceptor.run());
        Ok(Self { address, links, orders, task })
    }

    /// Where clients connect; the same for the proxy's whole life.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Puts all connections, open and to come, under `fault`, in place of the one before.
    pub async fn inject(&self, fault: Fault) {
        self.order(Order::Inject(fault)).await;
    }

    /// Puts the open connections under `fault`; those to come are not touched.
    pub async fn inject_into_open(&self, fault: Fault) {
        self.order(Order::InjectIntoOpen(fault)).await;
    }

    /// Ends every fault and forgets every rule, the connections' own included.
    pub async fn heal(&self) {
        self.order(Order::Heal).await;
    }

    /// Adds a rule for every connection to come.
    pub async fn on_each_connection(&self, rule: Rule) {
        self.order(Order::OnEach(rule)).await;
    }

    /// Adds a rule for one connection to come: the next, or the one after those that rules already wait for.
    pub async fn on_next_connection(&self, rule: Rule) {
        self.order(Order::OnNext(rule)).await;
    }

    /// Every connection accepted so far, in that order.
    pub fn connections(&self) -> Vec<Connection> {
        self.lock_links().iter().map(|link| Connection(Arc::clone(link))).collect()
    }

    /// The sum over all connections so far.
    pub fn counters(&self) -> Counters {
        self.lock_links().iter().map(|link| link.counters()).sum()
    }

    /// As dropping it, but returns when port and connections are closed.
    pub async fn stop(mut self) {
        self.task.shutdown().await;
    }

    async fn order(&self, order: Order) {
        let (in_force, done) = oneshot::channel();
        self.orders.send((order, in_force)).await.expect("the acceptor runs as long as its proxy");
        done.await.expect("the acceptor runs as long as its proxy");
    }

    fn lock_links(&self) -> std::sync::MutexGuard<'_, Vec<Arc<connection::Link>>> {
        self.links.lock().expect("no one panics while holding the links")
    }
}
