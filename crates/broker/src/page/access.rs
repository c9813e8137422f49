//! Who may read and act through the page.
//!
//! | broker | read | act |
//! | --- | --- | --- |
//! | with keys | a token signed with a key that may manage the namespace | the same |
//! | without keys (loopback only) | everybody who reaches the port, as over AMQP | the token that the broker prints at its start |
//!
//! A token is sent in the `Authorization` header. Browsers do not add it by themselves, and pages of other sites may not set it, so a request cannot be
//! forged. The service checks the host name before this, so that no other site can pose as this one (DNS rebinding).

use std::fmt::Write;
use std::sync::Arc;

use hyper::StatusCode;
use hyper::header::{AUTHORIZATION, HOST, HeaderMap, ORIGIN};
use subtle::ConstantTimeEq;

use super::PageError;
use crate::access::AccessKeys;
use crate::atom::AccessRight;
use crate::core::Timestamp;

pub(crate) enum PageAccess {
    Keys(Arc<AccessKeys>),
    /// Generated at the start.
    Token(String),
}

const SCHEME: &str = "Bearer ";
const FETCH_SITE: &str = "sec-fetch-site";

impl PageAccess {
    /// With keys if there are any, else with a new token.
    pub(crate) fn new(keys: Option<Arc<AccessKeys>>) -> Self {
        keys.map_or_else(|| Self::Token(generate_token()), Self::Keys)
    }

    pub(super) fn kind(&self) -> &'static str {
        match self {
            Self::Keys(_) => "key",
            Self::Token(_) => "token",
        }
    }

    /// The token, if it is not signed with a key.
    pub(crate) fn token(&self) -> Option<&str> {
        match self {
            Self::Keys(_) => None,
            Self::Token(token) => Some(token),
        }
    }

    pub(super) fn check_read(&self, headers: &HeaderMap, now: Timestamp) -> Result<(), PageError> {
        match self {
            Self::Keys(_) => self.check_action(headers, now),
            Self::Token(_) => Ok(()),
        }
    }

    pub(super) fn check_action(&self, headers: &HeaderMap, now: Timestamp) -> Result<(), PageError> {
        let shown = headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let unauthorized = |text: String| PageError::new(StatusCode::UNAUTHORIZED, text);
        match self {
            Self::Token(token) => {
                let shown = shown.strip_prefix(SCHEME).unwrap_or_default();
                match bool::from(shown.as_bytes().ct_eq(token.as_bytes())) {
                    true => Ok(()),
                    false => Err(unauthorized("wrong or missing token: use the one that the broker printed".into())),
                }
            }
            Self::Keys(keys) => {
                // An empty path is the namespace: the key must not belong to one entity.
                let grant = keys.verify(shown, "", now, &[]).map_err(|error| unauthorized(error.to_string()))?;
                match grant.allows("", Some(AccessRight::Manage), now) {
                    true => Ok(()),
                    false => Err(unauthorized("the key has no right to manage".into())),
                }
            }
        }
    }
}

/// Refuses requests that a browser sends for a page of another site. Other programs do not send these headers.
pub(super) fn check_origin(headers: &HeaderMap) -> Result<(), PageError> {
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
    let same_site = headers.get(FETCH_SITE).is_none_or(|site| site == "same-origin" || site == "none");
    let origin = headers.get(ORIGIN).map(|origin| origin.to_str().ok().and_then(|origin| origin.split_once("://")));
    let same_origin = origin.is_none_or(|origin| origin.map(|(_, host)| host) == text(HOST.as_str()));
    match same_site && same_origin {
        true => Ok(()),
        false => Err(PageError::new(StatusCode::FORBIDDEN, "the request comes from a page of another site")),
    }
}

fn generate_token() -> String {
    rand::random::<[u8; 16]>().iter().fold(String::with_capacity(32), |mut token, byte| {
        write!(token, "{byte:02x}").expect("writing to a string cannot fail");
        token
    })
}

#[cfg(test)]
mod tests {
    use hyper::header::{HeaderName, HeaderValue};

    use super::*;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let pairs = pairs.iter().map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)));
        pairs.collect()
    }

    #[test]
    fn without_keys_only_the_printed_token_may_act() {
        let access = PageAccess::Token("0a1b".into());
        assert!(access.check_read(&HeaderMap::new(), Timestamp(0)).is_ok());
        assert!(access.check_action(&headers(&[("authorization", "Bearer 0a1b")]), Timestamp(0)).is_ok());
        for wrong in ["", "Bearer", "Bearer ", "Bearer 0a1", "Bearer 0a1bc", "0a1b", "SharedAccessSignature sr=a"] {
            assert!(access.check_action(&headers(&[("authorization", wrong)]), Timestamp(0)).is_err(), "`{wrong}`");
        }
        assert_ne!(PageAccess::new(None).token(), PageAccess::new(None).token());
    }

    #[test]
    fn requests_of_other_sites_are_refused() {
        for allowed in [
            &[][..],
            &[("host", "localhost:5672"), ("origin", "http://localhost:5672")],
            &[("sec-fetch-site", "same-origin")],
            &[("sec-fetch-site", "none")],
        ] {
            assert!(check_origin(&headers(allowed)).is_ok(), "{allowed:?}");
        }
        for refused in [
            &[("host", "localhost:5672"), ("origin", "http://localhost:3000")][..],
            &[("host", "localhost:5672"), ("origin", "https://evil.example")],
            &[("host", "localhost:5672"), ("origin", "null")],
            &[("sec-fetch-site", "cross-site")],
            &[("sec-fetch-site", "same-site")],
        ] {
            assert!(check_origin(&headers(refused)).is_err(), "{refused:?}");
        }
    }
}
