//! `$management`: requests about an entity besides sending and receiving.
//!
//! Decoded on the connection's task and executed on the engine thread. Values are encoded in the types that clients check.

use std::sync::Arc;

use amqp::{Array, Map, Message, Value};
use bytes::{Bytes, BytesMut};

use super::attach::find_receiver_source;
use super::decode;
use super::deliveries::changed_properties;
use super::encode::{self, DeliveryForm, WireMessageState, to_millis};
use super::links::ReceiverSource;
use super::node_requests::{NodeResponse, StatusFieldNames};
use super::rules;
use crate::atom::AccessRight;
use crate::core::{
    CallContext, Core, EntityId, Error, LockToken, MessageDelivery, MessageState, ReceiveMode, SequenceNumber,
    SettlementOutcome, Timestamp,
};
use crate::rules::CompiledRule;

const STATUS_FIELDS: StatusFieldNames =
    StatusFieldNames { status: "statusCode", text: "statusDescription", condition: "errorCondition" };

/// Maximum number of messages in one peek or list response.
const MAX_MESSAGES: i64 = 1_000;
/// Maximum number of rules in one list response. They are small.
const MAX_RULES: i64 = 100;
/// A peek response stays below any client's limit, and keeps many concurrent peeks affordable.
const PEEK_BYTES: usize = 256 << 10;
/// A request whose response contains messages or a session state weighs as much as this many plain ones.
const HEAVY_WEIGHT: u32 = 25;
/// .NET's `DateTime.MaxValue`: "list all sessions" instead of "sessions updated since".
const DATETIME_MAX: i64 = 253_402_300_799_000;

/// A decoded request. Its problems are reported in the response.
pub(super) struct ManagementRequest {
    path: String,
    operation: String,
    body: Map,
}

/// The result of a successful request.
struct RequestSuccess {
    status: u16,
    condition: Option<&'static str>,
    body: Map,
}

/// Why a request failed.
enum RequestFailure {
    Core(Error),
    /// A field is missing or has the wrong type.
    Field(&'static str),
    Unknown,
}

impl From<Error> for RequestFailure {
    fn from(error: Error) -> Self {
        Self::Core(error)
    }
}

type RequestResult = Result<RequestSuccess, RequestFailure>;

impl ManagementRequest {
    pub(super) fn decode(path: &str, message: &Message) -> Self {
        let operation = message.application_property("operation").and_then(|value| value.as_str()).unwrap_or_default();
        let body = match message.value().and_then(|value| value.to_value().ok()) {
            Some(Value::Map(map)) => map,
            _ => Map::new(),
        };
        Self { path: path.to_owned(), operation: operation.to_owned(), body }
    }

    /// How much of the connection's budget it uses until the response.
    pub(super) fn weight(&self) -> u32 {
        if self.is_heavy() { HEAVY_WEIGHT } else { 1 }
    }

    /// True if its response contains messages, a session state or rules.
    pub(super) fn is_heavy(&self) -> bool {
        let operation = self.operation.strip_prefix("com.microsoft:");
        matches!(
            operation,
            Some("peek-message" | "receive-by-sequence-number" | "get-session-state" | "enumerate-rules")
        )
    }

    /// The right that a client needs for it.
    pub(super) fn needed_right(&self) -> AccessRight {
        match self.operation.strip_prefix("com.microsoft:") {
            Some("schedule-message" | "cancel-scheduled-message") => AccessRight::Send,
            Some("add-rule" | "remove-rule") => AccessRight::Manage,
            _ => AccessRight::Listen,
        }
    }

    pub(super) fn execute(self, core: &mut Core, call: &mut CallContext<'_>) -> NodeResponse {
        let outcome = self.dispatch(core, call);
        let (status, text, condition, body) = match outcome {
            Ok(RequestSuccess { status, condition, body }) => (status, "OK".to_owned(), condition, body),
            Err(RequestFailure::Core(error)) => {
                (error.status(), error.to_string(), Some(error.condition()), Map::new())
            }
            Err(RequestFailure::Field(name)) => (
                400,
                format!("`{name}` is missing or has the wrong type"),
                Some("com.microsoft:argument-error"),
                Map::new(),
            ),
            Err(RequestFailure::Unknown) => {
                (501, format!("`{}` is not supported", self.operation), Some("amqp:not-implemented"), Map::new())
            }
        };
        NodeResponse { status, text, condition, body, status_fields: &STATUS_FIELDS }
    }

    fn dispatch(&self, core: &mut Core, call: &mut CallContext<'_>) -> RequestResult {
        let Some(operation) = self.operation.strip_prefix("com.microsoft:") else {
            return Err(RequestFailure::Unknown);
        };
        match operation {
            "schedule-message" => self.schedule(core, call),
            "cancel-scheduled-message" => self.cancel_scheduled(core, call),
            "renew-lock" => self.renew_locks(core, call),
            "renew-session-lock" => self.renew_session(core, call),
            "get-session-state" => self.get_session_state(core, call),
            "set-session-state" => self.set_session_state(core, call),
            "get-message-sessions" => self.list_sessions(core, call),
            "peek-message" => self.peek(core, call),
            "receive-by-sequence-number" => self.receive_deferred(core, call),
            "update-disposition" => self.settle(core, call),
            "batch-delete-messages" => self.delete_messages(core, call),
            "enumerate-rules" => self.list_rules(core),
            "add-rule" => self.add_rule(core, call),
            "remove-rule" => self.remove_rule(core, call),
            _ => Err(RequestFailure::Unknown),
        }
    }

    fn schedule(&self, core: &mut Core, call: &mut CallContext<'_>) -> RequestResult {
        let entity = self.sender_target(core)?;
        let listed = self.body.get("messages").and_then(Value::as_items).ok_or(RequestFailure::Field("messages"))?;
        let mut messages = Vec::with_capacity(listed.len());
        for item in listed {
            let bytes = item.as_map().and_then(|map| map.get("message")).and_then(Value::as_binary);
            let bytes = bytes.ok_or(RequestFailure::Field("message"))?.clone();
            let message = Message::parse(bytes).and_then(|message| decode::decode_message(&message));
            messages.push(message.map_err(|_| RequestFailure::Field("message"))?);
        }
        let stored = core.send(call, entity, &messages)?;
        let numbers = stored.into_iter().map(|number| number.map_or(0, |number| number.0 as i64));
        Ok(success().with("sequence-numbers", Array::longs(numbers)))
    }

    fn cancel_scheduled(&self, core: &mut Core, call: &mut CallContext<'_>) -> RequestResult {
        let entity = self.sender_target(core)?;
        core.cancel(call, entity, &self.sequence_numbers()?)?;
        Ok(success())
    }

    fn renew_locks(&self, core: &mut Core, call: &mut CallContext<'_>) -> RequestResult {
        let source = self.receiver_source(core)?;
        let ends = core.renew(call, source.queue, &self.lock_tokens()?)?;
        Ok(success().with("expirations", Array::timestamps(ends.into_iter().map(to_millis))))
    }

    fn renew_session(&self, core: &mut Core, call: &mut CallContext<'_>) -> RequestResult {
        let source = self.receiver_source(core)?;
        let end = core.renew_session(call, source.queue, self.session_id()?)?;
        Ok(success().with("expiration", Value::Timestamp(to_millis(end))))
    }

    fn get_session_state(&self, core: &mut Core, call: &mut CallContext<'_>) -> RequestResult {
        let source = self.receiver_source(core)?;
        let state = core.session_state(call, source.queue, self.session_id()?)?;
        Ok(success().with("session-state", state.map_or(Value::Null, Value::Binary)))
    }

    fn set_session_state(&self, core: &mut Core, call: &mut CallContext<'_>) -> RequestResult {
        let source = self.receiver_source(core)?;
        let state = match self.body.get("session-state") {
            None | Some(Value::Null) => None,
            Some(Value::Binary(state)) => Some(state.clone()),
            Some(_) => return Err(RequestFailure::Field("session-state")),
        };
        core.set_session_state(call, source.queue, self.session_id()?, state)?;
        Ok(success())
    }

    fn list_sessions(&self, core: &mut Core, call: &mut CallContext<'_>) -> RequestResult {
        let source = self.receiver_source(core)?;
        let since = self.body.get("last-updated-time").and_then(Value::as_timestamp);
        let since = since.filter(|since| *since < DATETIME_MAX).map(|since| Timestamp(since.max(0) as u64));
        let (skip, top) = (self.number("skip")?.max(0), self.number("top")?.clamp(0, MAX_MESSAGES));
        let ids = core.sessions(call, source.queue, since, skip as usize, top as usize)?;
        if ids.is_empty() {
            return Ok(no_content("com.microsoft:session-not-found"));
        }
        let next = i32::try_from(skip).unwrap_or(i32::MAX).saturating_add(ids.len() as i32);
        let ids = Array::strings(ids.iter().map(|id| id.to_string()));
        Ok(success().with("skip", next).with("sessions-ids", ids))
    }

    fn peek(&self, core: &mut Core, call: &mut CallContext<'_>) -> RequestResult {
        let source = self.receiver_source(core)?;
        let from = SequenceNumber(self.number("from-sequence-number")?.max(0) as u64);
        let most = self.number("message-count")?.clamp(0, MAX_MESSAGES) as usize;
        let omit_body = self.body.get("omit-message-body").and_then(Value::as_bool).unwrap_or(false);
        let found = core.peek(call, source.queue, self.optional_session_id(), from, most)?;
        let mut messages = Vec::with_capacity(found.len());
        let mut bytes = 0;
        for peeked in found {
            let state = match peeked.state {
                MessageState::Active => WireMessageState::Active,
                MessageState::Deferred => WireMessageState::Deferred,
                MessageState::Scheduled => WireMessageState::Scheduled,
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
            let form = if omit_body { DeliveryForm::PeekedWithoutBody(state) } else { DeliveryForm::Peeked(state) };
            let message = read_message(call, &source, &delivery, form)?;
            bytes += message.len();
            if !messages.is_empty() && bytes > PEEK_BYTES {
                break;
            }
            messages.push(Value::Map(Map::new().with("message", message)));
        }
        if messages.is_empty() {
            return Ok(no_content("com.microsoft:message-not-found"));
        }
        Ok(success().with("messages", messages))
    }

    fn receive_deferred(&self, core: &mut Core, call: &mut CallContext<'_>) -> RequestResult {
        let source = self.receiver_source(core)?;
        let mode = match self.number("receiver-settle-mode")? {
            0 => ReceiveMode::ReceiveAndDelete,
            _ => ReceiveMode::PeekLock,
        };
        let numbers = self.sequence_numbers()?;
        let received = core.receive_deferred(call, source.queue, self.optional_session_id(), &numbers, mode)?;
        let mut messages = Vec::with_capacity(received.len());
        for delivery in received {
            let message = read_message(call, &source, &delivery, DeliveryForm::Fetched);
            if delivery.settled {
                call.journal.release(delivery.location);
            }
            let entry =
                Map::new().with("message", message?).with("lock-token", encode::lock_token_uuid(delivery.token));
            messages.push(Value::Map(entry));
        }
        Ok(success().with("messages", messages))
    }

    fn settle(&self, core: &mut Core, call: &mut CallContext<'_>) -> RequestResult {
        let source = self.receiver_source(core)?;
        let text = |name: &str| self.body.get(name).and_then(Value::as_text).map(Into::into);
        let properties = changed_properties(self.body.get("properties-to-modify").and_then(Value::as_map));
        let status = self.body.get("disposition-status").and_then(Value::as_text);
        let outcome = match status.ok_or(RequestFailure::Field("disposition-status"))? {
            "completed" => SettlementOutcome::Complete,
            "abandoned" => SettlementOutcome::Abandon { properties },
            // The protocol's own (wrong) spelling, and the correct one.
            "defered" | "deferred" => SettlementOutcome::Defer { properties },
            "suspended" => {
                let (reason, description) = (text("deadletter-reason"), text("deadletter-description"));
                SettlementOutcome::DeadLetter { reason, description, properties }
            }
            _ => return Err(RequestFailure::Field("disposition-status")),
        };
        let lost = core.settle(call, source.queue, &self.lock_tokens()?, &outcome)?;
        if lost.is_empty() { Ok(success()) } else { Err(core.lock_lost_error(source.queue).into()) }
    }

    fn delete_messages(&self, core: &mut Core, call: &mut CallContext<'_>) -> RequestResult {
        let source = self.receiver_source(core)?;
        let most = self.number("message-count")?.max(0) as usize;
        let before = self.body.get("enqueued-time-utc").and_then(Value::as_timestamp);
        let before = Timestamp(before.map_or(call.now.0, |before| before.max(0) as u64));
        let deleted = core.delete_messages(call, source.queue, self.optional_session_id(), before, most)?;
        if deleted == 0 {
            return Ok(no_content("com.microsoft:message-not-found"));
        }
        Ok(success().with("message-count", i32::try_from(deleted).unwrap_or(i32::MAX)))
    }

    fn list_rules(&self, core: &Core) -> RequestResult {
        let skip = self.number("skip")?.max(0) as usize;
        let top = self.number("top")?.clamp(0, MAX_RULES) as usize;
        let page = core.rules(&self.path)?.skip(skip).take(top);
        let entry = |rule: &Arc<CompiledRule>| Map::new().with("rule-description", rules::encode_rule(rule));
        let listed: Vec<_> = page.map(|rule| Value::Map(entry(rule))).collect();
        match listed.is_empty() {
            true => Ok(no_content("amqp:not-found")),
            false => Ok(success().with("rules", listed)),
        }
    }

    fn add_rule(&self, core: &mut Core, call: &mut CallContext<'_>) -> RequestResult {
        let description = self.body.get("rule-description").and_then(Value::as_map);
        let description = description.ok_or(RequestFailure::Field("rule-description"))?;
        let rule = rules::decode_rule(self.rule_name()?, description).map_err(RequestFailure::Field)?;
        core.add_rule(call, &self.path, rule)?;
        Ok(success())
    }

    fn remove_rule(&self, core: &mut Core, call: &mut CallContext<'_>) -> RequestResult {
        core.remove_rule(call, &self.path, self.rule_name()?)?;
        Ok(success())
    }

    fn rule_name(&self) -> Result<&str, RequestFailure> {
        self.body.get("rule-name").and_then(Value::as_text).ok_or(RequestFailure::Field("rule-name"))
    }

    fn sender_target(&self, core: &Core) -> Result<EntityId, RequestFailure> {
        Ok(core.resolve_send_address(&self.path)?)
    }

    fn receiver_source(&self, core: &Core) -> Result<ReceiverSource, RequestFailure> {
        Ok(find_receiver_source(core, &self.path)?)
    }

    fn number(&self, name: &'static str) -> Result<i64, RequestFailure> {
        self.body.get(name).and_then(Value::as_integer).ok_or(RequestFailure::Field(name))
    }

    fn session_id(&self) -> Result<&str, RequestFailure> {
        self.optional_session_id().ok_or(RequestFailure::Field("session-id"))
    }

    fn optional_session_id(&self) -> Option<&str> {
        self.body.get("session-id").and_then(Value::as_str)
    }

    fn sequence_numbers(&self) -> Result<Vec<SequenceNumber>, RequestFailure> {
        let listed = self.body.get("sequence-numbers").and_then(Value::as_items);
        let numbers = listed.and_then(|items| {
            items.iter().map(|item| item.as_integer().map(|number| SequenceNumber(number as u64))).collect()
        });
        numbers.ok_or(RequestFailure::Field("sequence-numbers"))
    }

    fn lock_tokens(&self) -> Result<Vec<LockToken>, RequestFailure> {
        let listed = self.body.get("lock-tokens").and_then(Value::as_items);
        let tokens = listed
            .and_then(|items| items.iter().map(|item| item.as_uuid().map(|id| LockToken(id.as_u128()))).collect());
        tokens.ok_or(RequestFailure::Field("lock-tokens"))
    }
}

/// The response to a peer that exceeds its budget.
pub(super) fn busy_response() -> NodeResponse {
    let error = Error::ServerBusy;
    let (status, text) = (error.status(), error.to_string());
    NodeResponse { status, text, condition: Some(error.condition()), body: Map::new(), status_fields: &STATUS_FIELDS }
}

/// The response to a client whose token does not allow the request.
pub(super) fn unauthorized_response() -> NodeResponse {
    let text = "the token does not allow this operation, or is expired".to_owned();
    let condition = Some("amqp:unauthorized-access");
    NodeResponse { status: 401, text, condition, body: Map::new(), status_fields: &STATUS_FIELDS }
}

fn success() -> RequestSuccess {
    RequestSuccess { status: 200, condition: None, body: Map::new() }
}

/// Success without a result.
fn no_content(condition: &'static str) -> RequestSuccess {
    RequestSuccess { status: 204, condition: Some(condition), body: Map::new() }
}

impl RequestSuccess {
    fn with(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.body.insert(name, value);
        self
    }
}

/// Reads a stored message and encodes it for a client.
fn read_message(
    call: &CallContext<'_>,
    source: &ReceiverSource,
    delivery: &MessageDelivery,
    shown: DeliveryForm,
) -> Result<Bytes, RequestFailure> {
    let stored = call.journal.read(delivery.location).map_err(Error::from)?;
    let mut buffer = BytesMut::new();
    let unreadable = || RequestFailure::Core(Error::NotAllowed("stored message cannot be decoded"));
    let tail = encode::encode_message(delivery, &stored, source.dead_letters_of.as_deref(), shown, &mut buffer)
        .map_err(|_| unreadable())?;
    buffer.extend_from_slice(&tail);
    Ok(buffer.freeze())
}
