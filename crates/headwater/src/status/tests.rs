//! The status is collected from a real MongoDB, with documents written by their real writers.

use std::time::Duration;

use admin::status::{ParkedCount, PodRole, ProblemSeverity, RejectedCount, TermState};
use lease::mongo::{LeaseName, MongoLeaseStore};
use lease::record::LeaseStatement;
use lease::{CandidateId, LeaseStore, Term, Timing};
use mongodb::bson::{DateTime, Document, doc};
use mongodb::options::ClientOptions;
use mongodb::{Client, Database};
use pipeline::audit::AuditStore;
use pipeline::checkpoint::{CheckpointClaim, CheckpointPhase, CheckpointStore, MongoCheckpointStore};
use pipeline::event::ResumeToken;
use servicebus::administration::AdministrationClient;
use testkit::mongo::{ScratchDatabase, SharedMongo, shared};

use super::{AuditMonitor, StatusCollector, SubscriptionMonitor};
use crate::pods::{Announcement, PODS, PodRegistry};

const PIPELINE: &str = "shop";

/// One database serves as coordination, source and read-model database.
struct StatusFixture {
    mongo: SharedMongo,
    database: ScratchDatabase,
}

impl StatusFixture {
    async fn start() -> Self {
        let mongo = shared().await.unwrap();
        let database = mongo.database("status");
        Self { mongo, database }
    }

    fn collector(&self) -> StatusCollector {
        collector(&self.database, self.mongo.client().clone())
    }

    fn registry(&self, pod: &str) -> PodRegistry {
        PodRegistry::new(&self.database, PIPELINE, pod)
    }

    async fn insert(&self, collection: &str, documents: Vec<Document>) {
        self.database.collection::<Document>(collection).insert_many(documents).await.unwrap();
    }

    /// As the elector does.
    async fn acquire_lease(&self, pod: &str, term: u64, ttl: Duration) -> MongoLeaseStore {
        let name = LeaseName {
            database: self.database.name().to_owned(),
            key: PIPELINE.into(),
            pod_id: pod.into(),
            fingerprint: "source".into(),
        };
        let timing = Timing::new(ttl, ttl * 2 / 3, ttl / 3).unwrap();
        let options = ClientOptions::parse(self.mongo.uri()).await.unwrap();
        let lease = MongoLeaseStore::open(options, name, &timing).unwrap();
        let create = LeaseStatement::Create { candidate: CandidateId::new(1), term: Term::new(term), heartbeat: 1 };
        lease.submit(&create).await.unwrap().expect("the lease is free");
        lease
    }

    /// As the publisher does, with a resume token of that second.
    async fn save_checkpoint(&self, seconds: u32) {
        let store = MongoCheckpointStore::new(&self.database, PIPELINE, "source");
        let claim = CheckpointClaim { term: Term::new(7), claimant: CandidateId::new(1), pod_id: "pod-1".into() };
        let epoch = store.claim(&claim).await.unwrap().epoch;
        let token = ResumeToken::try_from(doc! { "_data": format!("82{seconds:08X}000000012B0229296E04") }).unwrap();
        store.save(&claim, epoch, &CheckpointPhase::Stream { token }, None).await.unwrap();
    }
}

fn collector(database: &Database, source: Client) -> StatusCollector {
    // Nothing listens there, so the counts of Service Bus are unknown.
    let bus = AdministrationClient::new("Endpoint=sb://127.0.0.1:1;UseDevelopmentEmulator=true", &Default::default())
        .unwrap();
    StatusCollector {
        pipeline: PIPELINE.into(),
        by: "pod-0".into(),
        coordination: database.clone(),
        source,
        views: database.clone(),
        read_models: vec!["orders".into()],
        subscription: SubscriptionMonitor::new(bus, "events", "read-models"),
        generations: pipeline::generation::GenerationStore::new(database, PIPELINE),
        pauses: crate::pauses::PauseStore::new(database, PIPELINE),
        audit: AuditMonitor { store: AuditStore::new(database, PIPELINE), period: None, unauditable: None },
    }
}

fn announcement(producer: &str) -> Announcement {
    Announcement {
        version: "0.1.0".into(),
        producer: producer.into(),
        consumer: "consuming".into(),
        sessions: Some(3),
        applied_per_second: Some(10.0),
        ..Announcement::default()
    }
}

#[tokio::test]
async fn an_empty_store_has_no_leader_and_no_error() {
    let fixture = StatusFixture::start().await;
    let status = fixture.collector().collect(&mut None).await;
    assert_eq!(status.collected.unavailable, Vec::<String>::new());
    assert_eq!((status.leader, status.checkpoint, status.lag.seconds), (None, None, None));
    assert_eq!((status.parked, status.rejected), (Some(vec![]), Some(vec![])));
    assert_eq!(status.problems.iter().map(|problem| problem.code.as_str()).collect::<Vec<_>>(), ["no_leader"]);
    assert_eq!(status.read_models[0].documents, Some(0));
}

#[tokio::test]
async fn documents_of_all_writers_are_read() {
    let fixture = StatusFixture::start().await;
    let _lease = fixture.acquire_lease("pod-1", 7, Duration::from_secs(600)).await;
    let newest = fixture.collector().newest_operation().await.unwrap().expect("a replica set has a cluster time");
    fixture.save_checkpoint(newest - 100).await;
    fixture.registry("pod-0").announce(&announcement("standby")).await.unwrap();
    let leads = Announcement { in_flight: Some(4), published_per_second: Some(20.0), ..announcement("publishing") };
    fixture.registry("pod-1").announce(&leads).await.unwrap();
    fixture.registry("pod-1").record_term_start(7).await.unwrap();
    PodRegistry::new(&fixture.database, "another", "pod-9").announce(&announcement("standby")).await.unwrap();
    fixture.insert("orders", vec![doc! { "_id": 1 }, doc! { "_id": 2 }]).await;

    let status = fixture.collector().collect(&mut None).await;
    let leader = status.leader.as_ref().expect("a leader");
    assert_eq!((leader.pod.as_str(), leader.term), ("pod-1", 7));
    assert!(leader.for_seconds.is_some_and(|seconds| seconds < 600.0));
    let pods: Vec<_> = status.pods.iter().map(|pod| (pod.id.as_str(), pod.role, pod.silent)).collect();
    assert_eq!(
        pods,
        [("pod-0", PodRole::Standby, false), ("pod-1", PodRole::Leader, false)],
        "and none of another pipeline"
    );
    let lag = status.lag.seconds.expect("both ends are known");
    assert!((100.0..700.0).contains(&lag), "{lag}");
    assert_eq!((status.lag.events, status.lag.is_lower_bound), (Some(4), true));
    assert_eq!(status.throughput.published_per_second, Some(20.0));
    assert_eq!((status.throughput.applied_per_second, status.sessions()), (Some(20.0), Some(6)));
    let checkpoint = status.checkpoint.as_ref().expect("a checkpoint");
    assert_eq!((checkpoint.phase.as_str(), checkpoint.term, checkpoint.saved_by.as_str()), ("stream", 7, "pod-1"));
    assert_eq!(status.terms.iter().map(|term| (term.term, term.pod.as_str())).collect::<Vec<_>>(), [(7, "pod-1")]);
    assert_eq!(status.read_models[0].documents, Some(2));
    assert!(status.oplog.window_seconds.is_some());
}

#[tokio::test]
async fn a_checkpoint_ahead_is_reported_and_is_not_a_lag_of_0() {
    let fixture = StatusFixture::start().await;
    let _lease = fixture.acquire_lease("pod-1", 7, Duration::from_secs(600)).await;
    let newest = fixture.collector().newest_operation().await.unwrap().expect("a replica set has a cluster time");
    fixture.save_checkpoint(newest + 100_000).await;
    let status = fixture.collector().collect(&mut None).await;
    assert_eq!(status.lag.seconds, None);
    let ahead = status.checkpoint.as_ref().and_then(|checkpoint| checkpoint.ahead_seconds).expect("it is ahead");
    assert!((99_000.0..=100_000.0).contains(&ahead), "{ahead}");
    // All tests share this server, so its oplog may be short.
    let of_the_checkpoint = status.problems.iter().filter(|problem| problem.code != "oplog_headroom");
    let found: Vec<_> = of_the_checkpoint.map(|problem| (problem.code.as_str(), problem.severity)).collect();
    assert_eq!(found, [("checkpoint_ahead", ProblemSeverity::Critical)]);
}

#[tokio::test]
async fn a_read_model_s_age_is_that_of_the_last_pod_to_apply() {
    let fixture = StatusFixture::start().await;
    let mut collector = fixture.collector();
    collector.read_models.extend(["customers".to_owned(), "untouched".to_owned()]);
    let applied = |ages: &[(&str, u64)]| Announcement {
        applied_ago: ages.iter().map(|(model, ago)| ((*model).to_owned(), Duration::from_secs(*ago))).collect(),
        ..announcement("standby")
    };
    fixture.registry("pod-0").announce(&applied(&[("orders", 4_000), ("customers", 60_000)])).await.unwrap();
    fixture.registry("pod-1").announce(&applied(&[("orders", 90_000)])).await.unwrap();
    let status = collector.collect(&mut None).await;
    let ages: Vec<_> = status.read_models.iter().map(|model| (&*model.name, model.applied_seconds_ago)).collect();
    let near = |age: Option<f64>, expected: f64| age.is_some_and(|age| (expected..expected + 600.0).contains(&age));
    assert!(near(ages[0].1, 4_000.0) && near(ages[1].1, 60_000.0), "{ages:?}");
    assert_eq!(ages[2], ("untouched", None), "no pod has applied an event to it");
    let at = status.read_models[0].applied.expect("an event was applied").millis();
    let since = (status.collected.at.millis() - at) as f64 / 1_000.0;
    assert!(near(Some(since), 4_000.0), "{since}");
}

#[tokio::test]
async fn a_released_or_expired_lease_has_no_leader() {
    let fixture = StatusFixture::start().await;
    let lease = fixture.acquire_lease("pod-1", 1, Duration::from_secs(600)).await;
    assert!(fixture.collector().collect(&mut None).await.leader.is_some());
    lease
        .submit(&LeaseStatement::Release { candidate: CandidateId::new(1), term: Term::new(1) })
        .await
        .unwrap()
        .expect("ours");
    assert_eq!(fixture.collector().collect(&mut None).await.leader, None);

    let fixture = StatusFixture::start().await;
    let _lease = fixture.acquire_lease("pod-1", 1, Duration::from_secs(1)).await;
    let collector = fixture.collector();
    testkit::wait::wait_for("the lease to expire", Duration::from_secs(30), async || {
        let leader = collector.collect(&mut None).await.leader;
        leader.map_or(Ok(()), Err)
    })
    .await;
}

#[tokio::test]
async fn parked_and_rejected_are_counted_per_pipeline() {
    let fixture = StatusFixture::start().await;
    let now = DateTime::from_millis(1_000);
    let cursor = |pipeline: &str, aggregate: &str, reason: &str, next: i64| {
        let entry = doc! { "reason": reason, "since": now, "head": 1_i64, "next": next };
        doc! { "_id": { "pipeline": pipeline, "aggregate": aggregate }, "parked": { "orders": entry } }
    };
    let cursors = vec![
        cursor(PIPELINE, "a", "poison", 3),
        cursor(PIPELINE, "b", "unhealable", 2),
        cursor(PIPELINE, "c", "paused", 8),
        doc! { "_id": { "pipeline": PIPELINE, "aggregate": "d" } },
        cursor("shop2", "a", "poison", 2),
    ];
    fixture.insert("_headwater_cursors", cursors).await;
    let rejected = vec![
        doc! { "_id": { "pipeline": PIPELINE, "message": "1" }, "reason": "too_large" },
        doc! { "_id": { "pipeline": PIPELINE, "message": "1", "chunk": 1_i64 } },
        doc! { "_id": { "pipeline": "shop2", "message": "2" }, "reason": "refused" },
    ];
    fixture.insert("rejected_events", rejected).await;

    let status = fixture.collector().collect(&mut None).await;
    let [ParkedCount { read_model, aggregates, events, oldest_seconds }] = &status.parked.as_deref().unwrap() else {
        panic!()
    };
    assert_eq!((read_model.as_str(), *aggregates, *events), ("orders", 2, 3));
    assert!(oldest_seconds.is_some_and(|seconds| seconds > 1e9));
    assert_eq!(status.rejected, Some(vec![RejectedCount { reason: "too_large".into(), events: 1 }]));
    assert_eq!(status.read_models[0].parked_aggregates, Some(2));
}

#[tokio::test]
async fn a_stopped_pod_is_removed_and_its_term_ended() {
    let fixture = StatusFixture::start().await;
    let registry = fixture.registry("$pod");
    registry.announce(&announcement("publishing")).await.unwrap();
    registry.announce(&announcement("publishing")).await.unwrap();
    registry.record_term_start(3).await.unwrap();
    registry.record_term_end(3).await.unwrap();
    let status = fixture.collector().collect(&mut None).await;
    assert_eq!(status.pods.iter().map(|pod| pod.id.as_str()).collect::<Vec<_>>(), ["$pod"]);
    assert!(status.pods[0].started.is_some());
    assert!(status.terms[0].ended.is_some_and(|ended| ended >= status.terms[0].started));
    registry.remove_announcement().await.unwrap();
    assert_eq!(fixture.collector().collect(&mut None).await.pods, []);
}

#[tokio::test]
async fn long_dead_pods_and_old_terms_are_removed() {
    let fixture = StatusFixture::start().await;
    let registry = fixture.registry("pod-0");
    registry.announce(&announcement("standby")).await.unwrap();
    let long_ago = DateTime::from_millis(0);
    fixture
        .insert(PODS, vec![doc! { "_id": { "pipeline": PIPELINE, "pod": "old" }, "format": 1, "seenAt": long_ago }])
        .await;
    let status = fixture.collector().collect(&mut None).await;
    assert_eq!(status.pods.iter().filter(|pod| pod.silent).count(), 1);
    registry.remove_dead_pods().await.unwrap();
    for term in [1, 2, 300] {
        registry.record_term_start(term).await.unwrap();
    }
    let status = fixture.collector().collect(&mut None).await;
    assert_eq!(status.pods.iter().map(|pod| pod.id.as_str()).collect::<Vec<_>>(), ["pod-0"]);
    assert_eq!(status.terms.iter().map(|term| term.term).collect::<Vec<_>>(), [300]);
}

#[tokio::test]
async fn without_mongodb_everything_is_unknown() {
    // A port that was free a moment ago: nothing listens on it.
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let options = ClientOptions::parse(format!("mongodb://{free}/?serverSelectionTimeoutMS=200")).await.unwrap();
    let client = Client::with_options(options).unwrap();
    let status = collector(&client.database("nowhere"), client.clone()).collect(&mut None).await;
    assert_eq!(status.collected.unavailable.len(), 7, "{:?}", status.collected.unavailable);
    assert_eq!((status.leader, status.parked, status.lag.seconds), (None, None, None));
    assert_eq!(status.oplog.headroom_seconds, None);
    let found: Vec<_> = status.problems.iter().map(|problem| (problem.code.as_str(), problem.severity)).collect();
    assert_eq!(found, [("status_unavailable", ProblemSeverity::Critical)], "and not `no_leader`");
}

#[tokio::test]
async fn a_term_cut_short_by_a_crash_is_lost() {
    let fixture = StatusFixture::start().await;
    // The leader of term 6 crashes: it records no end. Another pod takes over with term 7.
    fixture.registry("pod-0").record_term_start(6).await.unwrap();
    let _lease = fixture.acquire_lease("pod-1", 7, Duration::from_secs(600)).await;
    fixture.registry("pod-1").record_term_start(7).await.unwrap();
    let terms = fixture.collector().collect(&mut None).await.terms;
    let states: Vec<_> = terms.iter().map(|term| (term.term, term.state, term.ended)).collect();
    assert_eq!(states, [(7, TermState::Current, None), (6, TermState::Lost, None)]);
    assert_eq!(terms[1].next_started, Some(terms[0].started));
}
