//! Station 3 of 5: events out to the topic.
//!
//! Takes what [`crate::capture`] read, in order; keeps at most one unacknowledged transfer per session and many sessions in flight; lets
//! the checkpoint follow the unbroken prefix of acknowledgements. Writes nothing once the gate of its term is shut.
//!
//! Reading order: [`message`] (an event becomes bytes) → [`lanes`] with [`batch`] and [`prefix`] (what may go when, and how far all is
//! acknowledged; pure) → `topic` (the seam) → `publisher` (the loop that obeys them) → `saves` (the checkpoint follows). Beside
//! them [`oversize`] and [`rejected`], for events that the bus would not take.

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

/// A collection whose answers hold whatever member of the replica set dies.
fn majority(database: &Database, name: &str) -> Collection<Document> {
    let options = CollectionOptions::builder()
        .read_concern(ReadConcern::majority())
        .write_concern(WriteConcern::builder().w(Acknowledgment::Majority).journal(true).build())
        .selection_criteria(SelectionCriteria::ReadPreference(ReadPreference::Primary))
        .build();
    database.collection_with_options(name, options)
}
