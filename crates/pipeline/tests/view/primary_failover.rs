//! The primary is killed while events are applied.

use std::sync::Arc;
use std::time::Duration;

use mongodb::bson::Document;
use pipeline::view::{ApplierSetup, BatchEnd, Config, DeliveredEvent, Handle, ModelSet, Projection, prepare};
use testkit::mongo::ReplicaSet;
use testkit::wait::wait_for;

use crate::expected_fold::{day, fold, plain};
use crate::fixture::{STRICT, TestApplier, all_delivered, compiled, contents, shop_models};

/// Behaves like a held session: redelivers from the first unsettled message on.
async fn hold(handle: Handle, messages: Vec<DeliveredEvent>) {
    let mut settled = 0;
    while settled < messages.len() {
        let batch = messages[settled..].iter().take(4).cloned().collect();
        let applied = handle.session_applier().apply(batch).await;
        settled += applied.outcomes.len();
        if let BatchEnd::Failed(error) = applied.end {
            eprintln!("a batch failed: {error}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn views_equal_the_fold_after_a_primary_failover() {
    const ORDERS: usize = 30;
    let mut set = ReplicaSet::start(3).await.unwrap();
    let client = set.client().await.unwrap();
    let views = client.database("views");
    let models: Vec<Arc<dyn Projection>> = compiled(&shop_models());
    prepare(&views, &models).await.unwrap();
    let config =
        Config { retry_for: Duration::from_secs(2), transaction_within: Duration::from_secs(5), ..Config::default() };
    let setup = ApplierSetup {
        config,
        database: views.clone(),
        pipeline: "shop".into(),
        mode: STRICT,
        by_collection: false,
        models: ModelSet::fixed(models),
        history: None,
    };
    let pod = TestApplier::start(setup);
    let events: Vec<Document> = day(ORDERS, 60);
    let all = all_delivered(&events);
    let sessions: Vec<_> = (0..ORDERS)
        .map(|order| tokio::spawn(hold(pod.handle.clone(), all.iter().skip(order).step_by(ORDERS).cloned().collect())))
        .collect();
    let third = events.len() as u64 / 3;
    wait_for("a third of the events", Duration::from_secs(60), async || {
        let applied = pod.handle.counts().applied;
        if applied >= third { Ok(()) } else { Err(applied) }
    })
    .await;
    let primary = set.primary().await.unwrap();
    set.kill(primary).await.unwrap();
    assert!(pod.handle.counts().applied < events.len() as u64, "the primary was killed too late");
    for session in sessions {
        tokio::time::timeout(Duration::from_secs(120), session).await.expect("the session ends").unwrap();
    }
    let (orders, customers) = fold(&events);
    assert_eq!(plain(contents(&views, "orders").await), plain(orders));
    assert_eq!(plain(contents(&views, "customers").await), plain(customers));
    pod.stop().await;
}
