//! The task behind a [`Proxy`](super::Proxy): accepts, and puts faults into force.
//!
//! One task does both, so that an order is either before or after an accepted connection, never beside it. An order is
//! acknowledged when it is in force.

use std::{
    collections::VecDeque,
    io,
    net::SocketAddr,
    sync::{Arc, Mutex},
};

use tokio::{
    net::{TcpListener, TcpSocket, TcpStream},
    select,
    sync::{mpsc, oneshot},
    task::JoinSet,
};

use super::{Fault, connection::Link, fault::Rule};

pub(super) type Links = Arc<Mutex<Vec<Arc<Link>>>>;

#[derive(Debug)]
pub(super) enum Order {
    /// For the open connections and all that follow.
    Inject(Fault),
    /// For the open connections only.
    InjectIntoOpen(Fault),
    Heal,
    OnEach(Rule),
    OnNext(Rule),
}

pub(super) struct Acceptor {
    port: Port,
    /// `None` while connections are refused.
    listener: Option<TcpListener>,
    target: Arc<[SocketAddr]>,
    orders: mpsc::Receiver<(Order, oneshot::Sender<()>)>,
    fault: Option<Fault>,
    on_each: Vec<Rule>,
    on_next: VecDeque<Rule>,
    links: Links,
    tasks: JoinSet<()>,
}

impl Acceptor {
    pub(super) fn new(
        port: Port,
        target: Arc<[SocketAddr]>,
        links: Links,
        orders: mpsc::Receiver<(Order, oneshot::Sender<()>)>,
    ) -> io::Result<Self> {
        Ok(Self {
            listener: Some(port.listen()?),
            port,
            target,
            orders,
            fault: None,
            on_each: Vec::new(),
            on_next: VecDeque::new(),
            links,
            tasks: JoinSet::new(),
        })
    }

    /// Runs until the [`Proxy`](super::Proxy) is gone.
    pub(super) async fn run(mut self) {
        loop {
            select! {
                biased;
                // cancel-safe: recv, join_next and accept take nothing unless they complete
                order = self.orders.recv() => {
                    let Some((order, in_force)) = order else { return };
                    self.obey(order).await;
                    let _ = in_force.send(());
                }
                Some(ended) = self.tasks.join_next() => ended.expect("a connection's task does not panic"),
                accepted = accept(self.listener.as_ref()) => {
                    // An error here is a client that was gone before it was accepted.
                    if let Ok((stream, client)) = accepted {
                        self.admit(stream, client);
                    }
                }
            }
        }
    }

    async fn obey(&mut self, order: Order) {
        match order {
            Order::Inject(fault) => {
                self.fault = Some(fault);
                if fault == Fault::Cut {
                    self.listener = None;
                } else {
                    self.open_port();
                }
                self.inject_into_open(fault).await;
            }
            Order::InjectIntoOpen(fault) => self.inject_into_open(fault).await,
            Order::Heal => {
                self.fault = None;
                self.on_each.clear();
                self.on_next.clear();
                self.each_link(Link::heal);
                self.open_port();
            }
            Order::OnEach(rule) => self.on_each.push(rule),
            Order::OnNext(rule) => self.on_next.push_back(rule),
        }
    }

    async fn inject_into_open(&mut self, fault: Fault) {
        self.each_link(|link| link.set_fault(Some(fault)));
        if fault.ending().is_some() {
            while let Some(ended) = self.tasks.join_next().await {
                ended.expect("a connection's task does not panic");
            }
        }
    }

    fn each_link(&self, act: impl Fn(&Link)) {
        self.links.lock().expect("no one panics while holding the links").iter().for_each(|link| act(link));
    }

    fn open_port(&mut self) {
        if self.listener.is_none() {
            self.listener = Some(self.port.listen().expect("the port is reserved for this proxy"));
        }
    }

    fn admit(&mut self, stream: TcpStream, client: SocketAddr) {
        // Fails only on a connection that is already gone, which its pumps will notice.
        let _ = stream.set_nodelay(true);
        let rules = self.on_each.iter().copied().chain(self.on_next.pop_front()).collect();
        let link = Arc::new(Link::new(client, self.fault, rules));
        self.links.lock().expect("no one panics while holding the links").push(Arc::clone(&link));
        self.tasks.spawn(link.serve(stream, Arc::clone(&self.target)));
    }
}

async fn accept(listener: Option<&TcpListener>) -> io::Result<(TcpStream, SocketAddr)> {
    match listener {
        Some(listener) => listener.accept().await,
        None => std::future::pending().await,
    }
}

/// A port of loopback that stays this proxy's while nothing listens on it.
///
/// A refused connection needs a port without a listener, and a port without a listener is soon given to another test. A
/// socket that is bound and never listens keeps it: connecting is refused, binding to "any port" passes it by.
pub(super) struct Port {
    address: SocketAddr,
    _reservation: TcpSocket,
}

impl Port {
    pub(super) fn reserve() -> io::Result<Self> {
        let reservation = bind(SocketAddr::from(([127, 0, 0, 1], 0)))?;
        Ok(Self { address: reservation.local_addr()?, _reservation: reservation })
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    fn listen(&self) -> io::Result<TcpListener> {
        bind(self.address)?.listen(1024)
    }
}

fn bind(address: SocketAddr) -> io::Result<TcpSocket> {
    let socket = TcpSocket::new_v4()?;
    // What lets reservation and listener share the port; sockets of other users cannot join them.
    socket.set_reuseport(true)?;
    socket.bind(address)?;
    Ok(socket)
}
