//! `mongo.rs` and `LeaseStatement::apply` say the same.

use std::collections::BTreeSet;
use std::time::Duration;

use lease::mongo::{COLLECTION, LeaseName, MongoLeaseStore};
use lease::record::{LeaseRecord, LeaseStatement, LeaseVersion, ServerTime};
use lease::{CandidateId, Config, Error, LeaseStore, Term, Timing};
use mongodb::bson::{DateTime, Document, doc};
use mongodb::options::ClientOptions;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use testkit::mongo::{ReplicaSet, ScratchDatabase, shared};

use crate::secs;

struct House {
    database: ScratchDatabase,
    lease: MongoLeaseStore,
}

impl House {
    async fn new(purpose: &str) -> Self {
        let shared = shared().await.unwrap();
        let database = shared.database(purpose);
        let lease = open(shared.uri(), database.name(), "pod").await;
        Self { database, lease }
    }

    async fn document(&self) -> Option<Document> {
        self.database.collection::<Document>(COLLECTION).find_one(doc! {}).await.unwrap()
    }

    /// As if the last heartbeat had been an hour and a ttl ago.
    async fn expire(&self) {
        let ago = DateTime::now().timestamp_millis() - HOUR;
        let ttl = i64::try_from(timing().ttl().as_millis()).unwrap();
        self.set(doc! { "expiresAt": DateTime::from_millis(ago), "heartbeatAt": DateTime::from_millis(ago - ttl) })
            .await;
    }

    async fn set(&self, change: Document) {
        let leases = self.database.collection::<Document>(COLLECTION);
        leases.update_one(doc! {}, doc! { "$set": change }).await.unwrap();
    }
}

async fn open(uri: &str, database: &str, pod_id: &str) -> MongoLeaseStore {
    let name = LeaseName {
        database: database.into(),
        key: "shop".into(),
        pod_id: pod_id.into(),
        fingerprint: "shop.events".into(),
    };
    MongoLeaseStore::open(ClientOptions::parse(uri).await.unwrap(), name, &timing()).unwrap()
}

/// The defaults: nothing here waits for them, and a busy machine is given time to answer.
fn timing() -> Timing {
    Config::default().validate().unwrap().timing
}

fn me() -> CandidateId {
    CandidateId::new(7)
}

fn create() -> LeaseStatement {
    LeaseStatement::Create { by: me(), term: Term::new(1), heartbeat: 1 }
}

#[tokio::test]
async fn the_document_is_as_the_design_says() {
    let house = House::new("shape").await;
    house.lease.submit(&create()).await.unwrap().unwrap();
    let lease = house.document().await.unwrap();
    let fields: Vec<_> = lease.keys().map(String::as_str).collect();
    let expected = [
        "_id",
        "format",
        "leaderId",
        "contender",
        "term",
        "heartbeat",
        "heartbeatAt",
        "expiresAt",
        "fingerprint",
        "acquiredAt",
    ];
    assert_eq!(fields, expected);
    assert_eq!(lease.get_str("_id").ok(), Some("shop"));
    assert_eq!(lease.get_str("leaderId").ok(), Some("pod"));
    let lives =
        lease.get_datetime("expiresAt").unwrap().saturating_duration_since(*lease.get_datetime("heartbeatAt").unwrap());
    assert_eq!(lives, timing().ttl());
}

#[tokio::test]
async fn a_release_keeps_the_document_and_its_term() {
    let house = House::new("release").await;
    house.lease.submit(&create()).await.unwrap().unwrap();
    house.lease.submit(&LeaseStatement::Release { by: me(), term: Term::new(1) }).await.unwrap().unwrap();
    let lease = house.document().await.unwrap();
    assert_eq!(lease.get_i64("term").ok(), Some(1));
    assert!(!lease.contains_key("leaderId") && !lease.contains_key("contender"), "{lease}");
}

const HOUR: i64 = 3_600_000;

/// A random walk over statements that are near enough to what is stored to be applied about half of the time. Now and then
/// the lease is made to have expired an hour ago, which no skew around that hour mistakes.
#[tokio::test]
async fn every_statement_does_to_the_document_what_it_does_to_the_record() {
    let house = House::new("walk").await;
    let mut random = StdRng::seed_from_u64(3);
    let mut expected: Option<LeaseRecord> = None;
    let mut seen = BTreeSet::new();
    for step in 0..400 {
        if expected.is_some() && random.random_bool(0.3) {
            house.expire().await;
            expected = house.lease.read().await.unwrap();
        }
        let mut statement = near(expected.as_ref(), &mut random);
        if let LeaseStatement::Create { heartbeat, .. } = &mut statement {
            // no version is written twice: `create` knows its own document by that
            *heartbeat = 1_000_000 + step;
        }
        let answer = house.lease.submit(&statement).await.unwrap();
        let next = statement.apply(expected.as_ref(), timing().ttl(), ServerTime(DateTime::now().timestamp_millis()));
        assert_eq!(versions(answer), versions(next), "step {step}: {statement:?} on {expected:?}");
        seen.insert((kind(&statement), next.is_some()));
        let stored = house.lease.read().await.unwrap();
        assert_eq!(versions(stored), versions(next.or(expected)), "step {step}: {statement:?}");
        expected = stored;
    }
    assert_eq!(seen.len(), 12, "every kind should be applied and refused at least once: {seen:?}");
}

fn kind(statement: &LeaseStatement) -> &'static str {
    match statement {
        LeaseStatement::Create { .. } => "create",
        LeaseStatement::Take { .. } => "take",
        LeaseStatement::TakeIfExpired { .. } => "take if expired",
        LeaseStatement::Renew { .. } => "renew",
        LeaseStatement::Raise { .. } => "raise",
        LeaseStatement::Release { .. } => "release",
    }
}

fn versions(record: Option<LeaseRecord>) -> Option<(LeaseVersion, Duration)> {
    record.map(|record| (record.version, record.ttl))
}

fn near(stored: Option<&LeaseRecord>, random: &mut StdRng) -> LeaseStatement {
    let nobody = LeaseVersion { holder: None, term: Term::default(), heartbeat: 0 };
    let seen = stored.map_or(nobody, |record| record.version);
    let by = CandidateId::new(random.random_range(1..=2));
    let off = |number: u64, random: &mut StdRng| (number + random.random_range(0..=2)).saturating_sub(1);
    let term = Term::new(off(seen.term.get(), random));
    let heartbeat = off(seen.heartbeat, random) + random.random_range(0..=1);
    let likely = match random.random_bool(0.7) {
        true => seen,
        false => LeaseVersion { holder: random.random_bool(0.5).then_some(by), term, heartbeat },
    };
    match random.random_range(0..6) {
        0 => LeaseStatement::Create { by, term, heartbeat },
        1 => LeaseStatement::Take { seen: likely, by, term: term.next(), heartbeat },
        2 => LeaseStatement::Renew { by, term, heartbeat },
        3 => {
            // none, or more than the hour
            let max_clock_skew = secs(random.random_range(0..=1) * 2 * 3600);
            LeaseStatement::TakeIfExpired { seen: likely, max_clock_skew, by, term: term.next(), heartbeat }
        }
        4 => LeaseStatement::Raise { by, term, to: Term::new(off(term.get(), random) + 1), heartbeat },
        _ => LeaseStatement::Release { by, term },
    }
}

#[tokio::test]
async fn the_server_s_clock_counts_only_for_who_asks_it_and_only_beyond_the_skew() {
    let house = House::new("skew").await;
    let stored = house.lease.submit(&create()).await.unwrap().unwrap();
    house.set(doc! { "expiresAt": DateTime::from_millis(DateTime::now().timestamp_millis() - 3_600_000) }).await;
    let take = |max_clock_skew| LeaseStatement::TakeIfExpired {
        seen: stored.version,
        max_clock_skew,
        by: CandidateId::new(8),
        term: Term::new(2),
        heartbeat: 2,
    };
    assert_eq!(house.lease.submit(&take(secs(7200))).await.unwrap(), None);
    assert!(house.lease.submit(&take(secs(1800))).await.unwrap().is_some());
}

#[tokio::test]
async fn names_that_look_like_expressions_are_names() {
    let shared = shared().await.unwrap();
    let database = shared.database("names");
    let lease = open(shared.uri(), database.name(), "$$ROOT").await;
    lease.submit(&create()).await.unwrap().unwrap();
    let renewal = LeaseStatement::Renew { by: me(), term: Term::new(1), heartbeat: 2 };
    lease.submit(&renewal).await.unwrap().unwrap();
    assert_eq!(lease.show().await.unwrap().unwrap().leader_id.as_deref(), Some("$$ROOT"));
}

#[tokio::test]
async fn a_write_without_a_majority_is_not_a_success() {
    let mut set = ReplicaSet::start(3).await.unwrap();
    let primary = set.primary().await.unwrap();
    let lease = open(&set.uri(), "coordination", "pod").await;
    lease.submit(&create()).await.unwrap().unwrap();
    for member in (0..3).filter(|member| *member != primary) {
        set.pause(member).await.unwrap();
    }
    let renewal = LeaseStatement::Renew { by: me(), term: Term::new(1), heartbeat: 2 };
    let answer = tokio::time::timeout(secs(30), lease.submit(&renewal)).await.expect("the server answers in time");
    assert!(matches!(answer, Err(Error::Store { .. })), "{answer:?}");
    // the server answers with the document itself, which is not for logs
    let source = std::error::Error::source(answer.as_ref().unwrap_err()).unwrap().to_string();
    assert!(!format!("{source}{answer:?}").contains("RawDocument"), "{source} {answer:?}");
}
