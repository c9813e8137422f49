//! HTTP responses: Atom, JSON, empty, or the service's error format.

use bytes::Bytes;
use http_body_util::Full;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::{Method, StatusCode};
use tracing::warn;

use super::backend::BackendError;
use crate::atom;

pub(super) type HttpResponse = hyper::Response<Full<Bytes>>;

pub(super) fn entry(status: StatusCode, xml: String) -> HttpResponse {
    response(status, "application/atom+xml;type=entry;charset=utf-8", xml)
}

pub(super) fn feed(xml: String) -> HttpResponse {
    response(StatusCode::OK, "application/atom+xml;type=feed;charset=utf-8", xml)
}

pub(super) fn json(status: StatusCode, value: &impl serde::Serialize) -> HttpResponse {
    response(status, "application/json", serde_json::to_string(value).expect("responses are plain data"))
}

pub(super) fn empty() -> HttpResponse {
    HttpResponse::new(Full::default())
}

fn response(status: StatusCode, kind: &'static str, body: String) -> HttpResponse {
    let mut response = HttpResponse::new(Full::from(body));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

/// Why a request failed: a status, and the text that the client shows.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct HttpError {
    pub(super) status: StatusCode,
    pub(super) detail: String,
}

impl HttpError {
    pub(super) fn new(status: StatusCode, detail: impl Into<String>) -> Self {
        Self { status, detail: detail.into() }
    }

    pub(super) fn bad_request(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, detail)
    }

    pub(super) fn not_found(path: &str) -> Self {
        Self::new(StatusCode::NOT_FOUND, format!("no resource at '{path}'"))
    }

    pub(super) fn method_not_allowed(method: &Method) -> Self {
        Self::new(StatusCode::METHOD_NOT_ALLOWED, format!("{method} is not allowed at this path"))
    }

    /// Formatted as by the service, whose sub-codes begin with the status.
    pub(super) fn into_response(self) -> HttpResponse {
        // Some errors of the core have a code of their own.
        let detail = match self.detail.starts_with("SubCode=") {
            true => self.detail,
            false => format!("SubCode={}00. {}", self.status.as_u16(), self.detail),
        };
        response(self.status, "application/xml; charset=utf-8", atom::error(self.status.as_u16(), &detail))
    }
}

impl From<BackendError> for HttpError {
    fn from(failure: BackendError) -> Self {
        let status = match &failure {
            BackendError::Stopping => StatusCode::SERVICE_UNAVAILABLE,
            BackendError::Refused(error) => {
                StatusCode::from_u16(error.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
            }
        };
        if status.is_server_error() {
            warn!(error = &failure as &dyn std::error::Error, "administration request failed");
        }
        Self::new(status, failure.to_string())
    }
}

impl From<atom::EntryError> for HttpError {
    fn from(malformed: atom::EntryError) -> Self {
        Self::bad_request(malformed.to_string())
    }
}
