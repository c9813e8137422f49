//! One connection through the proxy: its current fault, rules, counters and close reason.

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex, OnceLock, atomic::Ordering::Relaxed},
};

use tokio::{io::AsyncWriteExt, net::TcpStream, select, sync::watch, try_join};

use super::{
    Direction, NetworkFault,
    counters::{ConnectionMeters, ProxyCounters, TrafficMeter},
    fault::{ByteFlow, FaultRule, ProxyCloseReason},
    pump::pump,
};

/// A connection that the proxy has accepted, open or not.
#[derive(Clone, Debug)]
pub struct ProxyConnection(pub(super) Arc<ProxyLink>);

impl ProxyConnection {
    /// The client's local address.
    pub fn client(&self) -> SocketAddr {
        self.0.client
    }

    /// Applies a fault to this connection only. The next [`inject`](super::Proxy::inject) or
    /// [`heal`](super::Proxy::heal) replaces it.
    pub fn inject(&self, fault: NetworkFault) {
        self.0.set_fault(Some(fault));
    }

    /// Removes this connection's fault and rules.
    pub fn heal(&self) {
        self.0.heal();
    }

    /// Adds a rule that counts bytes from now on.
    pub fn add_rule(&self, rule: FaultRule) {
        self.0.add_rule(rule);
    }

    pub fn counters(&self) -> ProxyCounters {
        self.0.counters()
    }

    /// Why it closed; `None` while it is open.
    pub fn close_reason(&self) -> Option<ProxyCloseReason> {
        self.0.close_reason.get().copied()
    }
}

/// State shared by the acceptor, the connection's task and its two pumps.
#[derive(Debug)]
pub(super) struct ProxyLink {
    client: SocketAddr,
    fault: watch::Sender<Option<NetworkFault>>,
    /// Here `FaultRule::bytes` counts from the start of the connection.
    rules: Mutex<Vec<FaultRule>>,
    meters: ConnectionMeters,
    close_reason: OnceLock<ProxyCloseReason>,
}

impl ProxyLink {
    pub(super) fn new(client: SocketAddr, fault: Option<NetworkFault>, rules: Vec<FaultRule>) -> Self {
        let link = Self {
            client,
            fault: watch::Sender::new(fault),
            rules: Mutex::new(rules),
            meters: ConnectionMeters::default(),
            close_reason: OnceLock::new(),
        };
        link.apply_due_rules(Direction::ToTarget);
        link.apply_due_rules(Direction::ToClient);
        link
    }

    pub(super) fn set_fault(&self, fault: Option<NetworkFault>) {
        self.fault.send_replace(fault);
    }

    pub(super) fn heal(&self) {
        self.rules().clear();
        self.set_fault(None);
    }

    pub(super) fn faults(&self) -> watch::Receiver<Option<NetworkFault>> {
        self.fault.subscribe()
    }

    pub(super) fn meter(&self, direction: Direction) -> &TrafficMeter {
        self.meters.of(direction)
    }

    pub(super) fn add_rule(&self, rule: FaultRule) {
        let bytes = rule.bytes + self.delivered(rule.direction);
        self.rules().push(FaultRule { bytes, ..rule });
        // Wakes a pump in the middle of a delivery, so that it applies the new limit.
        self.fault.send_modify(|_| {});
        self.apply_due_rules(rule.direction);
    }

    /// How many more bytes may be delivered before the next rule applies.
    pub(super) fn bytes_to_next_rule(&self, direction: Direction) -> u64 {
        let next = self.rules().iter().filter(|rule| rule.direction == direction).map(|rule| rule.bytes).min();
        next.map_or(u64::MAX, |bytes| bytes.saturating_sub(self.delivered(direction)))
    }

    /// Applies every rule whose byte count is reached.
    pub(super) fn apply_due_rules(&self, direction: Direction) {
        let delivered = self.delivered(direction);
        let due = |rule: &mut FaultRule| rule.direction == direction && rule.bytes <= delivered;
        let due: Vec<FaultRule> = self.rules().extract_if(.., due).collect();
        for rule in due {
            self.set_fault(Some(rule.fault));
        }
    }

    pub(super) fn counters(&self) -> ProxyCounters {
        let close_reason = self.close_reason.get();
        ProxyCounters {
            accepted: 1,
            open: close_reason.is_none().into(),
            cut: (close_reason == Some(&ProxyCloseReason::Cut)).into(),
            reset: (close_reason == Some(&ProxyCloseReason::Reset)).into(),
            to_target: self.meter(Direction::ToTarget).read(),
            to_client: self.meter(Direction::ToClient).read(),
        }
    }

    /// Connects to the target and forwards until the connection closes.
    pub(super) async fn serve(self: Arc<Self>, mut client: TcpStream, target: Arc<[SocketAddr]>) {
        let close_reason = match self.dial(&target).await {
            Ok(mut target) => {
                let close_reason = self.forward(&mut client, &mut target).await;
                close(target, close_reason).await;
                close_reason
            }
            Err(close_reason) => close_reason,
        };
        close(client, close_reason).await;
        self.close_reason.get_or_init(|| close_reason);
    }

    async fn dial(&self, target: &[SocketAddr]) -> Result<TcpStream, ProxyCloseReason> {
        select! {
            biased;
            // cancel-safe: both; a dropped dial leaves no connection
            close_reason = self.wait_for_close_fault() => Err(close_reason),
            dialled = TcpStream::connect(target) => match dialled {
                // Without this, small requests would wait for more bytes and the proxy would be slower than a real network.
                Ok(stream) => stream.set_nodelay(true).map(|()| stream).map_err(|_| ProxyCloseReason::Broken),
                Err(_) => {
                    // The client must not learn that the target is down while the fault hides all responses.
                    self.wait_until_responses_pass().await;
                    Err(ProxyCloseReason::Broken)
                }
            },
        }
    }

    async fn forward(&self, client: &mut TcpStream, target: &mut TcpStream) -> ProxyCloseReason {
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
            // cancel-safe: the close is final, so bytes in flight are meant to be lost
            close_reason = self.wait_for_close_fault() => close_reason,
            forwarded = both => forwarded.err().unwrap_or(ProxyCloseReason::Closed),
        }
    }

    async fn wait_for_close_fault(&self) -> ProxyCloseReason {
        let mut faults = self.faults();
        let fault = faults.wait_for(|fault| fault.is_some_and(|fault| fault.close_reason().is_some())).await;
        let fault = *fault.expect("the sender lives in this link");
        fault.and_then(NetworkFault::close_reason).expect("wait_for returned a fault that closes connections")
    }

    async fn wait_until_responses_pass(&self) {
        let passes = |fault: &Option<NetworkFault>| {
            matches!(ByteFlow::under(*fault, Direction::ToClient), ByteFlow::Flow { .. })
        };
        self.faults().wait_for(passes).await.expect("the sender lives in this link");
    }

    fn delivered(&self, direction: Direction) -> u64 {
        self.meter(direction).delivered.load(Relaxed)
    }

    fn rules(&self) -> std::sync::MutexGuard<'_, Vec<FaultRule>> {
        self.rules.lock().expect("no one panics while holding the rules")
    }
}

/// Closes a socket so that its peer sees FIN or RST as the reason requires. Errors mean that the peer closed first.
async fn close(mut stream: TcpStream, close_reason: ProxyCloseReason) {
    match close_reason {
        ProxyCloseReason::Closed => {}
        ProxyCloseReason::Cut => {
            let _ = stream.shutdown().await;
            drain(&stream);
        }
        ProxyCloseReason::Broken | ProxyCloseReason::Reset => {
            let _ = stream.set_zero_linger();
        }
    }
}

/// Reads what has arrived: closing with unread bytes would send RST after the FIN.
fn drain(stream: &TcpStream) {
    let mut scratch = vec![0; 16 * 1024];
    // Bounded, because a peer may send without end.
    for _ in 0..256 {
        if !matches!(stream.try_read(&mut scratch), Ok(1..)) {
            return;
        }
    }
}
