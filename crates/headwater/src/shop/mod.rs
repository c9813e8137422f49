//! The demo shop of `headwater dev`: orders as events, and what its read models must be.
//!
//! [`order`] is what may happen to an order, [`writer`] inserts it, [`fold`] says in plain Rust what the read models of `read_models.yaml`
//! are after it, and [`mod@verify`] compares. Never uses `pipeline`: a check that shared its code would share its mistakes.

mod fold;
mod order;
mod verify;
mod writer;

pub(crate) use verify::verify;
pub(crate) use writer::Shop;

/// The section `read_models` of a pod's configuration.
pub(crate) const READ_MODELS: &str = include_str!("read_models.yaml");
