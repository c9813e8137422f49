//! Station 5 of 5: messages become read models.
//!
//! `session` hands over what it received, through a [`Feed`]; the [`Applier`] gathers the events of all sessions into transactions. One
//! transaction reads the cursors of its aggregates, decides for each event whether it is next, and writes the read models and the
//! cursors together: that is what makes the effect exactly once. (Of an aggregate's first event no cursor is read; its insert is refused
//! if there is one.) Leans on nothing else for that: not on the session's lock, not on
//! the bus's duplicate detection, not on who leads.
//!
//! Never settles a message, and never waits for one. Only [`History`] reads the source, and only where events are missing or in doubt.

mod applier;
mod config;
mod counts;
mod cursor;
mod delivered;
mod error;
mod feed;
mod gap;
mod group;
mod identity;
mod model;
mod orphans;
mod parked;
mod path;
mod plan;
mod projection;
mod queue;
mod runs;
mod start;
mod statement;
mod stored;
mod stuck;
mod swept;
mod template;
mod transaction;
mod validate;
mod witness;
mod writer;

pub use applier::{Applier, Handle, Setup};
pub use config::{Config, OnPoison};
pub use counts::{Counts, ModelCounts};
pub use cursor::{Cursor, Decision, Evidence, Facts, Mode, Question, Start, decide};
pub use delivered::{Body, Delivered, PositionKey};
pub use error::Error;
pub use feed::{Applied, End, Feed};
pub use gap::History;
pub use identity::Identity;
pub use model::{Declaration, Mistake, Model};
pub use orphans::application;
pub use parked::{Desk, Discard, Parked, Reason, Waiting};
pub use plan::Outcome;
pub use projection::{Event, Index, Projection, Refused, Statements, Unwritable};
pub use start::prepare;
pub use stored::GONE;
pub(crate) use swept::{mark_id, mark_update};
pub use validate::validate;
pub use witness::{Lived, Witness};

/// Cursors, in the database of the read models.
pub const CURSORS: &str = "_headwater_cursors";
/// Events that wait, beside them.
pub const PARKED_EVENTS: &str = "parked_events";
