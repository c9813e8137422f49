//! What a connection asks of the core.

use crate::core::{ConnectionId, Core, EntityId, Error, Incoming, LinkId, LockToken, Outcome, QueueId, Turn};

use super::Reply;
use super::faults::Occasion;

/// On the engine's thread.
pub(crate) type Call = Box<dyn FnOnce(&mut Core, &mut Turn<'_>) -> Reply + Send>;

/// One thing asked, in the order the peer's frames came.
pub(crate) enum Request {
    /// Store messages; `delivery` is told what became of them unless the sender had settled already.
    Send {
        link: amqp::LinkId,
        delivery: u32,
        settled: bool,
        to: EntityId,
        messages: Vec<Incoming>,
    },
    /// Settle deliveries of one link; those named are told unless the receiver had settled already.
    Settle {
        link: amqp::LinkId,
        queue: QueueId,
        deliveries: Vec<(u32, LockToken)>,
        outcome: Outcome,
        settled: bool,
    },
    Flow {
        link: LinkId,
        delivery_count: u32,
        credit: u32,
        drain: bool,
    },
    Detach {
        link: LinkId,
    },
    /// So many bytes of what was given to the connection are written to its socket.
    Written {
        connection: ConnectionId,
        bytes: usize,
    },
    /// Anything rarer. The reply goes to the connection that asked.
    Call(Call),
}

impl Request {
    pub(super) fn carry_out(self, core: &mut Core, turn: &mut Turn<'_>) -> Option<Reply> {
        match self {
            Self::Send { link, delivery, settled, to, messages } => {
                let result = core.send(turn, to, &messages).map(drop);
                (!settled).then_some(Reply::Sent { link, delivery, result })
            }
            Self::Settle { link, queue, deliveries, outcome, settled } => {
                let tokens: Vec<_> = deliveries.iter().map(|(_, token)| *token).collect();
                let result = core.settle(turn, queue, &tokens, &outcome);
                if settled {
                    return None;
                }
                let (lost, error) = match result {
                    Ok(lost) if lost.is_empty() => (Vec::new(), None),
                    Ok(lost) => (lost, Some(core.lock_lost(queue))),
                    Err(error) => (tokens, Some(error)),
                };
                let deliveries = deliveries.into_iter().map(|(id, token)| (id, lost.contains(&token))).collect();
                Some(Reply::Settled { link, deliveries, outcome, error })
            }
            Self::Flow { link, delivery_count, credit, drain } => {
                core.flow(turn, link, delivery_count, credit, drain);
                None
            }
            Self::Detach { link } => {
                core.detach(turn, link);
                None
            }
            Self::Written { connection, bytes } => {
                core.written(turn, connection, bytes);
                None
            }
            Self::Call(call) => Some(call(core, turn)),
        }
    }

    /// What a fault could strike here, and at which entity.
    pub(super) fn occasion(&self) -> Option<(Occasion, EntityId)> {
        match self {
            Self::Send { to, .. } => Some((Occasion::Send, *to)),
            Self::Settle { queue, .. } => Some((Occasion::Settlement, queue.entity)),
            Self::Flow { .. } | Self::Detach { .. } | Self::Written { .. } | Self::Call(_) => None,
        }
    }

    /// The link it came by, where a fault needs to know.
    pub(super) fn link(&self) -> Option<amqp::LinkId> {
        match self {
            Self::Send { link, .. } | Self::Settle { link, .. } => Some(*link),
            Self::Flow { .. } | Self::Detach { .. } | Self::Written { .. } | Self::Call(_) => None,
        }
    }

    /// What a throttled service answers.
    pub(super) fn refuse_as_busy(self) -> Option<Reply> {
        match self {
            Self::Send { link, delivery, settled: false, .. } => {
                Some(Reply::Sent { link, delivery, result: Err(Error::ServerBusy) })
            }
            _ => None,
        }
    }
}
