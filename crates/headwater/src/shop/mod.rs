//! The demo shop of `headwater dev`: orders as events, and the expected read models.
//!
//! [`order`] generates events, [`writer`] inserts them, [`fold`] computes in plain Rust what the read models of `read_models.yaml` must
//! hold, and [`mod@verify`] compares. Never uses `pipeline`: a check that shared its code would share its defects.

mod fold;
mod order;
mod verify;
mod writer;

pub(crate) use verify::verify;
pub(crate) use writer::ShopWriter;

/// The section `read_models` of a pod's configuration.
pub(crate) const READ_MODELS: &str = include_str!("read_models.yaml");
