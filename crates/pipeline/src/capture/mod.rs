//! Station 1 of 5: MongoDB change stream in, [`ChangeEvent`]s out.
//!
//! Reads from the phase in [`crate::checkpoint`]; hands events to [`crate::publish`] in oplog order, in batches whose sum in bytes and
//! events is bounded. Runs only inside a term (see `lease`). Never writes the checkpoint: only an acknowledged publish may.

use mongodb::bson::Timestamp;

use crate::checkpoint::{Phase, Snapshot};
use crate::event::ChangeEvent;

/// What capture hands on, in order.
#[derive(Clone, Debug)]
pub enum Captured {
    /// A change; once it and all before are acknowledged, the checkpoint may stand at its token.
    Change(ChangeEvent),
    /// Read by a snapshot; once it and all before are acknowledged, the snapshot has come as far as this.
    Scanned(ChangeEvent, Snapshot),
    /// No event: where the checkpoint may stand once all before is acknowledged. A quiet stream's token, a snapshot's end, or
    /// events that were filtered out.
    Mark(Phase, Option<Timestamp>),
}
