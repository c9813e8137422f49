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
        has_right && self.expires_at > now && covers(&self.scope, &normalize(path))
    }
}

/// The form in which paths are compared.
fn normalize(path: &str) -> String {
    path.trim_matches('/').to_lowercase()
}

/// True if `path` is `scope` or below it. Both are normalized.
fn covers(scope: &str, path: &str) -> bool {
    scope.is_empty() || path.strip_prefix(scope).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

#[cfg(test)]
mod tests {
    use super::*;

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
        assert!(!listen.allows("orders2", Some(AccessRight::Listen), now));
        assert!(!listen.allows("", Some(AccessRight::Listen), now));
        assert!(!listen.allows("orders", Some(AccessRight::Listen), Timestamp(100)), "expired");
        assert!(grant("", AccessRight::Manage).allows("any", Some(AccessRight::Send), now));
    }
}
