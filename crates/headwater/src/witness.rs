//! What a pod remembers of every event it applied: how long it took from insert to read model.

use std::time::Duration;

use admin::Latency;
use pipeline::view::{self, Delivered, Lived};

pub(crate) struct Witness {
    pub(crate) latency: Latency,
}

impl view::Witness for Witness {
    /// What a snapshot read, and what was read to heal a gap, has no time of its own.
    fn applied(&self, event: &Delivered, lived: Lived) {
        if let Some(inserted) = event.committed {
            // Two clocks: the source's, and ours. One that is ahead makes nothing negative.
            let took = lived.committed.duration_since(inserted.to_system_time()).unwrap_or(Duration::ZERO);
            self.latency.record(took);
        }
    }
}
