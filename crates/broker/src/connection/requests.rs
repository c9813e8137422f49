//! Requests and responses: whose answer goes to which link.

use amqp::codec::encode;
use amqp::message::{MessageId, MessageWriter, Properties};
use amqp::{Map, Message, OutgoingDelivery, SessionId, Value, condition};
use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncWrite};

use super::address::Address;
use super::links::Place;
use super::{Connection, management, tokens};
use crate::core::{AttachResult, EntityId, Error};

/// What the engine answers to a call of a connection.
pub(crate) enum Answer {
    Sender {
        link: amqp::LinkId,
        result: Result<(EntityId, Option<u64>), Error>,
    },
    Receiver {
        link: amqp::LinkId,
        result: Result<(Place, AttachResult), Error>,
    },
    /// Whether the entity of a `$management` node is there.
    Node {
        link: amqp::LinkId,
        result: Result<(), Error>,
    },
    Response {
        link: amqp::LinkId,
        correlation: Option<MessageId<'static>>,
        response: Response,
        weight: u32,
        /// What the core was told that it takes.
        bytes: usize,
    },
}

/// A response, before it is written.
pub(crate) struct Response {
    pub(super) status: u16,
    pub(super) text: String,
    pub(super) condition: Option<&'static str>,
    pub(super) body: Map,
    /// Names of the fields that say how it went: `$cbs` and `$management` write them differently.
    pub(super) dialect: &'static Dialect,
}

impl Response {
    /// Bytes it takes, about: a message or a state in it is what counts.
    fn size(&self) -> usize {
        let listed = |value: &Value| value.as_items().map_or(1, <[Value]>::len) * 64;
        let bytes = |value: &Value| value.as_binary().map_or(0, Bytes::len);
        let within = |value: &Value| {
            let items = value.as_items().into_iter().flatten();
            items.filter_map(Value::as_map).flat_map(Map::iter).map(|(_, value)| bytes(value)).sum::<usize>()
        };
        self.body.iter().map(|(_, value)| bytes(value) + listed(value) + within(value)).sum()
    }
}

pub(super) struct Dialect {
    pub(super) status: &'static str,
    pub(super) text: &'static str,
    pub(super) condition: &'static str,
}

/// Weight of the requests that one connection may have under way: so many small ones, or a few dozen whose answers hold messages.
const MUCH_ASKED: u32 = 1_000;
/// What may wait on the links of a peer that gives no credit for responses.
const MUCH_WAITING: usize = 1 << 20;

impl<S: AsyncRead + AsyncWrite + Unpin> Connection<S> {
    pub(super) fn on_request(&mut self, session: SessionId, node: &Address, payload: Bytes) {
        let size = payload.len();
        let Ok(message) = Message::parse(payload) else { return };
        let Ok(properties) = message.properties() else { return };
        // Nobody waits for the answer; then there is nothing to say.
        let Some(link) = self.links.awaiting(session, node, properties.reply_to) else { return };
        let correlation = properties.message_id.clone().map(MessageId::into_owned);
        match node {
            Address::Management(path) => {
                let request = management::Request::read(path, &message);
                let weight = request.weight();
                if self.requests + weight > MUCH_ASKED {
                    return self.respond(link, correlation, &management::busy());
                }
                self.requests += weight;
                self.asked_bytes += size;
                let connection = self.line.id();
                self.call(move |core, call| {
                    let response = match request.is_heavy() && !core.is_reading(connection) {
                        true => management::busy(),
                        false => request.carry_out(core, call),
                    };
                    let bytes = response.size();
                    core.record_output(connection, bytes);
                    Answer::Response { link, correlation, response, weight, bytes }
                });
            }
            Address::Tokens => self.respond(link, correlation, &tokens::answer(&message)),
            Address::Entity(_) => {}
        }
    }

    pub(super) fn on_answer(&mut self, answer: Answer) {
        match answer {
            Answer::Sender { link, result } => self.on_sender_found(link, result),
            Answer::Receiver { link, result } => self.on_receiver_found(link, result),
            Answer::Node { link, result } => self.on_node_found(link, result),
            Answer::Response { link, correlation, response, weight, bytes } => {
                self.requests -= weight;
                self.under_way += bytes;
                self.respond(link, correlation, &response);
            }
        }
    }

    fn respond(&mut self, link: amqp::LinkId, correlation: Option<MessageId<'static>>, response: &Response) {
        if !self.links.queue_response(link, written(correlation, response)) {
            return;
        }
        self.send_responses(link);
        if self.links.waiting() > MUCH_WAITING {
            let error = amqp::Error::new(condition::RESOURCE_LIMIT_EXCEEDED, "too many responses wait for credit");
            let _ = self.amqp.detach(link, Some(error));
            self.on_detached(link);
        }
    }

    /// Sends the responses that have credit.
    pub(super) fn send_responses(&mut self, link: amqp::LinkId) {
        while self.amqp.credit(link) > 0 && !self.is_backlogged() {
            let Some((number, response)) = self.links.next_response(link) else { return };
            let tag = number.to_be_bytes();
            let outgoing = OutgoingDelivery { tag: &tag, settled: true, ..OutgoingDelivery::default() };
            if self.amqp.transfer(link, outgoing, &[&response]).is_err() {
                return;
            }
        }
    }
}

fn written(correlation_id: Option<MessageId<'static>>, response: &Response) -> Bytes {
    let mut buffer = BytesMut::new();
    let Dialect { status, text, condition } = response.dialect;
    MessageWriter::new(&mut buffer)
        .properties(&Properties { correlation_id, ..Properties::default() })
        .application_properties(|map| {
            encode::int(map.string(status), response.status.into());
            encode::string(map.string(text), &response.text);
            if let Some(name) = response.condition {
                encode::symbol(map.string(condition), name);
            }
        })
        .value(&Value::Map(response.body.clone()));
    buffer.freeze()
}
