//! Erased aggregates: tombstones that outlive every copy, without the id itself.
//!
//! A tombstone is a keyed hash of the aggregate, beside the cursors that it stands in for; the key is in the coordination database. Pods keep all
//! tombstones in memory, and load them before they apply a generation. An erasure raises the generation and the fence of the cursors, so a pod that
//! does not know the tombstone cannot write a cursor any more.
//!
//! Tombstones without their key say nothing about any aggregate. Then nothing can be loaded, and nobody applies anything: a guess could bring erased data back.

use std::collections::HashSet;
use std::sync::{Arc, PoisonError, RwLock};

use futures_util::TryStreamExt;
use hmac::{Hmac, KeyInit, Mac};
use mongo_error::DriverError;
use mongodb::bson::spec::BinarySubtype;
use mongodb::bson::{Binary, Document, doc};
use mongodb::{Collection, Database};
use sha2::Sha256;

use crate::event::AggregateId;
use crate::stored::{Identity, majority_collection};

/// In the read-model database.
pub const ERASED: &str = "_headwater_erased";
/// In the coordination database.
pub const ERASURE_KEYS: &str = "erasure_keys";
const FORMAT: i64 = 1;
const KEY_ID_BYTES: usize = 8;
const DUPLICATE_KEY: i32 = 11000;

/// The page for operators about [`Error::KeyLost`].
pub const KEY_LOST_PAGE: &str = "E0004";

type HmacSha256 = Hmac<Sha256>;
type AggregateHash = [u8; 32];

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    #[error("failed to use the tombstones of erased aggregates")]
    Store(#[source] DriverError),
    #[error(
        "the key of the tombstones of erased aggregates is lost: `erasure_keys` of the coordination database has none for this pipeline, or another one, so nobody can tell which \
         aggregates are erased; restore it from a backup (page E0004)"
    )]
    KeyLost,
}

impl From<mongodb::error::Error> for Error {
    fn from(error: mongodb::error::Error) -> Self {
        Self::Store(error.into())
    }
}

/// The tombstones of one pipeline.
#[derive(Clone, Default)]
pub struct ErasedAggregates {
    mac: Option<HmacSha256>,
    hashes: HashSet<AggregateHash>,
}

impl ErasedAggregates {
    pub fn len(&self) -> usize {
        self.hashes.len()
    }

    pub fn is_empty(&self) -> bool {
        self.hashes.is_empty()
    }

    /// Costs nothing while nothing is erased.
    pub(crate) fn contains(&self, identity: &Identity) -> bool {
        match &self.mac {
            Some(mac) if !self.hashes.is_empty() => self.hashes.contains(&hash(mac, identity)),
            Some(_) | None => false,
        }
    }
}

impl std::fmt::Debug for ErasedAggregates {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ErasedAggregates({})", self.hashes.len())
    }
}

/// The set that transactions use now.
#[derive(Debug, Default)]
pub(crate) struct CurrentErased(RwLock<Arc<ErasedAggregates>>);

impl CurrentErased {
    pub(crate) fn get(&self) -> Arc<ErasedAggregates> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn set(&self, erased: ErasedAggregates) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(erased);
    }
}

/// The tombstones in MongoDB.
#[derive(Clone, Debug)]
pub struct ErasureStore {
    erased: Collection<Document>,
    keys: Collection<Document>,
    pipeline: String,
}

impl ErasureStore {
    pub fn new(views: &Database, coordination: &Database, pipeline: impl Into<String>) -> Self {
        Self {
            erased: majority_collection(views, ERASED),
            keys: majority_collection(coordination, ERASURE_KEYS),
            pipeline: pipeline.into(),
        }
    }

    /// All tombstones. Fails if they are not of the present key.
    pub async fn load(&self) -> Result<ErasedAggregates, Error> {
        // Before the key: the first erasure may store both in between.
        let found: Vec<Document> = self.erased.find(self.of_pipeline()).await?.try_collect().await?;
        let mac = self.read_key().await?;
        if !found.iter().all(|tombstone| is_of_key(tombstone, mac.as_ref())) {
            return Err(Error::KeyLost);
        }
        let read = |tombstone: &Document| {
            let bytes = tombstone.get_document("_id").ok()?.get_binary_generic("hash").ok()?;
            AggregateHash::try_from(&bytes[..]).ok()
        };
        Ok(ErasedAggregates { mac, hashes: found.iter().filter_map(read).collect() })
    }

    /// As [`Self::load`], by one tombstone: all of them have the same key.
    pub async fn check_key(&self) -> Result<(), Error> {
        let stored = self.erased.find_one(self.of_pipeline()).await?;
        let mac = self.read_key().await?;
        match stored {
            Some(tombstone) if !is_of_key(&tombstone, mac.as_ref()) => Err(Error::KeyLost),
            Some(_) | None => Ok(()),
        }
    }

    /// Stores the tombstone of an aggregate; `collection`: where it is part of the aggregate's identity. Returns a name of it for people.
    pub async fn insert(&self, collection: Option<&str>, aggregate: &AggregateId) -> Result<String, Error> {
        // A new key beside earlier tombstones would leave those without effect.
        self.check_key().await?;
        let mac = match self.read_key().await? {
            Some(mac) => mac,
            None => self.create_key().await?,
        };
        let hash = hash(&mac, &Identity::of_aggregate(collection, aggregate));
        let id = doc! { "pipeline": &self.pipeline, "hash": binary(&hash) };
        let tombstone = vec![doc! { "$set": { "format": FORMAT, "at": "$$NOW", "key": binary(&key_id(&mac)) } }];
        self.erased.update_one(doc! { "_id": id }, tombstone).upsert(true).await?;
        Ok(hash[..4].iter().map(|byte| format!("{byte:02x}")).collect())
    }

    fn of_pipeline(&self) -> Document {
        let above = format!("{}\0", self.pipeline);
        doc! { "_id": { "$gte": { "pipeline": &self.pipeline }, "$lt": { "pipeline": above } } }
    }

    async fn read_key(&self) -> Result<Option<HmacSha256>, Error> {
        let found = self.keys.find_one(doc! { "_id": &self.pipeline }).await?;
        let key = found.as_ref().and_then(|key| key.get_binary_generic("key").ok());
        Ok(key.map(|key| HmacSha256::new_from_slice(key).expect("HMAC takes a key of any length")))
    }

    async fn create_key(&self) -> Result<HmacSha256, Error> {
        let key: [u8; 32] = rand::random();
        let document = doc! { "_id": &self.pipeline, "format": FORMAT, "key": binary(&key) };
        match self.keys.insert_one(document).await {
            Ok(_) => Ok(HmacSha256::new_from_slice(&key).expect("HMAC takes a key of any length")),
            // Somebody else has just created one.
            Err(error) if mongo_error::error_code(&error) == Some(DUPLICATE_KEY) => {
                Ok(self.read_key().await?.expect("a key is never deleted"))
            }
            Err(error) => Err(error.into()),
        }
    }
}

/// Says nothing about the key itself.
fn key_id(mac: &HmacSha256) -> [u8; KEY_ID_BYTES] {
    let mut mac = mac.clone();
    mac.update(b"key id");
    std::array::from_fn({
        let digest = mac.finalize().into_bytes();
        move |at| digest[at]
    })
}

/// Earlier versions did not store which key they used: then any key counts.
fn is_of_key(tombstone: &Document, mac: Option<&HmacSha256>) -> bool {
    let Some(mac) = mac else { return false };
    tombstone.get_binary_generic("key").map_or(true, |id| id[..] == key_id(mac))
}

fn hash(mac: &HmacSha256, identity: &Identity) -> AggregateHash {
    let mut mac = mac.clone();
    mac.update(identity.as_bytes());
    mac.finalize().into_bytes().into()
}

fn binary(bytes: &[u8]) -> Binary {
    Binary { subtype: BinarySubtype::Generic, bytes: bytes.to_vec() }
}
