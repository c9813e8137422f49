//! Handles HTTP requests.

use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use hyper::body::Body;
use hyper::header::{AUTHORIZATION, HOST, HeaderMap, IF_MATCH};
use hyper::{Method, Request, StatusCode};
use serde_json::json;
use tokio::time::timeout;
use tracing::debug;

use super::backend::{EntityListing, NamespaceBackend, PageRange};
use super::host;
use super::response::{self, HttpError, HttpResponse};
use super::route::{self, Query, Route};
use super::rules;
use super::test_hooks;
use crate::ServiceTier;
use crate::access::AccessKeys;
use crate::atom::{
    self, AccessRight, AuthorizationRule, EntityAddress, EntitySubmission, EntryContent, FeedPage, RequestContext,
};
use crate::core::{EntityDefinition, QueueDescription, TopicDescription};
use crate::page::{self, BrokerPage, PageRequest};
use crate::rules::RuleDescription;

/// A description with every property and twelve authorization rules is below 8 KiB; a rule may be larger.
const MAX_BODY: usize = 256 << 10;
/// Bytes of an oversized body that are read before the connection is closed.
const MAX_DISCARDED: usize = 4 << 20;
/// For the whole body, which is small.
const BODY_TIMEOUT: Duration = Duration::from_secs(10);
/// For the rest of an oversized body. A client that has stopped writing by then can read the response.
const DISCARD_TIMEOUT: Duration = Duration::from_secs(2);

/// Where SDKs put the tokens for the destinations of messages and of dead letters.
const SUPPLEMENTARY_AUTHORIZATION: [&str; 2] =
    ["servicebussupplementaryauthorization", "servicebusdlqsupplementaryauthorization"];

type BoxError = Box<dyn std::error::Error + Send + Sync>;

#[derive(Clone)]
pub struct Config {
    /// With a token, the test hooks are enabled; see [`super::TestCommand`].
    pub test_token: Option<String>,
    /// Time limit for the header of a request, and for idle time between requests.
    pub header_timeout: Duration,
    /// True if the broker listens on loopback: then only names of the loopback interface are accepted as `Host`.
    pub loopback_only: bool,
    /// With keys, administration needs a token with the right to manage.
    pub keys: Option<Arc<AccessKeys>>,
    /// How long an update of an entity takes.
    pub entity_update: Duration,
    /// Answers browsers.
    pub page: Option<BrokerPage>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            test_token: None,
            header_timeout: Duration::from_secs(30),
            loopback_only: false,
            keys: None,
            entity_update: Duration::ZERO,
            page: None,
        }
    }
}

/// Handles requests for one namespace. Cheap to clone.
pub struct HttpService<N> {
    namespace: N,
    config: Arc<Config>,
    scheme: &'static str,
}

impl<N: Clone> Clone for HttpService<N> {
    fn clone(&self) -> Self {
        Self { namespace: self.namespace.clone(), config: Arc::clone(&self.config), scheme: self.scheme }
    }
}

/// The parts of a request that handlers need.
struct AdminRequest {
    method: Method,
    query: Query,
    changes: bool,
    context: RequestContext,
    headers: HeaderMap,
}

impl<N: NamespaceBackend> HttpService<N> {
    pub fn new(namespace: N, config: Config) -> Self {
        Self { namespace, config: Arc::new(config), scheme: "http" }
    }

    /// The same service for a TLS connection: its links use `https`.
    #[must_use]
    pub fn over_tls(mut self) -> Self {
        self.scheme = "https";
        self
    }

    /// Whether a WebSocket may be opened. Browsers let any page open one, so without keys the page must be local.
    pub(crate) fn allows_web_socket(&self, headers: &HeaderMap) -> bool {
        if self.config.loopback_only && host::check_loopback(headers).is_err() {
            return false;
        }
        self.config.keys.is_some() || host::has_local_origin(headers)
    }

    pub(super) fn header_timeout(&self) -> Duration {
        self.config.header_timeout
    }

    /// Never fails: errors become error responses.
    pub async fn handle<B>(&self, request: Request<B>) -> HttpResponse
    where
        B: Body<Data = Bytes, Error: Into<BoxError>>,
    {
        let (method, path) = (request.method().clone(), request.uri().path().to_owned());
        let response = self.route_request(request).await.unwrap_or_else(HttpError::into_response);
        debug!(%method, path, status = response.status().as_u16(), "answered administration request");
        response
    }

    async fn route_request<B>(&self, request: Request<B>) -> Result<HttpResponse, HttpError>
    where
        B: Body<Data = Bytes, Error: Into<BoxError>>,
    {
        let (head, body) = request.into_parts();
        if self.config.loopback_only {
            host::check_loopback(&head.headers)?;
        }
        if let (Some(page), Some(request)) = (&self.config.page, BrokerPage::recognize(&head)) {
            return serve_page(page, request, &head.headers, body).await;
        }
        let query = route::parse_query(head.uri.query().unwrap_or_default())?;
        let route = route::parse_route(head.uri.path(), &query)?;
        match route {
            Route::Health => return self.health(&head.method).await,
            Route::Test(path) => {
                let token = self.config.test_token.as_deref();
                test_hooks::check_token(token, &head.headers).ok_or_else(|| HttpError::not_found(head.uri.path()))?;
                let body = read_body(body).await?;
                return test_hooks::handle(&self.namespace, &head.method, &path, &body).await;
            }
            _ => {}
        }
        self.authorize(&head.headers, head.uri.path(), &route).await?;
        let request = AdminRequest {
            changes: head.headers.contains_key(IF_MATCH),
            context: self.context(&head.headers, &query),
            method: head.method,
            query,
            headers: head.headers,
        };
        match route {
            Route::Root => Self::root(&request),
            Route::NamespaceInfo => self.info(&request),
            Route::List(listing) => self.list(&request, listing).await,
            Route::Entity(address) => self.entity(&request, address, body).await,
            Route::Rules { topic, subscription } => self.rules(&request, topic, subscription).await,
            Route::Rule { topic, subscription, name } => {
                let subscription = EntityAddress::Subscription { topic, name: subscription };
                self.rule(&request, subscription, name, body).await
            }
            Route::Health | Route::Test(_) => unreachable!("handled above"),
        }
    }

    /// Administration needs the right to manage. The path is compared as the client wrote it, without case.
    async fn authorize(&self, headers: &HeaderMap, path: &str, route: &Route) -> Result<(), HttpError> {
        let path = route::percent_decode(path)?;
        self.check_manage(token_of(headers, AUTHORIZATION.as_str()), &path, route.entities()).await
    }

    /// Forwarding sends to the destination in the name of whoever set it: as in the service, that needs the right to
    /// manage the destination too. SDKs send a token for it in a header of its own. A destination that an update does
    /// not change needs none.
    async fn authorize_forwarding(
        &self,
        request: &AdminRequest,
        current: Option<&EntityDefinition>,
        new: &EntityDefinition,
    ) -> Result<(), HttpError> {
        let before = current.map(EntityDefinition::forwarding).unwrap_or_default();
        let destinations = new.forwarding().into_iter().zip(before).zip(SUPPLEMENTARY_AUTHORIZATION);
        for ((path, before), header) in destinations {
            let Some(path) = path.filter(|path| before.is_none_or(|before| !before.eq_ignore_ascii_case(path))) else {
                continue;
            };
            let entities = vec![EntityAddress::Entity(path.to_owned())];
            let own = token_of(&request.headers, AUTHORIZATION.as_str());
            if self.check_manage(own, path, entities.clone()).await.is_ok() {
                continue;
            }
            let refusal = self.check_manage(token_of(&request.headers, header), path, entities).await;
            refusal.map_err(|error| HttpError {
                detail: format!("Manage is required on the forwarding destination '{path}': {}", error.detail),
                ..error
            })?;
        }
        Ok(())
    }

    /// Checks that a token gives the right to manage a path; `entities` are those whose authorization rules apply.
    async fn check_manage(&self, token: &str, path: &str, entities: Vec<EntityAddress>) -> Result<(), HttpError> {
        let Some(keys) = &self.config.keys else { return Ok(()) };
        let unauthorized = |text: String| HttpError::new(StatusCode::UNAUTHORIZED, text);
        let now = self.namespace.now();
        let rules = self.stored_rules(entities).await;
        let grant = keys.verify(token, path, now, &rules).map_err(|error| unauthorized(error.to_string()))?;
        match grant.allows(path, Some(AccessRight::Manage), now) {
            true => Ok(()),
            false => Err(unauthorized("the key has no right to manage".to_owned())),
        }
    }

    /// The authorization rules that are stored with entities. None for one that does not exist.
    async fn stored_rules(&self, entities: Vec<EntityAddress>) -> Vec<(String, AuthorizationRule)> {
        let mut rules = Vec::new();
        for address in entities {
            let Ok(entity) = self.namespace.get(address).await else { continue };
            let path = entity.address.to_string();
            let own = entity.properties.passive.authorization_rules.into_iter();
            rules.extend(own.map(|rule| (path.clone(), rule)));
        }
        rules
    }

    async fn health(&self, method: &Method) -> Result<HttpResponse, HttpError> {
        if method != Method::GET {
            return Err(HttpError::method_not_allowed(method));
        }
        Ok(match self.namespace.is_healthy().await {
            true => response::json(StatusCode::OK, &json!({"status": "healthy", "message": "Service is healthy."})),
            false => response::json(
                StatusCode::SERVICE_UNAVAILABLE,
                &json!({"status": "unhealthy", "message": "Service is not healthy."}),
            ),
        })
    }

    fn context(&self, headers: &HeaderMap, query: &Query) -> RequestContext {
        let host = headers.get(HOST).and_then(|value| value.to_str().ok()).unwrap_or("localhost");
        RequestContext {
            base: format!("{}://{host}", self.scheme),
            version: query.version.clone().unwrap_or_default(),
            namespace: self.namespace.info(),
        }
    }

    fn info(&self, request: &AdminRequest) -> Result<HttpResponse, HttpError> {
        match request.method {
            Method::GET => Ok(response::entry(StatusCode::OK, atom::namespace_entry(&request.context))),
            _ => Err(HttpError::method_not_allowed(&request.method)),
        }
    }

    fn root(request: &AdminRequest) -> Result<HttpResponse, HttpError> {
        match request.method {
            Method::GET => Ok(response::feed(atom::root_feed(&request.context))),
            _ => Err(HttpError::bad_request("path contains no entity name")),
        }
    }

    async fn list(&self, request: &AdminRequest, listing: EntityListing) -> Result<HttpResponse, HttpError> {
        if request.method != Method::GET {
            return Err(HttpError::method_not_allowed(&request.method));
        }
        let (title, path) = match &listing {
            EntityListing::Queues => ("Queues", "$Resources/queues".to_owned()),
            EntityListing::Topics => ("Topics", "$Resources/topics".to_owned()),
            EntityListing::Subscriptions { topic } => ("Subscriptions", format!("{topic}/Subscriptions")),
        };
        let PageRange { skip, top } = request.query.page;
        // One more than requested shows whether another page follows.
        let mut entities = self.namespace.list(listing, PageRange { skip, top: top + 1 }).await?;
        let more = entities.len() > top && top > 0;
        entities.truncate(top);
        let feed = FeedPage { title, path: &path, skip, top, more };
        Ok(response::feed(feed.of_entities(&request.context, &entities)))
    }

    async fn entity<B>(
        &self,
        request: &AdminRequest,
        address: EntityAddress,
        body: B,
    ) -> Result<HttpResponse, HttpError>
    where
        B: Body<Data = Bytes, Error: Into<BoxError>>,
    {
        match request.method {
            Method::GET => {
                let entity = self.namespace.get(address).await?;
                Ok(response::entry(StatusCode::OK, atom::entity_entry(&request.context, &entity)))
            }
            Method::DELETE => {
                self.namespace.delete(address).await?;
                Ok(response::empty())
            }
            Method::PUT => {
                let (submitted, first_rule) = parse_submission(&address, &read_body(body).await?)?;
                self.put(request, address, submitted, first_rule).await
            }
            _ => Err(HttpError::method_not_allowed(&request.method)),
        }
    }

    async fn put(
        &self,
        request: &AdminRequest,
        address: EntityAddress,
        submitted: EntitySubmission,
        first_rule: Option<RuleDescription>,
    ) -> Result<HttpResponse, HttpError> {
        let usual = request.context.namespace.max_message_size_in_kilobytes;
        let tier = request.context.namespace.tier;
        let (status, entity) = if request.changes {
            let current = self.namespace.get(address.clone()).await?.properties.description;
            let mut properties = submitted.into_update(&current);
            apply_message_size(&mut properties.description, Some(&current), usual, tier)?;
            self.authorize_forwarding(request, Some(&current), &properties.description).await?;
            tokio::time::sleep(self.config.entity_update).await;
            (StatusCode::OK, self.namespace.update(address, properties).await?)
        } else {
            let mut properties = submitted.into_new();
            apply_message_size(&mut properties.description, None, usual, tier)?;
            self.authorize_forwarding(request, None, &properties.description).await?;
            (StatusCode::CREATED, self.namespace.create(address, properties, first_rule).await?)
        };
        Ok(response::entry(status, atom::entity_entry(&request.context, &entity)))
    }

    async fn rules(
        &self,
        request: &AdminRequest,
        topic: String,
        subscription: String,
    ) -> Result<HttpResponse, HttpError> {
        if request.method != Method::GET {
            return Err(HttpError::method_not_allowed(&request.method));
        }
        let subscription = EntityAddress::Subscription { topic, name: subscription };
        rules::list_rules(&self.namespace, &request.context, subscription, request.query.page).await
    }

    async fn rule<B>(
        &self,
        request: &AdminRequest,
        subscription: EntityAddress,
        name: String,
        body: B,
    ) -> Result<HttpResponse, HttpError>
    where
        B: Body<Data = Bytes, Error: Into<BoxError>>,
    {
        let put = match request.method {
            Method::PUT => Some((rules::parse_rule(&name, &read_body(body).await?)?, request.changes)),
            _ => None,
        };
        rules::handle(&self.namespace, &request.method, &request.context, subscription, name, put).await
    }
}

fn token_of<'a>(headers: &'a HeaderMap, name: &str) -> &'a str {
    headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
}

/// Clients can choose the maximum message size only in a Premium namespace. In others an update may send back the value
/// that it was shown, and does not change the limit.
fn apply_message_size(
    new: &mut EntityDefinition,
    current: Option<&EntityDefinition>,
    usual: u64,
    tier: ServiceTier,
) -> Result<(), HttpError> {
    let own = |description: &EntityDefinition| {
        description.ingress().and_then(|ingress| ingress.max_message_size_in_kilobytes)
    };
    if tier == ServiceTier::Premium {
        return match own(new) {
            Some(size) if !(1024..=102_400).contains(&size) => Err(HttpError::bad_request(
                "The value for 'MaxMessageSizeInKilobytes' must be between 1024 and 102400.",
            )),
            _ => Ok(()),
        };
    }
    let limit = current.and_then(own);
    let shown = current.map(|_| limit.unwrap_or(usual));
    if let Some(request) = own(new).filter(|request| Some(*request) != shown) {
        let detail = format!(
            "Bad Request. To know more visit https://aka.ms/sbResourceMgrExceptions. \
             The property 'MaxMessageSizeInKilobytes' ({request}) cannot be set because the namespace is using '{}' tier.",
            tier.name()
        );
        return Err(HttpError::bad_request(detail));
    }
    if let EntityDefinition::Queue(QueueDescription { ingress, .. })
    | EntityDefinition::Topic(TopicDescription { ingress, .. }) = new
    {
        ingress.max_message_size_in_kilobytes = limit;
    }
    Ok(())
}

/// Parses the description for this address, and the first rule of a subscription.
fn parse_submission(
    address: &EntityAddress,
    body: &[u8],
) -> Result<(EntitySubmission, Option<RuleDescription>), HttpError> {
    match (atom::parse_entry(body)?, address) {
        (EntryContent::Queue(submitted) | EntryContent::Topic(submitted), EntityAddress::Entity(_)) => {
            Ok((submitted, None))
        }
        (EntryContent::Subscription { submitted, default_rule }, EntityAddress::Subscription { .. }) => {
            Ok((submitted, default_rule.map(|rule| *rule)))
        }
        (_, EntityAddress::Entity(_)) => {
            Err(HttpError::bad_request("expected a QueueDescription or TopicDescription at this path"))
        }
        (_, EntityAddress::Subscription { .. }) => {
            Err(HttpError::bad_request("expected a SubscriptionDescription at this path"))
        }
    }
}

async fn serve_page<B>(
    page: &BrokerPage,
    request: PageRequest,
    headers: &HeaderMap,
    body: B,
) -> Result<HttpResponse, HttpError>
where
    B: Body<Data = Bytes, Error: Into<BoxError>>,
{
    if let Some(refusal) = page.refuse(&request, headers) {
        return Ok(refusal);
    }
    let body = match request {
        PageRequest::Action(_) => read_body_up_to(body, page::MAX_BODY).await?,
        PageRequest::File(..) | PageRequest::Query(..) => Bytes::new(),
    };
    Ok(page.handle(request, &body).await)
}

async fn read_body<B>(body: B) -> Result<Bytes, HttpError>
where
    B: Body<Data = Bytes, Error: Into<BoxError>>,
{
    read_body_up_to(body, MAX_BODY).await
}

async fn read_body_up_to<B>(body: B, limit: usize) -> Result<Bytes, HttpError>
where
    B: Body<Data = Bytes, Error: Into<BoxError>>,
{
    let mut body = pin!(body);
    match timeout(BODY_TIMEOUT, read_limited(body.as_mut(), limit)).await {
        Ok(Ok(Some(body))) => Ok(body),
        Ok(Ok(None)) => {
            // The result is ignored: the client gets the error in any case.
            let _ = timeout(DISCARD_TIMEOUT, discard_rest(body)).await;
            let detail = format!("body exceeds {limit} bytes");
            Err(HttpError::new(StatusCode::PAYLOAD_TOO_LARGE, detail))
        }
        Ok(Err(_)) => Err(HttpError::bad_request("body ended early")),
        Err(_) => Err(HttpError::new(StatusCode::REQUEST_TIMEOUT, "body did not arrive in time")),
    }
}

/// Reads the body; `None` as soon as it exceeds the limit.
async fn read_limited<B>(mut body: Pin<&mut B>, limit: usize) -> Result<Option<Bytes>, BoxError>
where
    B: Body<Data = Bytes, Error: Into<BoxError>>,
{
    let mut passive = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame.map_err(Into::into)?.into_data() else { continue };
        if passive.len() + data.len() > limit {
            return Ok(None);
        }
        passive.extend_from_slice(&data);
    }
    Ok(Some(passive.freeze()))
}

/// Reads and drops the rest, up to a limit: a client that is still writing when the connection closes does not see the response.
async fn discard_rest<B>(mut body: Pin<&mut B>)
where
    B: Body<Data = Bytes, Error: Into<BoxError>>,
{
    let mut dropped = 0;
    while let Some(Ok(frame)) = body.frame().await {
        dropped += frame.data_ref().map_or(0, Bytes::len);
        if dropped > MAX_DISCARDED {
            return;
        }
    }
}
