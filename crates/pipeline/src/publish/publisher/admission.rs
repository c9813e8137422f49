//! Captured events come into lanes, as messages; those that cannot be messages are kept.

use std::time::Instant;

use super::Publisher;
use crate::capture::CaptureItem;
use crate::checkpoint::{CheckpointPhase, CheckpointStore, SnapshotProgress};
use crate::event::{AggregateId, ChangeEvent};
use crate::publish::batch::WindowEntry;
use crate::publish::message::{BodyLocation, EventMessageId, rejected_marker};
use crate::publish::pending_writes::CompletedWrite;
use crate::publish::prefix::{CheckpointPosition, Ordinal};
use crate::publish::rejected::{RejectReason, RejectedEvent};
use crate::publish::topic::{LinkLimits, PublishTopic};

/// Events taken into lanes before the loop looks at anything else: some milliseconds' worth.
const AT_ONCE: usize = 512;
/// What an event takes in memory beside its document: properties, token, places in books.
const OVERHEAD: usize = 1_024;

impl<T: PublishTopic, S: CheckpointStore + 'static> Publisher<T, S> {
    pub(super) fn on_captured(&mut self, captured: Option<Vec<CaptureItem>>) {
        match captured {
            Some(captured) => self.pending.extend(captured),
            None => {
                self.exhausted = true;
                self.begin_drain(Instant::now());
            }
        }
    }

    /// Takes captured events into lanes as far as the window goes. `true`: there is room for more of them.
    pub(super) fn admit(&mut self, now: Instant) -> bool {
        // How large a message may be is known when the bus was seen once.
        let Some(limits) = self.limits else { return false };
        for _ in 0..AT_ONCE {
            let Some(captured) = self.pending.front() else { return false };
            let session = match captured {
                CaptureItem::Watermark(..) => None,
                CaptureItem::Change(event) | CaptureItem::Snapshot(event, _) => {
                    let session = event.aggregate.as_ref().map(|aggregate| self.encoder.session_id(aggregate));
                    if !self.has_room(event, session.as_deref()) {
                        return false;
                    }
                    session
                }
            };
            match self.pending.pop_front() {
                None => return false,
                Some(CaptureItem::Watermark(phase, cluster_time)) => {
                    self.prefix.push_watermark(CheckpointPosition { phase, cluster_time })
                }
                Some(CaptureItem::Change(event)) => self.take(event, session, None, (limits, now)),
                Some(CaptureItem::Snapshot(event, progress)) => {
                    self.take(event, session, Some(progress), (limits, now))
                }
            }
        }
        true
    }

    /// The window holds what is not behind the saved checkpoint: that much the next leader sends again at most.
    fn has_room(&self, event: &ChangeEvent, session: Option<&str>) -> bool {
        self.unsaved < self.config.window().events as u64
            && !self.given_up
            && self.pending_writes.has_room()
            && session.is_none_or(|session| self.lanes.has_room(session, weight(event)))
    }

    fn take(
        &mut self,
        mut event: ChangeEvent,
        session: Option<String>,
        progress: Option<SnapshotProgress>,
        (limits, now): (LinkLimits, Instant),
    ) {
        self.unsaved += 1;
        let id = EventMessageId::for_event(&event, progress.as_ref().map(|progress| &*progress.run));
        let (Some(aggregate), Some(session)) = (event.aggregate.take(), session) else {
            let rejection = RejectedEvent::from_event(&event, &id, RejectReason::NoAggregateId);
            let ordinal = self.prefix.push_event(position(event, progress));
            return self.pending_writes.reject(ordinal, rejection, None);
        };
        let traced = self.traces.start(&event, &id);
        let fits = event.document.as_bytes().len() <= limits.message;
        let whole = fits.then(|| self.encoder.encode(&event, &aggregate, &id, &session, BodyLocation::Inline));
        let weight = weight(&event);
        match whole.filter(|whole| whole.len() <= limits.message) {
            Some(whole) => {
                let ordinal = self.prefix.push_event(position(event, progress));
                self.traces.track(ordinal, traced);
                self.lanes.push(&session, WindowEntry { ordinal, weight }, Some(whole), now);
            }
            None => {
                let ordinal = self.take_large(event, &aggregate, (id, &session), progress, (limits, now));
                self.traces.track(ordinal, traced);
            }
        }
    }

    /// Its body is put aside, and its place in the lane held until that is done.
    fn take_large(
        &mut self,
        mut event: ChangeEvent,
        aggregate: &AggregateId,
        (id, session): (EventMessageId, &str),
        progress: Option<SnapshotProgress>,
        (limits, now): (LinkLimits, Instant),
    ) -> Ordinal {
        let message = self.encoder.encode(&event, aggregate, &id, session, BodyLocation::ClaimCheck);
        let rejection =
            (message.len() > limits.message).then(|| RejectedEvent::from_event(&event, &id, RejectReason::TooLarge));
        let weight = weight(&event);
        let body = self.encoder.body(&event);
        // Moved, not copied: it may be sixteen megabytes.
        let body = body.unwrap_or_else(|| std::mem::take(&mut event.document).into_bytes());
        let ordinal = self.prefix.push_event(position(event, progress));
        let lane = self.lanes.push(session, WindowEntry { ordinal, weight }, None, now);
        match rejection {
            None => self.pending_writes.store_body(lane, ordinal, id.as_str().to_owned(), body, message),
            Some(rejection) => {
                let marker = amqp::Message::parse(message).ok().and_then(|message| rejected_marker(&message));
                let marker = marker.filter(|marker| marker.len() <= limits.message);
                self.pending_writes.reject(ordinal, rejection, Some((lane, marker)));
            }
        }
        ordinal
    }

    pub(super) fn on_stored(&mut self, stored: CompletedWrite) {
        match stored {
            CompletedWrite::IndexesCreated => {}
            CompletedWrite::MessageReady { lane, ordinal, message } => self.lanes.set_message(lane, ordinal, &message),
            CompletedWrite::EventRejected { lane, ordinal } => self.without_message(lane, ordinal),
        }
    }

    fn without_message(&mut self, lane: Option<crate::publish::lanes::LaneId>, ordinal: Ordinal) {
        if let Some(lane) = lane {
            self.lanes.abandon(lane, ordinal);
        }
        self.traces.forget(ordinal);
        self.prefix.acknowledge(ordinal);
    }
}

fn weight(event: &ChangeEvent) -> usize {
    event.document.as_bytes().len() + OVERHEAD
}

/// Where the checkpoint may stand when this event is acknowledged.
fn position(event: ChangeEvent, progress: Option<SnapshotProgress>) -> CheckpointPosition {
    let ChangeEvent { token, cluster_time, .. } = event;
    match progress {
        None => CheckpointPosition { phase: CheckpointPhase::Stream { token }, cluster_time },
        Some(progress) => {
            CheckpointPosition { phase: CheckpointPhase::Snapshot { start: token, progress }, cluster_time }
        }
    }
}
