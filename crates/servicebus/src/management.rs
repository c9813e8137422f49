//! `$management`: what can be asked about an entity besides sending and receiving.

use std::sync::Arc;
use std::time::SystemTime;

use amqp::{Array, Map, Message, Symbol, Value};
use bytes::Bytes;
use tokio::time::Instant;
use uuid::Uuid;

use crate::cbs::of_status;
use crate::error::{Error, Kind, Refusal, Step};
use crate::message::from_millis;
use crate::request::{Request, RequestLink};

/// The management node of one entity.
pub(crate) struct Management {
    node: Arc<str>,
    link: Arc<RequestLink>,
}

impl Management {
    pub(crate) fn new(node: Arc<str>, link: Arc<RequestLink>) -> Self {
        Self { node, link }
    }

    pub(crate) async fn renew_session(
        &self,
        session: &str,
        link: &str,
        deadline: Instant,
    ) -> Result<SystemTime, Error> {
        let body = Map::new().with("session-id", session);
        let answer = self.ask("com.microsoft:renew-session-lock", body, link, deadline).await?;
        let expiration = answer.get("expiration").and_then(Value::as_timestamp).and_then(from_millis);
        expiration.ok_or_else(|| self.malformed("the answer has no expiration"))
    }

    pub(crate) async fn session_state(
        &self,
        session: &str,
        link: &str,
        deadline: Instant,
    ) -> Result<Option<Bytes>, Error> {
        let body = Map::new().with("session-id", session);
        let answer = self.ask("com.microsoft:get-session-state", body, link, deadline).await?;
        match answer.get("session-state") {
            None | Some(Value::Null) => Ok(None),
            Some(Value::Binary(state)) => Ok(Some(state.clone())),
            Some(_) => Err(self.malformed("the session's state is not binary")),
        }
    }

    pub(crate) async fn set_session_state(
        &self,
        session: &str,
        state: Option<Bytes>,
        link: &str,
        deadline: Instant,
    ) -> Result<(), Error> {
        let body =
            Map::new().with("session-id", session).with("session-state", state.map_or(Value::Null, Value::Binary));
        self.ask("com.microsoft:set-session-state", body, link, deadline).await.map(drop)
    }

    pub(crate) async fn renew_lock(&self, token: Uuid, link: &str, deadline: Instant) -> Result<SystemTime, Error> {
        let body = Map::new().with("lock-tokens", Array::uuids([token]));
        let answer = self.ask("com.microsoft:renew-lock", body, link, deadline).await?;
        let first = answer.get("expirations").and_then(Value::as_items).and_then(<[Value]>::first);
        let expiration = first.and_then(Value::as_timestamp).and_then(from_millis);
        expiration.ok_or_else(|| self.malformed("the answer has no expiration"))
    }

    /// The cheapest question that an entity must exist to answer, and that changes nothing.
    pub(crate) async fn exists(&self, deadline: Instant) -> Result<bool, Error> {
        let body = Map::new().with("from-sequence-number", 0i64).with("message-count", 1i32);
        match self.ask("com.microsoft:peek-message", body, "", deadline).await {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == Kind::NotFound => Ok(false),
            // A topic holds no messages that could be looked at; but it is there, or it would not say so.
            Err(error) if matches!(error.kind(), Kind::NotAllowed | Kind::NotImplemented) => Ok(true),
            Err(error) => Err(error),
        }
    }

    /// Ends with the link it goes over: when the connection does, or when the entity is taken away.
    pub(crate) async fn ended(&self) -> Error {
        self.link.ended().await
    }

    async fn ask(&self, operation: &str, body: Map, link: &str, deadline: Instant) -> Result<Map, Error> {
        let properties = vec![("operation", operation.into()), ("associated-link-name", link.into())];
        let request = Request { properties, body: Value::Map(body) };
        let answer = self.link.ask(Step::Manage, &request, deadline).await?;
        self.check(&answer)?;
        match answer.value().and_then(|value| value.to_value().ok()) {
            Some(Value::Map(map)) => Ok(map),
            _ => Ok(Map::new()),
        }
    }

    fn check(&self, answer: &Message) -> Result<(), Error> {
        let status = answer.application_property("statusCode").and_then(|value| value.as_integer());
        match status {
            Some(200..=299) => Ok(()),
            Some(status) => {
                let text = answer.application_property("statusDescription").and_then(|value| value.as_str());
                let condition = answer.application_property("errorCondition").and_then(|value| value.as_text());
                let condition = condition.map_or(of_status(status), |name| Symbol::from(name.to_owned()));
                let source = Box::new(Refusal { condition, description: text.unwrap_or_default().into() });
                Err(Error::Refused { step: Step::Manage, address: Arc::clone(&self.node), source })
            }
            None => Err(self.malformed("the answer has no statusCode")),
        }
    }

    fn malformed(&self, what: &'static str) -> Error {
        Error::Malformed { step: Step::Manage, address: Arc::clone(&self.node), what }
    }
}
