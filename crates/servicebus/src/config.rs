//! Settings of a client: timeouts, windows, trust.

use std::path::PathBuf;
use std::time::Duration;

use amqp::performative::ReceiverSettleMode;

use crate::ProxySettings;

/// How AMQP reaches the bus.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Transport {
    /// On its own port: 5671, or 5672 without TLS.
    #[default]
    Amqp,
    /// Over WebSocket on port 443, for networks that allow nothing else. A port in the connection string wins.
    WebSocket,
}

/// Settings of one [`Client`](crate::Client).
#[derive(Debug, Clone)]
pub struct Config {
    /// Sent in the AMQP open frame; operators see it in the broker's logs.
    pub container_id: String,
    /// Time limit for TCP connect, TLS handshake and AMQP open together.
    pub connect_timeout: Duration,
    /// Time limit for a single call, reconnecting included. If a request gets no reply in this time, the connection is
    /// closed: a peer that does not reply to one request may not reply to the others either.
    pub operation_timeout: Duration,
    /// The connection is closed after this time without a frame from the peer. Half of it is announced to the peer.
    pub idle_timeout: Duration,
    /// Unsettled deliveries that one sender may have in flight.
    pub send_window: usize,
    /// Unsettled deliveries that one receiver may hold, prefetched ones included.
    pub credit: u32,
    /// How receivers settle. Service Bus needs `Second`: the bus removes a message after both sides have settled. Some other servers support
    /// only `First`; their dispositions are checked in the same way.
    pub settle_mode: ReceiverSettleMode,
    /// Backoff after the first failed connect. It doubles up to `max_backoff`, with jitter.
    pub initial_backoff: Duration,
    pub max_backoff: Duration,
    /// Validity of a token that is signed with a key. The token is renewed when a quarter of this time is left.
    pub token_lifetime: Duration,
    pub transport: Transport,
    /// PEM file of the certificate authorities to trust, instead of those of the system and the public ones.
    pub ca_file: Option<PathBuf>,
    /// For HTTPS and for AMQP over WebSocket.
    pub proxies: ProxySettings,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            container_id: "headwater".to_owned(),
            connect_timeout: Duration::from_secs(15),
            operation_timeout: Duration::from_secs(60),
            // The service uses 4 minutes and the SDKs 1. A frozen peer must be noticed before a lock expires.
            idle_timeout: Duration::from_secs(60),
            // Equal to the credit that the embedded broker grants, so that neither waits for the other.
            send_window: 2_000,
            credit: 200,
            settle_mode: ReceiverSettleMode::Second,
            initial_backoff: Duration::from_millis(100),
            max_backoff: Duration::from_secs(15),
            token_lifetime: Duration::from_secs(3_600),
            transport: Transport::Amqp,
            ca_file: None,
            proxies: ProxySettings::default(),
        }
    }
}
