//! A client for Azure Service Bus, and for the broker of this house.
//!
//! ```no_run
//! # async fn example() -> Result<(), servicebus::Error> {
//! use servicebus::{Client, Config, Message};
//! use std::time::Duration;
//!
//! let client = Client::new("Endpoint=sb://localhost;UseDevelopmentEmulator=true", Config::default())?;
//! let orders = client.sender("orders");
//! let placed = orders.enqueue(&Message::new("placed").with_session("order-7").encode()).await?;
//! let paid = orders.enqueue(&Message::new("paid").with_session("order-7").encode()).await?; // both under way
//! placed.await?;
//! paid.await?;
//!
//! if let Some(mut session) = client.accept_next_session("orders", Duration::from_secs(10)).await? {
//!     let messages = session.receive(100, Duration::from_secs(1)).await?;
//!     session.settler().complete(&messages).await?; // one frame, every answer checked
//!     session.close().await?;
//! }
//! # Ok(()) }
//! ```
//!
//! Reading order: [`Client`] (reconnects) → `connection` (one task, owner of socket and protocol) → [`Sender`], [`SessionReceiver`], [`Receiver`] →
//! [`Settler`]; `cbs` and `management` are requests beside them; [`Error`] says what went wrong and [`Kind`] whether to try again.
//!
//! [`administration`] makes and describes entities, over HTTP.
//!
//! Every call has a deadline and ends by it, whatever the peer does. Never here: retries. A call that failed may have been carried
//! out, and only the caller knows whether doing it twice is harmless.

pub mod administration;
mod bulk;
mod cbs;
mod client;
mod config;
mod connection;
mod connection_string;
mod error;
mod inbox;
mod management;
mod message;
mod receiver;
mod request;
mod sender;
mod session_receiver;
mod settlement;
mod tls;

pub use amqp::performative::ReceiverSettleMode;
pub use amqp::{Map, Value};
pub use bulk::Bulk;
pub use client::Client;
pub use config::Config;
pub use connection::Outcome;
pub use connection_string::{ConnectionString, Credential, Error as ConnectionStringError};
pub use error::{Error, Kind, Lost, Refusal, Step};
pub use message::{Encoded, Message, ReceivedMessage};
pub use receiver::Receiver;
pub use sender::{Batch, Sender};
pub use session_receiver::{Session, SessionReceiver};
pub use settlement::{Settlement, Settler};
pub use tls::Error as TlsError;
