//! Deliveries whose settlement the peer has not confirmed yet. No I/O.

use std::collections::VecDeque;

use amqp::{DeliveryState, Symbol, condition};

use super::command::Reply;
use crate::error::ServiceError;

/// Tracks the unsettled deliveries of one receiving link.
#[derive(Default)]
pub(super) struct PendingSettlements {
    /// In order of delivery-id. Ids only grow, and may wrap at 32 bits. The first entry is never `Settled`.
    window: VecDeque<(u32, DeliveryStatus)>,
    /// Seldom more than one.
    calls: Vec<SettlementCall>,
    next_call: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum DeliveryStatus {
    /// Not settled by the caller yet.
    Unsettled,
    /// Settled by the call with this number; the peer has not replied yet.
    Pending(u64),
    Settled,
}

struct SettlementCall {
    number: u64,
    state: DeliveryState,
    left: usize,
    failed: Vec<(u32, ServiceError)>,
    reply: Reply<Vec<(u32, ServiceError)>>,
}

impl PendingSettlements {
    pub(super) fn add(&mut self, delivery: u32) {
        self.window.push_back((delivery, DeliveryStatus::Unsettled));
    }

    /// Registers a call and returns the id ranges to send. A delivery that was settled before fails at once, because the peer would not reply.
    pub(super) fn register(
        &mut self,
        mut deliveries: Vec<u32>,
        state: DeliveryState,
        reply: Reply<Vec<(u32, ServiceError)>>,
    ) -> Vec<(u32, u32)> {
        let number = self.next_call;
        self.next_call += 1;
        let mut failed = Vec::new();
        deliveries.retain(|delivery| {
            let unsettled = self.status_mut(*delivery).filter(|state| **state == DeliveryStatus::Unsettled);
            let known = unsettled.map(|state| *state = DeliveryStatus::Pending(number)).is_some();
            if !known {
                failed.push((*delivery, settled_before()));
            }
            known
        });
        let left = deliveries.len();
        if left == 0 {
            let _ = reply.send(Ok(failed));
            return Vec::new();
        }
        self.calls.push(SettlementCall { number, state, left, failed, reply });
        ranges(deliveries)
    }

    /// Records the peer's reply for one delivery.
    pub(super) fn record_reply(&mut self, delivery: u32, answer: Option<&DeliveryState>) {
        let Some(state) = self.status_mut(delivery) else { return };
        let before = std::mem::replace(state, DeliveryStatus::Settled);
        while self.window.front().is_some_and(|(_, state)| *state == DeliveryStatus::Settled) {
            self.window.pop_front();
        }
        let DeliveryStatus::Pending(number) = before else { return };
        let Some(at) = self.calls.iter().position(|call| call.number == number) else { return };
        let call = &mut self.calls[at];
        if let Some(refusal) = settlement_error(&call.state, answer) {
            call.failed.push((delivery, refusal));
        }
        call.left -= 1;
        if call.left == 0 {
            let call = self.calls.swap_remove(at);
            let _ = call.reply.send(Ok(call.failed));
        }
    }

    fn status_mut(&mut self, delivery: u32) -> Option<&mut DeliveryStatus> {
        let first = self.window.front()?.0;
        let at = self.window.partition_point(|(id, _)| id.wrapping_sub(first) < delivery.wrapping_sub(first));
        self.window.get_mut(at).filter(|(id, _)| *id == delivery).map(|(_, state)| state)
    }

    /// The link is closed: all calls fail.
    pub(super) fn fail(&mut self, error: &crate::Error) {
        for call in self.calls.drain(..) {
            let _ = call.reply.send(Err(error.clone()));
        }
    }
}

fn settled_before() -> ServiceError {
    let description = "the message was settled before, or its link is another one".into();
    ServiceError { condition: condition::MESSAGE_LOCK_LOST, description }
}

/// Joins consecutive ids into ranges. A range across the 32-bit wrap becomes two ranges.
fn ranges(mut deliveries: Vec<u32>) -> Vec<(u32, u32)> {
    deliveries.sort_unstable();
    let mut ranges: Vec<(u32, u32)> = Vec::new();
    for delivery in deliveries {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == delivery => *last = delivery,
            _ => ranges.push((delivery, delivery)),
        }
    }
    ranges
}

/// The peer must reply with the same outcome and without an error; anything else is an error.
fn settlement_error(asked: &DeliveryState, answer: Option<&DeliveryState>) -> Option<ServiceError> {
    match answer {
        Some(DeliveryState::Rejected(Some(error))) => Some(ServiceError::new((**error).clone())),
        Some(answer) if std::mem::discriminant(answer) == std::mem::discriminant(asked) => None,
        Some(answer) => Some(unexpected_outcome(answer)),
        // Settled without an outcome: the peer dropped the delivery and raised no error.
        None => None,
    }
}

/// Turns an unexpected outcome into an error.
pub(super) fn unexpected_outcome(state: &DeliveryState) -> ServiceError {
    let name = match state {
        DeliveryState::Accepted => "amqp:accepted:list",
        DeliveryState::Rejected(Some(error)) => return ServiceError::new((**error).clone()),
        DeliveryState::Rejected(None) => "amqp:rejected:list",
        DeliveryState::Released => "amqp:released:list",
        DeliveryState::Modified(_) => "amqp:modified:list",
        DeliveryState::Received { .. } => "amqp:received:list",
        DeliveryState::Declared { .. } => "amqp:declared:list",
        DeliveryState::Transactional(_) => "amqp:transactional-state:list",
        DeliveryState::Other(_) => "an outcome of an extension",
    };
    ServiceError { condition: Symbol::from_static(name), description: "not the outcome asked for".into() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::sync::oneshot;

    #[test]
    fn consecutive_ids_become_one_range() {
        assert_eq!(ranges(vec![7, 3, 4, 5, 9, 8]), [(3, 5), (7, 9)]);
        assert_eq!(ranges(vec![u32::MAX, 0]), [(0, 0), (u32::MAX, u32::MAX)]);
    }

    #[test]
    fn a_call_completes_with_its_last_delivery() {
        let mut settling = PendingSettlements::default();
        (0..4).for_each(|delivery| settling.add(delivery));
        let (reply, mut answer) = oneshot::channel();
        assert_eq!(settling.register(vec![0, 1, 2], DeliveryState::Accepted, reply), [(0, 2)]);
        settling.record_reply(0, Some(&DeliveryState::Accepted));
        let lost = amqp::Error::new(condition::MESSAGE_LOCK_LOST, "gone");
        settling.record_reply(1, Some(&DeliveryState::rejected(lost)));
        assert!(answer.try_recv().is_err(), "one is still to come");
        settling.record_reply(2, Some(&DeliveryState::Released));
        let failed = answer.try_recv().unwrap().unwrap();
        assert_eq!(failed.iter().map(|(delivery, _)| *delivery).collect::<Vec<_>>(), [1, 2]);
    }

    #[test]
    fn a_delivery_is_settled_only_once() {
        let mut settling = PendingSettlements::default();
        settling.add(5);
        let (reply, _kept) = oneshot::channel();
        settling.register(vec![5], DeliveryState::Accepted, reply);
        let (reply, mut answer) = oneshot::channel();
        assert!(settling.register(vec![5], DeliveryState::Accepted, reply).is_empty());
        assert_eq!(answer.try_recv().unwrap().unwrap().len(), 1);
    }

    #[test]
    fn ids_are_found_across_the_wrap_and_out_of_order() {
        let mut settling = PendingSettlements::default();
        let ids = [u32::MAX - 1, u32::MAX, 0, 1];
        ids.iter().for_each(|delivery| settling.add(*delivery));
        let (reply, mut answer) = oneshot::channel();
        settling.register(vec![0, u32::MAX], DeliveryState::Accepted, reply);
        settling.record_reply(0, Some(&DeliveryState::Accepted));
        settling.record_reply(u32::MAX, Some(&DeliveryState::Accepted));
        assert_eq!(answer.try_recv().unwrap().unwrap().len(), 0);
        let (reply, mut answer) = oneshot::channel();
        settling.register(vec![1, u32::MAX - 1, 0], DeliveryState::Accepted, reply);
        settling.record_reply(u32::MAX - 1, Some(&DeliveryState::Accepted));
        settling.record_reply(1, Some(&DeliveryState::Accepted));
        let failed = answer.try_recv().unwrap().unwrap();
        assert_eq!(failed.iter().map(|(delivery, _)| *delivery).collect::<Vec<_>>(), [0], "settled before");
        assert!(settling.window.is_empty());
    }

    #[test]
    fn a_dead_letter_is_confirmed_by_rejected_without_an_error() {
        let asked = DeliveryState::rejected(amqp::Error::new(condition::DEAD_LETTER, "bad"));
        assert_eq!(settlement_error(&asked, Some(&DeliveryState::Rejected(None))), None);
        assert!(settlement_error(&asked, Some(&asked)).is_some());
    }
}
