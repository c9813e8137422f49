//! Station 3 of 5: publishes events to the topic.
//!
//! Takes the items of [`crate::capture`] in order, keeps at most one unacknowledged transfer per session and many sessions in flight, and lets
//! the checkpoint follow the unbroken prefix of acknowledged events. Sends nothing after the gate of its term is closed.
//!
//! Reading order: [`message`] (event to bytes) → [`lanes`] with [`batch`] and [`acknowledged_prefix`] (send order, acknowledged prefix; pure) → `topic` (the
//! sender link) → `publisher` (the loop) → `checkpoint_saver`. Beside them [`rejected`] and [`crate::stored::claim_check`], for events that Service Bus does not
//! accept.

pub mod acknowledged_prefix;
pub mod batch;
mod checkpoint_saver;
mod config;
mod error;
mod isolation;
pub mod lanes;
pub mod message;
mod monitor;
mod pending_writes;
mod publisher;
pub mod rejected;
mod topic;
mod traced_events;

pub use config::{BodyFormat, CheckpointInterval, Config, InvalidPublishConfig, SessionMapping};
pub use error::{Error, PublishEnd};
pub use monitor::{Handle, PauseReason, PublishCounts, PublishProgress, PublishState};
pub use publisher::{CaptureInput, PublishClaim, Publisher, PublisherStores};
pub use rejected::RejectedStore;
pub use topic::{LinkLimits, PublishTopic, SenderLink, ServiceBusTopic};
pub use traced_events::{PublishTracer, PublishedTrace};
