//! The HTTP side of a pod: the admin server, the liveness of the pod's loops, and what the pod reports about itself.

mod heartbeats;
mod liveness;
mod pipeline_slot;
mod server;
mod service_state;
mod snapshot;
mod token_state;

pub(crate) use heartbeats::LoopHeartbeat;
pub(crate) use pipeline_slot::PipelineSlot;
pub(crate) use server::{AdminListener, PipelineLoops};
pub(crate) use snapshot::{PodMonitor, PodServices};
