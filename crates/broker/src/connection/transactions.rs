//! Transactions: the coordinator link, and sends and settlements inside a transaction.

use std::collections::HashMap;
use std::time::Duration;

use amqp::performative::TransactionalState;
use amqp::{Attach, Delivery, DeliveryRef, DeliveryState, Message, SessionId, Symbol, Value, condition};
use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncWrite};

use super::links::{BrokerLink, ReceiverLink};
use super::node_requests::CallReply;
use super::{BrokerConnection, to_amqp};
use crate::core::{
    EntityId, Error, IncomingMessage, LockToken, QueueId, SettlementOutcome, Timestamp, TransactionId, TransactionScope,
};

const DECLARE: (u64, &str) = (0x31, "amqp:declare:list");
const DISCHARGE: (u64, &str) = (0x32, "amqp:discharge:list");
/// Requests that a client may have in flight on a coordinator link.
const COORDINATOR_CREDIT: u32 = 100;

/// A request on a coordinator link.
#[derive(Debug, PartialEq, Eq)]
enum CoordinatorRequest {
    Declare,
    Discharge { transaction: Bytes, fail: bool },
}

/// The outcome of a request on a coordinator link.
pub(crate) enum CoordinatorReply {
    Declared(Result<TransactionId, Error>),
    Discharged { transaction: Bytes, fail: bool, result: Result<(), Error> },
}

/// Deliveries that a receiver settles with one disposition.
pub(super) struct TransactionalSettlement {
    queue: QueueId,
    deliveries: Vec<(DeliveryRef, LockToken)>,
    outcome: SettlementOutcome,
    settled: bool,
}

impl TransactionalSettlement {
    /// A delivery that the client does not settle keeps its lock token: after a rollback it can be settled again.
    pub(super) fn new(
        receiver: &mut ReceiverLink,
        deliveries: &[DeliveryRef],
        outcome: SettlementOutcome,
        settled: bool,
    ) -> Self {
        let tokens = &mut receiver.lock_tokens;
        let with_token = |delivery: &DeliveryRef| {
            let token = if settled { tokens.take(delivery.token) } else { tokens.get(delivery.token) };
            (*delivery, token.unwrap_or(NO_LOCK))
        };
        let deliveries = deliveries.iter().map(with_token).collect();
        Self { queue: receiver.source.queue, deliveries, outcome, settled }
    }
}

/// No message has it: to settle with it fails as with a lost lock.
const NO_LOCK: LockToken = LockToken(0);

/// Deliveries that were settled inside transactions that are still open, by transaction. A commit settles them on their
/// links. After a rollback they are as before.
#[derive(Debug, Default)]
pub(super) struct ProvisionalSettlements {
    by_transaction: HashMap<Bytes, (Timestamp, Vec<ProvisionalSettlement>)>,
}

#[derive(Debug)]
struct ProvisionalSettlement {
    link: amqp::LinkId,
    delivery: DeliveryRef,
    state: DeliveryState,
}

/// Then those that a client never ended are forgotten: they have expired in the core.
const MAX_PROVISIONAL: usize = 1_000;
const PROVISIONAL_LIFETIME: Duration = Duration::from_secs(150);

impl ProvisionalSettlements {
    fn add(&mut self, transaction: &Bytes, now: Timestamp, settlement: ProvisionalSettlement) {
        if self.by_transaction.len() >= MAX_PROVISIONAL && !self.by_transaction.contains_key(transaction) {
            self.by_transaction.retain(|_, (until, _)| *until > now);
        }
        let until = now.after(PROVISIONAL_LIFETIME);
        let (_, settlements) = self.by_transaction.entry(transaction.clone()).or_insert((until, Vec::new()));
        settlements.push(settlement);
    }

    fn remove(&mut self, transaction: &Bytes) -> Vec<ProvisionalSettlement> {
        self.by_transaction.remove(transaction).map(|(_, settlements)| settlements).unwrap_or_default()
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> BrokerConnection<S> {
    pub(super) fn attach_coordinator(&mut self, link: amqp::LinkId, attach: &Attach) {
        let core_id = self.links.allocate_core_id(link);
        self.links.insert(link, BrokerLink::Coordinator { core_id });
        self.expect_token(link);
        if self.amqp.accept_attach(link, attach.reply()).is_ok() {
            let _ = self.amqp.keep_credit(link, COORDINATOR_CREDIT);
        }
    }

    pub(super) fn on_coordinator_delivery(&mut self, delivery: Delivery) {
        let Some(BrokerLink::Coordinator { core_id }) = self.links.get(delivery.link) else { return };
        let (core_id, connection) = (*core_id, self.line.id());
        let (link, id, is_authorized) = (delivery.link, delivery.id, self.has_any_right());
        let Some(request) = CoordinatorRequest::decode(delivery.payload) else {
            let error = amqp::Error::new(condition::NOT_ALLOWED, "neither a declare nor a discharge");
            let _ = self.amqp.dispose(link, id, id, true, Some(DeliveryState::rejected(error)));
            return;
        };
        self.call_core(move |core, call| {
            let reply = match request {
                CoordinatorRequest::Declare => {
                    CoordinatorReply::Declared(core.declare_transaction(call, core_id, is_authorized))
                }
                CoordinatorRequest::Discharge { transaction, fail } => {
                    let result = transaction_id(&transaction)
                        .and_then(|id| core.discharge_transaction(call, id, connection, fail));
                    CoordinatorReply::Discharged { transaction, fail, result }
                }
            };
            CallReply::Coordinator { link, delivery: id, reply }
        });
    }

    pub(super) fn on_coordinator_reply(&mut self, link: amqp::LinkId, delivery: u32, reply: CoordinatorReply) {
        let result = match reply {
            CoordinatorReply::Declared(result) => {
                result.map(|id| DeliveryState::Declared { transaction: to_bytes(id) })
            }
            CoordinatorReply::Discharged { transaction, fail, result } => {
                let settlements = self.provisional.remove(&transaction);
                if result.is_ok() && !fail {
                    self.settle_committed(settlements);
                }
                result.map(|()| DeliveryState::Accepted)
            }
        };
        let state = result.unwrap_or_else(|error| DeliveryState::rejected(to_amqp(&error)));
        let _ = self.amqp.dispose(link, delivery, delivery, true, Some(state));
    }

    fn settle_committed(&mut self, settlements: Vec<ProvisionalSettlement>) {
        for ProvisionalSettlement { link, delivery, state } in settlements {
            let Some(receiver) = self.links.receiver(link) else { continue };
            if receiver.lock_tokens.take(delivery.token).is_some() {
                let _ = self.amqp.dispose(link, delivery.id, delivery.id, true, Some(state));
            }
        }
    }

    /// A message for an entity, inside a transaction.
    pub(super) fn send_in_transaction(
        &mut self,
        (link, delivery, settled): (amqp::LinkId, u32, bool),
        transaction: Bytes,
        scope: TransactionScope,
        to: EntityId,
        messages: Vec<IncomingMessage>,
    ) {
        self.call_core(move |core, call| {
            let result =
                transaction_id(&transaction).and_then(|id| core.send_in_transaction(call, id, scope, to, messages));
            let failed = result.as_ref().is_err().then_some(delivery);
            let deliveries = if settled { Vec::new() } else { vec![DeliveryRef { id: delivery, token: 0 }] };
            let reply = TransactionalReply { link, transaction, deliveries, state: DeliveryState::Accepted };
            CallReply::Transactional { reply, failed: failed.into_iter().collect(), error: result.err() }
        });
    }

    /// A disposition of a receiver, inside a transaction.
    pub(super) fn settle_in_transaction(
        &mut self,
        link: amqp::LinkId,
        transaction: Bytes,
        session: SessionId,
        settlement: TransactionalSettlement,
    ) {
        let connection = self.line.id();
        let TransactionalSettlement { queue, deliveries, outcome, settled } = settlement;
        let state = super::deliveries::echo_state(&outcome);
        self.call_core(move |core, call| {
            let scope = TransactionScope { connection, session: session.number(), entity: queue.entity };
            let tokens: Vec<_> = deliveries.iter().map(|(_, token)| *token).collect();
            let result = transaction_id(&transaction)
                .and_then(|id| core.settle_in_transaction(call, id, scope, queue, &tokens, outcome));
            let (lost, error) = match result {
                Ok(lost) if lost.is_empty() => (lost, None),
                Ok(lost) => (lost, Some(core.lock_lost_error(queue))),
                Err(error) => (tokens, Some(error)),
            };
            let failed = deliveries.iter().filter(|(_, token)| lost.contains(token)).map(|(own, _)| own.id).collect();
            let deliveries = if settled { Vec::new() } else { deliveries.into_iter().map(|(own, _)| own).collect() };
            CallReply::Transactional {
                reply: TransactionalReply { link, transaction, deliveries, state },
                failed,
                error,
            }
        });
    }

    pub(super) fn on_transactional_reply(&mut self, reply: TransactionalReply, failed: &[u32], error: Option<&Error>) {
        let TransactionalReply { link, transaction, deliveries, state } = reply;
        let now = self.settings.clock.now();
        for delivery in deliveries {
            let id = delivery.id;
            let receiver = self.links.receiver(link);
            if let Some(error) = error.filter(|_| failed.contains(&id)) {
                receiver.and_then(|receiver| receiver.lock_tokens.take(delivery.token));
                self.reject(link, &[id], &to_amqp(error));
                continue;
            }
            // A message that is sent is done with. One that is received stays unsettled until the commit.
            let is_done = receiver.is_none();
            if !is_done {
                self.provisional.add(&transaction, now, ProvisionalSettlement { link, delivery, state: state.clone() });
            }
            let (transaction, outcome) = (transaction.clone(), Some(state.clone()));
            let state = DeliveryState::Transactional(Box::new(TransactionalState { transaction, outcome }));
            let _ = self.amqp.dispose(link, id, id, is_done, Some(state));
        }
    }
}

/// What to reply to transactional deliveries.
pub(crate) struct TransactionalReply {
    link: amqp::LinkId,
    transaction: Bytes,
    deliveries: Vec<DeliveryRef>,
    /// The outcome of those that did not fail.
    state: DeliveryState,
}

impl CoordinatorRequest {
    fn decode(payload: Bytes) -> Option<Self> {
        let message = Message::parse(payload).ok()?;
        let Value::Described(described) = message.value()?.to_value().ok()? else { return None };
        let is = |(number, name): (u64, &'static str)| match &described.descriptor {
            Value::Ulong(found) => *found == number,
            Value::Symbol(found) => *found == Symbol::from_static(name),
            _ => false,
        };
        if is(DECLARE) {
            return Some(Self::Declare);
        }
        let fields = described.value.as_items().filter(|_| is(DISCHARGE))?;
        let transaction = fields.first()?.as_binary()?.clone();
        Some(Self::Discharge { transaction, fail: fields.get(1).and_then(Value::as_bool).unwrap_or(false) })
    }
}

fn to_bytes(id: TransactionId) -> Bytes {
    Bytes::copy_from_slice(&id.0.to_be_bytes())
}

fn transaction_id(bytes: &Bytes) -> Result<TransactionId, Error> {
    let bytes: [u8; 16] = bytes[..].try_into().map_err(|_| Error::UnknownTransaction)?;
    Ok(TransactionId(u128::from_be_bytes(bytes)))
}

#[cfg(test)]
mod tests {
    use amqp::Described;
    use amqp::message::MessageWriter;
    use bytes::BytesMut;

    use super::*;

    fn request(descriptor: Value, fields: Vec<Value>) -> Option<CoordinatorRequest> {
        let mut buffer = BytesMut::new();
        let value = Value::Described(Box::new(Described { descriptor, value: Value::List(fields) }));
        MessageWriter::new(&mut buffer).value(&value);
        CoordinatorRequest::decode(buffer.freeze())
    }

    #[test]
    fn declare_and_discharge_are_read_by_number_and_by_name() {
        let id = Bytes::from_static(b"0123456789abcdef");
        let name = |name| Value::Symbol(Symbol::from_static(name));
        assert_eq!(request(Value::Ulong(0x31), vec![]), Some(CoordinatorRequest::Declare));
        assert_eq!(request(name("amqp:declare:list"), vec![Value::Null]), Some(CoordinatorRequest::Declare));
        for (descriptor, fail) in [(Value::Ulong(0x32), true), (name("amqp:discharge:list"), false)] {
            let fields = vec![Value::Binary(id.clone()), Value::Boolean(fail)];
            let expected = CoordinatorRequest::Discharge { transaction: id.clone(), fail };
            assert_eq!(request(descriptor, fields), Some(expected));
        }
        assert_eq!(request(Value::Ulong(0x32), vec![]), None);
        assert_eq!(request(Value::Ulong(0x30), vec![]), None);
        assert_eq!(CoordinatorRequest::decode(Bytes::from_static(b"\x00\x53")), None);
    }
}
