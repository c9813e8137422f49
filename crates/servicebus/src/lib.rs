//! A client for Azure Service Bus and for Headwater's embedded broker.
//!
//! ```no_run
//! # async fn example() -> Result<(), servicebus::Error> {
//! use servicebus::{Client, Config, Message};
//! use std::time::Duration;
//!
//! let client = Client::new("Endpoint=sb://localhost;UseDevelopmentEmulator=true", Config::default())?;
//! let orders = client.sender("orders");
//! let placed = orders.enqueue(&Message::new("placed").with_session("order-7").encode()).await?;
//! let paid = orders.enqueue(&Message::new("paid").with_session("order-7").encode()).await?; // both are in flight
//! placed.await?;
//! paid.await?;
//!
//! if let Some(mut session) = client.accept_next_session("orders", Duration::from_secs(10)).await? {
//!     let messages = session.receive(100, Duration::from_secs(1)).await?;
//!     session.settler().complete(&messages).await?; // one frame, every reply checked
//!     session.close().await?;
//! }
//! # Ok(()) }
//! ```
//!
//! Reading order: [`Client`] (reconnects) → `connection` (one task that owns socket and protocol) → [`Sender`], [`SessionReceiver`], [`Receiver`] →
//! [`Settler`]. `cbs` and `management` send requests. [`Error`] says what failed, and [`BusErrorKind`] whether a retry may help.
//!
//! [`entra`] obtains tokens of Entra ID, for a namespace without a connection string. [`administration`] creates and describes entities over HTTP.
//!
//! Every call has a deadline. Never retries: a call that failed may have been carried out, and only the caller knows
//! whether doing it twice is safe.

pub mod administration;
mod cbs;
mod client;
mod config;
mod connection;
mod connection_string;
mod delivery_queue;
pub mod entra;
mod error;
mod http_client;
mod management;
mod message;
mod message_browser;
mod pipelined_sender;
mod proxy;
mod receiver;
mod request_link;
mod sender;
mod session_receiver;
mod settlement;
mod tls;

pub use amqp::performative::ReceiverSettleMode;
pub use amqp::{Map, Value};
pub use client::Client;
pub use config::{Config, Transport};
pub use connection::SendOutcome;
pub use connection_string::{ConnectionString, Credential, Error as ConnectionStringError, check_namespace};
pub use error::{BusErrorKind, ClientOperation, DisconnectReason, Error, ErrorScope, ServiceError};
pub use http_client::Error as HttpError;
pub use message::{EncodedMessage, Message, ReceivedMessage};
pub use message_browser::MessageBrowser;
pub use pipelined_sender::PipelinedSender;
#[doc(hidden)]
pub use proxy::read_status as read_proxy_status;
pub use proxy::{Error as ProxyError, ProxySettings};
pub use receiver::Receiver;
pub use sender::{MessageBatch, Sender};
pub use session_receiver::{SessionHandle, SessionReceiver};
pub use settlement::{Settlement, Settler};
pub use tls::Error as TlsError;

/// An error with its causes, for the log.
fn error_chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}
