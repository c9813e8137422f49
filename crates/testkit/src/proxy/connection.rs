//! One connection through the proxy: its fault of the moment, its rules, its counts, its end.

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex, OnceLock, atomic::Ordering::Relaxed},
};

use tokio::{io::AsyncWriteExt, net::TcpStream, select, sync::watch, try_join};

use super::{
    Direction, Fault,
    counters::{Counters, Meter, Meters},
    fault::{Course, Ending, Rule},
    pump::pump,
};

/// A connection that the proxy has accepted, open or not.
#[derive(Clone, Debug)]
pub struct Connection(pub(super) Arc<Link>);

impl Connection {
    /// The client's address: its own end of the connection.
    pub fn client(&self) -> SocketAddr {
        self.0.client
    }

    /// Puts this connection alone under a fault. The next [`inject`](super::Proxy::inject) or
    /// [`heal`](super::Proxy::heal) replaces it.
    pub fn inject(&self, fault: Fault) {
        self.0.set_fault(Some(fault));
    }

    /// Lets this connection go on, and forgets its rules.
    pub fn heal(&self) {
        self.0.heal();
    }

    /// The rule counts from now.
    pub fn add_rule(&self, rule: Rule) {
        self.0.add_rule(rule);
    }

    pub fn counters(&self) -> Counters {
        self.0.counters()
    }

    /// How it ended; `None` while it is open.
    pub fn ending(&self) -> Option<Ending> {
        self.0.ending.get().copied()
    }
}

/// What the acceptor, the connection's task and its two pumps share.
#[derive(Debug)]
pub(super) struct Link {
    client: SocketAddr,
    fault: watch::Sender<Option<Fault>>,
    /// `Rule::bytes` here are counted from the connection's start.
    rules: Mutex<Vec<Rule>>,
    meters: Meters,
    ending: OnceLock<Ending>,
}

impl Link {
    pub(super) fn new(client: SocketAddr, fault: Option<Fault>, rules: Vec<Rule>) -> Self {
        let link = Self {
            client,
            fault: watch::Sender::new(fault),
            rules: Mutex::new(rules),
            meters: Meters::default(),
            ending: OnceLock::new(),
        };
        link.follow_rules(Direction::ToTarget);
        link.follow_rules(Direction::ToClient);
        link
    }

    pub(super) fn set_fault(&self, fault: Option<Fault>) {
        self.fault.send_replace(fault);
    }

    pub(super) fn heal(&self) {
        self.rules().clear();
        self.set_fault(None);
    }

    pub(super) fn faults(&self) -> watch::Receiver<Option<Fault>> {
        self.fault.subscribe()
    }

    pub(super) fn meter(&self, direction: Direction) -> &Meter {
        self.meters.of(direction)
    }

    pub(super) fn add_rule(&self, rule: Rule) {
        let bytes = rule.bytes + self.delivered(rule.direction);
        self.rules().push(Rule { bytes, ..rule });
        // Wakes a pump that is half way through a delivery, so that it counts again.
        self.fault.send_modify(|_| {});
        self.follow_rules(rule.direction);
    }

    /// How many more bytes may be delivered before a rule has its say.
    pub(super) fn bytes_to_next_rule(&self, direction: Direction) -> u64 {
        let next = self.rules().iter().filter(|rule| rule.direction == direction).map(|rule| rule.bytes).min();
        next.map_or(u64::MAX, |bytes| bytes.saturating_sub(self.delivered(direction)))
    }

    /// Lets every rule act whose byte count is reached.
    pub(super) fn follow_rules(&self, direction: Direction) {
        let delivered = self.delivered(direction);
        let due = |rule: &mut Rule| rule.direction == direction && rule.bytes <= delivered;
        let due: Vec<Rule> = self.rules().extract_if(.., due).collect();
        for rule in due {
            self.set_fault(Some(rule.fault));
        }
    }

    pub(super) fn counters(&self) -> Counters {
        let ending = self.ending.get();
        Counters {
            accepted: 1,
            open: ending.is_none().into(),
            cut: (ending == Some(&Ending::Cut)).into(),
            reset: (ending == Some(&Ending::Reset)).into(),
            to_target: self.meter(Direction::ToTarget).read(),
            to_client: self.meter(Direction::ToClient).read(),
        }
    }

    /// The connection's whole life.
    pub(super) async fn serve(self: Arc<Self>, mut client: TcpStream, target: Arc<[SocketAddr]>) {
        let ending = match self.dial(&target).await {
            Ok(mut target) => {
                let ending = self.carry(&mut client, &mut target).await;
                end(target, ending).await;
                ending
            }
            Err(ending) => ending,
        };
        end(client, ending).await;
        self.ending.get_or_init(|| ending);
    }

    async fn dial(&self, target: &[SocketAddr]) -> Result<TcpStream, Ending> {
        select! {
            biased;
            // cancel-safe: both; a dial that is dropped half way is a connection that never was
            ending = self.severed() => Err(ending),
            dialled = TcpStream::connect(target) => match dialled {
                // Small requests must not wait for more to come: the proxy would be slower than the wire.
                Ok(stream) => stream.set_nodelay(true).map(|()| stream).map_err(|_| Ending::Broken),
                Err(_) => {
                    // A dead target behind a dark network looks like the dark network.
                    self.until_answers_pass().await;
                    Err(Ending::Broken)
                }
            },
        }
    }

    async fn carry(&self, client: &mut TcpStream, target: &mut TcpStream) -> Ending {
        let (from_client, to_client) = client.split();
        let (from_target, to_target) = target.split();
        let both = async {
            try_join!(
                pump(self, Direction::ToTarget, from_client, to_target),
                pump(self, Direction::ToClient, from_target, to_client),
            )
        };
        select! {
            biased;
            // cancel-safe: the end is final, so bytes on their way are meant to be lost
            ending = self.severed() => ending,
            carried = both => carried.err().unwrap_or(Ending::Closed),
        }
    }

    async fn severed(&self) -> Ending {
        let mut faults = self.faults();
        let fault = faults.wait_for(|fault| fault.is_some_and(|fault| fault.ending().is_some())).await;
        let fault = *fault.expect("the sender lives in this link");
        fault.and_then(Fault::ending).expect("wait_for saw a fault that ends connections")
    }

    async fn until_answers_pass(&self) {
        let passes = |fault: &Option<Fault>| matches!(Course::under(*fault, Direction::ToClient), Course::Flow { .. });
        self.faults().wait_for(passes).await.expect("the sender lives in this link");
    }

    fn delivered(&self, direction: Direction) -> u64 {
        self.meter(direction).delivered.load(Relaxed)
    }

    fn rules(&self) -> std::sync::MutexGuard<'_, Vec<Rule>> {
        self.rules.lock().expect("no one panics while holding the rules")
    }
}

/// Ends a socket so that its peer sees what such an ending looks like. Errors mean that the peer was faster.
async fn end(mut stream: TcpStream, ending: Ending) {
    match ending {
        Ending::Closed => {}
        Ending::Cut => {
            let _ = stream.shutdown().await;
            drain(&stream);
        }
        Ending::Broken | Ending::Reset => {
            let _ = stream.set_zero_linger();
        }
    }
}

/// Takes what has arrived and was never read: closing over it would send RST on the heels of the FIN.
fn drain(stream: &TcpStream) {
    let mut scratch = vec![0; 16 * 1024];
    // Bounded, for a peer that sends without end.
    for _ in 0..256 {
        if !matches!(stream.try_read(&mut scratch), Ok(1..)) {
            return;
        }
    }
}
