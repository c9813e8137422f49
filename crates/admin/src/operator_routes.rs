//! The paths of the operator actions: checks the token, reads the request, and turns the result into a response.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use hyper::{Method, Request, StatusCode};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::time::timeout;
use tracing::warn;

use crate::applied_query;
use crate::operator::{ActionRefusal, ActionRefusalKind, AppliedAnswer, OperatorAccess};
use crate::response::{self, AdminResponse};

/// A body names one aggregate and one read model.
const MAX_BODY: usize = 64 << 10;
const PARKED_EXAMPLE: &str = "expected `{\"read_model\": \"orders\", \"id\": \"…\"}`, with an id from /api/parked\n";
const READ_MODEL_EXAMPLE: &str = "expected `{\"read_model\": \"orders\"}`\n";
const BODY_TIMEOUT: Duration = Duration::from_secs(10);

/// Whoever reaches the port can send such requests as fast as the network allows: the log must not grow with them.
const REFUSAL_LOG_INTERVAL: Duration = Duration::from_secs(10);
static REFUSED: Mutex<RefusedRequests> = Mutex::new(RefusedRequests { logged_at: None, since: 0 });

/// Requests without the token.
struct RefusedRequests {
    logged_at: Option<Instant>,
    /// Since the last one that was logged.
    since: u64,
}

impl RefusedRequests {
    /// How many to log now, this one included; `None`: later.
    fn record(&mut self, now: Instant) -> Option<u64> {
        self.since += 1;
        if self.logged_at.is_some_and(|at| now.saturating_duration_since(at) < REFUSAL_LOG_INTERVAL) {
            return None;
        }
        self.logged_at = Some(now);
        Some(std::mem::take(&mut self.since))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OperatorRoute {
    StepDown,
    ListParked,
    RetryParked,
    DiscardParked,
    WaitApplied,
    Rebuild,
    RollBack,
    CancelChange,
    PauseBuild,
    ResumeBuild,
    Verify,
}

impl OperatorRoute {
    pub(crate) fn from_path(path: &str) -> Option<Self> {
        Some(match path {
            "/api/step-down" => Self::StepDown,
            "/api/parked" => Self::ListParked,
            "/api/parked/retry" => Self::RetryParked,
            "/api/parked/discard" => Self::DiscardParked,
            "/api/applied" => Self::WaitApplied,
            "/api/read-models/rebuild" => Self::Rebuild,
            "/api/read-models/rollback" => Self::RollBack,
            "/api/read-models/cancel" => Self::CancelChange,
            "/api/read-models/build/pause" => Self::PauseBuild,
            "/api/read-models/build/resume" => Self::ResumeBuild,
            "/api/read-models/verify" => Self::Verify,
            _ => return None,
        })
    }

    /// Whether it only waits, and for long.
    pub(crate) fn is_wait(self) -> bool {
        self == Self::WaitApplied
    }

    /// Checks the token first: without it a peer learns nothing about method or body.
    pub(crate) async fn respond(self, operator: Option<&OperatorAccess>, request: Request<Incoming>) -> AdminResponse {
        let Some(OperatorAccess { token, actions }) = operator else {
            return response::text(
                StatusCode::FORBIDDEN,
                "operator actions are off: `admin.token` is not configured\n",
            );
        };
        if !token.is_shown_in(request.headers()) {
            if let Some(refused) = REFUSED.lock().expect("no code panics with it").record(Instant::now()) {
                warn!(path = request.uri().path(), refused, "operator request refused: wrong or missing token");
            }
            return response::unauthorized();
        }
        match (self, request.method()) {
            (Self::ListParked, &Method::GET) => respond_with(actions.list_parked().await),
            (Self::WaitApplied, &Method::GET) => {
                match applied_query::parse(request.uri().query().unwrap_or_default()) {
                    Ok(request) => respond_applied(actions.wait_applied(request).await),
                    Err(problem) => response::text(StatusCode::BAD_REQUEST, format!("{problem}\n")),
                }
            }
            (Self::ListParked | Self::WaitApplied, _) => response::allow_get_only(),
            (_, method) if method != Method::POST => response::allow_post_only(),
            (Self::StepDown, _) => respond_with(actions.step_down().await),
            (Self::PauseBuild, _) => respond_with(actions.pause_build().await),
            (Self::ResumeBuild, _) => respond_with(actions.resume_build().await),
            (Self::CancelChange, _) => respond_with(actions.cancel_change().await),
            (Self::Rebuild | Self::RollBack | Self::Verify, _) => {
                let selector = match read_selector(request, READ_MODEL_EXAMPLE).await {
                    Ok(selector) => selector,
                    Err(error_response) => return error_response,
                };
                respond_with(match self {
                    Self::Rebuild => actions.rebuild(selector).await,
                    Self::RollBack => actions.roll_back(selector).await,
                    _ => actions.verify(selector).await,
                })
            }
            (Self::RetryParked | Self::DiscardParked, _) => match read_selector(request, PARKED_EXAMPLE).await {
                Ok(selector) if self == Self::RetryParked => respond_with(actions.retry_parked(selector).await),
                Ok(selector) => respond_with(actions.discard_parked(selector).await),
                Err(error_response) => error_response,
            },
        }
    }
}

async fn read_selector<T: DeserializeOwned>(
    request: Request<Incoming>,
    example: &'static str,
) -> Result<T, AdminResponse> {
    let body = Limited::new(request.into_body(), MAX_BODY).collect();
    let too_large = || response::text(StatusCode::PAYLOAD_TOO_LARGE, "the body is too large, or took too long\n");
    let body: Bytes = timeout(BODY_TIMEOUT, body).await.map_err(|_| too_large())?.map_err(|_| too_large())?.to_bytes();
    serde_json::from_slice(&body).map_err(|_| response::text(StatusCode::BAD_REQUEST, example))
}

/// The status says what a caller must do: go on, give up, or ask again.
fn respond_applied(result: Result<AppliedAnswer, ActionRefusal>) -> AdminResponse {
    match result {
        Ok(answer) if answer.parked || answer.unavailable => response::json(StatusCode::CONFLICT, &answer),
        Ok(answer) if answer.applied => response::json(StatusCode::OK, &answer),
        Ok(answer) => response::json(StatusCode::GATEWAY_TIMEOUT, &answer),
        Err(refusal) => respond_with(Err::<(), _>(refusal)),
    }
}

fn respond_with(result: Result<impl Serialize, ActionRefusal>) -> AdminResponse {
    match result {
        Ok(value) => response::json(StatusCode::OK, &value),
        Err(refusal) => {
            let status = match refusal.kind {
                ActionRefusalKind::NotFound => StatusCode::NOT_FOUND,
                ActionRefusalKind::Conflict => StatusCode::CONFLICT,
            };
            response::json(status, &refusal)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refused_requests_are_logged_once_per_interval() {
        let mut refused = RefusedRequests { logged_at: None, since: 0 };
        let start = Instant::now();
        assert_eq!(refused.record(start), Some(1));
        assert_eq!((1..10).find_map(|seconds| refused.record(start + Duration::from_secs(seconds))), None);
        assert_eq!(refused.record(start + REFUSAL_LOG_INTERVAL), Some(10));
    }
}
