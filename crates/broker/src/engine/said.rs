//! What one round has to say to one connection: some of it at once, the rest when the disk has followed.
//!
//! A crash ends every connection, and with it every hold and every lock. So only three things must not be told too early: that something was
//! stored, that something was settled, and a message nobody can be sure of yet. An accepted session and a message that has long been
//! durable need not wait. Words about receivers keep their order among themselves: when one waits, all that follow wait behind it.

use tokio::sync::mpsc::UnboundedSender;

use super::Reply;
use crate::core::ConnectionId;
use crate::journal::Lsn;

/// When a reply may be told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Certain {
    Now,
    WhenDurable,
}

impl Certain {
    pub(super) fn when(certain: bool) -> Self {
        if certain { Self::Now } else { Self::WhenDurable }
    }
}

pub(super) struct Said {
    pub(super) to: ConnectionId,
    pub(super) now: Vec<Reply>,
    pub(super) later: Vec<Reply>,
    /// Among those that wait is a word about a receiver.
    pub(super) holds_a_link: bool,
    /// So it was in an earlier round, and it still waits.
    held_before: bool,
}

impl Said {
    pub(super) fn new(to: ConnectionId, held_before: bool) -> Self {
        Self { to, now: Vec::new(), later: Vec::new(), holds_a_link: false, held_before }
    }

    pub(super) fn add(&mut self, reply: Reply, certain: Certain) {
        let in_order = !(self.held_before || self.holds_a_link);
        if certain == Certain::Now && in_order {
            return self.now.push(reply);
        }
        self.holds_a_link |= reply.is_of_a_link();
        self.later.push(reply);
    }
}

/// Where a connection hears from the engine.
pub(super) struct Outbox {
    replies: UnboundedSender<Vec<Reply>>,
    /// The last word about one of its links waits for this; later ones must not overtake it.
    pub(super) held_until: Lsn,
}

impl Outbox {
    pub(super) fn new(replies: UnboundedSender<Vec<Reply>>) -> Self {
        Self { replies, held_until: Lsn::default() }
    }

    pub(super) fn send(&self, replies: Vec<Reply>) {
        // A connection that has gone is told nothing; its links are detached when it says so.
        let _ = self.replies.send(replies);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::{Error, LinkId, Timestamp};

    fn attached(link: u64) -> Reply {
        Reply::Attached { link: LinkId(link), session: "s".into(), locked_until: Timestamp(1) }
    }

    fn links(replies: &[Reply]) -> Vec<u64> {
        let link = |reply: &Reply| match reply {
            Reply::Attached { link, .. } | Reply::Detached { link, .. } => link.0,
            _ => 0,
        };
        replies.iter().map(link).collect()
    }

    #[test]
    fn what_is_certain_goes_out_and_what_is_not_waits() {
        let mut said = Said::new(ConnectionId(1), false);
        said.add(Reply::HangUp, Certain::Now);
        said.add(attached(1), Certain::Now);
        assert_eq!((links(&said.now), said.later.len(), said.holds_a_link), (vec![0, 1], 0, false));
        said.add(Reply::Detached { link: LinkId(1), error: Error::SessionLockLost }, Certain::WhenDurable);
        assert_eq!((links(&said.later), said.holds_a_link), (vec![1], true));
    }

    #[test]
    fn no_word_about_a_receiver_overtakes_another() {
        let mut said = Said::new(ConnectionId(1), false);
        said.add(Reply::Detached { link: LinkId(1), error: Error::SessionLockLost }, Certain::WhenDurable);
        said.add(attached(2), Certain::Now);
        assert_eq!((links(&said.now), links(&said.later)), (vec![], vec![1, 2]));
        // Nor one of an earlier round.
        let mut said = Said::new(ConnectionId(1), true);
        said.add(attached(2), Certain::Now);
        assert_eq!((links(&said.now), links(&said.later), said.holds_a_link), (vec![], vec![2], true));
    }
}
