//! What an operator may do through this server, and how it is known to be one.
//!
//! Only where a token is configured; else the server is for reading. Whoever asks shows the token in a header of its own, which no browser
//! adds by itself and which another site's page may not set: there is nothing to forge. The token is compared in constant time and is in no log.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use hyper::header::{AUTHORIZATION, HeaderMap};
use serde::{Deserialize, Serialize};
use subtle::ConstantTimeEq;

/// The operator_routes, done elsewhere: this crate knows neither leases nor read models.
pub trait OperatorActions: Send + Sync + 'static {
    /// Asks the leader to give its term up.
    fn step_down(&self) -> ActionFuture<'_, ActionDone>;

    /// What waits, with names of aggregates.
    fn parked(&self) -> ActionFuture<'_, Vec<ParkedEntry>>;

    /// Applies what waits, in order.
    fn retry(&self, which: ParkedSelector) -> ActionFuture<'_, ActionDone>;

    /// Leaves events out for good.
    fn discard(&self, which: ParkedSelector) -> ActionFuture<'_, ActionDone>;
}

pub type ActionFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, ActionRefusal>> + Send + 'a>>;

/// What was done, for people.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ActionDone {
    pub done: String,
}

/// Why it was not.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ActionRefusal {
    #[serde(skip)]
    pub kind: ActionRefusalKind,
    pub refused: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ActionRefusalKind {
    /// There is nothing to do it to.
    NotFound,
    /// It was tried, or could not be; as things stand it will not do.
    Conflict,
}

/// An aggregate that waits in one read model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ParkedEntry {
    pub read_model: String,
    /// As people write it.
    pub aggregate: String,
    /// As [`ParkedSelector`] names it.
    pub id: String,
    pub reason: String,
    pub events: u64,
    pub since: String,
}

/// One of those that wait.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ParkedSelector {
    pub read_model: String,
    pub id: String,
    /// All that waits, not only the first; for a discard.
    #[serde(default)]
    pub all: bool,
}

/// Whose bearer is an operator.
#[derive(Clone)]
pub struct OperatorToken(String);

/// What the server needs to let an operator act.
#[derive(Clone)]
pub struct OperatorAccess {
    pub token: OperatorToken,
    pub actions: Arc<dyn OperatorActions>,
}

impl OperatorToken {
    /// `None` of nothing: an empty token would be everybody's.
    pub fn new(token: impl Into<String>) -> Option<Self> {
        let token = token.into();
        (!token.is_empty()).then_some(Self(token))
    }

    /// Whether `Authorization: Bearer …` shows it.
    pub(crate) fn is_shown_in(&self, headers: &HeaderMap) -> bool {
        let shown = headers.get(AUTHORIZATION).and_then(|value| value.as_bytes().split_at_checked(SCHEME.len()));
        shown.is_some_and(|(scheme, token)| {
            scheme.eq_ignore_ascii_case(SCHEME) && bool::from(token.ct_eq(self.0.as_bytes()))
        })
    }
}

const SCHEME: &[u8] = b"Bearer ";

impl fmt::Debug for OperatorToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

impl ActionRefusal {
    pub fn not_found(refused: impl Into<String>) -> Self {
        Self { kind: ActionRefusalKind::NotFound, refused: refused.into() }
    }

    pub fn conflict(refused: impl Into<String>) -> Self {
        Self { kind: ActionRefusalKind::Conflict, refused: refused.into() }
    }
}

#[cfg(test)]
mod tests {
    use hyper::header::HeaderValue;

    use super::*;

    fn shown(header: Option<&'static str>) -> bool {
        let token = OperatorToken::new("open-sesame").unwrap();
        let mut headers = HeaderMap::new();
        headers.extend(header.map(|text| (AUTHORIZATION, HeaderValue::from_static(text))));
        token.is_shown_in(&headers)
    }

    #[test]
    fn only_the_whole_token_opens() {
        assert!(shown(Some("Bearer open-sesame")));
        assert!(shown(Some("bearer open-sesame")), "a scheme has no case");
        for wrong in ["", "Bearer", "Bearer ", "Bearer open", "Bearer open-sesame!", "Basic open-sesame", "open-sesame"]
        {
            assert!(!shown(Some(wrong)), "`{wrong}`");
        }
        assert!(!shown(None));
    }

    #[test]
    fn a_token_is_never_shown_and_never_empty() {
        assert_eq!(format!("{:?}", OperatorToken::new("open-sesame").unwrap()), "***");
        assert!(OperatorToken::new("").is_none());
    }
}
