//! The fenced checkpoint on a real mongod.

use lease::CandidateId;
use mongodb::Collection;
use mongodb::bson::{Bson, Document, Timestamp, doc};
use pipeline::checkpoint::{
    COLLECTION, Checkpoint, CheckpointClaim, CheckpointPhase, CheckpointStore, Error, MongoCheckpointStore, PIPELINES,
    PipelineIdentity, ReplayCounter, SaveResult, SnapshotProgress,
};
use pipeline::event::{Epoch, ResumeToken, Term};
use testkit::mongo::{ScratchDatabase, shared};

/// A coordination database.
struct CheckpointFixture {
    database: ScratchDatabase,
}

impl CheckpointFixture {
    async fn new(purpose: &str) -> Self {
        Self { database: shared().await.unwrap().database(purpose) }
    }

    fn pipeline(&self, name: &str) -> MongoCheckpointStore {
        MongoCheckpointStore::new(&self.database, name, "shop.events")
    }

    fn documents(&self) -> Collection<Document> {
        self.database.collection(COLLECTION)
    }

    async fn stored(&self, name: &str) -> Option<Document> {
        self.documents().find_one(doc! { "_id": name }).await.unwrap()
    }
}

fn claim(pod: &str, term: u64) -> CheckpointClaim {
    let process = pod.bytes().fold(0, |number, byte| number * 256 + u128::from(byte));
    CheckpointClaim { term: Term::new(term), claimant: CandidateId::new(process), pod_id: pod.into() }
}

fn token(data: &str) -> ResumeToken {
    ResumeToken::try_from(doc! { "_data": data }).unwrap()
}

fn stream(data: &str) -> CheckpointPhase {
    CheckpointPhase::Stream { token: token(data) }
}

fn snapshot(run: &str, scanned: u64) -> CheckpointPhase {
    let progress =
        SnapshotProgress { run: run.into(), scanned, after: Some(Bson::from(i64::try_from(scanned).unwrap())) };
    CheckpointPhase::Snapshot { start: token("8210"), progress }
}

/// A save in the first epoch.
async fn save(
    store: &MongoCheckpointStore,
    claim: &CheckpointClaim,
    phase: CheckpointPhase,
) -> Result<SaveResult, Error> {
    store.save(claim, Epoch::FIRST, &phase, Some(Timestamp { time: 5, increment: 1 })).await
}

async fn phase_of(store: &MongoCheckpointStore) -> CheckpointPhase {
    store.load().await.unwrap().unwrap().phase
}

#[tokio::test]
async fn the_next_leader_claims_the_last_saved_checkpoint() {
    let fixture = CheckpointFixture::new("claim").await;
    let store = fixture.pipeline("shop");
    let first = claim("a", 1);
    let Checkpoint { phase, epoch, term, .. } = store.claim(&first).await.unwrap();
    assert_eq!((phase, epoch, term), (CheckpointPhase::Unstarted, Epoch::FIRST, Term::new(1)));
    assert_eq!(save(&store, &first, stream("8220")).await.unwrap(), SaveResult::Saved);

    let inherited = store.claim(&claim("b", 2)).await.unwrap();
    assert_eq!(inherited.phase, stream("8220"));
    assert_eq!(inherited.term, Term::new(2));
    assert_eq!(inherited.saved_by, "a");
    assert_eq!(inherited.cluster_time, Some(Timestamp { time: 5, increment: 1 }));
}

#[tokio::test]
async fn a_deposed_leader_cannot_move_the_checkpoint() {
    let fixture = CheckpointFixture::new("deposed").await;
    let store = fixture.pipeline("shop");
    let (old, new) = (claim("a", 1), claim("b", 2));
    store.claim(&old).await.unwrap();
    save(&store, &old, stream("8220")).await.unwrap();
    store.claim(&new).await.unwrap();
    let before = fixture.stored("shop").await;

    let refused = save(&store, &old, stream("8290")).await.unwrap_err();
    assert!(matches!(refused, Error::Deposed { stored, .. } if stored == Term::new(2)), "{refused}");
    let refused = store.begin_epoch(&old, Epoch::FIRST, &stream("8201")).await.unwrap_err();
    assert!(matches!(refused, Error::Deposed { .. }), "{refused}");
    assert_eq!(fixture.stored("shop").await, before);
}

#[tokio::test]
async fn a_save_without_a_claim_is_refused() {
    let fixture = CheckpointFixture::new("unclaimed").await;
    let store = fixture.pipeline("shop");
    assert!(matches!(save(&store, &claim("a", 1), stream("8220")).await, Err(Error::Deleted { .. })));
    assert_eq!(fixture.stored("shop").await, None);
    store.claim(&claim("a", 1)).await.unwrap();
    assert!(matches!(save(&store, &claim("b", 2), stream("8220")).await, Err(Error::Deposed { .. })));
}

#[tokio::test]
async fn a_claim_with_a_lower_term_reports_the_stored_term() {
    let fixture = CheckpointFixture::new("lower").await;
    let store = fixture.pipeline("shop");
    store.claim(&claim("a", 7)).await.unwrap();
    let refused = store.claim(&claim("b", 6)).await.unwrap_err();
    assert!(matches!(refused, Error::TermBehind { stored, .. } if stored == Term::new(7)), "{refused}");
    assert_eq!(store.load().await.unwrap().unwrap().term, Term::new(7));
}

#[tokio::test]
async fn a_term_is_claimed_by_one_process_only() {
    let fixture = CheckpointFixture::new("same_term").await;
    let store = fixture.pipeline("shop");
    store.claim(&claim("a", 1)).await.unwrap();
    // The lease was deleted, and another pod created it again with the same term.
    assert!(matches!(store.claim(&claim("b", 1)).await, Err(Error::TermBehind { .. })));
    // The reply to the first claim was lost, and the pod retries.
    assert!(store.claim(&claim("a", 1)).await.is_ok());
}

#[tokio::test]
async fn a_checkpoint_never_moves_back_within_an_epoch() {
    let fixture = CheckpointFixture::new("back").await;
    let store = fixture.pipeline("shop");
    let leader = claim("a", 1);
    store.claim(&leader).await.unwrap();
    save(&store, &leader, stream("8250")).await.unwrap();
    assert_eq!(save(&store, &leader, stream("8240")).await.unwrap(), SaveResult::AlreadyAhead);
    assert_eq!(save(&store, &leader, CheckpointPhase::Unstarted).await.unwrap(), SaveResult::AlreadyAhead);
    assert_eq!(phase_of(&store).await, stream("8250"));
    // The next leader cannot move it back either.
    let next = claim("b", 2);
    store.claim(&next).await.unwrap();
    assert_eq!(save(&store, &next, stream("8249FF")).await.unwrap(), SaveResult::AlreadyAhead);
    assert_eq!(save(&store, &next, stream("825000")).await.unwrap(), SaveResult::Saved);
}

#[tokio::test]
async fn an_operator_move_raises_the_replay_counter() {
    let fixture = CheckpointFixture::new("replay").await;
    let store = fixture.pipeline("shop");
    let leader = claim("a", 1);
    store.claim(&leader).await.unwrap();
    save(&store, &leader, stream("8250")).await.unwrap();
    let operator = claim("operator", 2);
    let claimed = store.claim(&operator).await.unwrap();
    assert_eq!((claimed.replay, &claimed.identity), (ReplayCounter::new(0), &PipelineIdentity::default()));
    // Back, in the same epoch; then in a new one.
    store.move_to(&operator, &claimed, &stream("8220"), false, Some("replica set a")).await.unwrap();
    let moved = store.load().await.unwrap().unwrap();
    assert_eq!((&moved.phase, moved.epoch, moved.replay), (&stream("8220"), Epoch::FIRST, ReplayCounter::new(1)));
    assert_eq!(moved.identity.cluster.as_deref(), Some("replica set a"));
    let refused = save(&store, &leader, stream("8260")).await.unwrap_err();
    assert!(matches!(refused, Error::Deposed { .. }), "{refused}");
    store.move_to(&operator, &moved, &stream("8210"), true, None).await.unwrap();
    let moved = store.load().await.unwrap().unwrap();
    assert_eq!((moved.epoch, moved.replay), (Epoch::new(2), ReplayCounter::new(2)));
    assert_eq!(moved.identity.cluster.as_deref(), Some("replica set a"), "unknown now, but known before");
    // The next leader finds the counter, and its saves keep it.
    let next = claim("b", 3);
    let Checkpoint { epoch, replay, .. } = store.claim(&next).await.unwrap();
    assert_eq!(replay, ReplayCounter::new(2));
    store.save(&next, epoch, &stream("8230"), None).await.unwrap();
    assert_eq!(store.load().await.unwrap().unwrap().replay, replay);
    // A deposed operator moves nothing.
    let refused = store.move_to(&operator, &moved, &stream("8201"), false, None).await.unwrap_err();
    assert!(matches!(refused, Error::Deposed { .. }), "{refused}");
}

#[tokio::test]
async fn the_identity_of_a_pipeline_is_recorded_by_its_leader() {
    let fixture = CheckpointFixture::new("identity").await;
    let store = fixture.pipeline("shop");
    let (old, leader) = (claim("a", 1), claim("b", 2));
    store.claim(&old).await.unwrap();
    store.claim(&leader).await.unwrap();
    let ours = PipelineIdentity { cluster: Some("replica set a".into()), sessions: Some("aggregate".into()) };
    let refused = store.record_identity(&old, Epoch::FIRST, &ours).await.unwrap_err();
    assert!(matches!(refused, Error::Deposed { .. }), "{refused}");
    store.record_identity(&leader, Epoch::FIRST, &ours).await.unwrap();
    save(&store, &leader, stream("8250")).await.unwrap();
    assert_eq!(store.load().await.unwrap().unwrap().identity, ours);
}

#[tokio::test]
async fn a_new_epoch_starts_anywhere_and_ends_the_old_one() {
    let fixture = CheckpointFixture::new("epoch").await;
    let store = fixture.pipeline("shop");
    let leader = claim("a", 1);
    store.claim(&leader).await.unwrap();
    save(&store, &leader, stream("8250")).await.unwrap();
    let begun = store.begin_epoch(&leader, Epoch::FIRST, &snapshot("second", 0)).await.unwrap();
    assert_eq!(begun, Epoch::new(2));
    let ended = save(&store, &leader, stream("8299")).await.unwrap_err();
    assert!(matches!(ended, Error::EpochEnded { stored, .. } if stored == Epoch::new(2)), "{ended}");
    // After a lost reply the same call succeeds; a different call does not.
    assert_eq!(store.begin_epoch(&leader, Epoch::FIRST, &snapshot("second", 0)).await.unwrap(), Epoch::new(2));
    assert!(store.begin_epoch(&leader, Epoch::FIRST, &stream("8201")).await.is_err());
}

#[tokio::test]
async fn a_snapshot_resumes_and_never_follows_the_stream() {
    let fixture = CheckpointFixture::new("snapshot").await;
    let store = fixture.pipeline("shop");
    let leader = claim("a", 1);
    store.claim(&leader).await.unwrap();
    assert_eq!(save(&store, &leader, snapshot("run", 0)).await.unwrap(), SaveResult::Saved);
    assert_eq!(save(&store, &leader, snapshot("run", 500)).await.unwrap(), SaveResult::Saved);
    assert_eq!(save(&store, &leader, snapshot("run", 400)).await.unwrap(), SaveResult::AlreadyAhead);
    assert!(matches!(save(&store, &leader, snapshot("other", 900)).await, Err(Error::SnapshotOutOfOrder { .. })));
    let CheckpointPhase::Snapshot { progress, .. } = snapshot("run", 900) else { unreachable!() };
    let elsewhere = CheckpointPhase::Snapshot { start: token("8211"), progress };
    assert!(matches!(save(&store, &leader, elsewhere).await, Err(Error::SnapshotOutOfOrder { .. })));

    let next = claim("b", 2);
    assert_eq!(store.claim(&next).await.unwrap().phase, snapshot("run", 500));
    assert_eq!(
        save(&store, &next, stream("8209")).await.unwrap(),
        SaveResult::AlreadyAhead,
        "before the snapshot's start"
    );
    assert_eq!(save(&store, &next, stream("8210")).await.unwrap(), SaveResult::Saved);
    assert!(matches!(save(&store, &next, snapshot("run", 900)).await, Err(Error::SnapshotOutOfOrder { .. })));
    assert_eq!(phase_of(&store).await, stream("8210"));
}

#[tokio::test]
async fn the_checkpoint_of_another_source_is_not_changed() {
    let fixture = CheckpointFixture::new("fingerprint").await;
    let ours = fixture.pipeline("shop");
    let leader = claim("a", 1);
    ours.claim(&leader).await.unwrap();
    save(&ours, &leader, stream("8250")).await.unwrap();
    let before = fixture.stored("shop").await;

    let theirs = MongoCheckpointStore::new(&fixture.database, "shop", "bank.events");
    let refused = theirs.claim(&claim("b", 2)).await.unwrap_err();
    assert!(matches!(&refused, Error::Fingerprint { found, .. } if found == "shop.events"), "{refused}");
    assert!(save(&theirs, &claim("b", 2), stream("8299")).await.is_err());
    assert_eq!(fixture.stored("shop").await, before);
}

#[tokio::test]
async fn an_unreadable_checkpoint_is_an_error_and_not_changed() {
    let fixture = CheckpointFixture::new("foreign").await;
    let store = fixture.pipeline("shop");
    let leader = claim("a", 9);
    store.claim(&leader).await.unwrap();
    save(&store, &leader, stream("8250")).await.unwrap();
    let good = fixture.stored("shop").await.unwrap();

    let spoiled = |field: &str, value: Bson| {
        let mut document = good.clone();
        document.insert(field, value);
        document
    };
    let cases = [
        (doc! { "_id": "shop", "resumeToken": { "_data": "secret" } }, "field `format` is missing"),
        (spoiled("format", Bson::Int64(2)), "has format 2; this version supports 1"),
        (spoiled("term", "secret".into()), "field `term` is not a whole number"),
        (spoiled("phase", "secret".into()), "field `phase` is unknown to this version"),
        (spoiled("token", Bson::Null), "field `token` is not a document"),
        (spoiled("token", Bson::Document(doc! { "_data": 5 })), "field `token` is not a resume token"),
        (spoiled("position", "secret".into()), "field `position` does not match the token"),
    ];
    for (document, expected) in cases {
        fixture.documents().replace_one(doc! { "_id": "shop" }, &document).await.unwrap();
        let refused = store.claim(&claim("b", 10)).await.unwrap_err().to_string();
        assert!(refused.contains(expected), "{refused} should say: {expected}");
        assert!(!refused.contains("secret"), "{refused}");
        assert_eq!(fixture.stored("shop").await.unwrap(), document, "the document must not change");
    }
}

#[tokio::test]
async fn a_save_does_not_re_create_a_deleted_checkpoint() {
    let fixture = CheckpointFixture::new("vanished").await;
    let store = fixture.pipeline("shop");
    let leader = claim("a", 1);
    store.claim(&leader).await.unwrap();
    fixture.documents().delete_one(doc! { "_id": "shop" }).await.unwrap();
    assert!(matches!(save(&store, &leader, stream("8250")).await, Err(Error::Deleted { .. })));
    assert_eq!(fixture.stored("shop").await, None);
}

#[tokio::test]
async fn a_deleted_checkpoint_is_an_error_and_not_a_new_start() {
    let fixture = CheckpointFixture::new("gone").await;
    let store = fixture.pipeline("shop");
    let leader = claim("a", 1);
    store.claim(&leader).await.unwrap();
    save(&store, &leader, stream("8250")).await.unwrap();
    fixture.documents().drop().await.unwrap();
    for term in [1, 2] {
        let refused = store.claim(&claim("a", term)).await.unwrap_err();
        assert!(matches!(refused, Error::Missing { .. }) && !refused.is_transient(), "{refused}");
        assert_eq!(fixture.stored("shop").await, None);
    }
    // The operator confirms the new start.
    fixture.database.collection::<Document>(PIPELINES).delete_one(doc! { "_id": "shop" }).await.unwrap();
    assert_eq!(store.claim(&claim("b", 3)).await.unwrap().phase, CheckpointPhase::Unstarted);
}

#[tokio::test]
async fn a_pipeline_may_start_in_a_later_term() {
    let fixture = CheckpointFixture::new("late_founding").await;
    let store = fixture.pipeline("shop");
    assert_eq!(store.claim(&claim("c", 9)).await.unwrap().phase, CheckpointPhase::Unstarted);
    // A pipeline without a registry entry (older version, or a leader killed in between) is registered by the next claim.
    let pipelines = fixture.database.collection::<Document>(PIPELINES);
    pipelines.delete_one(doc! { "_id": "shop" }).await.unwrap();
    store.claim(&claim("d", 10)).await.unwrap();
    assert_eq!(pipelines.find_one(doc! { "_id": "shop" }).await.unwrap().unwrap().get_i64("term").ok(), Some(10));
}

#[tokio::test]
async fn pipelines_in_one_database_are_independent() {
    let fixture = CheckpointFixture::new("two").await;
    let (shop, bank) = (fixture.pipeline("shop"), fixture.pipeline("bank"));
    let (shops, banks) = (claim("a", 5), claim("b", 1));
    shop.claim(&shops).await.unwrap();
    save(&shop, &shops, stream("8250")).await.unwrap();
    assert_eq!(bank.claim(&banks).await.unwrap().phase, CheckpointPhase::Unstarted);
    save(&bank, &banks, stream("8220")).await.unwrap();
    assert_eq!(phase_of(&shop).await, stream("8250"));
    assert_eq!(save(&shop, &shops, stream("8251")).await.unwrap(), SaveResult::Saved);
}

#[tokio::test]
async fn names_that_look_like_expressions_are_literals() {
    let fixture = CheckpointFixture::new("names").await;
    let store = MongoCheckpointStore::new(&fixture.database, "$shop", "$fingerprint");
    let leader = claim("$pod", 1);
    assert_eq!(store.claim(&leader).await.unwrap().saved_by, "$pod");
    assert_eq!(save(&store, &leader, stream("8250")).await.unwrap(), SaveResult::Saved);
    assert_eq!(fixture.stored("$shop").await.unwrap().get_str("fingerprint").ok(), Some("$fingerprint"));
}

#[tokio::test]
async fn token_order_ignores_the_collation_of_the_collection() {
    let fixture = CheckpointFixture::new("collation").await;
    let numeric = mongodb::options::Collation::builder().locale("en").numeric_ordering(true).build();
    fixture.database.create_collection(COLLECTION).collation(numeric).await.unwrap();
    let store = fixture.pipeline("shop");
    let leader = claim("a", 1);
    store.claim(&leader).await.unwrap();
    // As numbers 829 < 8210; as bytes the other way round.
    save(&store, &leader, stream("829")).await.unwrap();
    assert_eq!(save(&store, &leader, stream("8210")).await.unwrap(), SaveResult::AlreadyAhead);
}

#[tokio::test]
async fn the_highest_of_concurrent_claims_wins() {
    let fixture = CheckpointFixture::new("meeting").await;
    let store = fixture.pipeline("shop");
    let claims = (1..=16).map(|term| {
        let store = store.clone();
        tokio::spawn(async move { (term, store.claim(&claim(&format!("pod-{term}"), term)).await) })
    });
    for claimed in claims.collect::<Vec<_>>() {
        let (term, outcome) = claimed.await.unwrap();
        match outcome {
            Ok(checkpoint) => assert_eq!(checkpoint.term, Term::new(term)),
            Err(Error::TermBehind { stored, .. }) => assert!(stored > Term::new(term)),
            Err(error) => panic!("term {term}: {error}"),
        }
    }
    assert_eq!(store.load().await.unwrap().unwrap().term, Term::new(16));
}
