//! Requests in, answers out.

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

use super::access::TokenCheck;
use super::namespace::{Listing, Namespace, Page};
use super::reply::{self, Refusal, Response};
use super::route::{self, Query, Route};
use super::rules;
use super::test_hooks::{self, TestControl};
use crate::atom::{self, Address, Content, Feed, Place, Submitted};
use crate::core::{EntityDescription, QueueDescription, TopicDescription};

/// A description with every property and twelve authorization rules is below 8 KiB; a rule may carry more.
const MAX_BODY: usize = 256 << 10;
/// How much of a body that is too large is read before the connection is closed on it.
const MAX_DROPPED: usize = 4 << 20;
/// For all of a body: it is small.
const BODY_PATIENCE: Duration = Duration::from_secs(10);
/// For the rest of one that is too large: who has stopped writing by then listens.
const DROP_PATIENCE: Duration = Duration::from_secs(2);

type BoxError = Box<dyn std::error::Error + Send + Sync>;

#[derive(Clone)]
pub struct Config {
    /// With a token there are test hooks; see [`super::TestCommand`].
    pub test_token: Option<String>,
    /// `None`: whoever reaches the broker may administer it.
    pub access: Option<Arc<dyn TokenCheck>>,
    /// How long the whole head of a request may take, and how long a connection may stay idle between requests.
    pub head_patience: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Self { test_token: None, access: None, head_patience: Duration::from_secs(30) }
    }
}

/// Answers requests for one namespace. Cheap to clone.
pub struct Service<N> {
    namespace: N,
    config: Arc<Config>,
    scheme: &'static str,
}

impl<N: Clone> Clone for Service<N> {
    fn clone(&self) -> Self {
        Self { namespace: self.namespace.clone(), config: Arc::clone(&self.config), scheme: self.scheme }
    }
}

/// What of a request its handlers look at.
struct Asked {
    method: Method,
    query: Query,
    changes: bool,
    place: Place,
}

impl<N: Namespace + TestControl> Service<N> {
    pub fn new(namespace: N, config: Config) -> Self {
        Self { namespace, config: Arc::new(config), scheme: "http" }
    }

    /// The same, for a connection that came by TLS: links then say so.
    #[must_use]
    pub fn over_tls(mut self) -> Self {
        self.scheme = "https";
        self
    }

    pub(super) fn head_patience(&self) -> Duration {
        self.config.head_patience
    }

    /// Never fails: what cannot be done is answered with its reason.
    pub async fn answer<B>(&self, request: Request<B>) -> Response
    where
        B: Body<Data = Bytes, Error: Into<BoxError>>,
    {
        let (method, path) = (request.method().clone(), request.uri().path().to_owned());
        let response = self.decide(request).await.unwrap_or_else(Refusal::into_response);
        debug!(%method, path, status = response.status().as_u16(), "answered");
        response
    }

    async fn decide<B>(&self, request: Request<B>) -> Result<Response, Refusal>
    where
        B: Body<Data = Bytes, Error: Into<BoxError>>,
    {
        let (head, body) = request.into_parts();
        let query = route::query(head.uri.query().unwrap_or_default())?;
        let route = route::route(head.uri.path(), &query)?;
        match route {
            Route::Health => return self.health(&head.method).await,
            Route::Test(path) => {
                let token = self.config.test_token.as_deref();
                test_hooks::admit(token, &head.headers).ok_or_else(|| Refusal::not_found(head.uri.path()))?;
                let body = collect(body).await?;
                return test_hooks::answer(&self.namespace, &head.method, &path, &body).await;
            }
            _ => self.check_access(&head.headers, head.uri.path())?,
        }
        let asked = Asked {
            changes: head.headers.contains_key(IF_MATCH),
            place: self.place(&head.headers, &query),
            method: head.method,
            query,
        };
        match route {
            Route::NamespaceInfo => self.info(&asked),
            Route::List(listing) => self.list(&asked, listing).await,
            Route::Entity(address) => self.entity(&asked, address, body).await,
            Route::Rules { topic, subscription } => self.rules(&asked, topic, subscription).await,
            Route::Rule { topic, subscription, name } => self.rule(&asked, topic, subscription, &name, body).await,
            Route::Health | Route::Test(_) => unreachable!("answered above"),
        }
    }

    async fn health(&self, method: &Method) -> Result<Response, Refusal> {
        if method != Method::GET {
            return Err(Refusal::method(method));
        }
        Ok(match self.namespace.healthy().await {
            true => reply::json(StatusCode::OK, &json!({"status": "healthy", "message": "Service is healthy."})),
            false => reply::json(
                StatusCode::SERVICE_UNAVAILABLE,
                &json!({"status": "unhealthy", "message": "Service is not healthy."}),
            ),
        })
    }

    fn check_access(&self, headers: &HeaderMap, path: &str) -> Result<(), Refusal> {
        let Some(check) = &self.config.access else { return Ok(()) };
        let token = headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok());
        match token.is_some_and(|token| check.may_manage(token, path)) {
            true => Ok(()),
            false => {
                Err(Refusal::new(StatusCode::UNAUTHORIZED, "the token is missing, invalid or does not allow Manage"))
            }
        }
    }

    fn place(&self, headers: &HeaderMap, query: &Query) -> Place {
        let host = headers.get(HOST).and_then(|value| value.to_str().ok()).unwrap_or("localhost");
        Place {
            base: format!("{}://{host}", self.scheme),
            version: query.version.clone().unwrap_or_default(),
            namespace: self.namespace.info(),
        }
    }

    fn info(&self, asked: &Asked) -> Result<Response, Refusal> {
        match asked.method {
            Method::GET => Ok(reply::entry(StatusCode::OK, atom::namespace_entry(&asked.place))),
            _ => Err(Refusal::method(&asked.method)),
        }
    }

    async fn list(&self, asked: &Asked, listing: Listing) -> Result<Response, Refusal> {
        if asked.method != Method::GET {
            return Err(Refusal::method(&asked.method));
        }
        let (title, path) = match &listing {
            Listing::Queues => ("Queues", "$Resources/queues".to_owned()),
            Listing::Topics => ("Topics", "$Resources/topics".to_owned()),
            Listing::Subscriptions { topic } => ("Subscriptions", format!("{topic}/Subscriptions")),
        };
        let Page { skip, top } = asked.query.page;
        // One more than asked for tells whether another page follows.
        let mut entities = self.namespace.list(listing, Page { skip, top: top + 1 }).await?;
        let more = entities.len() > top && top > 0;
        entities.truncate(top);
        let feed = Feed { title, path: &path, skip, top, more };
        Ok(reply::feed(feed.of_entities(&asked.place, &entities)))
    }

    async fn entity<B>(&self, asked: &Asked, address: Address, body: B) -> Result<Response, Refusal>
    where
        B: Body<Data = Bytes, Error: Into<BoxError>>,
    {
        match asked.method {
            Method::GET => {
                let entity = self.namespace.get(address).await?;
                Ok(reply::entry(StatusCode::OK, atom::entity_entry(&asked.place, &entity)))
            }
            Method::DELETE => {
                self.namespace.delete(address).await?;
                Ok(reply::done())
            }
            Method::PUT => {
                let submitted = submitted(&address, &collect(body).await?)?;
                self.put(asked, address, submitted).await
            }
            _ => Err(Refusal::method(&asked.method)),
        }
    }

    async fn put(&self, asked: &Asked, address: Address, submitted: Submitted) -> Result<Response, Refusal> {
        let usual = asked.place.namespace.max_message_size_in_kilobytes;
        let (status, entity) = if asked.changes {
            let current = self.namespace.get(address.clone()).await?.properties.description;
            let mut properties = submitted.replace(&current);
            fix_message_size(&mut properties.description, Some(&current), usual)?;
            (StatusCode::OK, self.namespace.update(address, properties).await?)
        } else {
            let mut properties = submitted.create();
            fix_message_size(&mut properties.description, None, usual)?;
            (StatusCode::CREATED, self.namespace.create(address, properties).await?)
        };
        Ok(reply::entry(status, atom::entity_entry(&asked.place, &entity)))
    }

    async fn rules(&self, asked: &Asked, topic: String, subscription: String) -> Result<Response, Refusal> {
        if asked.method != Method::GET {
            return Err(Refusal::method(&asked.method));
        }
        let subscription = self.namespace.get(Address::Subscription { topic, name: subscription }).await?;
        Ok(rules::list(&asked.place, &subscription, asked.query.page))
    }

    async fn rule<B>(
        &self,
        asked: &Asked,
        topic: String,
        subscription: String,
        name: &str,
        body: B,
    ) -> Result<Response, Refusal>
    where
        B: Body<Data = Bytes, Error: Into<BoxError>>,
    {
        if asked.method == Method::PUT {
            let Content::Rule(_) = atom::content(&collect(body).await?)? else {
                return Err(Refusal::bad_request("a RuleDescription is expected at this path"));
            };
        }
        let subscription = self.namespace.get(Address::Subscription { topic, name: subscription }).await?;
        rules::answer(&asked.method, &asked.place, &subscription, name)
    }
}

/// The namespace presents itself as a Standard one, where partitioned entities are and where no client chooses how large a
/// message may be. What an update sends back is what it was shown, and leaves the limit as it is.
fn fix_message_size(
    new: &mut EntityDescription,
    current: Option<&EntityDescription>,
    usual: u64,
) -> Result<(), Refusal> {
    let own = |description: &EntityDescription| {
        description.ingress().and_then(|ingress| ingress.max_message_size_in_kilobytes)
    };
    let limit = current.and_then(own);
    let shown = current.map(|_| limit.unwrap_or(usual));
    if let Some(asked) = own(new).filter(|asked| Some(*asked) != shown) {
        let detail = format!("`MaxMessageSizeInKilobytes` is `{asked}`: it cannot be chosen in a Standard namespace");
        return Err(Refusal::bad_request(detail));
    }
    if let EntityDescription::Queue(QueueDescription { ingress, .. })
    | EntityDescription::Topic(TopicDescription { ingress, .. }) = new
    {
        ingress.max_message_size_in_kilobytes = limit;
    }
    Ok(())
}

/// What a body asks of the entity at this address. A first rule other than the default one cannot be honoured yet.
fn submitted(address: &Address, body: &[u8]) -> Result<Submitted, Refusal> {
    match (atom::content(body)?, address) {
        (Content::Queue(submitted) | Content::Topic(submitted), Address::Entity(_)) => Ok(submitted),
        (Content::Subscription { submitted, default_rule }, Address::Subscription { .. }) => {
            match default_rule.is_none_or(|rule| rule.is_default()) {
                true => Ok(submitted),
                false => Err(rules::not_implemented()),
            }
        }
        (_, Address::Entity(_)) => {
            Err(Refusal::bad_request("a QueueDescription or TopicDescription is expected at this path"))
        }
        (_, Address::Subscription { .. }) => {
            Err(Refusal::bad_request("a SubscriptionDescription is expected at this path"))
        }
    }
}

async fn collect<B>(body: B) -> Result<Bytes, Refusal>
where
    B: Body<Data = Bytes, Error: Into<BoxError>>,
{
    let mut body = pin!(body);
    match timeout(BODY_PATIENCE, read(body.as_mut())).await {
        Ok(Ok(Some(body))) => Ok(body),
        Ok(Ok(None)) => {
            // In time or not, and whatever it ends with: the peer is told that it was too much.
            let _ = timeout(DROP_PATIENCE, read_away(body)).await;
            let detail = format!("the body is larger than {MAX_BODY} bytes");
            Err(Refusal::new(StatusCode::PAYLOAD_TOO_LARGE, detail))
        }
        Ok(Err(_)) => Err(Refusal::bad_request("the body ended early")),
        Err(_) => Err(Refusal::new(StatusCode::REQUEST_TIMEOUT, "the body did not arrive in time")),
    }
}

/// The body; or `None` as soon as it proves too large.
async fn read<B>(mut body: Pin<&mut B>) -> Result<Option<Bytes>, BoxError>
where
    B: Body<Data = Bytes, Error: Into<BoxError>>,
{
    let mut kept = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame.map_err(Into::into)?.into_data() else { continue };
        if kept.len() + data.len() > MAX_BODY {
            return Ok(None);
        }
        kept.extend_from_slice(&data);
    }
    Ok(Some(kept.freeze()))
}

/// Reads what is left and drops it, within reason: a peer that is still writing when the connection closes does not hear the answer.
async fn read_away<B>(mut body: Pin<&mut B>)
where
    B: Body<Data = Bytes, Error: Into<BoxError>>,
{
    let mut dropped = 0;
    while let Some(Ok(frame)) = body.frame().await {
        dropped += frame.data_ref().map_or(0, Bytes::len);
        if dropped > MAX_DROPPED {
            return;
        }
    }
}
