//! One lane per session id: at most one unacknowledged transfer per lane, many lanes in parallel. Pure.
//!
//! Service Bus may accept a later message while it throttles an earlier one, so a lane sends its next transfer only after the last is acknowledged; a
//! retry sends the same bytes. All lanes share one window in events and bytes. No lane takes more than an eighth of it, so a slow or hot aggregate
//! leaves room for the others. Ready lanes take turns.
//!
//! Events enter in capture order: an event whose lane is full blocks the events behind it. Letting others pass would gain at most the rest of one
//! window, because neither the checkpoint nor the window moves past the blocked event; large batches empty a hot lane sooner.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};
use std::time::Instant;

use bytes::Bytes;
use servicebus::EncodedMessage;

use super::acknowledged_prefix::CaptureOrdinal;
use super::batch::{BatchLimits, OutboundBatch, WindowEntry, build_batch};
use super::isolation::Isolation;
use crate::failpoints::Failpoint;

/// The send window: maximum events and bytes in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowLimits {
    pub events: usize,
    pub bytes: usize,
}

/// No lane takes more than 1/8 of the window.
const LANE_SHARE: usize = 8;

/// Identifies a lane while it holds events.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LaneId(u32);

/// A message that Service Bus refused. Its slot in the lane stays reserved.
#[derive(Debug)]
pub struct RefusedSend {
    pub lane: LaneId,
    pub ordinal: CaptureOrdinal,
    pub message: Bytes,
}

/// One transfer to send.
#[derive(Debug)]
pub struct TransferToSend {
    pub token: u64,
    pub message: EncodedMessage,
}

#[derive(Debug)]
pub struct Lanes {
    window: WindowLimits,
    batch_limits: BatchLimits,
    /// Maximum transfers in flight per lane.
    transfers_per_lane: usize,
    by_session: HashMap<Box<str>, u32>,
    lanes: Vec<Lane>,
    free: Vec<u32>,
    /// Lanes that can send, in turn.
    ready: VecDeque<u32>,
    /// As `ready`, of lanes that start with a suspect.
    ready_suspects: VecDeque<u32>,
    isolation: Isolation,
    paused: BinaryHeap<Reverse<(Instant, u32, u64)>>,
    events: usize,
    bytes: usize,
    transfers: usize,
    serial: u64,
}

#[derive(Debug, Default)]
struct Lane {
    session: Box<str>,
    queue: VecDeque<OutboundBatch>,
    in_flight: Vec<(u64, OutboundBatch)>,
    events: usize,
    bytes: usize,
    is_ready: bool,
    /// Serial number of the timer that ends the pause; 0 if not paused.
    paused: u64,
}

/// Queue capacity that a freed lane keeps. There are thousands of lanes, and most hold one event.
const RETAINED_CAPACITY: usize = 4;
/// The low bits of a transfer token hold the lane id.
const LANE_BITS: u32 = 24;

impl Lanes {
    pub fn new(window: WindowLimits, batch_limits: BatchLimits) -> Self {
        Self::with_failpoint(window, batch_limits, Failpoint::TwoTransfersPerLane.is_enabled())
    }

    pub(super) fn with_failpoint(window: WindowLimits, batch_limits: BatchLimits, two_transfers: bool) -> Self {
        Self {
            window,
            batch_limits,
            transfers_per_lane: if two_transfers { 2 } else { 1 },
            by_session: HashMap::new(),
            lanes: Vec::new(),
            free: Vec::new(),
            ready: VecDeque::new(),
            ready_suspects: VecDeque::new(),
            isolation: Isolation::default(),
            paused: BinaryHeap::new(),
            events: 0,
            bytes: 0,
            transfers: 0,
            serial: 0,
        }
    }

    /// Called when a new link has other size limits.
    pub fn set_batch_limits(&mut self, batch_limits: BatchLimits) {
        self.batch_limits = batch_limits;
    }

    /// Whether one more event fits in the window and in its lane. An event larger than either is admitted alone.
    pub fn has_room(&self, session: &str, weight: usize) -> bool {
        let fits = |events: usize, bytes: usize, share: usize| {
            events == 0 || (events < (self.window.events / share).max(1) && bytes + weight <= self.window.bytes / share)
        };
        fits(self.events, self.bytes, 1)
            && self.by_session.get(session).is_none_or(|lane| {
                let lane = &self.lanes[*lane as usize];
                fits(lane.events, lane.bytes, LANE_SHARE)
            })
    }

    /// Appends an event to its lane. Without a message it reserves its slot until [`set_message`](Self::set_message).
    pub fn push(&mut self, session: &str, entry: WindowEntry, message: Option<Bytes>, now: Instant) -> LaneId {
        let id = self.lane_for(session);
        let lane = &mut self.lanes[id as usize];
        let was_empty = lane.queue.is_empty();
        if lane.queue.capacity() == 0 {
            lane.queue.reserve_exact(1);
        }
        lane.queue.push_back(OutboundBatch::new(entry, message));
        lane.events += 1;
        lane.bytes += entry.weight;
        self.events += 1;
        self.bytes += entry.weight;
        if self.batch_limits.linger.is_zero() {
            self.wake(id);
        } else if was_empty {
            self.pause(id, now + self.batch_limits.linger);
        } else if lane.queue.len() >= self.batch_limits.count {
            // The batch is full before its linger time. A lane that is paused by Service Bus stays paused.
            let lingers = lane.queue.front().is_some_and(|front| !front.is_sealed);
            lane.paused = if lingers { 0 } else { lane.paused };
            self.wake(id);
        }
        LaneId(id)
    }

    /// Sets the message of a reserved slot.
    pub fn set_message(&mut self, LaneId(id): LaneId, ordinal: CaptureOrdinal, message: &Bytes) {
        let batches = &mut self.lanes[id as usize].queue;
        if batches.iter_mut().any(|batch| batch.set_message(ordinal, message)) {
            self.isolation.marker_is_ready(ordinal);
            self.wake(id);
        }
    }

    /// The next transfer, of the lane whose turn it is.
    pub fn next_transfer(&mut self, now: Instant) -> Option<TransferToSend> {
        self.wake_due_lanes(now);
        if self.transfers >= self.isolation.transfer_limit() {
            return None;
        }
        loop {
            let id = self.next_ready()?;
            let lane = &mut self.lanes[id as usize];
            lane.is_ready = false;
            if lane.in_flight.len() >= self.transfers_per_lane || lane.paused != 0 {
                continue;
            }
            let Some(batch) = build_batch(&mut lane.queue, &self.batch_limits) else { continue };
            let message = batch.encoded().expect("a built batch is ready");
            self.serial += 1;
            let token = self.serial << LANE_BITS | u64::from(id);
            lane.in_flight.reserve_exact(1);
            lane.in_flight.push((token, batch));
            self.transfers += 1;
            self.wake(id);
            return Some(TransferToSend { token, message });
        }
    }

    /// While the message that detaches the link is searched, other lanes wait; they go on, one by one, while no suspect can be sent.
    fn next_ready(&mut self) -> Option<u32> {
        let others_wait = self.isolation.is_active() && self.transfers > 0;
        self.ready_suspects.pop_front().or_else(|| if others_wait { None } else { self.ready.pop_front() })
    }

    /// The link was detached by one of the transfers in flight: from now on they are sent in smaller groups. See `Isolation`.
    pub fn isolate(&mut self) {
        let in_flight = self.lanes.iter().flat_map(|lane| &lane.in_flight);
        let suspects = in_flight.flat_map(|(_, batch)| batch.entries()).map(|entry| entry.ordinal).collect();
        self.isolation.begin(self.transfers, suspects);
    }

    /// Whether a transfer in flight is alone because the message that detaches the link is searched.
    pub fn is_isolated(&self) -> bool {
        self.isolation.is_single() && self.transfers == 1
    }

    /// The message of a transfer in flight; `None` for a batch.
    pub fn single_message(&self, token: u64) -> Option<Bytes> {
        self.in_flight(token).filter(|batch| batch.len() == 1).and_then(OutboundBatch::payload)
    }

    /// The events of a transfer in flight.
    pub fn ordinals(&self, token: u64) -> impl Iterator<Item = CaptureOrdinal> {
        self.in_flight(token).into_iter().flat_map(OutboundBatch::entries).map(|entry| entry.ordinal)
    }

    fn in_flight(&self, token: u64) -> Option<&OutboundBatch> {
        let lane = self.lanes.get(lane_of(token) as usize)?;
        lane.in_flight.iter().find(|(in_flight, _)| *in_flight == token).map(|(_, batch)| batch)
    }

    /// Removes an acknowledged transfer; calls `on_event` for each of its events.
    pub fn acknowledge(&mut self, token: u64, on_event: impl FnMut(CaptureOrdinal)) {
        if let Some(batch) = self.remove_in_flight(token) {
            self.release(lane_of(token), &batch, on_event);
        }
    }

    /// Removes the events of a batch from the window.
    fn release(&mut self, id: u32, batch: &OutboundBatch, mut on_event: impl FnMut(CaptureOrdinal)) {
        let lane = &mut self.lanes[id as usize];
        for entry in batch.entries() {
            lane.events -= 1;
            lane.bytes -= entry.weight;
            self.events -= 1;
            self.bytes -= entry.weight;
            self.isolation.resolve(entry.ordinal);
            on_event(entry.ordinal);
        }
        if lane.events == 0 {
            self.remove(id);
        } else {
            self.wake(id);
        }
    }

    /// Earlier attempts and number of events of a transfer; `None` if it is not in flight.
    pub fn attempts(&self, token: u64) -> Option<(u32, usize)> {
        self.in_flight(token).map(|batch| (batch.attempts, batch.len()))
    }

    /// Puts a transfer back at the front of its lane, to be sent unchanged and not before `at`.
    pub fn retry(&mut self, token: u64, at: Option<Instant>) {
        let Some(mut batch) = self.remove_in_flight(token) else { return };
        batch.attempts += 1;
        let id = lane_of(token);
        self.lanes[id as usize].queue.push_front(batch);
        match at {
            Some(at) => self.pause(id, at),
            None => self.wake(id),
        }
    }

    /// Splits a refused batch into halves. Returns a refused single message; its slot stays reserved for
    /// [`set_message`](Self::set_message) or [`abandon`](Self::abandon).
    pub fn refuse(&mut self, token: u64) -> Option<RefusedSend> {
        let mut batch = self.remove_in_flight(token)?;
        let id = lane_of(token);
        let queue = &mut self.lanes[id as usize].queue;
        if batch.len() == 1 {
            let refused =
                batch.take_message().map(|(ordinal, message)| RefusedSend { lane: LaneId(id), ordinal, message });
            queue.push_front(batch);
            refused.iter().for_each(|refused| self.isolation.await_marker(refused.ordinal));
            return refused;
        }
        for half in batch.split().into_iter().rev() {
            queue.push_front(half);
        }
        self.wake(id);
        None
    }

    /// Frees a reserved slot: no message is sent for this event.
    pub fn abandon(&mut self, LaneId(id): LaneId, ordinal: CaptureOrdinal) {
        let lane = &mut self.lanes[id as usize];
        let is_reserved =
            |batch: &OutboundBatch| !batch.is_ready() && batch.entries().any(|entry| entry.ordinal == ordinal);
        let Some(batch) = lane.queue.iter().position(is_reserved).and_then(|at| lane.queue.remove(at)) else { return };
        self.release(id, &batch, |_| {});
    }

    /// When the next pause ends.
    pub fn next_wake(&self) -> Option<Instant> {
        self.paused.peek().map(|Reverse((at, _, _))| *at)
    }

    /// Whether a transfer is ready; paused lanes do not count.
    pub fn is_ready(&self) -> bool {
        !self.ready.is_empty() || !self.ready_suspects.is_empty()
    }

    pub fn is_empty(&self) -> bool {
        self.events == 0
    }

    pub fn events(&self) -> usize {
        self.events
    }

    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Transfers in flight.
    pub fn transfers(&self) -> usize {
        self.transfers
    }

    fn remove_in_flight(&mut self, token: u64) -> Option<OutboundBatch> {
        let lane = self.lanes.get_mut(lane_of(token) as usize)?;
        let at = lane.in_flight.iter().position(|(in_flight, _)| *in_flight == token)?;
        self.transfers -= 1;
        Some(lane.in_flight.swap_remove(at).1)
    }

    fn lane_for(&mut self, session: &str) -> u32 {
        if let Some(id) = self.by_session.get(session) {
            return *id;
        }
        let id = self.free.pop().unwrap_or_else(|| {
            self.lanes.push(Lane::default());
            u32::try_from(self.lanes.len() - 1).expect("the window limits the number of lanes")
        });
        debug_assert!(id < 1 << LANE_BITS, "a token has enough bits for every lane");
        self.lanes[id as usize].session = session.into();
        self.by_session.insert(session.into(), id);
        id
    }

    fn remove(&mut self, id: u32) {
        let lane = &mut self.lanes[id as usize];
        self.by_session.remove(&lane.session);
        let queue = std::mem::take(&mut lane.queue);
        let in_flight = std::mem::take(&mut lane.in_flight);
        *lane = Lane { is_ready: lane.is_ready, in_flight, ..Lane::default() };
        if queue.capacity() <= RETAINED_CAPACITY {
            lane.queue = queue;
        }
        self.free.push(id);
    }

    /// Queues the lane for its turn, if it can send.
    fn wake(&mut self, id: u32) {
        let lane = &mut self.lanes[id as usize];
        let may_go = lane.in_flight.len() < self.transfers_per_lane && lane.paused == 0;
        let Some(front) = lane.queue.front().filter(|front| front.is_ready()) else { return };
        let is_suspect = front.entries().next().is_some_and(|entry| self.isolation.is_suspect(entry.ordinal));
        if may_go && !lane.is_ready {
            lane.is_ready = true;
            // A marker is sent before other suspects.
            if is_suspect { self.ready_suspects.push_front(id) } else { self.ready.push_back(id) }
        }
    }

    fn pause(&mut self, id: u32, until: Instant) {
        self.serial += 1;
        self.lanes[id as usize].paused = self.serial;
        self.paused.push(Reverse((until, id, self.serial)));
    }

    /// Ends the pauses that are due.
    pub fn wake_due_lanes(&mut self, now: Instant) {
        while let Some(Reverse((at, id, serial))) = self.paused.peek().copied() {
            if at > now {
                return;
            }
            self.paused.pop();
            let lane = &mut self.lanes[id as usize];
            if lane.paused == serial {
                lane.paused = 0;
                self.wake(id);
            }
        }
    }
}

fn lane_of(token: u64) -> u32 {
    (token & ((1 << LANE_BITS) - 1)) as u32
}

#[cfg(test)]
mod tests;
