//! `$management`: what a client may ask about an entity besides sending and receiving.
//!
//! Read on the connection's task, carried out on the engine's, answered in the peer's own types: some clients check them.

use amqp::{Array, Map, Message, Value};
use bytes::{Bytes, BytesMut};

use super::attach::find_outlet;
use super::links::Place;
use super::outgoing::{self, Shown, State};
use super::receiving::properties;
use super::requests::{Dialect, Response};
use super::{incoming, outgoing::millis};
use crate::core::{
    CallContext, Core, EntityId, Error, LockToken, MessageDelivery, MessageState, ReceiveMode, SequenceNumber,
    SettlementOutcome, Timestamp,
};

const DIALECT: Dialect = Dialect { status: "statusCode", text: "statusDescription", condition: "errorCondition" };

/// Messages handed out by one peek or one list: what an answer can hold.
const MOST: i64 = 1_000;
/// An answer to a peek stays below what any client takes, and below what many of them at once may cost.
const PEEK_BYTES: usize = 256 << 10;
/// How many plain requests weigh as much as one whose answer holds messages or a session's state.
const HEAVY: u32 = 25;
/// .NET's largest moment: "list all sessions", not "those changed since".
const END_OF_TIME: i64 = 253_402_300_799_000;

/// A request as read; what is wrong with it is told in the answer.
pub(super) struct Request {
    path: String,
    operation: String,
    body: Map,
}

/// What became of a request that was carried out.
struct Done {
    status: u16,
    condition: Option<&'static str>,
    body: Map,
}

/// Why it was not.
enum Failure {
    Core(Error),
    /// A field is missing or has the wrong type.
    Field(&'static str),
    Unknown,
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Core(error)
    }
}

type Outcomes = Result<Done, Failure>;

impl Request {
    pub(super) fn read(path: &str, message: &Message) -> Self {
        let operation = message.application_property("operation").and_then(|value| value.as_str()).unwrap_or_default();
        let body = match message.value().and_then(|value| value.to_value().ok()) {
            Some(Value::Map(map)) => map,
            _ => Map::new(),
        };
        Self { path: path.to_owned(), operation: operation.to_owned(), body }
    }

    /// How much of a connection's allowance it takes until it is answered.
    pub(super) fn weight(&self) -> u32 {
        if self.is_heavy() { HEAVY } else { 1 }
    }

    /// Whether its answer holds messages or a session's state.
    pub(super) fn is_heavy(&self) -> bool {
        let operation = self.operation.strip_prefix("com.microsoft:");
        matches!(operation, Some("peek-message" | "receive-by-sequence-number" | "get-session-state"))
    }

    pub(super) fn carry_out(self, core: &mut Core, call: &mut CallContext<'_>) -> Response {
        let outcome = self.dispatch(core, call);
        let (status, text, condition, body) = match outcome {
            Ok(Done { status, condition, body }) => (status, "OK".to_owned(), condition, body),
            Err(Failure::Core(error)) => (error.status(), error.to_string(), Some(error.condition()), Map::new()),
            Err(Failure::Field(name)) => (
                400,
                format!("`{name}` is missing or of another type"),
                Some("com.microsoft:argument-error"),
                Map::new(),
            ),
            Err(Failure::Unknown) => {
                (501, format!("`{}` is not supported", self.operation), Some("amqp:not-implemented"), Map::new())
            }
        };
        Response { status, text, condition, body, dialect: &DIALECT }
    }

    fn dispatch(&self, core: &mut Core, call: &mut CallContext<'_>) -> Outcomes {
        let Some(operation) = self.operation.strip_prefix("com.microsoft:") else { return Err(Failure::Unknown) };
        match operation {
            "schedule-message" => self.schedule(core, call),
            "cancel-scheduled-message" => self.cancel(core, call),
            "renew-lock" => self.renew(core, call),
            "renew-session-lock" => self.renew_session(core, call),
            "get-session-state" => self.session_state(core, call),
            "set-session-state" => self.set_session_state(core, call),
            "get-message-sessions" => self.sessions(core, call),
            "peek-message" => self.peek(core, call),
            "receive-by-sequence-number" => self.receive(core, call),
            "update-disposition" => self.settle(core, call),
            "batch-delete-messages" => self.delete(core, call),
            "enumerate-rules" => self.rules(core),
            _ => Err(Failure::Unknown),
        }
    }

    fn schedule(&self, core: &mut Core, call: &mut CallContext<'_>) -> Outcomes {
        let entity = self.ingress(core)?;
        let listed = self.body.get("messages").and_then(Value::as_items).ok_or(Failure::Field("messages"))?;
        let mut messages = Vec::with_capacity(listed.len());
        for item in listed {
            let bytes = item.as_map().and_then(|map| map.get("message")).and_then(Value::as_binary);
            let bytes = bytes.ok_or(Failure::Field("message"))?.clone();
            let message = Message::parse(bytes).and_then(|message| incoming::incoming(&message));
            messages.push(message.map_err(|_| Failure::Field("message"))?);
        }
        let stored = core.send(call, entity, &messages)?;
        let numbers = stored.into_iter().map(|number| number.map_or(0, |number| number.0 as i64));
        Ok(done().with("sequence-numbers", Array::longs(numbers)))
    }

    fn cancel(&self, core: &mut Core, call: &mut CallContext<'_>) -> Outcomes {
        let entity = self.ingress(core)?;
        core.cancel(call, entity, &self.sequence_numbers()?)?;
        Ok(done())
    }

    fn renew(&self, core: &mut Core, call: &mut CallContext<'_>) -> Outcomes {
        let place = self.egress(core)?;
        let ends = core.renew(call, place.queue, &self.lock_tokens()?)?;
        Ok(done().with("expirations", Array::timestamps(ends.into_iter().map(millis))))
    }

    fn renew_session(&self, core: &mut Core, call: &mut CallContext<'_>) -> Outcomes {
        let place = self.egress(core)?;
        let end = core.renew_session(call, place.queue, self.session_id()?)?;
        Ok(done().with("expiration", Value::Timestamp(millis(end))))
    }

    fn session_state(&self, core: &mut Core, call: &mut CallContext<'_>) -> Outcomes {
        let place = self.egress(core)?;
        let state = core.session_state(call, place.queue, self.session_id()?)?;
        Ok(done().with("session-state", state.map_or(Value::Null, Value::Binary)))
    }

    fn set_session_state(&self, core: &mut Core, call: &mut CallContext<'_>) -> Outcomes {
        let place = self.egress(core)?;
        let state = match self.body.get("session-state") {
            None | Some(Value::Null) => None,
            Some(Value::Binary(state)) => Some(state.clone()),
            Some(_) => return Err(Failure::Field("session-state")),
        };
        core.set_session_state(call, place.queue, self.session_id()?, state)?;
        Ok(done())
    }

    fn sessions(&self, core: &mut Core, call: &mut CallContext<'_>) -> Outcomes {
        let place = self.egress(core)?;
        let since = self.body.get("last-updated-time").and_then(Value::as_timestamp);
        let since = since.filter(|since| *since < END_OF_TIME).map(|since| Timestamp(since.max(0) as u64));
        let (skip, top) = (self.number("skip")?.max(0), self.number("top")?.clamp(0, MOST));
        let ids = core.sessions(call, place.queue, since, skip as usize, top as usize)?;
        if ids.is_empty() {
            return Ok(nothing("com.microsoft:session-not-found"));
        }
        let next = i32::try_from(skip).unwrap_or(i32::MAX).saturating_add(ids.len() as i32);
        let ids = Array::strings(ids.iter().map(|id| id.to_string()));
        Ok(done().with("skip", next).with("sessions-ids", ids))
    }

    fn peek(&self, core: &mut Core, call: &mut CallContext<'_>) -> Outcomes {
        let place = self.egress(core)?;
        let from = SequenceNumber(self.number("from-sequence-number")?.max(0) as u64);
        let most = self.number("message-count")?.clamp(0, MOST) as usize;
        let found = core.peek(call, place.queue, self.optional_session_id(), from, most)?;
        let mut messages = Vec::with_capacity(found.len());
        let mut bytes = 0;
        for peeked in found {
            let state = match peeked.state {
                MessageState::Active => State::Active,
                MessageState::Deferred => State::Deferred,
                MessageState::Scheduled => State::Scheduled,
            };
            let delivery = MessageDelivery {
                token: LockToken(0),
                sequence: peeked.sequence,
                delivery_count: peeked.delivery_count,
                locked_until: Timestamp(0),
                location: peeked.location,
                overrides: peeked.overrides,
                settled: true,
            };
            let message = read(call, &place, &delivery, Shown::Peeked(state))?;
            bytes += message.len();
            if !messages.is_empty() && bytes > PEEK_BYTES {
                break;
            }
            messages.push(Value::Map(Map::new().with("message", message)));
        }
        if messages.is_empty() {
            return Ok(nothing("com.microsoft:message-not-found"));
        }
        Ok(done().with("messages", messages))
    }

    fn receive(&self, core: &mut Core, call: &mut CallContext<'_>) -> Outcomes {
        let place = self.egress(core)?;
        let mode = match self.number("receiver-settle-mode")? {
            0 => ReceiveMode::ReceiveAndDelete,
            _ => ReceiveMode::PeekLock,
        };
        let numbers = self.sequence_numbers()?;
        let received = core.receive_deferred(call, place.queue, self.optional_session_id(), &numbers, mode)?;
        let mut messages = Vec::with_capacity(received.len());
        for delivery in received {
            let message = read(call, &place, &delivery, Shown::Fetched);
            if delivery.settled {
                call.journal.release(delivery.location);
            }
            let entry = Map::new().with("message", message?).with("lock-token", outgoing::uuid(delivery.token));
            messages.push(Value::Map(entry));
        }
        Ok(done().with("messages", messages))
    }

    fn settle(&self, core: &mut Core, call: &mut CallContext<'_>) -> Outcomes {
        let place = self.egress(core)?;
        let text = |name: &str| self.body.get(name).and_then(Value::as_text).map(Into::into);
        let properties = properties(self.body.get("properties-to-modify").and_then(Value::as_map));
        let status = self.body.get("disposition-status").and_then(Value::as_text);
        let outcome = match status.ok_or(Failure::Field("disposition-status"))? {
            "completed" => SettlementOutcome::Complete,
            "abandoned" => SettlementOutcome::Abandon { properties },
            // The protocol's own spelling, and the right one.
            "defered" | "deferred" => SettlementOutcome::Defer { properties },
            "suspended" => {
                let (reason, description) = (text("deadletter-reason"), text("deadletter-description"));
                SettlementOutcome::DeadLetter { reason, description, properties }
            }
            _ => return Err(Failure::Field("disposition-status")),
        };
        let lost = core.settle(call, place.queue, &self.lock_tokens()?, &outcome)?;
        if lost.is_empty() { Ok(done()) } else { Err(core.lock_lost(place.queue).into()) }
    }

    fn delete(&self, core: &mut Core, call: &mut CallContext<'_>) -> Outcomes {
        let place = self.egress(core)?;
        let most = self.number("message-count")?.max(0) as usize;
        let before = self.body.get("enqueued-time-utc").and_then(Value::as_timestamp);
        let before = Timestamp(before.map_or(call.now.0, |before| before.max(0) as u64));
        let deleted = core.delete_messages(call, place.queue, self.optional_session_id(), before, most)?;
        if deleted == 0 {
            return Ok(nothing("com.microsoft:message-not-found"));
        }
        Ok(done().with("message-count", i32::try_from(deleted).unwrap_or(i32::MAX)))
    }

    /// Every subscription has one rule, which takes everything.
    fn rules(&self, core: &mut Core) -> Outcomes {
        self.egress(core)?;
        if self.number("skip")? > 0 {
            return Ok(nothing("amqp:not-found"));
        }
        let all = Value::described(TRUE_FILTER, Value::List(vec![]));
        let no_action = Value::described(EMPTY_ACTION, Value::List(vec![]));
        let rule = Value::List(vec![all, no_action, "$Default".into()]);
        let entry = Map::new().with("rule-description", Value::described(RULE_DESCRIPTION, rule));
        Ok(done().with("rules", vec![Value::Map(entry)]))
    }

    fn ingress(&self, core: &Core) -> Result<EntityId, Failure> {
        Ok(core.resolve_send_address(&self.path)?)
    }

    fn egress(&self, core: &Core) -> Result<Place, Failure> {
        Ok(find_outlet(core, &self.path)?)
    }

    fn number(&self, name: &'static str) -> Result<i64, Failure> {
        self.body.get(name).and_then(Value::as_integer).ok_or(Failure::Field(name))
    }

    fn session_id(&self) -> Result<&str, Failure> {
        self.optional_session_id().ok_or(Failure::Field("session-id"))
    }

    fn optional_session_id(&self) -> Option<&str> {
        self.body.get("session-id").and_then(Value::as_str)
    }

    fn sequence_numbers(&self) -> Result<Vec<SequenceNumber>, Failure> {
        let listed = self.body.get("sequence-numbers").and_then(Value::as_items);
        let numbers = listed.and_then(|items| {
            items.iter().map(|item| item.as_integer().map(|number| SequenceNumber(number as u64))).collect()
        });
        numbers.ok_or(Failure::Field("sequence-numbers"))
    }

    fn lock_tokens(&self) -> Result<Vec<LockToken>, Failure> {
        let listed = self.body.get("lock-tokens").and_then(Value::as_items);
        let tokens = listed
            .and_then(|items| items.iter().map(|item| item.as_uuid().map(|id| LockToken(id.as_u128()))).collect());
        tokens.ok_or(Failure::Field("lock-tokens"))
    }
}

const RULE_DESCRIPTION: u64 = 0x0137_0000_0004;
const EMPTY_ACTION: u64 = 0x0137_0000_0005;
const TRUE_FILTER: u64 = 0x0013_7000_0007;

/// To a peer that asks for more than it may at once.
pub(super) fn busy() -> Response {
    let error = Error::ServerBusy;
    let (status, text) = (error.status(), error.to_string());
    Response { status, text, condition: Some(error.condition()), body: Map::new(), dialect: &DIALECT }
}

fn done() -> Done {
    Done { status: 200, condition: None, body: Map::new() }
}

/// It went well, and there is nothing to show for it.
fn nothing(condition: &'static str) -> Done {
    Done { status: 204, condition: Some(condition), body: Map::new() }
}

impl Done {
    fn with(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.body.insert(name, value);
        self
    }
}

/// A whole message as a client reads it.
fn read(call: &CallContext<'_>, place: &Place, delivery: &MessageDelivery, shown: Shown) -> Result<Bytes, Failure> {
    let stored = call.journal.read(delivery.location).map_err(Error::from)?;
    let mut buffer = BytesMut::new();
    let unreadable = || Failure::Core(Error::NotAllowed("the stored message cannot be read"));
    let tail = outgoing::write(delivery, &stored, place.dead_letters_of.as_deref(), shown, &mut buffer)
        .map_err(|_| unreadable())?;
    buffer.extend_from_slice(&tail);
    Ok(buffer.freeze())
}
