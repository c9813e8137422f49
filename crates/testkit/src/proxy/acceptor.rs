//! The task of a [`Proxy`](super::Proxy): accepts connections and applies faults.
//!
//! One task does both, so that a command comes either before or after an accepted connection. A command is acknowledged
//! when it is in force.

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

use super::{NetworkFault, connection::ProxyLink, fault::FaultRule};

pub(super) type ProxyLinks = Arc<Mutex<Vec<Arc<ProxyLink>>>>;

#[derive(Debug)]
pub(super) enum ProxyCommand {
    /// For open and future connections.
    Inject(NetworkFault),
    /// For the open connections only.
    InjectIntoOpen(NetworkFault),
    Heal,
    OnEach(FaultRule),
    OnNext(FaultRule),
}

pub(super) struct ProxyAcceptor {
    port: ProxyPort,
    /// `None` while connections are refused.
    listener: Option<TcpListener>,
    target: Arc<[SocketAddr]>,
    commands: mpsc::Receiver<(ProxyCommand, oneshot::Sender<()>)>,
    fault: Option<NetworkFault>,
    on_each: Vec<FaultRule>,
    on_next: VecDeque<FaultRule>,
    links: ProxyLinks,
    tasks: JoinSet<()>,
}

impl ProxyAcceptor {
    pub(super) fn new(
        port: ProxyPort,
        target: Arc<[SocketAddr]>,
        links: ProxyLinks,
        commands: mpsc::Receiver<(ProxyCommand, oneshot::Sender<()>)>,
    ) -> io::Result<Self> {
        Ok(Self {
            listener: Some(port.listen()?),
            port,
            target,
            commands,
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
                command = self.commands.recv() => {
                    let Some((command, in_force)) = command else { return };
                    self.execute(command).await;
                    let _ = in_force.send(());
                }
                Some(ended) = self.tasks.join_next() => ended.expect("a connection's task does not panic"),
                accepted = accept(self.listener.as_ref()) => {
                    // An error here means that the client closed before it was accepted.
                    if let Ok((stream, client)) = accepted {
                        self.accept_connection(stream, client);
                    }
                }
            }
        }
    }

    async fn execute(&mut self, command: ProxyCommand) {
        match command {
            ProxyCommand::Inject(fault) => {
                self.fault = Some(fault);
                if fault == NetworkFault::Cut {
                    self.listener = None;
                } else {
                    self.open_port();
                }
                self.inject_into_open(fault).await;
            }
            ProxyCommand::InjectIntoOpen(fault) => self.inject_into_open(fault).await,
            ProxyCommand::Heal => {
                self.fault = None;
                self.on_each.clear();
                self.on_next.clear();
                self.for_each_link(ProxyLink::heal);
                self.open_port();
            }
            ProxyCommand::OnEach(rule) => self.on_each.push(rule),
            ProxyCommand::OnNext(rule) => self.on_next.push_back(rule),
        }
    }

    async fn inject_into_open(&mut self, fault: NetworkFault) {
        self.for_each_link(|link| link.set_fault(Some(fault)));
        if fault.close_reason().is_some() {
            while let Some(ended) = self.tasks.join_next().await {
                ended.expect("a connection's task does not panic");
            }
        }
    }

    fn for_each_link(&self, act: impl Fn(&ProxyLink)) {
        self.links.lock().expect("no one panics while holding the links").iter().for_each(|link| act(link));
    }

    fn open_port(&mut self) {
        if self.listener.is_none() {
            self.listener = Some(self.port.listen().expect("the port is reserved for this proxy"));
        }
    }

    fn accept_connection(&mut self, stream: TcpStream, client: SocketAddr) {
        // Fails only on a closed connection, which its pumps will notice.
        let _ = stream.set_nodelay(true);
        let rules = self.on_each.iter().copied().chain(self.on_next.pop_front()).collect();
        let link = Arc::new(ProxyLink::new(client, self.fault, rules));
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

/// A loopback port that stays reserved while nothing listens on it.
///
/// A refused connection needs a port without a listener, and the kernel soon gives such a port to another test. A
/// socket that is bound and never listens keeps it: connects are refused, and a bind to "any port" skips it.
pub(super) struct ProxyPort {
    address: SocketAddr,
    _reservation: TcpSocket,
}

impl ProxyPort {
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
    // Lets reservation and listener share the port; sockets of other users cannot join.
    socket.set_reuseport(true)?;
    socket.bind(address)?;
    Ok(socket)
}
