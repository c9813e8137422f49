//! The seam between the elector and the store that keeps the lease.

use tokio::sync::Notify;

use crate::error::Error;
use crate::record::{LeaseRecord, LeaseStatement};

/// Keeps one lease. `mongo.rs` is the production store; `memory.rs` replaces it in tests of the elector.
///
/// Futures need not be `Send`: the elector has its own thread. Any of them may be dropped half way. Then, as after an error,
/// a statement may have been applied, may be applied later, or never.
#[expect(async_fn_in_trait, reason = "used by the elector on its own thread only, where futures need not be Send")]
pub trait LeaseStore {
    /// Checks for settings that make a lease unsafe in this store. Called once, before anything else.
    async fn inspect(&self) -> Result<(), Error>;

    /// The lease that a majority has, or `None` if there is none.
    async fn read(&self) -> Result<Option<LeaseRecord>, Error>;

    /// Applies one statement, atomically. `Some` is the new record, acknowledged by a majority; `None` means refused.
    async fn submit(&self, statement: &LeaseStatement) -> Result<Option<LeaseRecord>, Error>;

    /// Wakes `changed` once when the watch has started, and then at every change, until the watch fails.
    async fn watch(&self, changed: &Notify) -> Error;

    /// Ends background work before the runtime does.
    async fn close(&self);
}
