//! Requests to nodes, and the links for their responses.

use amqp::codec::encode;
use amqp::message::{MessageId, MessageWriter, Properties};
use amqp::{Map, Message, OutgoingDelivery, SessionId, Value, condition};
use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncWrite};

use super::address::LinkAddress;
use super::attach::SenderTarget;
use super::links::ReceiverSource;
use super::transactions::{CoordinatorReply, TransactionalReply};
use super::{BrokerConnection, cbs, describe_error, management};
use crate::access::AccessGrant;
use crate::core::{AttachResult, Error};

/// The engine's reply to a call from a connection.
pub(crate) enum CallReply {
    Sender {
        link: amqp::LinkId,
        result: Result<SenderTarget, Error>,
    },
    Receiver {
        link: amqp::LinkId,
        result: Result<(ReceiverSource, AttachResult), Error>,
    },
    /// The outcome of a declare or a discharge.
    Coordinator {
        link: amqp::LinkId,
        delivery: u32,
        reply: CoordinatorReply,
    },
    /// The outcome of operations inside a transaction. `error` is why some of the deliveries failed.
    Transactional {
        reply: TransactionalReply,
        failed: Vec<u32>,
        error: Option<Error>,
    },
    /// Whether the entity of a `$management` node exists.
    Node {
        link: amqp::LinkId,
        result: Result<(), Error>,
    },
    Response {
        link: amqp::LinkId,
        correlation: Option<MessageId<'static>>,
        response: NodeResponse,
        weight: u32,
        /// The response size that was reported to the core.
        bytes: usize,
    },
    /// The response to a token, and what the token allows.
    Token {
        link: amqp::LinkId,
        correlation: Option<MessageId<'static>>,
        response: NodeResponse,
        grant: Option<AccessGrant>,
    },
}

/// A response that is not encoded yet.
pub(crate) struct NodeResponse {
    pub(super) status: u16,
    pub(super) text: String,
    pub(super) condition: Option<&'static str>,
    pub(super) body: Map,
    /// `$cbs` and `$management` use different names for the status fields.
    pub(super) status_fields: &'static StatusFieldNames,
}

impl NodeResponse {
    /// Approximate size. Only messages and session states matter.
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

pub(super) struct StatusFieldNames {
    pub(super) status: &'static str,
    pub(super) text: &'static str,
    pub(super) condition: &'static str,
}

/// Weight of the requests that one connection may have in flight: this many small ones, or a few dozen whose responses contain messages.
const MAX_REQUEST_WEIGHT: u32 = 1_000;
const TOKEN_WEIGHT: u32 = 1;
/// Bytes that may wait on the links of a peer that gives no credit for responses.
const MAX_UNSENT_RESPONSE_BYTES: usize = 1 << 20;

impl<S: AsyncRead + AsyncWrite + Unpin> BrokerConnection<S> {
    pub(super) fn on_request(&mut self, session: SessionId, node: &LinkAddress, payload: Bytes) {
        let size = payload.len();
        let Ok(message) = Message::parse(payload) else { return };
        let Ok(properties) = message.properties() else { return };
        // No link for the response: nobody waits for it.
        let Some(link) = self.links.find_response_link(session, node, properties.reply_to) else { return };
        let correlation = properties.message_id.clone().map(MessageId::into_owned);
        match node {
            LinkAddress::Management(path) => {
                let request = management::ManagementRequest::decode(path, &message);
                if !self.is_allowed(path, Some(request.needed_right())) {
                    return self.respond(link, correlation, &management::unauthorized_response());
                }
                let weight = request.weight();
                if self.management_weight + weight > MAX_REQUEST_WEIGHT {
                    return self.respond(link, correlation, &management::busy_response());
                }
                self.management_weight += weight;
                self.pending_bytes += size;
                let connection = self.line.id();
                self.call_core(move |core, call| {
                    let response = match request.is_heavy() && !core.is_reading(connection) {
                        true => management::busy_response(),
                        false => request.execute(core, call),
                    };
                    let bytes = response.size();
                    core.record_output(connection, bytes);
                    CallReply::Response { link, correlation, response, weight, bytes }
                });
            }
            LinkAddress::Cbs => {
                let request = cbs::TokenRequest::decode(&message);
                if self.management_weight + TOKEN_WEIGHT > MAX_REQUEST_WEIGHT {
                    return self.respond(link, correlation, &management::busy_response());
                }
                self.management_weight += TOKEN_WEIGHT;
                let (namespace, keys) = (self.namespace.clone(), self.settings.keys.clone());
                let creates = self.settings.create_on_first_use;
                self.call_core(move |core, call| {
                    let describe = |error: &Error| describe_error(error, &namespace);
                    let (response, grant) = request.execute(core, keys.as_deref(), call.now, creates, describe);
                    CallReply::Token { link, correlation, response, grant }
                });
            }
            LinkAddress::Entity(_) => {}
        }
    }

    pub(super) fn on_call_reply(&mut self, answer: CallReply) {
        match answer {
            CallReply::Sender { link, result } => self.on_sender_resolved(link, result),
            CallReply::Receiver { link, result } => self.on_receiver_resolved(link, result),
            CallReply::Coordinator { link, delivery, reply } => self.on_coordinator_reply(link, delivery, reply),
            CallReply::Transactional { reply, failed, error } => {
                self.on_transactional_reply(reply, &failed, error.as_ref());
            }
            CallReply::Node { link, result } => self.on_node_resolved(link, result),
            CallReply::Token { link, correlation, response, grant } => {
                self.management_weight -= TOKEN_WEIGHT;
                if let Some(grant) = grant {
                    self.add_grant(grant);
                }
                self.respond(link, correlation, &response);
            }
            CallReply::Response { link, correlation, response, weight, bytes } => {
                self.management_weight -= weight;
                self.unwritten_bytes += bytes;
                self.respond(link, correlation, &response);
            }
        }
    }

    fn respond(&mut self, link: amqp::LinkId, correlation: Option<MessageId<'static>>, response: &NodeResponse) {
        if !self.links.queue_response(link, encode_response(correlation, response)) {
            return;
        }
        self.send_responses(link);
        if self.links.unsent_response_bytes() > MAX_UNSENT_RESPONSE_BYTES {
            let error =
                amqp::Error::new(condition::RESOURCE_LIMIT_EXCEEDED, "too many responses are waiting for credit");
            let _ = self.amqp.detach(link, Some(error));
            self.on_detached(link);
        }
    }

    /// Sends responses as far as credit allows.
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

fn encode_response(correlation_id: Option<MessageId<'static>>, response: &NodeResponse) -> Bytes {
    let mut buffer = BytesMut::new();
    let StatusFieldNames { status, text, condition } = response.status_fields;
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
