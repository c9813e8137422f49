//! The audit: proves in the background that the read models miss no event of the source, and heals what is missing.
//!
//! A round walks the source in slices. A slice is read at operation time T and compared with the cursors. An aggregate whose cursor is behind is looked
//! at again once the checkpoint has passed T: then Service Bus has acknowledged its events. If it is still behind, it is a suspect: its messages are
//! waiting, or lost. Only an empty session, accepted by name, tells: the missing events are then fed from the source, in the way a gap is healed, and
//! counted as found. While messages wait, the audit waits, and says so.
//!
//! One pod audits at a time; the progress is in the coordination database, so any pod resumes it. Never writes a cursor or a read model itself, never
//! settles a message, and depends on no leader. Two auditors at once would be harmless: the cursor decides what is applied.
//!
//! What it cannot prove: aggregates without a cursor, if the pipeline started at `now` or at a time; with a capture filter, events below the cursor;
//! anything without a sequence ([`UnauditableReason`]).
//!
//! Reading order: `compare` and `schedule` (pure), `budget`, [`record`](AuditRecord) and `store` (what is stored), `slice_audit` and `session_backlog` (one slice),
//! `auditor` (rounds, claims).

mod auditor;
mod budget;
mod compare;
mod config;
mod error;
mod monitor;
mod record;
mod schedule;
mod session_backlog;
mod slice_audit;
mod store;

pub use auditor::{AuditDependencies, Auditor, RoundOptions};
pub use compare::{AggregateState, SkipReason, compare};
pub use config::Config;
pub use error::{Error, UnauditableReason};
pub use monitor::{AuditCounts, AuditState, Handle, WaitReason};
pub use record::{AuditRecord, AuditTotals, RoundRecord};
pub use schedule::next_round_in;
pub use store::{AuditStore, COLLECTION};
