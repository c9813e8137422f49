//! HTTP responses: text, JSON, or a file of the dashboard, all with the same security headers.

use bytes::Bytes;
use http_body_util::Full;
use hyper::StatusCode;
use hyper::header::{ALLOW, CONTENT_TYPE, HeaderValue, WWW_AUTHENTICATE};
use serde::Serialize;

pub(crate) type AdminResponse = hyper::Response<Full<Bytes>>;

pub(crate) fn build(status: StatusCode, content_type: &'static str, body: impl Into<Bytes>) -> AdminResponse {
    let mut response = AdminResponse::new(Full::new(body.into()));
    *response.status_mut() = status;
    web_page::set_security_headers(response.headers_mut());
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

pub(crate) fn text(status: StatusCode, body: impl Into<String>) -> AdminResponse {
    build(status, "text/plain; charset=utf-8", body.into())
}

pub(crate) fn json(status: StatusCode, value: &impl Serialize) -> AdminResponse {
    let mut body = serde_json::to_string_pretty(value).expect("responses are plain data");
    body.push('\n');
    build(status, "application/json", body)
}

/// Prometheus text format, version 0.0.4.
pub(crate) fn metrics(body: String) -> AdminResponse {
    build(StatusCode::OK, "text/plain; version=0.0.4; charset=utf-8", body)
}

pub(crate) fn allow_get_only() -> AdminResponse {
    method_not_allowed("GET, HEAD", "this path is read-only: use GET or HEAD\n")
}

pub(crate) fn allow_post_only() -> AdminResponse {
    method_not_allowed("POST", "this changes state: use POST\n")
}

fn method_not_allowed(allowed: &'static str, explanation: &str) -> AdminResponse {
    let mut response = text(StatusCode::METHOD_NOT_ALLOWED, explanation);
    response.headers_mut().insert(ALLOW, HeaderValue::from_static(allowed));
    response
}

pub(crate) fn wrong_host() -> AdminResponse {
    let explanation = "this pod does not answer to that host name: use localhost, or add the name to `admin.hosts`\n";
    text(StatusCode::MISDIRECTED_REQUEST, explanation)
}

pub(crate) fn too_many_actions() -> AdminResponse {
    text(StatusCode::SERVICE_UNAVAILABLE, "too many operator actions at once: try again\n")
}

pub(crate) fn not_running() -> AdminResponse {
    text(StatusCode::SERVICE_UNAVAILABLE, "the pipeline does not run on this pod: try again, or ask another pod\n")
}

pub(crate) fn unauthorized() -> AdminResponse {
    let mut response = text(StatusCode::UNAUTHORIZED, "operator token required: send `Authorization: Bearer …`\n");
    response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    response
}
