//! An event whose handling ends the process. Service Bus does not count a delivery to a pod that dies, so every pod would get it again and again.

use std::collections::BTreeSet;

use mongodb::bson::{Document, doc};
use pipeline::failpoints::FATAL_EVENT_VARIABLE;
use testkit::cluster::{MongoTopology, TestClusterConfig};
use testkit::wait::wait_for;
use tokio::sync::Mutex;

use crate::fixture::{PodFixture, SOON, cluster_config};

const READ_MODELS: &str =
    "read_models: { orders: { when: { Placed: { $inc: { placed: 1 } }, Fatal: { $set: { fatal: true } } } } }\n";
const PODS: usize = 3;
/// The sequence of the fatal event.
const FATAL: i64 = 9;
/// The first delivery to each pod, one attempt with a mark that many messages share, three with a mark of its own.
const MAX_CRASHES: usize = PODS + 1 + 3;

fn event(kind: &str, aggregate: &str, version: i64) -> Document {
    doc! { "aggregateId": aggregate, "version": version, "type": kind }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_that_ends_every_pod_is_parked_alone() {
    let mut fixture = PodFixture::start(TestClusterConfig {
        pods: PODS,
        extra_yaml: READ_MODELS.into(),
        environment: vec![(FATAL_EVENT_VARIABLE.into(), "Fatal".into())],
        ..cluster_config(MongoTopology::Shared)
    })
    .await;
    let innocent: BTreeSet<String> = (0..20).map(|order| format!("order-{order}")).collect();
    // Several events before the fatal one: each gets a mark of its own, and costs no crash.
    let before: Vec<Document> = (1..FATAL).map(|version| event("Placed", "fatal", version)).collect();
    let after = [event("Fatal", "fatal", FATAL), event("Placed", "fatal", FATAL + 1)];
    let others = (1..=3).flat_map(|version| innocent.iter().map(move |order| event("Placed", order, version)));
    fixture.0.events().insert_many(before.into_iter().chain(after).chain(others)).await.unwrap();

    let views = fixture.0.mongo().client().database(&fixture.views_database());
    let cluster = Mutex::new(&mut fixture.0);
    wait_for("the event to be parked, and the others applied", SOON, async || {
        let mut cluster = cluster.lock().await;
        // As Kubernetes does.
        cluster.restart_exited_pods().unwrap();
        let crashes = cluster.unexpected_exits().len();
        assert!(crashes <= MAX_CRASHES, "{crashes} crashes");
        let parked = views.collection::<Document>("parked_events").count_documents(doc! {}).await.unwrap();
        let orders = views.collection::<Document>("orders");
        let applied = orders.count_documents(doc! { "placed": 3 }).await.unwrap();
        if (parked, applied) == (2, 20) {
            Ok(())
        } else {
            Err(format!("{crashes} crashes, {parked} parked, {applied} applied"))
        }
    })
    .await;
    let cursors = views.collection::<Document>("_headwater_cursors");
    let parked = cursors.find_one(doc! { "parked.orders": { "$exists": true } }).await.unwrap().expect("one is parked");
    assert_eq!(parked.get_document("_id").unwrap().get_str("aggregate").unwrap(), "fatal", "{parked}");
    let order = views.collection::<Document>("orders").find_one(doc! { "_id": "fatal" }).await.unwrap().unwrap();
    assert_eq!(order.get_i32("placed").unwrap(), FATAL as i32 - 1, "{order}");
    assert_eq!(cursors.count_documents(doc! { "parked.orders": { "$exists": true } }).await.unwrap(), 1);
    let cluster = cluster.into_inner();
    assert!(cluster.unexpected_exits().len() > PODS, "the marks were needed");
    // The read models stay: transactions of the dead pods would hold up a drop for a minute.
    cluster.stop_pods().await;
}
