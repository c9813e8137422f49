//! The send window: events that are admitted and not yet acknowledged, with their lanes, their place in the prefix, and their traces.
//!
//! Keeps the three in step: an event enters all of them together, and leaves them together.

use std::time::Instant;

use bytes::Bytes;
use servicebus::EncodedMessage;

use crate::event::ChangeEvent;
use crate::publish::acknowledged_prefix::{AcknowledgedPrefix, CaptureOrdinal, CheckpointPosition};
use crate::publish::batch::{BatchLimits, WindowEntry};
use crate::publish::lanes::{LaneId, Lanes, RefusedSend, TransferToSend, WindowLimits};
use crate::publish::message::EventMessageId;
use crate::publish::pending_writes::CompletedWrite;
use crate::publish::traced_events::{PublishedTrace, TracedEvents};

/// The credit of the link. More transfers would only queue there, where they cannot be batched any more.
const MAX_TRANSFERS: usize = 2_000;

pub(super) struct SendWindow {
    lanes: Lanes,
    prefix: AcknowledgedPrefix,
    traces: TracedEvents,
}

/// An event on its way into a lane.
pub(super) struct AdmittedEvent {
    /// Where the checkpoint may move when the event is acknowledged.
    pub(super) position: CheckpointPosition,
    pub(super) weight: usize,
    /// `None` reserves the slot until a write is done.
    pub(super) message: Option<Bytes>,
    pub(super) trace: Option<PublishedTrace>,
}

impl SendWindow {
    pub(super) fn new(window: WindowLimits, batch_limits: BatchLimits) -> Self {
        let (prefix, traces) = (AcknowledgedPrefix::default(), TracedEvents::default());
        Self { lanes: Lanes::new(window, batch_limits), prefix, traces }
    }

    pub(super) fn set_traces(&mut self, traces: TracedEvents) {
        self.traces = traces;
    }

    pub(super) fn set_batch_limits(&mut self, limits: BatchLimits) {
        self.lanes.set_batch_limits(limits);
    }

    pub(super) fn has_room(&self, session: &str, weight: usize) -> bool {
        self.lanes.has_room(session, weight)
    }

    pub(super) fn start_trace(&self, event: &ChangeEvent, id: &EventMessageId) -> Option<PublishedTrace> {
        self.traces.start(event, id)
    }

    pub(super) fn push(&mut self, session: &str, event: AdmittedEvent, now: Instant) -> (LaneId, CaptureOrdinal) {
        let AdmittedEvent { position, weight, message, trace } = event;
        let ordinal = self.prefix.push_event(position);
        self.traces.track(ordinal, trace);
        (self.lanes.push(session, WindowEntry { ordinal, weight }, message, now), ordinal)
    }

    /// Adds an event that is never sent; it counts as acknowledged when it is stored.
    pub(super) fn push_without_lane(&mut self, position: CheckpointPosition) -> CaptureOrdinal {
        self.prefix.push_event(position)
    }

    pub(super) fn push_watermark(&mut self, position: CheckpointPosition) {
        self.prefix.push_watermark(position);
    }

    pub(super) fn apply_write(&mut self, write: CompletedWrite) {
        match write {
            CompletedWrite::IndexesCreated => {}
            CompletedWrite::MessageReady { lane, ordinal, message } => self.lanes.set_message(lane, ordinal, &message),
            CompletedWrite::EventRejected { lane, ordinal } => {
                if let Some(lane) = lane {
                    self.lanes.abandon(lane, ordinal);
                }
                self.traces.forget(ordinal);
                self.prefix.acknowledge(ordinal);
            }
        }
    }

    pub(super) fn next_transfers(&mut self, now: Instant) -> Vec<(u64, EncodedMessage)> {
        let mut transfers = Vec::new();
        while self.lanes.transfers() < MAX_TRANSFERS {
            let Some(TransferToSend { token, message }) = self.lanes.next_transfer(now) else { break };
            for ordinal in self.lanes.ordinals(token) {
                self.prefix.record_sent(ordinal);
            }
            transfers.push((token, message));
        }
        transfers
    }

    /// Returns the number of events in the transfer.
    pub(super) fn acknowledge(&mut self, token: u64) -> u64 {
        let (prefix, traces) = (&mut self.prefix, &mut self.traces);
        let mut events = 0;
        self.lanes.acknowledge(token, |ordinal| {
            events += 1;
            traces.acknowledge(ordinal);
            prefix.acknowledge(ordinal);
        });
        events
    }

    /// Earlier attempts and number of events of a transfer; `None` if it is not in flight.
    pub(super) fn attempts(&self, token: u64) -> Option<(u32, usize)> {
        self.lanes.attempts(token)
    }

    pub(super) fn retry(&mut self, token: u64, at: Option<Instant>) {
        self.lanes.retry(token, at);
    }

    pub(super) fn refuse(&mut self, token: u64) -> Option<RefusedSend> {
        self.lanes.refuse(token)
    }

    pub(super) fn isolate(&mut self) {
        self.lanes.isolate();
    }

    pub(super) fn is_isolated(&self) -> bool {
        self.lanes.is_isolated()
    }

    pub(super) fn single_message(&self, token: u64) -> Option<Bytes> {
        self.lanes.single_message(token)
    }

    pub(super) fn wake_due_lanes(&mut self, now: Instant) {
        self.lanes.wake_due_lanes(now);
    }

    pub(super) fn next_wake(&self) -> Option<Instant> {
        self.lanes.next_wake()
    }

    pub(super) fn prefix(&self) -> &AcknowledgedPrefix {
        &self.prefix
    }

    pub(super) fn prefix_mut(&mut self) -> &mut AcknowledgedPrefix {
        &mut self.prefix
    }

    pub(super) fn is_empty(&self) -> bool {
        self.lanes.is_empty()
    }

    pub(super) fn events(&self) -> usize {
        self.lanes.events()
    }

    pub(super) fn bytes(&self) -> usize {
        self.lanes.bytes()
    }

    /// Transfers in flight.
    pub(super) fn transfers(&self) -> usize {
        self.lanes.transfers()
    }
}
