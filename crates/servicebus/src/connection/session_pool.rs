//! Assigns links to AMQP sessions.
//!
//! Senders and request links share AMQP sessions. Each receiver has its own, and releases it for the next receiver, so that
//! accepting many Service Bus sessions does not cost a begin and an end each time.

use amqp::{CommandError, SessionId};

/// Peers commonly allow 255 links per AMQP session; the rest is left for links that the peer opens.
const MAX_LINKS_PER_SESSION: usize = 200;

#[derive(Debug, Default)]
pub(super) struct SessionPool {
    shared: Vec<(SessionId, usize)>,
    idle: Vec<SessionId>,
}

impl SessionPool {
    pub(super) fn acquire(&mut self, connection: &mut amqp::Connection, own: bool) -> Result<SessionId, CommandError> {
        if own {
            return self.idle.pop().map_or_else(|| connection.begin_session(), Ok);
        }
        if let Some((session, links)) = self.shared.iter_mut().find(|(_, links)| *links < MAX_LINKS_PER_SESSION) {
            *links += 1;
            return Ok(*session);
        }
        let session = connection.begin_session()?;
        self.shared.push((session, 1));
        Ok(session)
    }

    pub(super) fn release(&mut self, session: SessionId) {
        match self.shared.iter_mut().find(|(shared, _)| *shared == session) {
            Some((_, links)) => *links -= 1,
            None => self.idle.push(session),
        }
    }

    pub(super) fn remove(&mut self, session: SessionId) {
        self.shared.retain(|(shared, _)| *shared != session);
        self.idle.retain(|idle| *idle != session);
    }
}
