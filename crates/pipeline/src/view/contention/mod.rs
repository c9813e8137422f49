//! Many sessions, few transactions, shared documents: who is applied with whom, and who waits.
//!
//! The outcome never depends on this module: the cursor decides what is applied. Contention only decides how many transactions that takes
//! and who waits for whom, so that one bad event or one locked document delays its own aggregate and no other.
//!
//! Reading order, from the session to the server:
//! 1. [`session_applier`]: one batch per session at a time; asks the source about [`gaps`], outside any transaction.
//! 2. [`group_commit_queue`]: collects the submissions of all sessions into groups, one transaction each.
//! 3. [`open_group`]: one group until every submission has its reply.
//! 4. [`group_runner`]: runs a group, retries conflicts, and splits it into [`sub_group`]s when a statement is refused or a conflict lasts.
//! 5. [`blocked_aggregates`]: aggregates on a locked document wait apart from the others.
//! 6. [`orphaned_transactions`]: aborts transactions that a dead pod left open.

mod blocked_aggregates;
mod event_results;
mod gaps;
mod group_commit_queue;
mod group_runner;
mod open_group;
mod orphaned_transactions;
mod session_applier;
mod sub_group;

pub(super) use event_results::{EventResult, EventResults};
pub use gaps::Arrivals;
pub(super) use group_commit_queue::{GroupCommitQueue, GroupLimits, TransactionGroup};
pub(super) use group_runner::TransactionGroupRunner;
pub(super) use open_group::OpenGroup;
pub(crate) use orphaned_transactions::without_orphans;
pub use session_applier::{AppliedBatch, BatchEnd, SessionApplier};
pub(super) use sub_group::group_by_aggregate;
