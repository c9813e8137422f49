//! What the tokens of a connection allow: checked when a link attaches and at every management request. A link ends when
//! its token expires and no other allows it.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use amqp::{PlainVerifier, condition};
use tokio::io::{AsyncRead, AsyncWrite};

use super::BrokerConnection;
use crate::access::{AccessGrant, AccessKeys};
use crate::atom::AccessRight;
use crate::core::Timestamp;

/// How long a coordinator link may be open before the connection has a token. The .NET SDK declares a transaction before it opens the first link that sends a
/// token.
const COORDINATOR_GRACE: Duration = Duration::from_secs(20);
/// The longest wait before the tokens are looked at again.
const MAX_WAIT: Duration = Duration::from_secs(86_400);

/// The tokens of one connection, and the links that depend on them. Empty while the broker has no keys.
#[derive(Debug, Default)]
pub(super) struct ConnectionGrants {
    grants: Vec<AccessGrant>,
    /// What the client may do by the key that it opened the connection with (SASL PLAIN). Empty if it uses tokens only.
    by_key: Arc<OnceLock<Vec<AccessGrant>>>,
    links: HashMap<amqp::LinkId, LinkNeed>,
    /// When the first token expires, or a link must have one.
    first_expiry: Option<Timestamp>,
}

/// What a link needs to stay open.
#[derive(Debug)]
enum LinkNeed {
    /// A right on an entity; `None`: any.
    Entity(String, Option<AccessRight>),
    /// A right on any entity of the namespace, from this time on.
    AnyEntity { from: Timestamp },
}

impl ConnectionGrants {
    /// The user is the name of a key, the password the key. What the key allows is kept for the whole connection.
    pub(super) fn plain_verifier(&self, keys: &Arc<AccessKeys>) -> PlainVerifier {
        let (keys, by_key) = (Arc::clone(keys), Arc::clone(&self.by_key));
        PlainVerifier::new(move |user, password| {
            let grants = by_key.get_or_init(|| keys.grants_of(user, password));
            !grants.is_empty()
        })
    }

    fn all(&self) -> impl Iterator<Item = &AccessGrant> {
        self.grants.iter().chain(self.by_key.get().into_iter().flatten())
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> BrokerConnection<S> {
    /// `None`: any right is enough.
    pub(super) fn is_allowed(&self, path: &str, right: Option<AccessRight>) -> bool {
        if self.settings.keys.is_none() {
            return true;
        }
        let now = self.settings.clock.now();
        self.grants.all().any(|grant| grant.allows(path, right, now))
    }

    /// True if a token or a key gives any right on any entity.
    pub(super) fn has_any_right(&self) -> bool {
        let now = self.settings.clock.now();
        self.settings.keys.is_none()
            || self.grants.all().any(|grant| !grant.rights.is_empty() && grant.expires_at > now)
    }

    /// Remembers that a coordinator link needs a token, soon.
    pub(super) fn expect_token(&mut self, link: amqp::LinkId) {
        if self.settings.keys.is_some() {
            let from = self.settings.clock.now().after(COORDINATOR_GRACE);
            self.grants.links.insert(link, LinkNeed::AnyEntity { from });
            self.set_first_expiry();
        }
    }

    fn is_met(&self, need: &LinkNeed, now: Timestamp) -> bool {
        match need {
            LinkNeed::Entity(path, right) => self.is_allowed(path, *right),
            LinkNeed::AnyEntity { from } => *from > now || self.has_any_right(),
        }
    }

    /// Checks that a link may attach, and remembers what it needs.
    pub(super) fn authorize_link(
        &mut self,
        link: amqp::LinkId,
        path: &str,
        right: Option<AccessRight>,
    ) -> Result<(), amqp::Error> {
        if !self.is_allowed(path, right) {
            let needed = right.map_or_else(|| "any right".to_owned(), |right| format!("the right `{right}`"));
            let text = format!("unauthorized access: no valid token gives {needed} on '{path}'");
            return Err(amqp::Error::new(condition::UNAUTHORIZED_ACCESS, text));
        }
        if self.settings.keys.is_some() {
            self.grants.links.insert(link, LinkNeed::Entity(path.to_owned(), right));
        }
        Ok(())
    }

    pub(super) fn add_grant(&mut self, mut grant: AccessGrant) {
        if let Some(lifetime) = self.settings.profile.profile.max_token_lifetime {
            let latest = self.settings.clock.now().0.saturating_add(lifetime.as_millis() as u64);
            grant.expires_at = grant.expires_at.min(Timestamp(latest));
        }
        // A client renews its token: only the newest of a scope counts.
        self.grants.grants.retain(|other| other.scope != grant.scope);
        self.grants.grants.push(grant);
        self.set_first_expiry();
    }

    pub(super) fn forget_link(&mut self, link: amqp::LinkId) {
        self.grants.links.remove(&link);
        self.forget_activity(link);
    }

    /// When to call [`cut_expired_links`](Self::cut_expired_links), if no frame comes first.
    pub(super) fn token_deadline(&self) -> Option<Instant> {
        // A token may be valid for centuries, which a deadline cannot express.
        self.grants.first_expiry.map(|at| Instant::now() + self.settings.clock.duration_until(at).min(MAX_WAIT))
    }

    /// Ends the links whose token has expired. Called before every frame is handled: costs nothing without keys.
    pub(super) fn cut_expired_links(&mut self) {
        let Some(first) = self.grants.first_expiry else { return };
        let now = self.settings.clock.now();
        if first > now {
            return;
        }
        self.grants.grants.retain(|grant| grant.expires_at > now);
        let unmet = self.grants.links.iter().filter(|(_, need)| !self.is_met(need, now));
        let cut: Vec<_> = unmet.map(|(link, need)| (*link, need.refusal())).collect();
        for (link, text) in cut {
            let error = amqp::Error::new(condition::UNAUTHORIZED_ACCESS, text);
            self.on_detached(link);
            let _ = self.amqp.detach(link, Some(error));
        }
        self.set_first_expiry();
    }

    fn set_first_expiry(&mut self) {
        let now = self.settings.clock.now();
        let due = self.grants.links.values().filter_map(|need| match need {
            LinkNeed::AnyEntity { from } => Some(*from).filter(|from| *from > now),
            LinkNeed::Entity(..) => None,
        });
        self.grants.first_expiry = self.grants.grants.iter().map(|grant| grant.expires_at).chain(due).min();
    }
}

impl LinkNeed {
    /// Why a link ends that does not have what it needs.
    fn refusal(&self) -> &'static str {
        match self {
            Self::Entity(..) => "ExpiredToken: the token is expired",
            Self::AnyEntity { .. } => "unauthorized access: no valid token gives a right in this namespace",
        }
    }
}
