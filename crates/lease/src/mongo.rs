//! The lease in MongoDB: one document per lease, every statement one `findAndModify`, majority throughout.
//!
//! Says in MongoDB's language what [`Statement::apply`] says in Rust. A standby only reads: nothing it does while it waits
//! leaves an entry in the oplog. Has a [`Client`] of its own, so that neither a full connection pool nor a busy runtime
//! of the pipeline's stands in the way of a heartbeat.

use std::time::Duration;

use futures_util::StreamExt;
use mongodb::bson::{Bson, Document, RawDocumentBuf, doc};
use mongodb::options::{
    Acknowledgment, ClientOptions, CollectionOptions, ReadConcern, ReturnDocument, SelectionCriteria,
    ServerMonitoringMode, WriteConcern,
};
use mongodb::{Client, Collection};
use tokio::sync::Notify;

use crate::document::{FORMAT, LeaseDocument};
use crate::error::Error;
use crate::record::{Contender, Record, Statement, Term, Version, millis};
use crate::store::LeaseStore;
use crate::timing::Timing;
use mongo_error::error_code;

/// The collection of the coordination database that holds the leases of all pipelines.
pub const COLLECTION: &str = "leader_leases";

const DUPLICATE_KEY: i32 = 11000;
const NAMESPACE_NOT_FOUND: i32 = 26;

/// Connections to one server.
const POOL: u32 = 10;
/// What the driver allows at least, and what it does by default.
const SHORTEST_MONITORING: Duration = Duration::from_millis(500);
const LONGEST_MONITORING: Duration = Duration::from_secs(10);

/// Which lease, and what a holder writes into it besides the protocol.
#[derive(Clone, Debug)]
pub struct LeaseName {
    pub database: String,
    /// The pipeline's name.
    pub key: String,
    pub pod_id: String,
    /// What the lease guards. A lease of the same name that guards something else is not contended for.
    pub fingerprint: String,
}

pub struct MongoLease {
    client: Client,
    leases: Collection<Document>,
    name: LeaseName,
    ttl: Duration,
}

impl MongoLease {
    /// To be called on the runtime that is to run the client's own tasks. Does not wait for a connection.
    pub fn open(options: ClientOptions, name: LeaseName, timing: &Timing) -> Result<Self, Error> {
        let client = Client::with_options(tuned(options, timing)).map_err(|source| failed("open", &name)(source))?;
        let majority =
            WriteConcern::builder().w(Acknowledgment::Majority).journal(true).w_timeout(timing.attempt()).build();
        let options = CollectionOptions::builder()
            .read_concern(ReadConcern::majority())
            .write_concern(majority)
            .selection_criteria(SelectionCriteria::ReadPreference(mongodb::options::ReadPreference::Primary))
            .build();
        let leases = client.database(&name.database).collection_with_options(COLLECTION, options);
        Ok(Self { client, leases, name, ttl: timing.ttl() })
    }

    /// The lease as people see it.
    pub async fn show(&self) -> Result<Option<LeaseDocument>, Error> {
        let found = self.leases.find_one(doc! { "_id": &self.name.key }).await.map_err(self.failed("read"))?;
        found.map(|document| self.ours(&document)).transpose()
    }

    fn ours(&self, document: &Document) -> Result<LeaseDocument, Error> {
        let lease = LeaseDocument::read(document)?;
        if lease.fingerprint == self.name.fingerprint {
            return Ok(lease);
        }
        let LeaseName { key, fingerprint, .. } = self.name.clone();
        Err(Error::Fingerprint { key, found: lease.fingerprint, ours: fingerprint })
    }

    /// Creates by an upsert that leaves an existing document as it is, so that `$$NOW` can be used. Losing the race to
    /// another upsert is a refusal like any other.
    async fn create(&self, by: Contender, term: Term, heartbeat: u64) -> Result<Option<Record>, Error> {
        let key = &self.name.key;
        let absent = doc! { "$eq": ["$$ROOT", { "_id": { "$literal": key } }] };
        let mut lease = doc! { "_id": { "$literal": key }, "format": FORMAT };
        lease.extend(self.held(by, term, heartbeat)?);
        lease.extend(doc! { "acquiredAt": "$$NOW" });
        let update = vec![doc! { "$replaceWith": { "$cond": [absent, lease, "$$ROOT"] } }];
        let asked = self.leases.find_one_and_update(doc! { "_id": key }, update).upsert(true);
        match asked.return_document(ReturnDocument::After).await {
            Ok(Some(stored)) => {
                let record = self.ours(&stored)?.record();
                let ours = Version { holder: Some(by), term, heartbeat };
                Ok((record.version == ours).then_some(record))
            }
            Ok(None) => Ok(None),
            Err(error) if error_code(&error) == Some(DUPLICATE_KEY) => Ok(None),
            Err(error) => Err(self.failed("create")(error)),
        }
    }

    async fn update(&self, doing: &'static str, filter: Document, update: Document) -> Result<Option<Record>, Error> {
        let asked = self.leases.find_one_and_update(filter, vec![update]).return_document(ReturnDocument::After);
        let stored = asked.await.map_err(self.failed(doing))?;
        stored.map(|document| Ok(self.ours(&document)?.record())).transpose()
    }

    fn exactly(&self, seen: &Version) -> Result<Document, Error> {
        let holder = seen.holder.map_or_else(|| Bson::from(doc! { "$exists": false }), |by| by.to_string().into());
        let (term, heartbeat) = (number(seen.term)?, beat(seen.heartbeat));
        let Self { name: LeaseName { key, fingerprint, .. }, .. } = self;
        Ok(doc! {
            "_id": key, "format": FORMAT, "contender": holder, "term": term, "heartbeat": heartbeat, "fingerprint": fingerprint,
        })
    }

    fn mine(&self, by: Contender, term: Term) -> Result<Document, Error> {
        Ok(doc! { "_id": &self.name.key, "format": FORMAT, "contender": by.to_string(), "term": number(term)? })
    }

    /// The fields every acknowledged statement of a holder writes. Names are literals: a pod id may begin with `$`.
    fn held(&self, by: Contender, term: Term, heartbeat: u64) -> Result<Document, Error> {
        Ok(doc! {
            "leaderId": { "$literal": &self.name.pod_id },
            "contender": by.to_string(),
            "term": number(term)?,
            "heartbeat": beat(heartbeat),
            "heartbeatAt": "$$NOW",
            "expiresAt": { "$add": ["$$NOW", millis(self.ttl)] },
            "fingerprint": { "$literal": &self.name.fingerprint },
        })
    }

    fn failed(&self, doing: &'static str) -> impl FnOnce(mongodb::error::Error) -> Error {
        failed(doing, &self.name)
    }
}

impl LeaseStore for MongoLease {
    async fn inspect(&self) -> Result<(), Error> {
        let mut indexes = match self.leases.list_indexes().await {
            Err(error) if error_code(&error) == Some(NAMESPACE_NOT_FOUND) => return Ok(()),
            indexes => indexes.map_err(self.failed("inspect"))?,
        };
        while let Some(index) = indexes.next().await {
            let options = index.map_err(self.failed("inspect"))?.options.unwrap_or_default();
            if options.expire_after.is_some() {
                let index = options.name.unwrap_or_default();
                return Err(Error::TtlIndex { collection: COLLECTION.into(), index });
            }
        }
        Ok(())
    }

    async fn read(&self) -> Result<Option<Record>, Error> {
        Ok(self.show().await?.map(|lease| lease.record()))
    }

    async fn submit(&self, statement: &Statement) -> Result<Option<Record>, Error> {
        match *statement {
            Statement::Create { by, term, heartbeat } => self.create(by, term, heartbeat).await,
            Statement::Take { seen, by, term, heartbeat } => {
                self.update("take", self.exactly(&seen)?, taken(self.held(by, term, heartbeat)?)).await
            }
            Statement::TakeIfExpired { seen, max_clock_skew, by, term, heartbeat } => {
                let mut filter = self.exactly(&seen)?;
                let grace = doc! { "$add": ["$expiresAt", millis(max_clock_skew)] };
                filter.insert("$expr", doc! { "$gt": ["$$NOW", grace] });
                self.update("take", filter, taken(self.held(by, term, heartbeat)?)).await
            }
            Statement::Renew { by, term, heartbeat } => {
                let mut filter = self.mine(by, term)?;
                filter.insert("heartbeat", doc! { "$lt": beat(heartbeat) });
                self.update("renew", filter, doc! { "$set": self.held(by, term, heartbeat)? }).await
            }
            Statement::Raise { by, term, to, heartbeat } => {
                let mut filter = self.mine(by, term)?;
                filter.insert("term", doc! { "$eq": number(term)?, "$lt": number(to)? });
                filter.insert("heartbeat", doc! { "$lt": beat(heartbeat) });
                self.update("raise", filter, taken(self.held(by, to, heartbeat)?)).await
            }
            Statement::Release { by, term } => {
                self.update("release", self.mine(by, term)?, doc! { "$unset": ["leaderId", "contender"] }).await
            }
        }
    }

    async fn watch(&self, changed: &Notify) -> Error {
        let only_this = doc! { "$match": { "documentKey._id": &self.name.key } };
        let opened = self.leases.watch().pipeline([only_this]).await;
        let mut changes = match opened {
            Ok(changes) => changes.with_type::<RawDocumentBuf>(),
            Err(error) => return self.failed("watch")(error),
        };
        // Whatever happened before the stream was open is seen by the look that this causes.
        changed.notify_one();
        while let Some(change) = changes.next().await {
            match change {
                Ok(_) => changed.notify_one(),
                Err(error) => return self.failed("watch")(error),
            }
        }
        Error::WatchEnded { key: self.name.key.clone() }
    }

    async fn close(&self) {
        self.client.clone().shutdown().await;
    }
}

/// How to reach the servers is the operator's to say, in the URI; how a heartbeat gets through is not.
fn tuned(mut options: ClientOptions, timing: &Timing) -> ClientOptions {
    // An attempt that finds no server must end in time for the next one, and before it is given up unexplained.
    options.server_selection_timeout = Some(timing.attempt() * 3 / 4);
    options.connect_timeout = Some(timing.attempt());
    // A watch holds one connection, and a request that was given up may hold one until the server answers.
    options.max_pool_size = Some(POOL);
    options.min_pool_size = None;
    options.max_connecting = None;
    options.max_idle_time = None;
    // A primary that is gone must be noticed in time, and a new one found.
    options.heartbeat_freq = Some(timing.heartbeat().clamp(SHORTEST_MONITORING, LONGEST_MONITORING));
    options.server_monitoring_mode = Some(ServerMonitoringMode::Stream);
    options.app_name.get_or_insert_with(|| "headwater-lease".to_owned());
    options
}

fn taken(mut held: Document) -> Document {
    held.insert("acquiredAt", "$$NOW");
    doc! { "$set": held }
}

fn number(term: Term) -> Result<i64, Error> {
    i64::try_from(term.get()).map_err(|_| Error::TermTooHigh(term.get()))
}

/// A heartbeat a second for the age of the universe does not reach this.
fn beat(heartbeat: u64) -> i64 {
    i64::try_from(heartbeat).unwrap_or(i64::MAX)
}

fn failed(doing: &'static str, name: &LeaseName) -> impl FnOnce(mongodb::error::Error) -> Error + use<> {
    let key = name.key.clone();
    move |source| Error::Store { doing, key, source: source.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_a_uri_says_of_pools_and_monitoring_does_not_starve_the_lease() {
        let uri = "mongodb://localhost/?maxPoolSize=1&maxConnecting=1&heartbeatFrequencyMS=600000&\
                   serverMonitoringMode=poll&connectTimeoutMS=600000&serverSelectionTimeoutMS=600000&appName=shop";
        let secs = Duration::from_secs;
        let timing = Timing::new(secs(15), secs(10), secs(5)).unwrap();
        let tuned = tuned(ClientOptions::parse(uri).await.unwrap(), &timing);
        assert_eq!((tuned.max_pool_size, tuned.max_connecting), (Some(POOL), None));
        assert_eq!(tuned.heartbeat_freq, Some(secs(5)));
        assert!(matches!(tuned.server_monitoring_mode, Some(ServerMonitoringMode::Stream)));
        assert!(tuned.connect_timeout.unwrap() <= timing.attempt());
        assert!(tuned.server_selection_timeout.unwrap() < timing.attempt());
        assert_eq!(tuned.app_name.as_deref(), Some("shop"));
    }
}
