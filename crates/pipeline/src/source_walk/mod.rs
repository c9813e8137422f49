//! Walks the source aggregate by aggregate, and feeds events of the source to the applier.
//!
//! [`SourceWalk`] reads the index (aggregate, sequence) in slices and returns the highest sequence of each aggregate. [`Feed`] reads the events of one
//! aggregate and applies them, as gap healing does; [`EventPages`] only reads them. The audit compares with the first and heals with the second; neither decides what is
//! missing.
//!
//! Both need a source with a sequence: an event read from the source has no position, so only its sequence keeps it from being applied twice.

mod error;
mod event_pages;
mod feed;
mod walk;

pub use error::Error;
pub use event_pages::{EventPage, EventPages};
pub use feed::{FedEvents, Feed};
pub use walk::{SourceHead, SourceSlice, SourceWalk, WalkPosition};
