//! Requests from a connection to the core.

use crate::core::{
    CallContext, ConnectionId, Core, CoreLinkId, EntityId, Error, IncomingMessage, LockToken, QueueId,
    SettlementOutcome,
};
use crate::http::FaultOccasion;

use super::EngineReply;

/// An operation that runs on the engine thread.
pub(crate) type CoreCall = Box<dyn FnOnce(&mut Core, &mut CallContext<'_>) -> EngineReply + Send>;

/// One request, in the order of the peer's frames.
pub(crate) enum EngineRequest {
    /// Store messages. Replies for `delivery` unless the sender sent it settled.
    Send {
        link: amqp::LinkId,
        delivery: u32,
        settled: bool,
        to: EntityId,
        messages: Vec<IncomingMessage>,
    },
    /// Settle deliveries of one link. Replies unless the receiver sent the disposition settled.
    Settle {
        link: amqp::LinkId,
        queue: QueueId,
        deliveries: Vec<(u32, LockToken)>,
        outcome: SettlementOutcome,
        settled: bool,
    },
    Flow {
        link: CoreLinkId,
        delivery_count: u32,
        credit: u32,
        drain: bool,
    },
    Detach {
        link: CoreLinkId,
    },
    /// The connection has written `bytes` of its output to the socket.
    Written {
        connection: ConnectionId,
        bytes: usize,
    },
    /// Any less frequent operation. Its reply goes to the requesting connection.
    Call(CoreCall),
}

impl EngineRequest {
    pub(super) fn execute(self, core: &mut Core, call: &mut CallContext<'_>) -> Option<EngineReply> {
        match self {
            Self::Send { link, delivery, settled, to, messages } => {
                let result = core.send(call, to, &messages).map(drop);
                (!settled).then_some(EngineReply::Sent { link, delivery, result })
            }
            Self::Settle { link, queue, deliveries, outcome, settled } => {
                let tokens: Vec<_> = deliveries.iter().map(|(_, token)| *token).collect();
                let result = core.settle(call, queue, &tokens, &outcome);
                if settled {
                    return None;
                }
                let (lost, error) = match result {
                    Ok(lost) if lost.is_empty() => (Vec::new(), None),
                    Ok(lost) => (lost, Some(core.lock_lost_error(queue))),
                    Err(error) => (tokens, Some(error)),
                };
                let deliveries = deliveries.into_iter().map(|(id, token)| (id, lost.contains(&token))).collect();
                Some(EngineReply::Settled { link, deliveries, outcome, error })
            }
            Self::Flow { link, delivery_count, credit, drain } => {
                core.flow(call, link, delivery_count, credit, drain);
                None
            }
            Self::Detach { link } => {
                core.detach(call, link);
                None
            }
            Self::Written { connection, bytes } => {
                core.record_written(call, connection, bytes);
                None
            }
            Self::Call(operation) => Some(operation(core, call)),
        }
    }

    /// The occasion for a fault that this request is, and its entity.
    pub(super) fn fault_occasion(&self) -> Option<(FaultOccasion, EntityId)> {
        match self {
            Self::Send { to, .. } => Some((FaultOccasion::Send, *to)),
            Self::Settle { queue, .. } => Some((FaultOccasion::Settlement, queue.entity)),
            Self::Flow { .. } | Self::Detach { .. } | Self::Written { .. } | Self::Call(_) => None,
        }
    }

    /// The link of the request, where fault injection needs it.
    pub(super) fn link(&self) -> Option<amqp::LinkId> {
        match self {
            Self::Send { link, .. } | Self::Settle { link, .. } => Some(*link),
            Self::Flow { .. } | Self::Detach { .. } | Self::Written { .. } | Self::Call(_) => None,
        }
    }

    /// The reply to a send that is not executed.
    pub(super) fn into_sent_reply(self, result: Result<(), Error>) -> Option<EngineReply> {
        match self {
            Self::Send { link, delivery, settled: false, .. } => Some(EngineReply::Sent { link, delivery, result }),
            _ => None,
        }
    }
}
