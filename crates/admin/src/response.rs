//! Answers: text, JSON, or a file of the dashboard.

use bytes::Bytes;
use http_body_util::Full;
use hyper::StatusCode;
use hyper::header::{
    ALLOW, CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderValue, REFERRER_POLICY, WWW_AUTHENTICATE,
    X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
};
use serde::Serialize;

pub(crate) type HttpResponse = hyper::Response<Full<Bytes>>;

/// Only what this pod itself serves, and nothing inline: a name that holds markup stays a name.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

pub(crate) fn reply(status: StatusCode, kind: &'static str, body: impl Into<Bytes>) -> HttpResponse {
    let mut response = HttpResponse::new(Full::new(body.into()));
    *response.status_mut() = status;
    for (name, value) in [
        (CONTENT_TYPE, kind),
        // Everything here is about this moment.
        (CACHE_CONTROL, "no-store"),
        (CONTENT_SECURITY_POLICY, POLICY),
        (REFERRER_POLICY, "no-referrer"),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (X_FRAME_OPTIONS, "DENY"),
    ] {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    response
}

pub(crate) fn text(status: StatusCode, body: impl Into<String>) -> HttpResponse {
    reply(status, "text/plain; charset=utf-8", body.into())
}

pub(crate) fn json(status: StatusCode, value: &impl Serialize) -> HttpResponse {
    let mut body = serde_json::to_string_pretty(value).expect("answers are plain data");
    body.push('\n');
    reply(status, "application/json", body)
}

/// Prometheus' text format, version 0.0.4.
pub(crate) fn metrics(body: String) -> HttpResponse {
    reply(StatusCode::OK, "text/plain; version=0.0.4; charset=utf-8", body)
}

pub(crate) fn only_for_reading() -> HttpResponse {
    allowing("GET, HEAD", "this is for reading: GET or HEAD\n")
}

pub(crate) fn only_for_posting() -> HttpResponse {
    allowing("POST", "this changes something: POST\n")
}

fn allowing(methods: &'static str, words: &str) -> HttpResponse {
    let mut response = text(StatusCode::METHOD_NOT_ALLOWED, words);
    response.headers_mut().insert(ALLOW, HeaderValue::from_static(methods));
    response
}

pub(crate) fn who_asks() -> HttpResponse {
    let mut response =
        text(StatusCode::UNAUTHORIZED, "this is for operators: show the token, as `Authorization: Bearer …`\n");
    response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    response
}
