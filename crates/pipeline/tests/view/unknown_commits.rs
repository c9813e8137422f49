//! Commits whose reply is lost or late, although the server has committed.

use std::time::Duration;

use mongodb::bson::{Document, doc};
use mongodb::{Client, Database};
use pipeline::view::{ApplierSetup, ApplyOutcome, BatchEnd, Config, ModelSet, prepare};
use testkit::mongo::{ReplicaSet, ReplicaSetConfig};

use crate::expected_fold::{day, fold, plain};
use crate::fixture::{STRICT, TestApplier, all_delivered, compiled, complete, contents, shop_models};

/// On a busy machine the driver takes seconds to find the server again.
const LONG: Duration = Duration::from_secs(30);

/// A server with fail points.
struct UnreliableServer {
    client: Client,
    views: Database,
    pod: TestApplier,
    _set: ReplicaSet,
}

impl UnreliableServer {
    /// With this transaction timeout.
    async fn start(transaction_within: Duration) -> Self {
        let set = ReplicaSetConfig::with_members(1).argument("--setParameter").argument("enableTestCommands=1");
        let set = set.start().await.unwrap();
        let client = set.client().await.unwrap();
        let views = client.database("views");
        let models = compiled(&shop_models());
        prepare(&views, &models).await.unwrap();
        let config = Config { transaction_within, ..Config::default() };
        let pod = TestApplier::start(ApplierSetup {
            config,
            database: views.clone(),
            pipeline: "shop".into(),
            mode: STRICT,
            by_collection: false,
            models: ModelSet::fixed(models),
            history: None,
        });
        Self { client, views, pod, _set: set }
    }

    /// Configures the fail point for commits.
    async fn commits(&self, mode: impl Into<mongodb::bson::Bson>, mut how: Document) {
        how.insert("failCommands", vec!["commitTransaction"]);
        let command = doc! { "configureFailPoint": "failCommand", "mode": mode.into(), "data": how };
        self.client.database("admin").run_command(command).await.unwrap();
    }

    async fn assert_folded(&self, events: &[Document]) {
        let (orders, customers) = fold(events);
        assert_eq!(plain(contents(&self.views, "orders").await), plain(orders));
        assert_eq!(plain(contents(&self.views, "customers").await), plain(customers));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unknown_commit_is_resolved_by_the_cursor_on_redelivery() {
    let fixture = UnreliableServer::start(Duration::from_secs(2)).await;
    let events = day(5, 4);
    // committed, but the reply reports a write concern timeout
    fixture
        .commits(
            "alwaysOn",
            doc! { "writeConcernError": { "code": 64, "errmsg": "waiting for replication timed out" } },
        )
        .await;
    let applied = fixture.pod.session_applier().apply(all_delivered(&events)).await;
    assert!(matches!(applied.end, BatchEnd::Unknown), "{:?}", applied.end);
    assert!(applied.outcomes.is_empty(), "nothing may be settled");
    fixture.commits("off", doc! {}).await;
    assert_eq!(fixture.pod.apply(all_delivered(&events)).await, [ApplyOutcome::Duplicate; 20]);
    fixture.assert_folded(&events).await;
    assert_eq!(fixture.pod.handle.counts().unknown, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_commit_that_never_arrived_is_retried() {
    let fixture = UnreliableServer::start(LONG).await;
    let events = day(5, 4);
    // the connection drops three times: more often than the driver retries
    fixture.commits(doc! { "times": 3 }, doc! { "closeConnection": true }).await;
    assert_eq!(
        complete(fixture.pod.session_applier().apply(all_delivered(&events)).await),
        [ApplyOutcome::Applied; 20]
    );
    fixture.assert_folded(&events).await;
    assert_eq!(fixture.pod.handle.counts().unknown, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transient_commit_error_reruns_the_whole_transaction() {
    let fixture = UnreliableServer::start(LONG).await;
    let events = day(5, 4);
    let labels = vec!["TransientTransactionError"];
    fixture.commits(doc! { "times": 2 }, doc! { "errorCode": 251, "errorLabels": labels }).await;
    assert_eq!(
        complete(fixture.pod.session_applier().apply(all_delivered(&events)).await),
        [ApplyOutcome::Applied; 20]
    );
    fixture.assert_folded(&events).await;
    assert_eq!(fixture.pod.handle.counts().conflicts, 2);
}
