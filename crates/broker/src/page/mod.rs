//! The broker's web page: entities, messages, sessions and rules in a browser, and actions on messages.
//!
//! [`BrokerPage`] handles requests for the static files in `page/` and for a small JSON API. [`crate::http`] calls it for `/` if a browser asks,
//! and for everything below `/$page/`. Every operation is a call to the core through the engine; nothing is stored here.
//!
//! | request below `/$page/api/` | |
//! | --- | --- |
//! | `GET access` | what a client needs to read and to act; needs no token |
//! | `GET entities`, `entity`, `messages`, `message`, `sessions`, `session-state`, `rules` | `queries` |
//! | `POST check`, `send`, `resubmit`, `resubmit-all`, `dead-letter`, `delete`, `purge` | `actions` |
//!
//! `access` decides who may read and act.

mod access;
mod actions;
mod body;
mod draft;
mod files;
mod message_view;
mod queries;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::header::{CONTENT_TYPE, HeaderMap, HeaderValue};
use hyper::http::request::Parts;
use hyper::{Method, Response, StatusCode};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tracing::info;

pub(crate) use access::PageAccess;

use crate::ServiceTier;
use crate::core::{self, CallContext, Core};
use crate::engine::{BrokerClock, EngineHandle, EngineStopped};

/// Reads at once: each may hold some megabytes of messages.
const MAX_READS: usize = 16;
/// How long a read waits for others to end.
const READ_WAIT: Duration = Duration::from_secs(5);
const PREFIX: &str = "/$page/";
/// A message of the largest tier, encoded, with its properties.
pub(crate) const MAX_BODY: usize = 3 << 20;

/// Serves the page. Cheap to clone.
#[derive(Clone)]
pub struct BrokerPage {
    engine: EngineHandle,
    clock: Arc<BrokerClock>,
    access: Arc<PageAccess>,
    tier: ServiceTier,
    /// Permits of reads.
    reads: Arc<Semaphore>,
}

/// A request for the page. The token is checked before its body is read.
pub(crate) enum PageRequest {
    File(&'static str, &'static str),
    /// A read, with its name and query.
    Query(String, HashMap<String, String>),
    /// A change, with its name.
    Action(String),
}

type PageResponse = Response<Full<Bytes>>;

/// Why a request failed: a status, and the text that the page shows.
#[derive(Debug)]
struct PageError {
    status: StatusCode,
    text: String,
}

impl PageError {
    fn new(status: StatusCode, text: impl Into<String>) -> Self {
        Self { status, text: text.into() }
    }

    fn invalid(text: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, text)
    }
}

impl From<core::Error> for PageError {
    fn from(error: core::Error) -> Self {
        let status = StatusCode::from_u16(error.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        Self::new(status, error.to_string())
    }
}

impl From<EngineStopped> for PageError {
    fn from(stopped: EngineStopped) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, stopped.to_string())
    }
}

impl BrokerPage {
    pub(crate) fn new(
        engine: EngineHandle,
        clock: Arc<BrokerClock>,
        access: Arc<PageAccess>,
        tier: ServiceTier,
    ) -> Self {
        Self { engine, clock, access, tier, reads: Arc::new(Semaphore::new(MAX_READS)) }
    }

    /// The request, if it is for the page. SDKs send an API version with every request, and browsers ask for HTML.
    pub(crate) fn recognize(head: &Parts) -> Option<PageRequest> {
        let path = head.uri.path();
        if path == "/" {
            let is_browser = accepts_html(&head.headers) && !has_api_version(head.uri.query());
            let (content_type, body) = files::find("")?;
            return (is_browser && head.method == Method::GET).then_some(PageRequest::File(content_type, body));
        }
        let name = path.strip_prefix(PREFIX)?;
        let Some(name) = name.strip_prefix("api/") else {
            return files::find(name).map(|(content_type, body)| PageRequest::File(content_type, body));
        };
        match head.method {
            Method::GET => Some(PageRequest::Query(name.to_owned(), parse_query(head.uri.query().unwrap_or_default()))),
            Method::POST => Some(PageRequest::Action(name.to_owned())),
            _ => None,
        }
    }

    /// Whether the request may be handled. `Some` is the response that refuses it.
    pub(crate) fn refuse(&self, request: &PageRequest, headers: &HeaderMap) -> Option<PageResponse> {
        let allowed = match request {
            PageRequest::File(..) => Ok(()),
            PageRequest::Query(name, _) if name == "access" => access::check_origin(headers),
            PageRequest::Query(..) => {
                access::check_origin(headers).and_then(|()| self.access.check_read(headers, self.clock.now()))
            }
            PageRequest::Action(_) => {
                access::check_origin(headers).and_then(|()| self.access.check_action(headers, self.clock.now()))
            }
        };
        allowed.err().map(|error| respond(Err::<Value, _>(error)))
    }

    /// Handles a request that is allowed. Only actions have a body.
    pub(crate) async fn handle(&self, request: PageRequest, body: &[u8]) -> PageResponse {
        match request {
            PageRequest::File(content_type, body) => build(StatusCode::OK, content_type, body),
            PageRequest::Query(name, _) if name == "access" => respond(Ok(self.describe_access())),
            PageRequest::Query(name, query) => respond(self.query(&name, &query).await),
            PageRequest::Action(name) => {
                let result = actions::run(self, &name, body).await;
                if result.is_ok() && name != "check" {
                    info!(action = name, "action of the broker's page done");
                }
                respond(result)
            }
        }
    }

    async fn query(&self, name: &str, query: &HashMap<String, String>) -> Result<Value, PageError> {
        let Ok(Ok(_permit)) = timeout(READ_WAIT, self.reads.acquire()).await else {
            let text = format!("{MAX_READS} other requests are in progress: try again");
            return Err(PageError::new(StatusCode::SERVICE_UNAVAILABLE, text));
        };
        queries::run(self, name, query).await
    }

    fn describe_access(&self) -> Value {
        json!({"tier": self.tier.name(), "access": self.access.kind(), "now": self.clock.now().0, "version": env!("CARGO_PKG_VERSION")})
    }

    async fn call<T: Send + 'static>(
        &self,
        act: impl FnOnce(&mut Core, &mut CallContext<'_>) -> Result<T, core::Error> + Send + 'static,
    ) -> Result<T, PageError> {
        Ok(self.engine.call(act).await??)
    }
}

fn accepts_html(headers: &HeaderMap) -> bool {
    let accept = headers.get(hyper::header::ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or_default();
    accept.split(',').any(|kind| kind.trim().starts_with("text/html"))
}

fn has_api_version(query: Option<&str>) -> bool {
    query.is_some_and(|query| query.split('&').any(|pair| pair.starts_with("api-version=")))
}

/// The parameters of a query, decoded. A parameter that cannot be decoded is left out.
fn parse_query(query: &str) -> HashMap<String, String> {
    let pairs = query.split('&').filter_map(|pair| pair.split_once('='));
    let decoded = pairs
        .filter_map(|(name, value)| Some((name.to_owned(), crate::http::percent_decode(&value.replace('+', "%20"))?)));
    decoded.collect()
}

fn parse_json<T: DeserializeOwned>(body: &[u8]) -> Result<T, PageError> {
    serde_json::from_slice(body).map_err(|error| PageError::invalid(format!("invalid request: {error}")))
}

fn respond(result: Result<impl Serialize, PageError>) -> PageResponse {
    let json = |status, value: &Value| build(status, "application/json", value.to_string());
    match result.map(|value| serde_json::to_value(value).expect("responses are plain data")) {
        Ok(value) => json(StatusCode::OK, &value),
        Err(error) => json(error.status, &json!({"refused": error.text})),
    }
}

fn build(status: StatusCode, content_type: &'static str, body: impl Into<Bytes>) -> PageResponse {
    let mut response = PageResponse::new(Full::new(body.into()));
    *response.status_mut() = status;
    web_page::set_security_headers(response.headers_mut());
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine;

    #[tokio::test(start_paused = true)]
    async fn reads_at_once_are_limited() {
        // An engine that does not answer.
        let (engine, _inbox) = engine::channel();
        let access = Arc::new(PageAccess::new(None));
        let page = BrokerPage::new(engine, Arc::default(), access, ServiceTier::Standard);
        let read = async |page: &BrokerPage| {
            page.handle(PageRequest::Query("entities".into(), HashMap::new()), &[]).await.status()
        };
        let waiting: Vec<_> = (0..MAX_READS)
            .map(|_| {
                let page = page.clone();
                tokio::spawn(async move { read(&page).await })
            })
            .collect();
        tokio::task::yield_now().await;
        assert_eq!(read(&page).await, StatusCode::SERVICE_UNAVAILABLE);
        assert!(waiting.iter().all(|read| !read.is_finished()), "they wait for the engine");
    }
}
