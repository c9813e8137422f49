//! `$management` requests: lock renewal, session state, existence checks.

use std::sync::Arc;
use std::time::SystemTime;

use amqp::{Array, Map, Message, Symbol, Value};
use bytes::Bytes;
use tokio::time::Instant;
use uuid::Uuid;

use crate::cbs::condition_of_status;
use crate::error::{BusErrorKind, ClientOperation, Error, ServiceError};
use crate::message::{ReceivedMessage, from_millis};
use crate::request_link::{NodeRequest, RequestLink};

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
        let response = self.request("com.microsoft:renew-session-lock", body, link, deadline).await?;
        let expiration = response.get("expiration").and_then(Value::as_timestamp).and_then(from_millis);
        expiration.ok_or_else(|| self.malformed("the response has no expiration"))
    }

    pub(crate) async fn session_state(
        &self,
        session: &str,
        link: &str,
        deadline: Instant,
    ) -> Result<Option<Bytes>, Error> {
        let body = Map::new().with("session-id", session);
        let response = self.request("com.microsoft:get-session-state", body, link, deadline).await?;
        match response.get("session-state") {
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
        self.request("com.microsoft:set-session-state", body, link, deadline).await.map(drop)
    }

    pub(crate) async fn renew_lock(&self, token: Uuid, link: &str, deadline: Instant) -> Result<SystemTime, Error> {
        let body = Map::new().with("lock-tokens", Array::uuids([token]));
        let response = self.request("com.microsoft:renew-lock", body, link, deadline).await?;
        let first = response.get("expirations").and_then(Value::as_items).and_then(<[Value]>::first);
        let expiration = first.and_then(Value::as_timestamp).and_then(from_millis);
        expiration.ok_or_else(|| self.malformed("the response has no expiration"))
    }

    /// The cheapest request that needs an existing entity and changes nothing.
    pub(crate) async fn exists(&self, deadline: Instant) -> Result<bool, Error> {
        let body = Map::new().with("from-sequence-number", 0i64).with("message-count", 1i32);
        match self.request("com.microsoft:peek-message", body, "", deadline).await {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == BusErrorKind::NotFound => Ok(false),
            // A topic holds no messages to peek at and refuses the request, which proves that it exists.
            Err(error) if matches!(error.kind(), BusErrorKind::NotAllowed | BusErrorKind::NotImplemented) => Ok(true),
            Err(error) => Err(error),
        }
    }

    pub(crate) async fn peek(&self, from: i64, most: i32, deadline: Instant) -> Result<Vec<ReceivedMessage>, Error> {
        let body = Map::new().with("from-sequence-number", from).with("message-count", most);
        let response = self.request("com.microsoft:peek-message", body, "", deadline).await?;
        self.read_messages(&response)
    }

    pub(crate) async fn receive_deferred(
        &self,
        number: i64,
        deadline: Instant,
    ) -> Result<Option<ReceivedMessage>, Error> {
        let body =
            Map::new().with("sequence-numbers", Array::longs([number])).with("receiver-settle-mode", Value::Uint(1));
        match self.request("com.microsoft:receive-by-sequence-number", body, "", deadline).await {
            Ok(response) => Ok(self.read_messages(&response)?.pop()),
            Err(error) if error.kind() == BusErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    pub(crate) async fn settle(&self, token: Uuid, status: &'static str, deadline: Instant) -> Result<(), Error> {
        let body = Map::new().with("disposition-status", status).with("lock-tokens", Array::uuids([token]));
        self.request("com.microsoft:update-disposition", body, "", deadline).await.map(drop)
    }

    /// Without the field, there is no message.
    fn read_messages(&self, response: &Map) -> Result<Vec<ReceivedMessage>, Error> {
        let messages = response.get("messages").and_then(Value::as_items).unwrap_or_default();
        let read = |entry: &Value| {
            let entry = entry.as_map()?;
            let token = entry.get("lock-token").and_then(Value::as_uuid).unwrap_or_default();
            ReceivedMessage::from_response(entry.get("message")?.as_binary()?.clone(), token).ok()
        };
        let read: Option<Vec<_>> = messages.iter().map(read).collect();
        read.ok_or_else(|| self.malformed("a message cannot be read"))
    }

    /// Waits until the link is closed: with the connection, or because the entity was deleted.
    pub(crate) async fn ended(&self) -> Error {
        self.link.ended().await
    }

    async fn request(&self, operation: &str, body: Map, link: &str, deadline: Instant) -> Result<Map, Error> {
        let properties = vec![("operation", operation.into()), ("associated-link-name", link.into())];
        let request = NodeRequest { properties, body: Value::Map(body) };
        let response = self.link.request(ClientOperation::Manage, &request, deadline).await?;
        self.check(&response)?;
        match response.value().and_then(|value| value.to_value().ok()) {
            Some(Value::Map(map)) => Ok(map),
            _ => Ok(Map::new()),
        }
    }

    fn check(&self, response: &Message) -> Result<(), Error> {
        let status = response.application_property("statusCode").and_then(|value| value.as_integer());
        match status {
            Some(200..=299) => Ok(()),
            Some(status) => {
                let text = response.application_property("statusDescription").and_then(|value| value.as_str());
                let condition = response.application_property("errorCondition").and_then(|value| value.as_text());
                let condition = condition.map_or(condition_of_status(status), |name| Symbol::from(name.to_owned()));
                let source = Box::new(ServiceError { condition, description: text.unwrap_or_default().into() });
                Err(Error::Refused { operation: ClientOperation::Manage, address: Arc::clone(&self.node), source })
            }
            None => Err(self.malformed("the response has no statusCode")),
        }
    }

    fn malformed(&self, what: &'static str) -> Error {
        Error::InvalidReply { operation: ClientOperation::Manage, address: Arc::clone(&self.node), what }
    }
}
