//! Compares a read model with its source: the documents as they are with a fold of the events up to each cursor.
//!
//! [`Verifier`] reads documents and cursors from one snapshot of the read-model database, so no event that flows meanwhile makes a difference, and needs
//! no snapshot of the source, whose events never change. [`compare`] names what differs. [`Comparability`] says which models can be compared at all.
//!
//! Needs a source with a sequence. Writes only if it is told to repair, under the rules of live events.

mod comparability;
mod difference;
mod error;
mod report;
mod verifier;
mod whole_model;

pub use comparability::{Comparability, comparability_of};
pub use difference::{Difference, DifferenceKind, compare, compare_unordered, compare_values};
pub use error::Error;
pub use report::{Finding, SkipReason, VerifyTotals};
pub use verifier::{Verifier, VerifyDependencies, VerifyScope, VerifySink};
pub use whole_model::WholeModelError;
