//! Deliveries that wait for the peer's answer to a settlement. Pure.

use std::collections::VecDeque;

use amqp::{DeliveryState, Symbol, condition};

use super::command::Reply;
use crate::error::Refusal;

/// The receiving half of one link's books.
#[derive(Default)]
pub(super) struct Settling {
    /// By delivery-id, in the order they came: ids only grow, around the end of 32 bits too. The first of them is never over.
    window: VecDeque<(u32, State)>,
    /// Seldom more than one.
    calls: Vec<Call>,
    next_call: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    /// Nothing was said about it yet.
    Unsettled,
    /// Said, and not yet answered: by which call.
    Asked(u64),
    Over,
}

struct Call {
    number: u64,
    state: DeliveryState,
    left: usize,
    failed: Vec<(u32, Refusal)>,
    reply: Reply<Vec<(u32, Refusal)>>,
}

impl Settling {
    pub(super) fn received(&mut self, delivery: u32) {
        self.window.push_back((delivery, State::Unsettled));
    }

    /// Notes a call; returns the ranges to be told to the peer. What was settled before fails at once: the peer would not answer.
    pub(super) fn ask(
        &mut self,
        mut deliveries: Vec<u32>,
        state: DeliveryState,
        reply: Reply<Vec<(u32, Refusal)>>,
    ) -> Vec<(u32, u32)> {
        let number = self.next_call;
        self.next_call += 1;
        let mut failed = Vec::new();
        deliveries.retain(|delivery| {
            let unsettled = self.state(*delivery).filter(|state| **state == State::Unsettled);
            let known = unsettled.map(|state| *state = State::Asked(number)).is_some();
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
        self.calls.push(Call { number, state, left, failed, reply });
        ranges(deliveries)
    }

    /// The peer spoke of a delivery.
    pub(super) fn answered(&mut self, delivery: u32, answer: Option<&DeliveryState>) {
        let Some(state) = self.state(delivery) else { return };
        let before = std::mem::replace(state, State::Over);
        while self.window.front().is_some_and(|(_, state)| *state == State::Over) {
            self.window.pop_front();
        }
        let State::Asked(number) = before else { return };
        let Some(at) = self.calls.iter().position(|call| call.number == number) else { return };
        let call = &mut self.calls[at];
        if let Some(refusal) = refusal(&call.state, answer) {
            call.failed.push((delivery, refusal));
        }
        call.left -= 1;
        if call.left == 0 {
            let call = self.calls.swap_remove(at);
            let _ = call.reply.send(Ok(call.failed));
        }
    }

    fn state(&mut self, delivery: u32) -> Option<&mut State> {
        let first = self.window.front()?.0;
        let at = self.window.partition_point(|(id, _)| id.wrapping_sub(first) < delivery.wrapping_sub(first));
        self.window.get_mut(at).filter(|(id, _)| *id == delivery).map(|(_, state)| state)
    }

    /// The link is over: who waits is told.
    pub(super) fn fail(&mut self, error: &crate::Error) {
        for call in self.calls.drain(..) {
            let _ = call.reply.send(Err(error.clone()));
        }
    }
}

fn settled_before() -> Refusal {
    let description = "the message was settled before, or its link is another one".into();
    Refusal { condition: condition::MESSAGE_LOCK_LOST, description }
}

/// Ids that follow each other, as ranges. They wrap at 32 bits; a range cut there is only two ranges.
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

/// What is wrong with the answer: it must be the same kind of outcome, without an error.
fn refusal(asked: &DeliveryState, answer: Option<&DeliveryState>) -> Option<Refusal> {
    match answer {
        Some(DeliveryState::Rejected(Some(error))) => Some(Refusal::new((**error).clone())),
        Some(answer) if std::mem::discriminant(answer) == std::mem::discriminant(asked) => None,
        Some(answer) => Some(another(answer)),
        // Settled without a word: the peer has forgotten the delivery, and it did so without objecting.
        None => None,
    }
}

/// An outcome that was not expected, as a reason.
pub(super) fn another(state: &DeliveryState) -> Refusal {
    let name = match state {
        DeliveryState::Accepted => "amqp:accepted:list",
        DeliveryState::Rejected(Some(error)) => return Refusal::new((**error).clone()),
        DeliveryState::Rejected(None) => "amqp:rejected:list",
        DeliveryState::Released => "amqp:released:list",
        DeliveryState::Modified(_) => "amqp:modified:list",
        DeliveryState::Received { .. } => "amqp:received:list",
        DeliveryState::Declared { .. } => "amqp:declared:list",
        DeliveryState::Transactional(_) => "amqp:transactional-state:list",
        DeliveryState::Other(_) => "an outcome of an extension",
    };
    Refusal { condition: Symbol::from_static(name), description: "not the outcome asked for".into() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::sync::oneshot;

    #[test]
    fn neighbours_become_one_range() {
        assert_eq!(ranges(vec![7, 3, 4, 5, 9, 8]), [(3, 5), (7, 9)]);
        assert_eq!(ranges(vec![u32::MAX, 0]), [(0, 0), (u32::MAX, u32::MAX)]);
    }

    #[test]
    fn a_call_is_answered_when_each_of_its_deliveries_is() {
        let mut settling = Settling::default();
        (0..4).for_each(|delivery| settling.received(delivery));
        let (reply, mut answer) = oneshot::channel();
        assert_eq!(settling.ask(vec![0, 1, 2], DeliveryState::Accepted, reply), [(0, 2)]);
        settling.answered(0, Some(&DeliveryState::Accepted));
        let lost = amqp::Error::new(condition::MESSAGE_LOCK_LOST, "gone");
        settling.answered(1, Some(&DeliveryState::rejected(lost)));
        assert!(answer.try_recv().is_err(), "one is still to come");
        settling.answered(2, Some(&DeliveryState::Released));
        let failed = answer.try_recv().unwrap().unwrap();
        assert_eq!(failed.iter().map(|(delivery, _)| *delivery).collect::<Vec<_>>(), [1, 2]);
    }

    #[test]
    fn what_was_settled_before_is_not_asked_again() {
        let mut settling = Settling::default();
        settling.received(5);
        let (reply, _kept) = oneshot::channel();
        settling.ask(vec![5], DeliveryState::Accepted, reply);
        let (reply, mut answer) = oneshot::channel();
        assert!(settling.ask(vec![5], DeliveryState::Accepted, reply).is_empty());
        assert_eq!(answer.try_recv().unwrap().unwrap().len(), 1);
    }

    #[test]
    fn ids_are_found_around_the_end_of_their_range_and_out_of_order() {
        let mut settling = Settling::default();
        let ids = [u32::MAX - 1, u32::MAX, 0, 1];
        ids.iter().for_each(|delivery| settling.received(*delivery));
        let (reply, mut answer) = oneshot::channel();
        settling.ask(vec![0, u32::MAX], DeliveryState::Accepted, reply);
        settling.answered(0, Some(&DeliveryState::Accepted));
        settling.answered(u32::MAX, Some(&DeliveryState::Accepted));
        assert_eq!(answer.try_recv().unwrap().unwrap().len(), 0);
        let (reply, mut answer) = oneshot::channel();
        settling.ask(vec![1, u32::MAX - 1, 0], DeliveryState::Accepted, reply);
        settling.answered(u32::MAX - 1, Some(&DeliveryState::Accepted));
        settling.answered(1, Some(&DeliveryState::Accepted));
        let failed = answer.try_recv().unwrap().unwrap();
        assert_eq!(failed.iter().map(|(delivery, _)| *delivery).collect::<Vec<_>>(), [0], "settled before");
        assert!(settling.window.is_empty());
    }

    #[test]
    fn a_dead_letter_is_confirmed_by_rejected_without_an_error() {
        let asked = DeliveryState::rejected(amqp::Error::new(condition::DEAD_LETTER, "bad"));
        assert_eq!(refusal(&asked, Some(&DeliveryState::Rejected(None))), None);
        assert!(refusal(&asked, Some(&asked)).is_some());
    }
}
