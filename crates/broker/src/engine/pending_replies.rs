//! The replies of one round to one connection: some leave at once, the rest when the journal is durable.
//!
//! A crash closes every connection and ends every lock. So only three replies must wait for a sync: that a message was
//! stored, that a message was settled, and the delivery of a message that is not durable yet. Replies about receiver
//! links keep their order: if one waits, all later ones wait behind it.

use tokio::sync::mpsc::UnboundedSender;

use super::EngineReply;
use crate::core::ConnectionId;
use crate::journal::Lsn;

/// When a reply may be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ReplyTiming {
    Now,
    WhenDurable,
}

impl ReplyTiming {
    pub(super) fn immediate_if(crash_safe: bool) -> Self {
        if crash_safe { Self::Now } else { Self::WhenDurable }
    }
}

pub(super) struct PendingReplies {
    pub(super) to: ConnectionId,
    pub(super) immediate: Vec<EngineReply>,
    pub(super) deferred: Vec<EngineReply>,
    /// A reply about a receiver link is deferred.
    pub(super) defers_link_reply: bool,
    /// The same for an earlier round, whose reply still waits.
    link_reply_still_deferred: bool,
}

impl PendingReplies {
    pub(super) fn new(to: ConnectionId, link_reply_still_deferred: bool) -> Self {
        Self { to, immediate: Vec::new(), deferred: Vec::new(), defers_link_reply: false, link_reply_still_deferred }
    }

    pub(super) fn add(&mut self, reply: EngineReply, timing: ReplyTiming) {
        let in_order = !(self.link_reply_still_deferred || self.defers_link_reply);
        if timing == ReplyTiming::Now && in_order {
            return self.immediate.push(reply);
        }
        self.defers_link_reply |= reply.concerns_link();
        self.deferred.push(reply);
    }
}

/// Sends replies to a connection.
pub(super) struct ConnectionReplySender {
    replies: UnboundedSender<Vec<EngineReply>>,
    /// The last reply about one of its links waits for this position; later ones must not overtake it.
    pub(super) deferred_until: Lsn,
}

impl ConnectionReplySender {
    pub(super) fn new(replies: UnboundedSender<Vec<EngineReply>>) -> Self {
        Self { replies, deferred_until: Lsn::default() }
    }

    pub(super) fn send(&self, replies: Vec<EngineReply>) {
        // The receiver is gone if the connection has closed; it then reports its links itself.
        let _ = self.replies.send(replies);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::{CoreLinkId, Error, Timestamp};

    fn attached(link: u64) -> EngineReply {
        EngineReply::Attached { link: CoreLinkId(link), session: "s".into(), locked_until: Timestamp(1) }
    }

    fn links(replies: &[EngineReply]) -> Vec<u64> {
        let link = |reply: &EngineReply| match reply {
            EngineReply::Attached { link, .. } | EngineReply::Detached { link, .. } => link.0,
            _ => 0,
        };
        replies.iter().map(link).collect()
    }

    #[test]
    fn crash_safe_replies_leave_at_once_and_others_wait() {
        let mut pending = PendingReplies::new(ConnectionId(1), false);
        pending.add(EngineReply::DropConnection, ReplyTiming::Now);
        pending.add(attached(1), ReplyTiming::Now);
        assert_eq!(
            (links(&pending.immediate), pending.deferred.len(), pending.defers_link_reply),
            (vec![0, 1], 0, false)
        );
        pending.add(
            EngineReply::Detached { link: CoreLinkId(1), error: Error::SessionLockLost },
            ReplyTiming::WhenDurable,
        );
        assert_eq!((links(&pending.deferred), pending.defers_link_reply), (vec![1], true));
    }

    #[test]
    fn replies_about_receivers_keep_their_order() {
        let mut pending = PendingReplies::new(ConnectionId(1), false);
        pending.add(
            EngineReply::Detached { link: CoreLinkId(1), error: Error::SessionLockLost },
            ReplyTiming::WhenDurable,
        );
        pending.add(attached(2), ReplyTiming::Now);
        assert_eq!((links(&pending.immediate), links(&pending.deferred)), (vec![], vec![1, 2]));
        // Nor a reply of an earlier round.
        let mut pending = PendingReplies::new(ConnectionId(1), true);
        pending.add(attached(2), ReplyTiming::Now);
        assert_eq!(
            (links(&pending.immediate), links(&pending.deferred), pending.defers_link_reply),
            (vec![], vec![2], true)
        );
    }
}
