//! A TCP proxy on loopback with faults that can be switched while it runs.
//!
//! Between a client and any server it simulates network faults: connections that are cut,
//! reset, frozen, delayed, swallowed, or dead in one direction. A fault is in force when the call that injects it returns,
//! and [`ProxyCounters`] show whether it affected any bytes.
//!
//! Back-pressure is real: a connection holds at most 256 KiB per direction, then the sender waits. A stream is never
//! delivered with a gap: a connection that lost bytes ends when the fault is healed. The proxy does not interpret the
//! bytes.
//!
//! ```no_run
//! # async fn example(mongod: std::net::SocketAddr) -> std::io::Result<()> {
//! use testkit::proxy::{Direction::ToClient, NetworkFault, Proxy};
//!
//! let proxy = Proxy::start(mongod).await?;
//! proxy.inject(NetworkFault::HalfOpen { dead: ToClient }).await; // requests arrive, responses are lost
//! proxy.heal().await;
//! proxy.on_next_connection(NetworkFault::Cut.after(100, ToClient)).await;
//! # Ok(()) }
//! ```

mod acceptor;
mod connection;
mod counters;
mod delay_queue;
mod fault;
mod pump;

use std::{io, net::SocketAddr, sync::Arc};

use tokio::{
    net::{ToSocketAddrs, lookup_host},
    sync::{mpsc, oneshot},
    task::JoinSet,
};

use acceptor::{ProxyAcceptor, ProxyCommand, ProxyLinks, ProxyPort};
pub use connection::ProxyConnection;
pub use counters::{ProxyCounters, ProxyTraffic};
pub use fault::{Direction, FaultRule, NetworkFault, ProxyCloseReason};

/// A running proxy. Dropping it closes its port and all its connections.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    links: ProxyLinks,
    commands: mpsc::Sender<(ProxyCommand, oneshot::Sender<()>)>,
    /// The acceptor, which owns the tasks of all connections: one abort ends them all.
    task: JoinSet<()>,
}

impl Proxy {
    /// Listens on a free port and forwards every connection to `target`, which need not listen yet.
    ///
    /// Runs on the caller's runtime.
    pub async fn start(target: impl ToSocketAddrs) -> io::Result<Self> {
        let target: Arc<[SocketAddr]> = lookup_host(target).await?.collect();
        let port = ProxyPort::reserve()?;
        let address = port.address();
        let links = ProxyLinks::default();
        let (commands, received) = mpsc::channel(1);
        let acceptor = ProxyAcceptor::new(port, target, Arc::clone(&links), received)?;
        let mut task = JoinSet::new();
        task.spawn(acceptor.run());
        Ok(Self { address, links, commands, task })
    }

    /// Where clients connect. It never changes.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Applies `fault` to all open and future connections, in place of the previous fault.
    pub async fn inject(&self, fault: NetworkFault) {
        self.send_command(ProxyCommand::Inject(fault)).await;
    }

    /// Applies `fault` to the open connections only.
    pub async fn inject_into_open(&self, fault: NetworkFault) {
        self.send_command(ProxyCommand::InjectIntoOpen(fault)).await;
    }

    /// Removes every fault and rule, including those of single connections.
    pub async fn heal(&self) {
        self.send_command(ProxyCommand::Heal).await;
    }

    /// Adds a rule for every future connection.
    pub async fn on_each_connection(&self, rule: FaultRule) {
        self.send_command(ProxyCommand::OnEach(rule)).await;
    }

    /// Adds a rule for one future connection: the next one that has no such rule yet.
    pub async fn on_next_connection(&self, rule: FaultRule) {
        self.send_command(ProxyCommand::OnNext(rule)).await;
    }

    /// Every connection accepted so far, in order.
    pub fn connections(&self) -> Vec<ProxyConnection> {
        self.lock_links().iter().map(|link| ProxyConnection(Arc::clone(link))).collect()
    }

    /// The sum over all connections so far.
    pub fn counters(&self) -> ProxyCounters {
        self.lock_links().iter().map(|link| link.counters()).sum()
    }

    /// Like dropping it, but returns when port and connections are closed.
    pub async fn stop(mut self) {
        self.task.shutdown().await;
    }

    async fn send_command(&self, command: ProxyCommand) {
        let (in_force, done) = oneshot::channel();
        self.commands.send((command, in_force)).await.expect("the acceptor runs as long as its proxy");
        done.await.expect("the acceptor runs as long as its proxy");
    }

    fn lock_links(&self) -> std::sync::MutexGuard<'_, Vec<Arc<connection::ProxyLink>>> {
        self.links.lock().expect("no one panics while holding the links")
    }
}
