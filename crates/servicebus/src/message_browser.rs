//! Reads messages of an entity without receiving them, and takes deferred ones by their sequence number. Used by operators, not by pods.

use std::sync::Arc;

use crate::Client;
use crate::error::Error;
use crate::message::ReceivedMessage;

/// Browses one queue, subscription or dead-letter queue without sessions.
pub struct MessageBrowser {
    client: Client,
    address: Arc<str>,
}

impl MessageBrowser {
    pub(crate) fn new(client: Client, entity: &str) -> Self {
        Self { client, address: entity.into() }
    }

    /// Up to `most` messages from this sequence number on, locked or not, as they are. The reply is limited in bytes: ask again from the last one on.
    pub async fn peek(&self, from: i64, most: i32) -> Result<Vec<ReceivedMessage>, Error> {
        let deadline = self.client.deadline();
        let connected = self.client.connected(deadline).await?;
        connected.management(&self.address, deadline).await?.peek(from, most, deadline).await
    }

    /// Locks a deferred message; `None` if there is none with this number.
    pub async fn receive_deferred(&self, number: i64) -> Result<Option<ReceivedMessage>, Error> {
        let deadline = self.client.deadline();
        let connected = self.client.connected(deadline).await?;
        connected.management(&self.address, deadline).await?.receive_deferred(number, deadline).await
    }

    /// Removes a message that [`receive_deferred`](Self::receive_deferred) has locked.
    pub async fn complete(&self, message: &ReceivedMessage) -> Result<(), Error> {
        self.settle(message, "completed").await
    }

    /// Unlocks it: it stays where it is, deferred.
    pub async fn abandon(&self, message: &ReceivedMessage) -> Result<(), Error> {
        self.settle(message, "abandoned").await
    }

    async fn settle(&self, message: &ReceivedMessage, status: &'static str) -> Result<(), Error> {
        let deadline = self.client.deadline();
        let connected = self.client.connected(deadline).await?;
        connected.management(&self.address, deadline).await?.settle(message.lock_token(), status, deadline).await
    }
}
