//! Station 3 of 5: publishes events to the topic.
//!
//! Takes the items of [`crate::capture`] in order, keeps at most one unacknowledged transfer per session and many sessions in flight, and lets
//! the checkpoint follow the unbroken prefix of acknowledged events. Sends nothing after the gate of its term is closed.
//!
//! Reading order: [`message`] (event to bytes) → [`lanes`] with [`batch`] and [`prefix`] (send order, acknowledged prefix; pure) → `topic` (the
//! sender link) → `publisher` (the loop) → `checkpoint_saver`. Beside them [`claim_check`] and [`rejected`], for events that Service Bus does not
//! accept.

pub mod batch;
mod checkpoint_saver;
pub mod claim_check;
mod config;
mod error;
mod handle;
pub mod lanes;
pub mod message;
mod pending_writes;
pub mod prefix;
mod publisher;
pub mod rejected;
mod topic;
mod traced_events;

use mongodb::bson::Document;
use mongodb::options::{
    Acknowledgment, CollectionOptions, ReadConcern, ReadPreference, SelectionCriteria, WriteConcern,
};
use mongodb::{Collection, Database};

pub use claim_check::ClaimCheckStore;
pub use config::{BodyFormat, CheckpointInterval, Config, InvalidPublishConfig, SessionMapping};
pub use error::{Error, PublishEnd};
pub use handle::{Handle, PauseReason, PublishCounts, PublishProgress, PublishState};
pub use publisher::{CaptureInput, PublishTerm, Publisher};
pub use rejected::RejectedStore;
pub use topic::{LinkLimits, PublishTopic, SenderLink, ServiceBusTopic};
pub use traced_events::{PublishTracer, PublishedTrace};

/// A collection with majority read and write concern.
fn majority_collection(database: &Database, name: &str) -> Collection<Document> {
    let options = CollectionOptions::builder()
        .read_concern(ReadConcern::majority())
        .write_concern(WriteConcern::builder().w(Acknowledgment::Majority).journal(true).build())
        .selection_criteria(SelectionCriteria::ReadPreference(ReadPreference::Primary))
        .build();
    database.collection_with_options(name, options)
}
