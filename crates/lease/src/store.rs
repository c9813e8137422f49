//! The seam between the elector and whatever keeps the lease.

use tokio::sync::Notify;

use crate::error::Error;
use crate::record::{Record, Statement};

/// Keeps one lease. `mongo.rs` is the store in use; tests cut here.
///
/// Futures need not be `Send`: the elector has a thread of its own. Any of them may be dropped half way, and then, as after
/// an error, a statement may have been applied, may be applied later, or never.
#[expect(async_fn_in_trait, reason = "used by the elector on its own thread only, where futures need not be Send")]
pub trait LeaseStore {
    /// Looks for what would make a lease unsafe here. Asked once, before anything else.
    async fn inspect(&self) -> Result<(), Error>;

    /// The lease as a majority has it, or `None` when there is none.
    async fn read(&self) -> Result<Option<Record>, Error>;

    /// Applies one statement, atomically. `Some` is the record it made, acknowledged by a majority; `None`: refused.
    async fn submit(&self, statement: &Statement) -> Result<Option<Record>, Error>;

    /// Wakes `changed` once when watching has begun and then at every change, until it fails.
    async fn watch(&self, changed: &Notify) -> Error;

    /// Ends background work before the runtime does.
    async fn close(&self);
}
