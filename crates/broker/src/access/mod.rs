//! Shared access: keys with rights, and the tokens that clients sign with them.
//!
//! A key belongs to the namespace or to one entity, and gives rights to send, listen or manage. A client never sends its
//! key. It sends a token (`SharedAccessSignature`) that names a resource, a time of expiry and the key that signed it.
//! A verified token becomes an `AccessGrant`. Tokens of Entra ID are accepted too, if an issuer is configured.

mod entra;
mod keys;
mod token;

pub use entra::{EntraIssuer, IssuerFileError};
pub use keys::{AccessKey, AccessKeys, KeyFileError};
pub(crate) use token::TokenError;

use crate::atom::AccessRight;
use crate::core::Timestamp;

/// What a token allows, until it expires.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct AccessGrant {
    /// The path that the client asked for, in lower case; empty: the namespace.
    pub(crate) scope: String,
    pub(crate) rights: Vec<AccessRight>,
    pub(crate) expires_at: Timestamp,
}

impl AccessGrant {
    /// True if it allows this at a path. `None`: any right is enough. Manage includes the others.
    pub(crate) fn allows(&self, path: &str, right: Option<AccessRight>, now: Timestamp) -> bool {
        let has_right = match right {
            Some(right) => self.rights.iter().any(|own| *own == right || *own == AccessRight::Manage),
            None => !self.rights.is_empty(),
        };
        has_right && self.expires_at > now && is_of_entity(&self.scope, &normalize(path))
    }
}

/// The form in which paths are compared.
fn normalize(path: &str) -> String {
    path.trim_matches('/').to_lowercase()
}

/// True if `path` is `resource` or begins with its segments, whatever entities these are: so far reaches a token by the resource that it names. Both are
/// normalized.
fn is_below(resource: &str, path: &str) -> bool {
    resource.is_empty() || path.strip_prefix(resource).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// True if `path` is the entity at `scope` or a part of it: a subscription, a rule, a dead-letter queue, a node. So far reaches a key. An empty scope is the
/// namespace. The name of an entity can contain slashes: `orders/x` is no part of `orders`. Both are normalized.
fn is_of_entity(scope: &str, path: &str) -> bool {
    if scope.is_empty() {
        return true;
    }
    let Some(rest) = path.strip_prefix(scope) else { return false };
    let Some(part) = rest.strip_prefix('/') else { return rest.is_empty() };
    let first = part.split('/').next().unwrap_or_default();
    // No name of a queue or topic contains `/subscriptions/`.
    first.starts_with('$') || first == "subscriptions" || (first == "rules" && scope.contains("/subscriptions/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_reaches_the_parts_of_its_entity_only() {
        for (scope, path, expected) in [
            ("", "orders/x", true),
            ("orders", "orders", true),
            ("orders", "orders/subscriptions", true),
            ("orders", "orders/subscriptions/s/rules/r", true),
            ("orders", "orders/$deadletterqueue", true),
            ("orders", "orders/$transfer/$deadletterqueue", true),
            ("orders/subscriptions/s", "orders/subscriptions/s/rules/r", true),
            ("orders", "orders/x", false),
            ("orders", "orders/x/subscriptions/s", false),
            ("orders", "orders/rules", false),
            ("orders", "orders2", false),
            ("orders/x", "orders", false),
            ("orders/subscriptions/s", "orders/subscriptions/s2", false),
        ] {
            assert_eq!(is_of_entity(scope, path), expected, "`{scope}`, `{path}`");
        }
    }

    #[test]
    fn a_grant_covers_its_scope_and_what_is_below() {
        let grant =
            |scope: &str, right| AccessGrant { scope: scope.into(), rights: vec![right], expires_at: Timestamp(100) };
        let listen = grant("orders", AccessRight::Listen);
        let now = Timestamp(99);
        assert!(listen.allows("Orders", Some(AccessRight::Listen), now));
        assert!(listen.allows("orders/$DeadLetterQueue", Some(AccessRight::Listen), now));
        assert!(listen.allows("orders", None, now));
        assert!(!listen.allows("orders", Some(AccessRight::Send), now));
        assert!(!listen.allows("orders/x", Some(AccessRight::Listen), now), "another queue");
        assert!(!listen.allows("orders2", Some(AccessRight::Listen), now));
        assert!(!listen.allows("", Some(AccessRight::Listen), now));
        assert!(!listen.allows("orders", Some(AccessRight::Listen), Timestamp(100)), "expired");
        assert!(grant("", AccessRight::Manage).allows("any", Some(AccessRight::Send), now));
    }
}
