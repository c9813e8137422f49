//! Messages to clients, and their settlement.

use amqp::performative::Modified;
use amqp::{CommandError, DeliveryState, DispositionEvent, Map, OutgoingDelivery, Value, condition};
use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncWrite};

use super::encode::{self, DeliveryForm};
use super::links::BrokerLink;
use super::transactions::TransactionalSettlement;
use super::{BrokerConnection, to_amqp};
use crate::core::{CoreLinkId, Error, MessageDelivery, PropertyUpdates, SettlementOutcome};
use crate::engine::EngineRequest;
use crate::journal::ReadJournalEntry;

impl<S: AsyncRead + AsyncWrite + Unpin> BrokerConnection<S> {
    pub(super) fn on_credit(&mut self, link: amqp::LinkId, peer_credit: u32, drain: bool) {
        let backlogged = self.is_backlogged();
        match self.links.get_mut(link) {
            Some(BrokerLink::Receiver(receiver)) => {
                let core_id = receiver.core_id;
                receiver.credit.draining = drain;
                let (delivery_count, credit) = receiver.credit.grant(if backlogged { 0 } else { peer_credit });
                // A peer with closed session windows is drained when they open, unless there is nothing to send.
                let drain = drain && (!backlogged || peer_credit == 0);
                self.pending.push(EngineRequest::Flow { link: core_id, delivery_count, credit, drain });
                self.mark_if_credit_needed(link);
            }
            Some(BrokerLink::Responses(_)) => {
                self.send_responses(link);
                if drain {
                    let _ = self.amqp.drained(link);
                }
            }
            _ => {}
        }
    }

    /// The core has used as much of its granted credit as it could. If it used all, there may be more messages and the peer may have granted more
    /// credit: then this reports the credit to the core. The drain ends when the core has no more messages or the peer's credit is used.
    pub(super) fn drained(&mut self, core_id: CoreLinkId, delivery_count: u32, unused: u32) {
        let Some(link) = self.links.by_core_id(core_id) else { return };
        let credit = self.amqp.credit(link);
        let Some(receiver) = self.links.receiver(link) else { return };
        receiver.credit.record_drain(delivery_count, unused);
        if receiver.credit.draining && (unused > 0 || credit == 0) {
            receiver.credit.draining = false;
            let _ = self.amqp.drained(link);
        }
        self.mark_if_credit_needed(link);
    }

    pub(super) fn deliver(
        &mut self,
        core_id: CoreLinkId,
        delivery: &MessageDelivery,
        stored: Result<ReadJournalEntry, Error>,
    ) {
        self.unwritten_bytes += delivery.outgoing_size();
        let Some(link) = self.links.by_core_id(core_id) else { return };
        let Some(receiver) = self.links.receiver(link) else { return };
        let stored = match stored {
            Ok(stored) => stored,
            Err(error) => {
                self.pending.push(EngineRequest::Detach { link: core_id });
                return self.end_link(core_id, &error);
            }
        };
        self.encode_buffer.clear();
        let source = receiver.source.dead_letters_of.as_deref();
        let Ok(tail) =
            encode::encode_message(delivery, &stored, source, DeliveryForm::Delivered, &mut self.encode_buffer)
        else {
            // The message was decoded when it was received, and the store verifies checksums, so this does not happen.
            self.pending.push(EngineRequest::Detach { link: core_id });
            return self.end_link(core_id, &Error::NotAllowed("stored message cannot be decoded"));
        };
        let token = if delivery.settled { 0 } else { receiver.lock_tokens.add(delivery.token) };
        let tag = encode::delivery_tag(delivery.token);
        // A message that is already deleted has no lock token.
        let tag = if delivery.settled { &[][..] } else { &tag };
        let outgoing = OutgoingDelivery { tag, settled: delivery.settled, token, ..OutgoingDelivery::default() };
        receiver.credit.record_delivery(self.encode_buffer.len() + tail.len());
        match self.amqp.transfer(link, outgoing, &[&self.encode_buffer, &tail]) {
            Ok(_) => self.mark_if_credit_needed(link),
            Err(CommandError::NoCredit) => self.release_delivery(link, token),
            Err(error) => {
                let error = amqp::Error::new(condition::MESSAGE_SIZE_EXCEEDED, error.to_string());
                let _ = self.amqp.detach(link, Some(error));
                self.on_detached(link);
            }
        }
    }

    /// The client withdrew its credit while the message was in flight to it.
    fn release_delivery(&mut self, link: amqp::LinkId, number: u64) {
        let Some(receiver) = self.links.receiver(link) else { return };
        let Some(token) = receiver.lock_tokens.take(number) else { return };
        let queue = receiver.source.queue;
        let deliveries = vec![(0, token)];
        self.pending.push(EngineRequest::Settle {
            link,
            queue,
            deliveries,
            outcome: SettlementOutcome::Release,
            settled: true,
        });
    }

    pub(super) fn on_disposition(&mut self, disposition: DispositionEvent) {
        let DispositionEvent { link, deliveries, settled, state } = disposition;
        let Some(receiver) = self.links.receiver(link) else { return };
        let (state, transaction) = match state {
            Some(DeliveryState::Transactional(state)) => (state.outcome, Some(state.transaction)),
            state => (state, None),
        };
        let outcome = match state {
            Some(state) => settlement_outcome(state),
            None if settled => Ok(SettlementOutcome::Release),
            // Neither an outcome nor settled: nothing to do.
            None => return,
        };
        let (queue, session) = (receiver.source.queue, receiver.session);
        if let (Some(transaction), Ok(outcome)) = (&transaction, &outcome) {
            let settlement = TransactionalSettlement::new(receiver, &deliveries, outcome.clone(), settled);
            return self.settle_in_transaction(link, transaction.clone(), session, settlement);
        }
        let mut known = Vec::with_capacity(deliveries.len());
        let mut unknown = Vec::new();
        for delivery in deliveries {
            match receiver.lock_tokens.take(delivery.token) {
                Some(token) => known.push((delivery.id, token)),
                None => unknown.push(delivery.id),
            }
        }
        if !settled {
            let lost = to_amqp(&Error::MessageLockLost);
            self.reject(link, &unknown, &lost);
        }
        match outcome {
            Ok(outcome) => {
                self.pending.push(EngineRequest::Settle { link, queue, deliveries: known, outcome, settled })
            }
            Err(error) => {
                let ids: Vec<_> = known.iter().map(|(id, _)| *id).collect();
                self.reject(link, &ids, &error);
            }
        }
    }

    /// The settlement is on disk, or failed for some deliveries.
    pub(super) fn on_settled(
        &mut self,
        link: amqp::LinkId,
        deliveries: &[(u32, bool)],
        outcome: &SettlementOutcome,
        error: Option<Error>,
    ) {
        let refusal = error.map(|error| DeliveryState::rejected(to_amqp(&error)));
        for (id, failed) in deliveries {
            let state = match (&refusal, failed) {
                (Some(refusal), true) => refusal.clone(),
                _ => echo_state(outcome),
            };
            let _ = self.amqp.dispose(link, *id, *id, true, Some(state));
        }
    }

    pub(super) fn reject(&mut self, link: amqp::LinkId, ids: &[u32], error: &amqp::Error) {
        for id in ids {
            let _ = self.amqp.dispose(link, *id, *id, true, Some(DeliveryState::rejected(error.clone())));
        }
    }
}

/// Converts a client's delivery state to an outcome.
fn settlement_outcome(state: DeliveryState) -> Result<SettlementOutcome, amqp::Error> {
    match state {
        DeliveryState::Accepted => Ok(SettlementOutcome::Complete),
        DeliveryState::Released => Ok(SettlementOutcome::Release),
        DeliveryState::Modified(modified) => {
            let properties = changed_properties(modified.message_annotations.as_ref());
            Ok(if modified.undeliverable_here {
                SettlementOutcome::Defer { properties }
            } else {
                SettlementOutcome::Abandon { properties }
            })
        }
        DeliveryState::Rejected(error) => Ok(dead_letter(error.as_deref())),
        DeliveryState::Transactional(_)
        | DeliveryState::Received { .. }
        | DeliveryState::Declared { .. }
        | DeliveryState::Other(_) => Err(amqp::Error::new(condition::NOT_ALLOWED, "delivery state is not an outcome")),
    }
}

const REASON: &str = "DeadLetterReason";
const DESCRIPTION: &str = "DeadLetterErrorDescription";

fn dead_letter(error: Option<&amqp::Error>) -> SettlementOutcome {
    let text = |name: &str| error.and_then(|error| error.info.get(name)).and_then(Value::as_str).map(Into::into);
    let other = error.filter(|error| error.condition != condition::DEAD_LETTER);
    let reason = text(REASON).or_else(|| other.map(|error| error.condition.as_str().into()));
    let description =
        text(DESCRIPTION).or_else(|| error.and_then(|error| error.description.as_deref()).map(Into::into));
    let mut properties = changed_properties(error.map(|error| &error.info));
    properties.retain(|(name, _)| **name != *REASON && **name != *DESCRIPTION);
    SettlementOutcome::DeadLetter { reason, description, properties }
}

/// Encodes the values of a property map.
pub(super) fn changed_properties(map: Option<&Map>) -> PropertyUpdates {
    let entries = map.into_iter().flat_map(Map::iter);
    entries.filter_map(|(name, value)| Some((name.as_text()?.into(), encode_value(value)))).collect()
}

fn encode_value(value: &Value) -> Bytes {
    let mut buffer = BytesMut::new();
    value.encode(&mut buffer);
    buffer.freeze()
}

/// The client expects the same kind of outcome that it sent.
pub(super) fn echo_state(outcome: &SettlementOutcome) -> DeliveryState {
    match outcome {
        SettlementOutcome::Complete => DeliveryState::Accepted,
        SettlementOutcome::Release => DeliveryState::Released,
        SettlementOutcome::Abandon { .. } => DeliveryState::Modified(Box::default()),
        SettlementOutcome::Defer { .. } => {
            DeliveryState::Modified(Box::new(Modified { undeliverable_here: true, ..Modified::default() }))
        }
        SettlementOutcome::DeadLetter { .. } => DeliveryState::Rejected(None),
    }
}
