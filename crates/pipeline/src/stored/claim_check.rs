//! Claim checks: stores bodies too large for Service Bus in chunks, before the message that refers to them is sent. Consumers read them back.
//!
//! The id is the message id, so a retry or another leader writes the same chunks. A TTL index removes them after the longest lifetime of a message.
//! A TTL is safe here: a body without a message is only space, and a missing body is an error that names it.

use std::time::Duration;

use mongo_error::DriverError;
use mongodb::bson::spec::BinarySubtype;
use mongodb::bson::{Binary, Bson, DateTime, Document, doc};
use mongodb::options::IndexOptions;
use mongodb::{Collection, Database, IndexModel};

use super::majority_collection;

/// The collection in the coordination database.
pub const COLLECTION: &str = "oversize_events";

/// Well below the 16 MB of a document, and few round trips for the largest event.
const CHUNK: usize = 4 << 20;
const FORMAT: i32 = 1;

/// Stores the bodies of oversize events.
#[derive(Clone, Debug)]
pub struct ClaimCheckStore {
    chunks: Collection<Document>,
    keep: Duration,
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Never stored here, or expired.
    #[error("oversize event `{id}`: chunk {chunk} is missing")]
    Missing { id: String, chunk: usize },
    #[error("oversize event `{id}`: chunk {chunk} is unreadable")]
    Unreadable { id: String, chunk: usize },
    #[error("failed to {operation} oversize event")]
    Store {
        operation: &'static str,
        #[source]
        source: DriverError,
    },
}

impl ClaimCheckStore {
    pub fn new(coordination: &Database, keep: Duration) -> Self {
        Self { chunks: majority_collection(coordination, COLLECTION), keep }
    }

    /// Creates the TTL index.
    pub async fn create_indexes(&self) -> Result<(), Error> {
        let options = IndexOptions::builder().expire_after(Duration::ZERO).build();
        let index = IndexModel::builder().keys(doc! { "expiresAt": 1 }).options(options).build();
        self.chunks.create_index(index).await.map(drop).map_err(store_error("create indexes for"))
    }

    /// Stores a body under its message id. Idempotent; a repeat only extends the expiry.
    pub async fn store(&self, id: &str, body: &[u8]) -> Result<(), Error> {
        let expires = DateTime::from_millis(DateTime::now().timestamp_millis() + millis(self.keep));
        let count = body.len().div_ceil(CHUNK).max(1);
        for chunk in 0..count {
            let bytes = &body[chunk * CHUNK..body.len().min((chunk + 1) * CHUNK)];
            let document = doc! {
                "_id": chunk_id(id, chunk),
                "format": FORMAT,
                "chunks": stored(count),
                "length": stored(body.len()),
                "body": Binary { subtype: BinarySubtype::Generic, bytes: bytes.to_vec() },
                "expiresAt": expires,
            };
            let replaced = self.chunks.replace_one(doc! { "_id": chunk_id(id, chunk) }, document).upsert(true).await;
            replaced.map_err(store_error("store"))?;
        }
        Ok(())
    }

    /// Reads the body that a message refers to in [`OVERSIZE`](crate::envelope::property::OVERSIZE).
    pub async fn read(&self, id: &str) -> Result<Vec<u8>, Error> {
        let (mut body, mut chunk, mut count) = (Vec::new(), 0, 1);
        while chunk < count {
            let at = chunk;
            let found = self.chunks.find_one(doc! { "_id": chunk_id(id, chunk) }).await.map_err(store_error("read"))?;
            let document = found.ok_or_else(|| Error::Missing { id: id.into(), chunk })?;
            let unreadable = || Error::Unreadable { id: id.into(), chunk: at };
            let format = document.get_i32("format").map_err(|_| unreadable())?;
            let part = document.get_binary_generic("body").map_err(|_| unreadable())?;
            let named = document.get_i64("chunks").ok().and_then(|count| usize::try_from(count).ok());
            let length = document.get_i64("length").ok().and_then(|length| usize::try_from(length).ok());
            let (Some(named), Some(length), FORMAT) = (named, length, format) else { return Err(unreadable()) };
            count = named;
            body.extend_from_slice(part);
            chunk += 1;
            if chunk == count && body.len() != length {
                return Err(unreadable());
            }
        }
        Ok(body)
    }
}

fn chunk_id(id: &str, chunk: usize) -> Document {
    doc! { "message": id, "chunk": stored(chunk) }
}

fn stored(number: usize) -> Bson {
    Bson::Int64(i64::try_from(number).unwrap_or(i64::MAX))
}

fn millis(span: Duration) -> i64 {
    i64::try_from(span.as_millis()).unwrap_or(i64::MAX / 2)
}

fn store_error(operation: &'static str) -> impl FnOnce(mongodb::error::Error) -> Error {
    move |source| Error::Store { operation, source: source.into() }
}
