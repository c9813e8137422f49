//! Attaches and detaches links.

use std::sync::Arc;
use std::time::Duration;

use amqp::codec::RawValue;
use amqp::performative::SenderSettleMode;
use amqp::{Attach, Map, Role, SessionId, Symbol, Target, Value, condition};
use tokio::io::{AsyncRead, AsyncWrite};

use super::address::LinkAddress;
use super::credit::CoreCredit;
use super::first_use::FirstUse;
use super::links::{BrokerLink, LockTokens, PendingLink, PendingNodeLink, ReceiverLink, ReceiverSource, ResponseLink};
use super::node_requests::CallReply;
use super::{BrokerConnection, describe_error, to_amqp};
use crate::ServiceTier;
use crate::atom::AccessRight;
use crate::core::{AttachResult, Core, CoreLinkId, EntityId, Error, ReceiveMode, SessionFilter, Subqueue, Timestamp};
use crate::engine::{EngineReply, EngineRequest};

const SESSION_FILTER: &str = "com.microsoft:session-filter";
/// The service's default for an attach that waits for a session.
const DEFAULT_SESSION_TIMEOUT: Duration = Duration::from_secs(60);
/// Unsettled deliveries that a sender may have in flight: enough to keep the disk busy at any message size.
const SENDER_CREDIT: u32 = 2_000;
const REQUEST_CREDIT: u32 = 100;
/// 100-nanosecond ticks from the year 1 to 1970.
const TICKS_AT_EPOCH: i64 = 621_355_968_000_000_000;

impl<S: AsyncRead + AsyncWrite + Unpin> BrokerConnection<S> {
    pub(super) fn on_attach(&mut self, session: SessionId, link: amqp::LinkId, attach: Box<Attach>) {
        if !self.links.has_room() {
            let error = amqp::Error::new(condition::RESOURCE_LIMIT_EXCEEDED, "link limit of the broker reached");
            return self.refuse(link, error);
        }
        match attach.role {
            Role::Sender => self.attach_sender(session, link, attach),
            Role::Receiver => self.attach_receiver(session, link, attach),
        }
    }

    fn attach_sender(&mut self, session: SessionId, link: amqp::LinkId, attach: Box<Attach>) {
        if matches!(attach.target, Some(Target::Coordinator(_))) {
            if self.settings.tier == ServiceTier::Basic {
                let text = "transactions are not available in the Basic tier";
                return self.refuse(link, amqp::Error::new(condition::NOT_ALLOWED, text));
            }
            return self.attach_coordinator(link, &attach);
        }
        let Some(address) = attach.target.as_ref().and_then(Target::address) else {
            return self.refuse(link, amqp::Error::new(condition::INVALID_FIELD, "target has no address"));
        };
        match LinkAddress::parse(address) {
            LinkAddress::Entity(path) => {
                if let Err(error) = self.authorize_link(link, &path, Some(AccessRight::Send)) {
                    return self.refuse(link, error);
                }
                let destination = transfer_destination(&attach);
                let allowed = destination.as_ref().is_none_or(|path| self.is_allowed(path, Some(AccessRight::Send)));
                if !allowed {
                    let text = "the token does not allow to send to the transfer destination";
                    return self.refuse(link, amqp::Error::new(condition::UNAUTHORIZED_ACCESS, text));
                }
                let name = self.links.allocate_core_id(link);
                let first_use = FirstUse::of_sender(&attach);
                let pending = PendingLink { session, attach, core_id: name, source: None };
                self.links.insert(link, BrokerLink::Pending(Box::new(pending)));
                let first_use = self.settings.create_on_first_use.then_some(first_use);
                self.call_core(move |core, call| {
                    let created = first_use.map_or(Ok(()), |usage| usage.create_missing(core, call, &path));
                    // Registered only to be detached when the entity is deleted: its messages are sent by entity id.
                    let result = created
                        .and_then(|()| find_sender_target(core, &path, destination.as_deref()))
                        .and_then(|found| core.attach_management(call, name, &path).map(|()| found));
                    CallReply::Sender { link, result }
                });
            }
            node => self.attach_node(session, link, node, &attach),
        }
    }

    fn attach_receiver(&mut self, session: SessionId, link: amqp::LinkId, attach: Box<Attach>) {
        let Some(address) = attach.source.as_ref().and_then(|source| source.address()) else {
            return self.refuse(link, amqp::Error::new(condition::INVALID_FIELD, "source has no address"));
        };
        match LinkAddress::parse(address) {
            LinkAddress::Entity(path) => {
                if let Err(error) = self.authorize_link(link, &path, Some(AccessRight::Listen)) {
                    return self.refuse(link, error);
                }
                let settled = attach.snd_settle_mode == SenderSettleMode::Settled;
                let mode = if settled { ReceiveMode::ReceiveAndDelete } else { ReceiveMode::PeekLock };
                let filter = match session_filter(&attach) {
                    Ok(filter) => filter,
                    Err(error) => return self.refuse(link, error),
                };
                let name = self.links.allocate_core_id(link);
                let pending = PendingLink { session, attach, core_id: name, source: None };
                self.links.insert(link, BrokerLink::Pending(Box::new(pending)));
                let first_use = FirstUse::Receive { sessions: filter != SessionFilter::None };
                let first_use = self.settings.create_on_first_use.then_some(first_use);
                self.pending.push(EngineRequest::Call(Box::new(move |core, call| {
                    let created = first_use.map_or(Ok(()), |usage| usage.create_missing(core, call, &path));
                    let result = created.and_then(|()| find_receiver_source(core, &path)).and_then(|source| {
                        let attached = core.attach(call, name, source.queue, mode, filter)?;
                        Ok((source, attached))
                    });
                    EngineReply::Call(Box::new(CallReply::Receiver { link, result }))
                })));
            }
            node => self.attach_node(session, link, node, &attach),
        }
    }

    /// Attaches a link to a node, for requests or for responses. A `$management` node exists as long as its entity.
    fn attach_node(&mut self, session: SessionId, link: amqp::LinkId, node: LinkAddress, attach: &Attach) {
        if let LinkAddress::Management(path) = &node
            && let Err(error) = self.authorize_link(link, path, None)
        {
            return self.refuse(link, error);
        }
        let entity = match &node {
            LinkAddress::Management(path) => Some((self.links.allocate_core_id(link), path.clone())),
            _ => None,
        };
        let core_id = entity.as_ref().map(|(core_id, _)| *core_id);
        let becomes = match attach.role {
            Role::Sender => BrokerLink::Requests { session, node, core_id },
            Role::Receiver => BrokerLink::Responses(Box::new(ResponseLink::new(session, node, core_id, attach))),
        };
        self.links.insert(link, BrokerLink::PendingNode(Box::new(PendingNodeLink { becomes, reply: attach.reply() })));
        let creates = self.settings.create_on_first_use;
        match entity {
            None => self.on_node_resolved(link, Ok(())),
            Some((name, path)) => self.call_core(move |core, call| {
                let usage = FirstUse::Receive { sessions: false };
                let created = if creates { usage.create_missing(core, call, &path) } else { Ok(()) };
                let result = created.and_then(|()| core.attach_management(call, name, &path));
                CallReply::Node { link, result }
            }),
        }
    }

    pub(super) fn on_node_resolved(&mut self, link: amqp::LinkId, result: Result<(), Error>) {
        if let Err(error) = result {
            self.links.remove(link);
            return self.refuse_with(link, &error);
        }
        // None: detached while the engine resolved it. The detach has already been forwarded.
        let Some(reply) = self.links.complete_node_attach(link) else { return };
        let hears_requests = reply.role == Role::Receiver;
        if self.amqp.accept_attach(link, reply).is_ok() && hears_requests {
            // SDKs ignore the outcome of a request. Only a detach ends their wait for the response.
            let _ = self.amqp.detach_on_oversize(link);
            let _ = self.amqp.keep_credit(link, REQUEST_CREDIT);
        }
    }

    pub(super) fn on_sender_resolved(&mut self, link: amqp::LinkId, result: Result<SenderTarget, Error>) {
        let Some(BrokerLink::Pending(pending)) = self.links.get(link) else { return };
        let target = match result {
            Ok(found) => found,
            Err(error) => {
                self.links.remove(link);
                return self.refuse_with(link, &error);
            }
        };
        let (core_id, session) = (pending.core_id, pending.session);
        let limit = target.max_message_size.unwrap_or(self.settings.max_message_size);
        let mut reply = pending.attach.reply();
        reply.max_message_size = Some(limit);
        reply.properties = Some(Map::new().with(Symbol::from_static("com.microsoft:max-message-batch-size"), limit));
        if self.amqp.accept_attach(link, reply).is_ok() {
            let SenderTarget { entity, scope, .. } = target;
            self.links.insert(link, BrokerLink::Sender { entity, scope, session, core_id });
            let _ = self.amqp.keep_credit(link, SENDER_CREDIT);
        }
    }

    pub(super) fn on_receiver_resolved(
        &mut self,
        link: amqp::LinkId,
        result: Result<(ReceiverSource, AttachResult), Error>,
    ) {
        // Detached while the engine resolved it. The detach has already been forwarded.
        let Some(BrokerLink::Pending(pending)) = self.links.get_mut(link) else { return };
        match result {
            Err(error) => {
                self.links.remove(link);
                self.refuse_with(link, &error);
            }
            Ok((source, attached)) => {
                pending.source = Some(source);
                match attached {
                    AttachResult::Plain => self.accept_receiver(link, None),
                    AttachResult::Session { id, locked_until } => self.accept_receiver(link, Some((&id, locked_until))),
                    AttachResult::Waiting => {}
                }
            }
        }
    }

    /// A waiting receiver got its session.
    pub(super) fn on_session_accepted(&mut self, core_id: CoreLinkId, session: &Arc<str>, locked_until: Timestamp) {
        if let Some(link) = self.links.by_core_id(core_id) {
            self.accept_receiver(link, Some((session, locked_until)));
        }
    }

    fn accept_receiver(&mut self, link: amqp::LinkId, session: Option<(&str, Timestamp)>) {
        let Some(BrokerLink::Pending(pending)) = self.links.get_mut(link) else { return };
        let (core_id, session_id) = (pending.core_id, pending.session);
        let Some(source) = pending.source.take() else { return };
        let mut reply = pending.attach.reply();
        if let Some((id, locked_until)) = session {
            if let Some(source) = &mut reply.source {
                let asked_for = source.filter.as_ref().and_then(|filter| filter.get(SESSION_FILTER));
                let answer = encode_session_filter(asked_for, id);
                source.filter.get_or_insert_default().set(SESSION_FILTER, answer);
            }
            let ticks = (locked_until.0 as i64).saturating_mul(10_000).saturating_add(TICKS_AT_EPOCH);
            let properties = Map::new().with(Symbol::from_static("com.microsoft:locked-until-utc"), ticks);
            reply.properties = Some(properties);
        }
        let (credit, lock_tokens) = (CoreCredit::default(), LockTokens::default());
        let receiver = ReceiverLink { session: session_id, core_id, source, credit, lock_tokens };
        self.links.insert(link, BrokerLink::Receiver(Box::new(receiver)));
        let _ = self.amqp.accept_attach(link, reply);
    }

    /// The core closes or refuses a link.
    pub(super) fn end_link(&mut self, core_id: CoreLinkId, error: &Error) {
        let Some(link) = self.links.by_core_id(core_id) else { return };
        self.forget_link(link);
        self.links.remove(link);
        // For a link that is not attached yet, this refuses the attach.
        let _ = self.amqp.detach(link, Some(to_amqp(error)));
    }

    /// Injected by tests.
    pub(super) fn force_detach(&mut self, link: amqp::LinkId, error: amqp::Error) {
        self.on_detached(link);
        let _ = self.amqp.detach(link, Some(error));
    }

    pub(super) fn on_detached(&mut self, link: amqp::LinkId) {
        self.forget_link(link);
        if let Some(core_id) = self.links.remove(link).and_then(|link| link.core_id()) {
            self.pending.push(EngineRequest::Detach { link: core_id });
        }
    }

    fn refuse_with(&mut self, link: amqp::LinkId, error: &Error) {
        let text = describe_error(error, &self.namespace);
        self.refuse(link, amqp::Error::new(Symbol::from_static(error.condition()), text));
    }

    fn refuse(&mut self, link: amqp::LinkId, error: amqp::Error) {
        self.forget_link(link);
        let _ = self.amqp.refuse_attach(link, error);
    }

    /// Calls the core. The reply is a [`CallReply`].
    pub(super) fn call_core(
        &mut self,
        act: impl FnOnce(&mut Core, &mut crate::core::CallContext<'_>) -> CallReply + Send + 'static,
    ) {
        let call = move |core: &mut Core, call: &mut crate::core::CallContext<'_>| {
            EngineReply::Call(Box::new(act(core, call)))
        };
        self.pending.push(EngineRequest::Call(Box::new(call)));
    }
}

/// What a sender sends to.
pub(crate) struct SenderTarget {
    entity: EntityId,
    /// The entity it sends via, or itself.
    scope: EntityId,
    /// In bytes, if the entity has its own limit.
    max_message_size: Option<u64>,
}

fn find_sender_target(core: &Core, path: &str, destination: Option<&str>) -> Result<SenderTarget, Error> {
    let scope = match destination {
        None => core.resolve_send_address(path)?,
        // Messages may be sent via a subscription too: it is what the transaction settles.
        Some(_) => core.entity(path)?.id,
    };
    let path = destination.unwrap_or(path);
    let entity = core.resolve_send_address(path)?;
    let limit = core.entity(path)?.description.ingress().and_then(|ingress| ingress.max_message_size_in_kilobytes);
    Ok(SenderTarget { entity, scope, max_message_size: limit.map(|kilobytes| kilobytes * 1024) })
}

/// The entity that gets the messages of a link that sends via another one.
fn transfer_destination(attach: &Attach) -> Option<String> {
    let properties = attach.properties.as_ref()?;
    let address = properties.get("com.microsoft:transfer-destination-address")?.as_text()?;
    match LinkAddress::parse(address) {
        LinkAddress::Entity(path) => Some(path),
        _ => None,
    }
}

pub(super) fn find_receiver_source(core: &Core, path: &str) -> Result<ReceiverSource, Error> {
    let queue = core.resolve_receive_address(path)?;
    let dead_letters = queue.subqueue == Subqueue::DeadLetter;
    let entity = path.trim_matches('/').rsplit_once('/').map_or(path, |(entity, _)| entity);
    Ok(ReceiverSource { queue, dead_letters_of: dead_letters.then(|| entity.into()) })
}

/// No filter, any session, or one named session; the filter may be described or plain.
fn session_filter(attach: &Attach) -> Result<SessionFilter, amqp::Error> {
    let filter = attach.source.as_ref().and_then(|source| source.filter.as_ref());
    let Some(asked) = filter.and_then(|filter| filter.get(SESSION_FILTER)) else { return Ok(SessionFilter::None) };
    let asked = asked.get().undescribed();
    match asked.as_str() {
        Some(id) => Ok(SessionFilter::Named(id.into())),
        None if !asked.is_null() => {
            Err(amqp::Error::new(condition::INVALID_FIELD, "session filter is neither a string nor null"))
        }
        None => {
            let asked = attach.properties.as_ref().and_then(|properties| properties.get("com.microsoft:timeout"));
            let millis = asked.and_then(Value::as_integer).and_then(|millis| u64::try_from(millis).ok());
            let timeouts = millis.map_or(DEFAULT_SESSION_TIMEOUT, Duration::from_millis);
            // The broker's clock counts whole milliseconds and may be almost one behind. The extra millisecond makes sure that a wait is never too short.
            Ok(SessionFilter::Next { timeout: timeouts + Duration::from_millis(1) })
        }
    }
}

/// Some clients read only a described value, others only a plain one, so the reply uses the form of the request.
fn encode_session_filter(asked: Option<&RawValue>, id: &str) -> RawValue {
    let described = asked.and_then(|raw| match raw.to_value() {
        Ok(Value::Described(described)) => Some(described.descriptor),
        _ => None,
    });
    match described {
        None => RawValue::string(id),
        Some(descriptor) => {
            let value = amqp::Described { descriptor, value: Value::String(id.to_owned()) };
            RawValue::from_value(&Value::Described(Box::new(value)))
        }
    }
}
