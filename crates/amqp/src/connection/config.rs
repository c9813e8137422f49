//! Settings of one side of a connection: what it offers, and its limits for the peer.

use std::sync::Arc;
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};

use crate::codec::RawValue;
use crate::{Map, Symbol};

/// Settings of one connection. `Default` uses the values of Service Bus where they are known.
#[derive(Debug, Clone)]
pub struct Config {
    pub container_id: String,
    /// Sent in the open frame of a client: the host it connects to.
    pub hostname: Option<String>,
    /// The largest frame that we accept. The service uses 64 KiB.
    pub max_frame_size: u32,
    /// The highest channel that a peer may use, so also its number of AMQP sessions.
    pub channel_max: u16,
    /// The highest handle that a peer may use in one AMQP session. At most 65,535.
    pub handle_max: u32,
    /// Maximum number of links per connection.
    pub max_links: usize,
    /// The connection is closed after this time without a frame. Half of it is announced, as AMQP advises, because some clients send
    /// their heartbeats only at the announced time.
    pub idle_time_out: Option<Duration>,
    /// Time limit for the peer's open.
    pub handshake_time_out: Duration,
    /// Transfer frames that the peer may send before it needs a new window; renewed when half is used.
    pub incoming_window: u32,
    /// Only announced: the peer's own window limits what we send.
    pub outgoing_window: u32,
    /// The largest message that a receiving link accepts, unless its attach sets another limit.
    pub max_message_size: u64,
    /// Bytes of partly received messages per connection.
    pub max_incomplete_bytes: usize,
    /// The first transfer-id and delivery-id of an AMQP session. Any value works; tests start near the wrap.
    pub first_outgoing_id: u32,
    pub offered_capabilities: Option<RawValue>,
    pub desired_capabilities: Option<RawValue>,
    pub properties: Option<Map>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            container_id: "headwater".to_owned(),
            hostname: None,
            max_frame_size: 65_536,
            channel_max: 4_999,
            handle_max: 255,
            max_links: 5_000,
            idle_time_out: Some(Duration::from_secs(120)),
            handshake_time_out: Duration::from_secs(30),
            incoming_window: 8_192,
            outgoing_window: 8_192,
            max_message_size: 1 << 20,
            max_incomplete_bytes: 32 << 20,
            first_outgoing_id: 0,
            offered_capabilities: None,
            desired_capabilities: None,
            properties: None,
        }
    }
}

/// How a client authenticates. The `Debug` form hides the password.
#[derive(Clone, Default)]
pub enum ClientSasl {
    /// No SASL.
    None,
    #[default]
    Anonymous,
    External,
    Plain {
        user: String,
        password: String,
    },
    /// Any mechanism that needs only one initial response.
    Other {
        mechanism: Symbol,
        response: Bytes,
    },
}

/// The mechanisms that a server offers. It accepts any of them: Service Bus checks rights later, with tokens. Only a password is checked here.
#[derive(Debug, Clone)]
pub struct ServerSasl {
    pub mechanisms: Vec<Symbol>,
    /// Refuses clients that skip SASL.
    pub required: bool,
    /// Decides on `PLAIN`; `None`: every password is accepted.
    pub plain: Option<PlainVerifier>,
}

/// Decides whether a user has this password.
#[derive(Clone)]
pub struct PlainVerifier(Arc<VerifyPlain>);

type VerifyPlain = dyn Fn(&str, &str) -> bool + Send + Sync;

impl PlainVerifier {
    pub fn new(verify: impl Fn(&str, &str) -> bool + Send + Sync + 'static) -> Self {
        Self(Arc::new(verify))
    }

    /// `response`: an identity to act as (ignored), the user and the password, each before a zero byte.
    pub(super) fn accepts(&self, response: &[u8]) -> bool {
        let mut parts = response.splitn(3, |byte| *byte == 0).skip(1).map(std::str::from_utf8);
        match (parts.next(), parts.next()) {
            (Some(Ok(user)), Some(Ok(password))) => (self.0)(user, password),
            _ => false,
        }
    }
}

impl std::fmt::Debug for PlainVerifier {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("PlainVerifier")
    }
}

impl Default for ServerSasl {
    fn default() -> Self {
        let names = ["MSSBCBS", "ANONYMOUS", "PLAIN", "EXTERNAL"];
        Self { mechanisms: names.into_iter().map(Symbol::from_static).collect(), required: false, plain: None }
    }
}

impl ClientSasl {
    /// The mechanism and its initial response; `None` to skip SASL.
    pub(super) fn initial(&self) -> Option<(Symbol, Option<Bytes>)> {
        match self {
            Self::None => None,
            // Some servers require a response, even an empty one.
            Self::Anonymous => Some((Symbol::from_static("ANONYMOUS"), Some(Bytes::from_static(b"anonymous")))),
            Self::External => Some((Symbol::from_static("EXTERNAL"), Some(Bytes::new()))),
            Self::Plain { user, password } => {
                let mut response = BytesMut::new();
                response.put_u8(0);
                response.extend_from_slice(user.as_bytes());
                response.put_u8(0);
                response.extend_from_slice(password.as_bytes());
                Some((Symbol::from_static("PLAIN"), Some(response.freeze())))
            }
            Self::Other { mechanism, response } => Some((mechanism.clone(), Some(response.clone()))),
        }
    }
}

impl std::fmt::Debug for ClientSasl {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::None => "None",
            Self::Anonymous => "Anonymous",
            Self::External => "External",
            Self::Plain { .. } => "Plain",
            Self::Other { .. } => "Other",
        })
    }
}
