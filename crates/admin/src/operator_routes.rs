//! The paths by which an operator operator_routes: who may, what is asked, and how it is answered.

use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use hyper::{Method, Request, StatusCode};
use serde::Serialize;
use tokio::time::timeout;
use tracing::warn;

use crate::operator::{ActionRefusal, ActionRefusalKind, OperatorAccess, ParkedSelector};
use crate::response::{self, HttpResponse};

/// Names are short.
const MAX_BODY: usize = 64 << 10;
const BODY_WITHIN: Duration = Duration::from_secs(10);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Act {
    StepDown,
    Parked,
    Retry,
    Discard,
}

impl Act {
    pub(crate) fn at(path: &str) -> Option<Self> {
        Some(match path {
            "/api/step-down" => Self::StepDown,
            "/api/parked" => Self::Parked,
            "/api/parked/retry" => Self::Retry,
            "/api/parked/discard" => Self::Discard,
            _ => return None,
        })
    }

    /// Who asks is looked at before what is asked.
    pub(crate) async fn answer(self, operator: Option<&OperatorAccess>, request: Request<Incoming>) -> HttpResponse {
        let Some(OperatorAccess { token, actions }) = operator else {
            return response::text(
                StatusCode::FORBIDDEN,
                "everything here is for reading: no `admin.token` is configured\n",
            );
        };
        if !token.is_shown_in(request.headers()) {
            warn!(path = request.uri().path(), "somebody without the token asked for what operators may");
            return response::who_asks();
        }
        match (self, request.method()) {
            (Self::Parked, &Method::GET) => told(actions.parked().await),
            (Self::Parked, _) => response::only_for_reading(),
            (_, method) if method != Method::POST => response::only_for_posting(),
            (Self::StepDown, _) => told(actions.step_down().await),
            (Self::Retry | Self::Discard, _) => match which(request).await {
                Ok(which) if self == Self::Retry => told(actions.retry(which).await),
                Ok(which) => told(actions.discard(which).await),
                Err(refused) => refused,
            },
        }
    }
}

async fn which(request: Request<Incoming>) -> Result<ParkedSelector, HttpResponse> {
    let body = Limited::new(request.into_body(), MAX_BODY).collect();
    let too_much = || response::text(StatusCode::PAYLOAD_TOO_LARGE, "that is more than a name, or took too long\n");
    let body: Bytes = timeout(BODY_WITHIN, body).await.map_err(|_| too_much())?.map_err(|_| too_much())?.to_bytes();
    let example = "say which, as `{\"read_model\": \"orders\", \"id\": \"…\"}`, with an id of /api/parked\n";
    serde_json::from_slice(&body).map_err(|_| response::text(StatusCode::BAD_REQUEST, example))
}

fn told(answer: Result<impl Serialize, ActionRefusal>) -> HttpResponse {
    match answer {
        Ok(done) => response::json(StatusCode::OK, &done),
        Err(refusal) => {
            let status = match refusal.kind {
                ActionRefusalKind::NotFound => StatusCode::NOT_FOUND,
                ActionRefusalKind::Conflict => StatusCode::CONFLICT,
            };
            response::json(status, &refusal)
        }
    }
}
