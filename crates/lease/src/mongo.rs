//! The lease in MongoDB: one document per lease, every statement one `findAndModify`, majority throughout.
//!
//! Expresses [`LeaseStatement::apply`] as MongoDB commands. A standby only reads: while it waits, it writes nothing to the oplog.
//! The store has its own [`Client`], so that neither a full connection pool nor a busy runtime of the pipeline delays a
//! heartbeat.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use mongo_error::error_code;
use mongodb::bson::{Bson, Document, doc};
use mongodb::options::{
    Acknowledgment, ClientOptions, CollectionOptions, ReadConcern, ReturnDocument, SelectionCriteria,
    ServerMonitoringMode, WriteConcern,
};
use mongodb::{Client, Collection};
use tokio::sync::Notify;

use crate::document::{FORMAT, LeaseDocument};
use crate::error::Error;
use crate::record::{CandidateId, LeaseRecord, LeaseStatement, LeaseVersion, Term, to_millis};
use crate::shared_watch::SharedWatch;
use crate::store::LeaseStore;
use crate::timing::Timing;

/// The collection in the coordination database with the leases of all pipelines.
pub const COLLECTION: &str = "leader_leases";

const DUPLICATE_KEY: i32 = 11000;
const NAMESPACE_NOT_FOUND: i32 = 26;

/// Connections to one server: of each lease a request, and one that timed out and whose connection is not closed yet.
const CONNECTIONS_PER_LEASE: u32 = 2;
/// Connections for the watch, and for what the driver sends by itself.
const OTHER_CONNECTIONS: u32 = 8;
/// The shortest interval that the driver allows, and its default.
const SHORTEST_MONITORING: Duration = Duration::from_millis(500);
const LONGEST_MONITORING: Duration = Duration::from_secs(10);

/// The lease this pod competes for, and the names a holder writes into it.
#[derive(Clone, Debug)]
pub struct LeaseName {
    pub database: String,
    /// The pipeline's name.
    pub key: String,
    pub pod_id: String,
    /// Identifies the source that the lease guards. A lease of the same name with another fingerprint is never taken.
    pub fingerprint: String,
}

pub struct MongoLeaseStore {
    shared: Arc<SharedLeases>,
    leases: Collection<Document>,
    name: LeaseName,
    ttl: Duration,
}

/// The client and the change stream that the leases of a process share.
pub struct SharedLeases {
    client: Client,
    leases: Collection<Document>,
    watch: SharedWatch,
}

impl SharedLeases {
    /// Call this on the runtime that runs the client's own tasks. Does not wait for a connection.
    /// `keys` are all leases that will use it.
    pub(crate) fn open(
        options: ClientOptions,
        database: &str,
        keys: BTreeSet<String>,
        timing: &Timing,
    ) -> Result<Self, Error> {
        let options = with_lease_timeouts(options, keys.len(), timing);
        let client = Client::with_options(options).map_err(|source| Error::Store {
            operation: "open",
            key: "*".to_owned(),
            source: source.into(),
        })?;
        // Journaled on a majority: neither a crash nor a failover may bring an older version back. With the timeout, a
        // missing majority is a reply (`writeConcernError`), not silence.
        let majority = WriteConcern::builder()
            .w(Acknowledgment::Majority)
            .journal(true)
            .w_timeout(timing.request_timeout())
            .build();
        let options = CollectionOptions::builder()
            .read_concern(ReadConcern::majority())
            .write_concern(majority)
            .selection_criteria(SelectionCriteria::ReadPreference(mongodb::options::ReadPreference::Primary))
            .build();
        let leases = client.database(database).collection_with_options(COLLECTION, options);
        Ok(Self { client, leases, watch: SharedWatch::new(keys) })
    }

    /// Runs the change stream of all candidates.
    pub(crate) async fn run_watch(self: Arc<Self>) -> Infallible {
        self.watch.run(&self.leases).await
    }

    /// Ends the client's background work before the runtime does.
    pub(crate) async fn close(&self, timing: &Timing) {
        // The driver sends `endSessions` to servers that may not reply: that must not delay a stop.
        let _ = tokio::time::timeout(timing.request_timeout(), self.client.clone().shutdown()).await;
    }
}

impl MongoLeaseStore {
    /// With a client of its own, for commands. Call this on the runtime that runs the client's own tasks. Does not wait for a
    /// connection. Nothing runs the watch.
    pub fn open(options: ClientOptions, name: LeaseName, timing: &Timing) -> Result<Self, Error> {
        let shared = SharedLeases::open(options, &name.database, BTreeSet::from([name.key.clone()]), timing)?;
        Ok(Self::shared(Arc::new(shared), name, timing))
    }

    pub(crate) fn shared(shared: Arc<SharedLeases>, name: LeaseName, timing: &Timing) -> Self {
        Self { leases: shared.leases.clone(), shared, name, ttl: timing.ttl() }
    }

    /// The whole document, for display.
    pub async fn read_document(&self) -> Result<Option<LeaseDocument>, Error> {
        let found = self.leases.find_one(doc! { "_id": &self.name.key }).await.map_err(self.store_error("read"))?;
        found.map(|document| self.parse_own(&document)).transpose()
    }

    fn parse_own(&self, document: &Document) -> Result<LeaseDocument, Error> {
        let lease = LeaseDocument::parse(document)?;
        if lease.fingerprint == self.name.fingerprint {
            return Ok(lease);
        }
        let LeaseName { key, fingerprint, .. } = self.name.clone();
        Err(Error::Fingerprint { key, found: lease.fingerprint, ours: fingerprint })
    }

    /// Creates the document with an upsert that leaves an existing one as it is, because only an update can use `$$NOW`. If
    /// another upsert wins the race, the statement counts as refused.
    async fn create(&self, candidate: CandidateId, term: Term, heartbeat: u64) -> Result<Option<LeaseRecord>, Error> {
        let key = &self.name.key;
        // An upsert that finds nothing starts from a document with only `_id`: that is how "absent" looks inside the pipeline.
        let absent = doc! { "$eq": ["$$ROOT", { "_id": { "$literal": key } }] };
        let mut lease = doc! { "_id": { "$literal": key }, "format": FORMAT };
        lease.extend(self.holder_fields(candidate, term, heartbeat)?);
        lease.extend(doc! { "acquiredAt": "$$NOW" });
        let update = vec![doc! { "$replaceWith": { "$cond": [absent, lease, "$$ROOT"] } }];
        let request = self.leases.find_one_and_update(doc! { "_id": key }, update).upsert(true);
        match request.return_document(ReturnDocument::After).await {
            Ok(Some(stored)) => {
                let record = self.parse_own(&stored)?.to_record();
                // The update also returns a document that another candidate created first; only our own version is a success.
                let ours = LeaseVersion { holder: Some(candidate), term, heartbeat };
                Ok((record.version == ours).then_some(record))
            }
            Ok(None) => Ok(None),
            Err(error) if error_code(&error) == Some(DUPLICATE_KEY) => Ok(None),
            Err(error) => Err(self.store_error("create")(error)),
        }
    }

    async fn update(
        &self,
        operation: &'static str,
        filter: Document,
        update: Document,
    ) -> Result<Option<LeaseRecord>, Error> {
        let request = self.leases.find_one_and_update(filter, vec![update]).return_document(ReturnDocument::After);
        let stored = request.await.map_err(self.store_error(operation))?;
        stored.map(|document| Ok(self.parse_own(&document)?.to_record())).transpose()
    }

    fn version_filter(&self, expected: &LeaseVersion) -> Result<Document, Error> {
        let holder =
            expected.holder.map_or_else(|| Bson::from(doc! { "$exists": false }), |holder| holder.to_string().into());
        let (term, heartbeat) = (to_i64(expected.term)?, heartbeat_to_i64(expected.heartbeat));
        let Self { name: LeaseName { key, fingerprint, .. }, .. } = self;
        Ok(doc! {
            "_id": key, "format": FORMAT, "contender": holder, "term": term, "heartbeat": heartbeat, "fingerprint": fingerprint,
        })
    }

    fn holder_filter(&self, candidate: CandidateId, term: Term) -> Result<Document, Error> {
        Ok(doc! { "_id": &self.name.key, "format": FORMAT, "contender": candidate.to_string(), "term": to_i64(term)? })
    }

    /// The fields that every statement of a holder writes. Names are literals: a pod id may start with `$`.
    fn holder_fields(&self, candidate: CandidateId, term: Term, heartbeat: u64) -> Result<Document, Error> {
        Ok(doc! {
            "leaderId": { "$literal": &self.name.pod_id },
            "contender": candidate.to_string(),
            "term": to_i64(term)?,
            "heartbeat": heartbeat_to_i64(heartbeat),
            "heartbeatAt": "$$NOW",
            "expiresAt": { "$add": ["$$NOW", to_millis(self.ttl)] },
            "fingerprint": { "$literal": &self.name.fingerprint },
        })
    }

    fn store_error(&self, operation: &'static str) -> impl FnOnce(mongodb::error::Error) -> Error {
        store_error(operation, &self.name)
    }
}

impl LeaseStore for MongoLeaseStore {
    async fn inspect(&self) -> Result<(), Error> {
        let mut indexes = match self.leases.list_indexes().await {
            Err(error) if error_code(&error) == Some(NAMESPACE_NOT_FOUND) => return Ok(()),
            indexes => indexes.map_err(self.store_error("inspect"))?,
        };
        while let Some(index) = indexes.next().await {
            let options = index.map_err(self.store_error("inspect"))?.options.unwrap_or_default();
            if options.expire_after.is_some() {
                let index = options.name.unwrap_or_default();
                return Err(Error::TtlIndex { collection: COLLECTION.into(), index });
            }
        }
        Ok(())
    }

    async fn read(&self) -> Result<Option<LeaseRecord>, Error> {
        Ok(self.read_document().await?.map(|lease| lease.to_record()))
    }

    async fn submit(&self, statement: &LeaseStatement) -> Result<Option<LeaseRecord>, Error> {
        match *statement {
            LeaseStatement::Create { candidate, term, heartbeat } => self.create(candidate, term, heartbeat).await,
            LeaseStatement::Take { expected, candidate, term, heartbeat } => {
                self.update(
                    "take",
                    self.version_filter(&expected)?,
                    take_update(self.holder_fields(candidate, term, heartbeat)?),
                )
                .await
            }
            LeaseStatement::TakeIfExpired { expected, max_clock_skew, candidate, term, heartbeat } => {
                let mut filter = self.version_filter(&expected)?;
                // Inside the filter, so that the server compares and takes in one atomic step.
                let grace = doc! { "$add": ["$expiresAt", to_millis(max_clock_skew)] };
                filter.insert("$expr", doc! { "$gt": ["$$NOW", grace] });
                self.update("take", filter, take_update(self.holder_fields(candidate, term, heartbeat)?)).await
            }
            LeaseStatement::Renew { candidate, term, heartbeat } => {
                let mut filter = self.holder_filter(candidate, term)?;
                filter.insert("heartbeat", doc! { "$lt": heartbeat_to_i64(heartbeat) });
                self.update("renew", filter, doc! { "$set": self.holder_fields(candidate, term, heartbeat)? }).await
            }
            LeaseStatement::Raise { candidate, term, to, heartbeat } => {
                let mut filter = self.holder_filter(candidate, term)?;
                // Both conditions on one field: still our term, and below the new one.
                filter.insert("term", doc! { "$eq": to_i64(term)?, "$lt": to_i64(to)? });
                filter.insert("heartbeat", doc! { "$lt": heartbeat_to_i64(heartbeat) });
                self.update("raise", filter, take_update(self.holder_fields(candidate, to, heartbeat)?)).await
            }
            LeaseStatement::Release { candidate, term } => {
                self.update(
                    "release",
                    self.holder_filter(candidate, term)?,
                    doc! { "$unset": ["leaderId", "contender"] },
                )
                .await
            }
        }
    }

    async fn watch(&self, changed: &Notify) -> Error {
        self.shared.watch.follow(&self.name.key, changed).await
    }

    async fn close(&self) {
        // The client belongs to all candidates of the process.
    }
}

/// The operator's URI decides how to reach the servers. Timeouts and pool size decide whether a heartbeat arrives in time, so
/// they are set here.
fn with_lease_timeouts(mut options: ClientOptions, leases: usize, timing: &Timing) -> ClientOptions {
    // A request that finds no server must fail in time for the next one, and with the reason, before it times out.
    options.server_selection_timeout = Some(timing.request_timeout() * 3 / 4);
    options.connect_timeout = Some(timing.request_timeout());
    // No renewal waits for the connection of another lease.
    let leases = u32::try_from(leases).unwrap_or(u32::MAX);
    options.max_pool_size = Some(leases.saturating_mul(CONNECTIONS_PER_LEASE).saturating_add(OTHER_CONNECTIONS));
    options.min_pool_size = None;
    options.max_connecting = None;
    options.max_idle_time = None;
    // The driver must notice in time that the primary is gone, and find the new one.
    options.heartbeat_freq = Some(timing.heartbeat().clamp(SHORTEST_MONITORING, LONGEST_MONITORING));
    options.server_monitoring_mode = Some(ServerMonitoringMode::Stream);
    options.app_name.get_or_insert_with(|| "headwater-lease".to_owned());
    options
}

fn take_update(mut fields: Document) -> Document {
    fields.insert("acquiredAt", "$$NOW");
    doc! { "$set": fields }
}

fn to_i64(term: Term) -> Result<i64, Error> {
    i64::try_from(term.get()).map_err(|_| Error::TermTooHigh(term.get()))
}

/// One heartbeat per second for the age of the universe does not reach this.
fn heartbeat_to_i64(heartbeat: u64) -> i64 {
    i64::try_from(heartbeat).unwrap_or(i64::MAX)
}

fn store_error(operation: &'static str, name: &LeaseName) -> impl FnOnce(mongodb::error::Error) -> Error + use<> {
    let key = name.key.clone();
    move |source| Error::Store { operation, key, source: source.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn uri_pool_and_monitoring_options_do_not_apply() {
        let uri = "mongodb://localhost/?maxPoolSize=1&maxConnecting=1&heartbeatFrequencyMS=600000&\
                   serverMonitoringMode=poll&connectTimeoutMS=600000&serverSelectionTimeoutMS=600000&appName=shop";
        let secs = Duration::from_secs;
        let timing = Timing::new(secs(15), secs(10), secs(5)).unwrap();
        let tuned = with_lease_timeouts(ClientOptions::parse(uri).await.unwrap(), 1, &timing);
        assert_eq!((tuned.max_pool_size, tuned.max_connecting), (Some(10), None));
        assert_eq!(tuned.heartbeat_freq, Some(secs(5)));
        assert!(matches!(tuned.server_monitoring_mode, Some(ServerMonitoringMode::Stream)));
        assert!(tuned.connect_timeout.unwrap() <= timing.request_timeout());
        assert!(tuned.server_selection_timeout.unwrap() < timing.request_timeout());
        assert_eq!(tuned.app_name.as_deref(), Some("shop"));
    }

    #[tokio::test]
    async fn every_lease_has_connections_of_its_own() {
        let timing = crate::Config::default().validate().unwrap().timing;
        let options = ClientOptions::parse("mongodb://localhost").await.unwrap();
        let tuned = with_lease_timeouts(options, 40, &timing);
        assert!(tuned.max_pool_size.unwrap() > 40, "a request of each lease, and the watch: {:?}", tuned.max_pool_size);
    }
}
