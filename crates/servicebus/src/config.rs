//! How a client behaves: patience, windows, trust.

use std::path::PathBuf;
use std::time::Duration;

use amqp::performative::ReceiverSettleMode;

/// Settings of one [`Client`](crate::Client).
#[derive(Debug, Clone)]
pub struct Config {
    /// Named in open; operators see it in the broker's logs.
    pub container_id: String,
    /// How long dialling, TLS and open may take together.
    pub connect_timeout: Duration,
    /// How long any single call may take, reconnecting included. A step that gets no answer in this time ends the
    /// connection: a peer that is silent about one thing is not trusted with the others.
    pub operation_timeout: Duration,
    /// Silence after which the peer is given up. It is told half of this and keeps sending heartbeats.
    pub idle_timeout: Duration,
    /// Deliveries one sender may have under way.
    pub send_window: usize,
    /// Deliveries a receiver may hold unsettled, the bus's share of the prefetch included.
    pub credit: u32,
    /// How receivers settle. Service Bus wants `Second`: a message is forgotten when both sides have settled. Some other servers know only
    /// `First`; their answers are checked all the same.
    pub settle_mode: ReceiverSettleMode,
    /// The pause after the first failed connect; doubles up to `longest_backoff`, with jitter.
    pub first_backoff: Duration,
    pub longest_backoff: Duration,
    /// How long a token signed from a key is valid; it is renewed when a quarter of this is left.
    pub token_lifetime: Duration,
    /// PEM file of the authorities to trust instead of the public ones.
    pub ca_file: Option<PathBuf>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            container_id: "headwater".to_owned(),
            connect_timeout: Duration::from_secs(15),
            operation_timeout: Duration::from_secs(60),
            // The service says 4 minutes and the SDKs 1; a frozen peer should not go unnoticed for longer than a lock.
            idle_timeout: Duration::from_secs(60),
            // What the embedded broker gives as credit, so that neither waits for the other.
            send_window: 2_000,
            credit: 200,
            settle_mode: ReceiverSettleMode::Second,
            first_backoff: Duration::from_millis(100),
            longest_backoff: Duration::from_secs(15),
            token_lifetime: Duration::from_secs(3_600),
            ca_file: None,
        }
    }
}
