//! Commits whose answer is lost, or late: the server does its work and says otherwise.

use std::time::Duration;

use mongodb::bson::{Document, doc};
use mongodb::{Client, Database};
use pipeline::view::{Config, End, Outcome, Setup, prepare};
use testkit::mongo::{ReplicaSet, ReplicaSetConfig};

use crate::fold::{day, fold, plain};
use crate::house::{Pod, STRICT, all_delivered, compiled, complete, contents, shop_models};

/// On a busy machine the driver needs seconds to find a server again.
const LONG: Duration = Duration::from_secs(30);

/// A server that can be told to fail.
struct Unreliable {
    client: Client,
    views: Database,
    pod: Pod,
    _set: ReplicaSet,
}

impl Unreliable {
    /// A transaction may take so long.
    async fn start(transaction_within: Duration) -> Self {
        let set = ReplicaSetConfig::of(1).argument("--setParameter").argument("enableTestCommands=1");
        let set = set.start().await.unwrap();
        let client = set.client().await.unwrap();
        let views = client.database("views");
        let models = compiled(&shop_models());
        prepare(&views, &models).await.unwrap();
        let config = Config { transaction_within, ..Config::default() };
        let pod = Pod::start(Setup {
            config,
            database: views.clone(),
            pipeline: "shop".into(),
            mode: STRICT,
            by_collection: false,
            models,
            history: None,
        });
        Self { client, views, pod, _set: set }
    }

    /// What becomes of commits from now on.
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
async fn a_commit_whose_end_is_not_known_is_told_so_and_the_cursor_knows_better() {
    let house = Unreliable::start(Duration::from_secs(2)).await;
    let events = day(5, 4);
    // committed, and answered with a write concern that was not met in time
    house
        .commits(
            "alwaysOn",
            doc! { "writeConcernError": { "code": 64, "errmsg": "waiting for replication timed out" } },
        )
        .await;
    let applied = house.pod.feed().apply(all_delivered(&events)).await;
    assert!(matches!(applied.end, End::Unknown), "{:?}", applied.end);
    assert!(applied.outcomes.is_empty(), "nothing may be settled");
    house.commits("off", doc! {}).await;
    assert_eq!(house.pod.apply(all_delivered(&events)).await, [Outcome::Duplicate; 20]);
    house.assert_folded(&events).await;
    assert_eq!(house.pod.handle.counts().unknown, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_commit_that_never_arrived_is_sent_again() {
    let house = Unreliable::start(LONG).await;
    let events = day(5, 4);
    // the line goes, three times: more often than the driver tries by itself
    house.commits(doc! { "times": 3 }, doc! { "closeConnection": true }).await;
    assert_eq!(complete(house.pod.feed().apply(all_delivered(&events)).await), [Outcome::Applied; 20]);
    house.assert_folded(&events).await;
    assert_eq!(house.pod.handle.counts().unknown, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_commit_that_is_refused_in_passing_is_run_again_from_the_cursors_on() {
    let house = Unreliable::start(LONG).await;
    let events = day(5, 4);
    let labels = vec!["TransientTransactionError"];
    house.commits(doc! { "times": 2 }, doc! { "errorCode": 251, "errorLabels": labels }).await;
    assert_eq!(complete(house.pod.feed().apply(all_delivered(&events)).await), [Outcome::Applied; 20]);
    house.assert_folded(&events).await;
    assert_eq!(house.pod.handle.counts().conflicts, 2);
}
