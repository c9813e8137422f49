//! The operator actions that the server offers, and the token that allows them.
//!
//! Without a configured token the server is read-only. A client sends the token in the `Authorization` header: browsers do not add that header by
//! themselves and pages of other sites may not set it, so a request cannot be forged. The token is compared in constant time and never logged.

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use hyper::header::{AUTHORIZATION, HeaderMap};
use serde::{Deserialize, Serialize};
use subtle::ConstantTimeEq;

/// The actions themselves. The binary implements them: this crate knows neither leases nor read models.
pub trait OperatorActions: Send + Sync + 'static {
    /// Requests that the leader ends its term.
    fn step_down(&self) -> ActionFuture<'_, ActionDone>;

    /// The parked aggregates of all read models.
    fn list_parked(&self) -> ActionFuture<'_, Vec<ParkedListEntry>>;

    /// Applies the parked events of one aggregate, in order.
    fn retry_parked(&self, selector: ParkedSelector) -> ActionFuture<'_, ActionDone>;

    /// Skips parked events for good.
    fn discard_parked(&self, selector: ParkedSelector) -> ActionFuture<'_, ActionDone>;

    /// Builds a read model anew from the source.
    fn rebuild(&self, selector: ReadModelSelector) -> ActionFuture<'_, ActionDone>;

    /// Builds the definition that a read model had before its last change.
    fn roll_back(&self, selector: ReadModelSelector) -> ActionFuture<'_, ActionDone>;

    /// Stops the change of read models that is in progress.
    fn cancel_change(&self) -> ActionFuture<'_, ActionDone>;

    /// Stops the build of read models where it is.
    fn pause_build(&self) -> ActionFuture<'_, ActionDone>;

    /// Continues a paused build.
    fn resume_build(&self) -> ActionFuture<'_, ActionDone>;

    /// Compares a sample of a read model with the source.
    fn verify(&self, selector: ReadModelSelector) -> ActionFuture<'_, ActionDone>;

    /// Waits until an event is applied.
    fn wait_applied(&self, request: AppliedRequest) -> ActionFuture<'_, AppliedAnswer>;
}

/// The event to wait for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AppliedRequest {
    pub event: EventSelector,
    pub timeout: Duration,
}

/// Names an event; ids are text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EventSelector {
    Sequence {
        aggregate: String,
        sequence: i64,
    },
    /// The `_id` of the event in the source.
    Id(String),
}

/// Where an event is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct AppliedAnswer {
    /// In every read model.
    pub applied: bool,
    /// In at least one read model: waiting does not help.
    pub parked: bool,
    /// At least one read model is paused or being built: waiting does not help now.
    pub unavailable: bool,
    /// Up to which the aggregate is applied or parked.
    pub sequence: Option<i64>,
    /// By name.
    pub read_models: BTreeMap<String, AppliedModel>,
    /// A read on a secondary after this time sees the event.
    pub operation_time: Option<OperationTime>,
}

/// Where an event is in one read model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct AppliedModel {
    /// `applied`, `parked`, `paused`, `building` or `pending`.
    pub state: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// A timestamp of MongoDB: `Timestamp(t, i)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct OperationTime {
    pub t: u32,
    pub i: u32,
}

pub type ActionFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, ActionRefusal>> + Send + 'a>>;

/// A finished action, described for the operator.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ActionDone {
    pub done: String,
}

/// Why an action was not done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ActionRefusal {
    #[serde(skip)]
    pub kind: ActionRefusalKind,
    pub refused: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ActionRefusalKind {
    /// The target does not exist (any more).
    NotFound,
    /// The action failed in the present state.
    Conflict,
}

/// An aggregate that is parked in one read model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ParkedListEntry {
    pub read_model: String,
    /// For display.
    pub aggregate: String,
    /// For [`ParkedSelector::id`].
    pub id: String,
    pub reason: String,
    pub events: u64,
    pub since: String,
}

/// Selects one [`ParkedListEntry`].
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ParkedSelector {
    pub read_model: String,
    pub id: String,
    /// Discards all events instead of the first.
    #[serde(default)]
    pub all: bool,
}

/// Selects one read model.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReadModelSelector {
    pub read_model: String,
}

/// Whoever sends it is an operator.
#[derive(Clone)]
pub struct OperatorToken(String);

/// What the server needs for operator actions.
#[derive(Clone)]
pub struct OperatorAccess {
    pub token: OperatorToken,
    pub actions: Arc<dyn OperatorActions>,
}

impl OperatorToken {
    /// `None` for an empty token, which every request would match.
    pub fn new(token: impl Into<String>) -> Option<Self> {
        let token = token.into();
        (!token.is_empty()).then_some(Self(token))
    }

    /// Whether the headers hold `Authorization: Bearer` with this token.
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
    fn only_the_whole_token_is_accepted() {
        assert!(shown(Some("Bearer open-sesame")));
        assert!(shown(Some("bearer open-sesame")), "the scheme is case-insensitive");
        for wrong in ["", "Bearer", "Bearer ", "Bearer open", "Bearer open-sesame!", "Basic open-sesame", "open-sesame"]
        {
            assert!(!shown(Some(wrong)), "`{wrong}`");
        }
        assert!(!shown(None));
    }

    #[test]
    fn a_token_is_masked_and_never_empty() {
        assert_eq!(format!("{:?}", OperatorToken::new("open-sesame").unwrap()), "***");
        assert!(OperatorToken::new("").is_none());
    }
}
