//! From the insert of an event to its read model, as clients of MongoDB see it: Headwater's pods, or a peer in their place.
//!
//! Every system reads the collection `events`, publishes to a topic of the same durable broker and keeps the read model `totals`.

mod cluster;
mod latency_at_rate;
mod progress;
mod sustained_load;
mod system;
mod takeover;
mod writer;

pub use cluster::BenchCluster;
pub use latency_at_rate::{EventLatencies, measure_latency};
pub use progress::{AppliedCounter, assert_all_applied};
pub use sustained_load::{CpuPerEvent, LoadSample, SustainedLoad};
pub use system::{BenchPod, BenchSystem, LEASE_OF_THE_NOTES, PipelineNames};
pub use takeover::{PodExit, measure_takeover, with_observer};
pub use writer::{EventShape, LoadWriter};
