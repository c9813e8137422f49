//! Links and connections that a profile ends because nothing happens on them: see [`crate::profile`]. Without a profile nothing is recorded.

use std::collections::HashMap;
use std::time::Instant;

use amqp::condition;
use tokio::io::{AsyncRead, AsyncWrite};

use super::BrokerConnection;
use super::links::BrokerLink;

/// When each link was last used.
#[derive(Debug)]
pub(super) struct LinkActivity {
    last_used: HashMap<amqp::LinkId, Instant>,
    /// When the connection last had a link.
    had_links: Instant,
}

impl LinkActivity {
    pub(super) fn new(now: Instant) -> Self {
        Self { last_used: HashMap::new(), had_links: now }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> BrokerConnection<S> {
    /// A frame of the client about a link, or a delivery to it.
    pub(super) fn record_activity(&mut self, link: amqp::LinkId) {
        if self.settings.profile.profile.link_idle.is_some() {
            self.activity.last_used.insert(link, Instant::now());
        }
    }

    pub(super) fn forget_activity(&mut self, link: amqp::LinkId) {
        if self.activity.last_used.remove(&link).is_some() {
            self.activity.had_links = Instant::now();
        }
    }

    /// When to call [`end_idle`](Self::end_idle), if no frame comes first.
    pub(super) fn idle_deadline(&self) -> Option<Instant> {
        let profile = &self.settings.profile.profile;
        let first = self.activity.last_used.values().min();
        match first {
            Some(first) => Some(*first + profile.link_idle?),
            None => Some(self.activity.had_links + profile.connection_idle?),
        }
    }

    /// Detaches the links that are idle for too long, or closes the connection if it has had no link for too long.
    pub(super) fn end_idle(&mut self) {
        let Some(deadline) = self.idle_deadline() else { return };
        let now = Instant::now();
        if deadline > now {
            return;
        }
        let profile = &self.settings.profile.profile;
        let (Some(link_idle), Some(connection_idle)) = (profile.link_idle, profile.connection_idle) else { return };
        if self.activity.last_used.is_empty() {
            // The peer has time to reply.
            self.activity.had_links = now;
            let text = format!(
                "The connection was closed: it had no active links in the past {} milliseconds.",
                connection_idle.as_millis()
            );
            let _ = self.amqp.close(Some(amqp::Error::new(condition::CONNECTION_FORCED, text)));
            return;
        }
        let last_used = self.activity.last_used.iter();
        let idle: Vec<_> = last_used.filter(|(_, at)| **at + link_idle <= now).map(|(link, _)| *link).collect();
        for link in idle {
            // A client that waits for a session uses its link: the wait has a timeout of its own, far below the idle time of the service.
            if let Some(BrokerLink::Pending(_)) = self.links.get(link) {
                self.activity.last_used.insert(link, now);
                continue;
            }
            let text = format!("The link is force detached. Details: IdleTimerExpired: Idle timeout: {link_idle:?}.");
            self.force_detach(link, amqp::Error::new(condition::DETACH_FORCED, text));
        }
    }
}
