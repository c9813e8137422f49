//! Admission: turns captured events into messages and pushes them into the send window, as far as it has room.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;

use super::window::{AdmittedEvent, SendWindow};
use crate::capture::CaptureItem;
use crate::checkpoint::{CheckpointPhase, ReplayCounter, SnapshotProgress};
use crate::event::{AggregateId, ChangeEvent};
use crate::publish::acknowledged_prefix::CheckpointPosition;
use crate::publish::message::{BodyLocation, Encoder, EventMessageId};
use crate::publish::pending_writes::{PendingWrites, RejectedEventSlot};
use crate::publish::rejected::{RejectReason, RejectedEvent};
use crate::publish::topic::LinkLimits;
use crate::signing::MessageKeys;
use crate::trace::TraceSampling;

/// Events admitted before the loop polls again: a few milliseconds of work.
const EVENTS_PER_ROUND: usize = 512;
/// Memory of an event besides its document: properties, token and bookkeeping.
const OVERHEAD: usize = 1_024;

pub(super) struct AdmissionResult {
    encoder: Encoder,
    replay: ReplayCounter,
    /// Captured, and not yet in the window.
    pending: VecDeque<CaptureItem>,
    input_ended: bool,
    /// Events that the saved checkpoint does not cover: the next leader republishes at most these.
    unsaved: u64,
    max_unsaved: u64,
    needs_sequence: bool,
    is_closed: bool,
}

/// Where admitted events go.
pub(super) struct EventDestination<'a> {
    pub(super) limits: LinkLimits,
    pub(super) window: &'a mut SendWindow,
    pub(super) writes: &'a PendingWrites,
    pub(super) now: Instant,
}

/// The write that an oversize event needs before, or instead of, its message.
enum OversizeWrite {
    StoreBody { body: Vec<u8>, message: Bytes },
    Reject { event: Box<RejectedEvent>, marker: Option<Bytes> },
}

impl AdmissionResult {
    pub(super) fn new(encoder: Encoder, replay: ReplayCounter, max_unsaved: u64) -> Self {
        Self {
            encoder,
            replay,
            pending: VecDeque::new(),
            input_ended: false,
            unsaved: 0,
            max_unsaved,
            needs_sequence: false,
            is_closed: false,
        }
    }

    pub(super) fn require_sequence(&mut self, needed: bool) {
        self.needs_sequence = needed;
    }

    pub(super) fn with_sampling(self, sampling: TraceSampling) -> Self {
        Self { encoder: self.encoder.sampling(sampling), ..self }
    }

    pub(super) fn with_signing(self, keys: Option<Arc<MessageKeys>>) -> Self {
        Self { encoder: self.encoder.signing(keys), ..self }
    }

    /// The marker that replaces a refused message; `None` for a marker.
    pub(super) fn rejected_marker(&self, refused: &amqp::Message) -> Option<Bytes> {
        self.encoder.rejected_marker(refused)
    }

    pub(super) fn receive(&mut self, items: Vec<CaptureItem>) {
        self.pending.extend(items);
    }

    pub(super) fn end_input(&mut self) {
        self.input_ended = true;
    }

    pub(super) fn wants_input(&self) -> bool {
        self.pending.is_empty() && !self.input_ended
    }

    /// Admits no further events. Watermarks still pass.
    pub(super) fn close(&mut self) {
        self.is_closed = true;
    }

    /// Whether every captured item is admitted.
    pub(super) fn is_drained(&self) -> bool {
        self.input_ended && self.pending.is_empty()
    }

    /// Events that wait for room. The input may hold more.
    pub(super) fn pending_events(&self) -> usize {
        self.pending.iter().filter(|item| item.event().is_some()).count()
    }

    pub(super) fn record_saved(&mut self, events: u64) {
        self.unsaved -= events;
    }

    /// Admits pending items while there is room. `true` if it stopped only to let the loop poll.
    pub(super) fn admit(&mut self, to: &mut EventDestination<'_>) -> bool {
        for _ in 0..EVENTS_PER_ROUND {
            let Some(item) = self.pending.front() else { return false };
            let mut session = None;
            if let Some(event) = item.event() {
                session = self.session_id(event);
                if !self.has_room(event, session.as_deref(), to) {
                    return false;
                }
            }
            match self.pending.pop_front() {
                None => return false,
                Some(CaptureItem::Watermark(phase, cluster_time)) => {
                    to.window.push_watermark(CheckpointPosition { phase, cluster_time });
                }
                Some(CaptureItem::Change(event)) => self.admit_event(event, None, session, to),
                Some(CaptureItem::Snapshot(event, progress)) => self.admit_event(event, Some(progress), session, to),
            }
        }
        true
    }

    /// `None` if the event cannot be placed in an aggregate.
    fn session_id(&self, event: &ChangeEvent) -> Option<String> {
        let is_placed = !self.needs_sequence || event.sequence.is_some();
        event.aggregate.as_ref().filter(|_| is_placed).map(|aggregate| self.encoder.session_id(aggregate))
    }

    fn has_room(&self, event: &ChangeEvent, session: Option<&str>, to: &EventDestination<'_>) -> bool {
        self.unsaved < self.max_unsaved
            && !self.is_closed
            && to.writes.has_room()
            && session.is_none_or(|session| to.window.has_room(session, weight(event)))
    }

    fn admit_event(
        &mut self,
        mut event: ChangeEvent,
        progress: Option<SnapshotProgress>,
        session: Option<String>,
        to: &mut EventDestination<'_>,
    ) {
        self.unsaved += 1;
        let id = EventMessageId::for_replay(&event, progress.as_ref().map(|progress| &*progress.run), self.replay);
        let reason = if event.aggregate.is_none() { RejectReason::NoAggregateId } else { RejectReason::NoSequence };
        let (Some(aggregate), Some(session)) = (event.aggregate.take(), session) else {
            let rejected = RejectedEvent::from_event(&event, &id, reason);
            let ordinal = to.window.push_without_lane(checkpoint_position(event, progress));
            return to.writes.reject(ordinal, rejected, None);
        };
        let (limit, weight) = (to.limits.message, weight(&event));
        let trace = to.window.start_trace(&event, &id);
        // Do not encode a document that alone exceeds the limit.
        let fits = event.document.as_bytes().len() <= limit;
        let message = fits.then(|| self.encoder.encode(&event, &aggregate, &id, &session, BodyLocation::Inline));
        let message = message.filter(|message| message.len() <= limit);
        let write = match message {
            Some(_) => None,
            None => Some(self.prepare_oversize(&mut event, &aggregate, &id, &session, limit)),
        };
        let admitted = AdmittedEvent { position: checkpoint_position(event, progress), weight, message, trace };
        let (lane, ordinal) = to.window.push(&session, admitted, to.now);
        match write {
            None => {}
            Some(OversizeWrite::StoreBody { body, message }) => {
                to.writes.store_body(lane, ordinal, id.as_str().to_owned(), body, message);
            }
            Some(OversizeWrite::Reject { event, marker }) => {
                to.writes.reject(ordinal, *event, Some(RejectedEventSlot { lane, marker }));
            }
        }
    }

    /// A message without its body, which is stored as a claim check; or a rejection, if even that is too large.
    fn prepare_oversize(
        &mut self,
        event: &mut ChangeEvent,
        aggregate: &AggregateId,
        id: &EventMessageId,
        session: &str,
        limit: usize,
    ) -> OversizeWrite {
        let message = self.encoder.encode(event, aggregate, id, session, BodyLocation::ClaimCheck);
        if message.len() > limit {
            let rejected = RejectedEvent::from_event(event, id, RejectReason::TooLarge);
            let marker = amqp::Message::parse(message).ok().and_then(|message| self.rejected_marker(&message));
            return OversizeWrite::Reject {
                event: Box::new(rejected),
                marker: marker.filter(|marker| marker.len() <= limit),
            };
        }
        let body = self.encoder.body(event);
        // Moved, not copied: a body may have 16 MB.
        let body = body.unwrap_or_else(|| std::mem::take(&mut event.document).into_bytes());
        OversizeWrite::StoreBody { body, message }
    }
}

fn weight(event: &ChangeEvent) -> usize {
    event.document.as_bytes().len() + OVERHEAD
}

/// Where the checkpoint may move when this event is acknowledged.
fn checkpoint_position(event: ChangeEvent, progress: Option<SnapshotProgress>) -> CheckpointPosition {
    let ChangeEvent { token, cluster_time, .. } = event;
    let phase = match progress {
        None => CheckpointPhase::Stream { token },
        Some(progress) => CheckpointPhase::Snapshot { start: token, progress },
    };
    CheckpointPosition { phase, cluster_time }
}
