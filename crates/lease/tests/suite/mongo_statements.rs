//! The MongoDB store applies statements exactly like `LeaseStatement::apply`.

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

struct LeaseStoreFixture {
    database: ScratchDatabase,
    lease: MongoLeaseStore,
}

impl LeaseStoreFixture {
    async fn new(purpose: &str) -> Self {
        let shared = shared().await.unwrap();
        let database = shared.database(purpose);
        let lease = open(shared.uri(), database.name(), "pod").await;
        Self { database, lease }
    }

    async fn document(&self) -> Option<Document> {
        self.database.collection::<Document>(COLLECTION).find_one(doc! {}).await.unwrap()
    }

    /// Sets the last heartbeat to an hour and a ttl ago.
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

/// The defaults: no test waits for them, and a busy machine has time to reply.
fn timing() -> Timing {
    Config::default().validate().unwrap().timing
}

fn candidate() -> CandidateId {
    CandidateId::new(7)
}

fn create() -> LeaseStatement {
    LeaseStatement::Create { candidate: candidate(), term: Term::new(1), heartbeat: 1 }
}

#[tokio::test]
async fn the_document_has_the_documented_fields() {
    let fixture = LeaseStoreFixture::new("shape").await;
    fixture.lease.submit(&create()).await.unwrap().unwrap();
    let lease = fixture.document().await.unwrap();
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
    let fixture = LeaseStoreFixture::new("release").await;
    fixture.lease.submit(&create()).await.unwrap().unwrap();
    fixture
        .lease
        .submit(&LeaseStatement::Release { candidate: candidate(), term: Term::new(1) })
        .await
        .unwrap()
        .unwrap();
    let lease = fixture.document().await.unwrap();
    assert_eq!(lease.get_i64("term").ok(), Some(1));
    assert!(!lease.contains_key("leaderId") && !lease.contains_key("contender"), "{lease}");
}

const HOUR: i64 = 3_600_000;

/// A random walk over statements that are close to the stored record, so that about half of them apply. Sometimes the lease is
/// set to have expired an hour ago.
#[tokio::test]
async fn mongodb_applies_every_statement_like_the_record() {
    let fixture = LeaseStoreFixture::new("walk").await;
    let mut random = StdRng::seed_from_u64(3);
    let mut expected: Option<LeaseRecord> = None;
    let mut seen = BTreeSet::new();
    for step in 0..400 {
        if expected.is_some() && random.random_bool(0.3) {
            fixture.expire().await;
            expected = fixture.lease.read().await.unwrap();
        }
        let mut statement = random_statement(expected.as_ref(), &mut random);
        if let LeaseStatement::Create { heartbeat, .. } = &mut statement {
            // No version is written twice: `create` recognizes its own document by its version.
            *heartbeat = 1_000_000 + step;
        }
        let reply = fixture.lease.submit(&statement).await.unwrap();
        let next = statement.apply(expected.as_ref(), timing().ttl(), ServerTime(DateTime::now().timestamp_millis()));
        assert_eq!(versions(reply), versions(next), "step {step}: {statement:?} on {expected:?}");
        seen.insert((kind(&statement), next.is_some()));
        let stored = fixture.lease.read().await.unwrap();
        assert_eq!(versions(stored), versions(next.or(expected)), "step {step}: {statement:?}");
        expected = stored;
    }
    assert_eq!(seen.len(), 12, "every kind is applied and refused at least once: {seen:?}");
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

fn random_statement(stored: Option<&LeaseRecord>, random: &mut StdRng) -> LeaseStatement {
    let nobody = LeaseVersion { holder: None, term: Term::default(), heartbeat: 0 };
    let seen = stored.map_or(nobody, |record| record.version);
    let candidate = CandidateId::new(random.random_range(1..=2));
    let off = |number: u64, random: &mut StdRng| (number + random.random_range(0..=2)).saturating_sub(1);
    let term = Term::new(off(seen.term.get(), random));
    let heartbeat = off(seen.heartbeat, random) + random.random_range(0..=1);
    let likely = match random.random_bool(0.7) {
        true => seen,
        false => LeaseVersion { holder: random.random_bool(0.5).then_some(candidate), term, heartbeat },
    };
    match random.random_range(0..6) {
        0 => LeaseStatement::Create { candidate, term, heartbeat },
        1 => LeaseStatement::Take { expected: likely, candidate, term: term.next(), heartbeat },
        2 => LeaseStatement::Renew { candidate, term, heartbeat },
        3 => {
            // None, or more than the hour.
            let max_clock_skew = secs(random.random_range(0..=1) * 2 * 3600);
            LeaseStatement::TakeIfExpired { expected: likely, max_clock_skew, candidate, term: term.next(), heartbeat }
        }
        4 => LeaseStatement::Raise { candidate, term, to: Term::new(off(term.get(), random) + 1), heartbeat },
        _ => LeaseStatement::Release { candidate, term },
    }
}

#[tokio::test]
async fn take_if_expired_needs_an_expiry_beyond_the_skew() {
    let fixture = LeaseStoreFixture::new("skew").await;
    let stored = fixture.lease.submit(&create()).await.unwrap().unwrap();
    fixture.set(doc! { "expiresAt": DateTime::from_millis(DateTime::now().timestamp_millis() - 3_600_000) }).await;
    let take = |max_clock_skew| LeaseStatement::TakeIfExpired {
        expected: stored.version,
        max_clock_skew,
        candidate: CandidateId::new(8),
        term: Term::new(2),
        heartbeat: 2,
    };
    assert_eq!(fixture.lease.submit(&take(secs(7200))).await.unwrap(), None);
    assert!(fixture.lease.submit(&take(secs(1800))).await.unwrap().is_some());
}

#[tokio::test]
async fn names_that_look_like_expressions_stay_literal() {
    let shared = shared().await.unwrap();
    let database = shared.database("names");
    let lease = open(shared.uri(), database.name(), "$$ROOT").await;
    lease.submit(&create()).await.unwrap().unwrap();
    let renewal = LeaseStatement::Renew { candidate: candidate(), term: Term::new(1), heartbeat: 2 };
    lease.submit(&renewal).await.unwrap().unwrap();
    assert_eq!(lease.read_document().await.unwrap().unwrap().leader_id.as_deref(), Some("$$ROOT"));
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
    let renewal = LeaseStatement::Renew { candidate: candidate(), term: Term::new(1), heartbeat: 2 };
    let reply = tokio::time::timeout(secs(30), lease.submit(&renewal)).await.expect("the server replies in time");
    assert!(matches!(reply, Err(Error::Store { .. })), "{reply:?}");
    // The server replies with the document itself, which must not reach the logs.
    let source = std::error::Error::source(reply.as_ref().unwrap_err()).unwrap().to_string();
    assert!(!format!("{source}{reply:?}").contains("RawDocument"), "{source} {reply:?}");
}
