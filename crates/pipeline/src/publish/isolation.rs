//! The search for the message at which Service Bus detaches the link. Pure.
//!
//! A detach fails every transfer in flight and does not say which one caused it. So the same transfers are sent again, fewer at a time with every
//! detach, and nothing else meanwhile. A transfer that detaches the link while it is alone is the cause.

use std::collections::HashSet;

use super::acknowledged_prefix::CaptureOrdinal;

#[derive(Debug)]
pub(super) struct Isolation {
    /// Transfers that may be in flight at once.
    limit: usize,
    /// The events in flight at the last detach that are neither acknowledged nor rejected.
    suspects: HashSet<CaptureOrdinal>,
    /// The cause, while the marker that replaces it is stored. Nothing is sent: only the marker shows whether the message was the cause.
    awaited_marker: Option<CaptureOrdinal>,
}

impl Default for Isolation {
    fn default() -> Self {
        Self { limit: usize::MAX, suspects: HashSet::new(), awaited_marker: None }
    }
}

impl Isolation {
    /// A detach failed this many transfers with these events. One of them is the cause, and no other event is.
    pub(super) fn begin(&mut self, transfers: usize, suspects: HashSet<CaptureOrdinal>) {
        self.limit = (transfers / 2).max(1);
        self.suspects = suspects;
    }

    pub(super) fn is_active(&self) -> bool {
        !self.suspects.is_empty()
    }

    /// Whether a transfer is in flight alone.
    pub(super) fn is_single(&self) -> bool {
        self.is_active() && self.limit == 1
    }

    /// Transfers that may be in flight now.
    pub(super) fn transfer_limit(&self) -> usize {
        if self.awaited_marker.is_some() { 0 } else { self.limit }
    }

    /// The event is rejected as the cause.
    pub(super) fn await_marker(&mut self, ordinal: CaptureOrdinal) {
        if self.is_single() && self.is_suspect(ordinal) {
            self.awaited_marker = Some(ordinal);
        }
    }

    /// The marker of a rejected event is stored.
    pub(super) fn marker_is_ready(&mut self, ordinal: CaptureOrdinal) {
        self.awaited_marker.take_if(|awaited| *awaited == ordinal);
    }

    pub(super) fn is_suspect(&self, ordinal: CaptureOrdinal) -> bool {
        self.suspects.contains(&ordinal)
    }

    /// The event is acknowledged, or rejected. The search ends with the last one.
    pub(super) fn resolve(&mut self, ordinal: CaptureOrdinal) {
        self.marker_is_ready(ordinal);
        if self.suspects.remove(&ordinal) && self.suspects.is_empty() {
            *self = Self::default();
        }
    }
}
