//! Names and formats of the cursor collection, and the epoch floor in it.
//!
//! The floor is stored among the cursors under an id that no aggregate has, so a transaction reads both from the same snapshot.
//! `view/epoch_floor.rs` applies it; `capture/sweep/epoch_floor.rs` raises it.

use mongodb::bson::{Bson, Document, doc};

use crate::event::Epoch;

/// The collection, in the database of the read models.
pub const CURSORS: &str = "_headwater_cursors";
/// Format version in every document. A newer version of Headwater may write a higher one.
pub(crate) const FORMAT: i64 = 1;
/// Format of cursors behind the [fence](crate::generation): versions without generations cannot write it.
pub(crate) const FENCED_FORMAT: i64 = 2;
/// Field that marks an aggregate whose document is deleted.
pub const DELETED_FIELD: &str = "gone";

/// Collection names are not empty, so no aggregate has the id of the floor.
pub(crate) const FLOOR_COLLECTION: &str = "";
pub(crate) const FLOOR_AGGREGATE: &str = "swept";

/// The `_id` of the epoch floor.
pub(crate) fn floor_id(pipeline: &str) -> Document {
    doc! { "pipeline": pipeline, "collection": FLOOR_COLLECTION, "aggregate": FLOOR_AGGREGATE }
}

/// The update that raises the floor; it never lowers it.
pub(crate) fn floor_update(epoch: Epoch) -> Document {
    doc! {
        "$max": { "epoch": i64::try_from(epoch.get()).unwrap_or(i64::MAX) },
        "$set": { "position": "", "eventId": Bson::Null, "format": FORMAT },
    }
}

/// The `appName` of the read-model connections of a pipeline. Pods recognise each other's transactions by it.
pub fn application_name(pipeline: &str) -> String {
    // The server allows 128 bytes.
    let pipeline: String = pipeline.chars().take(24).collect();
    format!("headwater {pipeline}")
}
