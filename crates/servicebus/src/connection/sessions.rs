//! Which AMQP session a link goes into.
//!
//! Links that only send, and those of requests, share: a few hundred fit in one. A receiver has one to itself, and leaves it to the next receiver when it
//! goes, so that accepting sessions all day costs no begin and end each time.

use amqp::{CommandError, SessionId};

/// Peers commonly take 255 links in one AMQP session; some room is left for theirs.
const MOST_LINKS: usize = 200;

#[derive(Debug, Default)]
pub(super) struct Sessions {
    shared: Vec<(SessionId, usize)>,
    idle: Vec<SessionId>,
}

impl Sessions {
    pub(super) fn take(&mut self, connection: &mut amqp::Connection, own: bool) -> Result<SessionId, CommandError> {
        if own {
            return self.idle.pop().map_or_else(|| connection.begin_session(), Ok);
        }
        if let Some((session, links)) = self.shared.iter_mut().find(|(_, links)| *links < MOST_LINKS) {
            *links += 1;
            return Ok(*session);
        }
        let session = connection.begin_session()?;
        self.shared.push((session, 1));
        Ok(session)
    }

    pub(super) fn give_back(&mut self, session: SessionId) {
        match self.shared.iter_mut().find(|(shared, _)| *shared == session) {
            Some((_, links)) => *links -= 1,
            None => self.idle.push(session),
        }
    }

    pub(super) fn ended(&mut self, session: SessionId) {
        self.shared.retain(|(shared, _)| *shared != session);
        self.idle.retain(|idle| *idle != session);
    }
}
