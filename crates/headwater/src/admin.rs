//! The HTTP side of a pod: the admin server, the liveness of the pod's loops, and what the pod reports about itself.

mod heartbeats;
mod liveness;
mod server;
mod service_state;
mod snapshot;
mod token_state;

pub(crate) use heartbeats::LoopHeartbeat;
pub(crate) use server::AdminListener;
pub(crate) use snapshot::{PodMonitor, PodServices};
