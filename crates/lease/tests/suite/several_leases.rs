//! Leases of several pipelines and deployments in one collection.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use lease::mongo::{COLLECTION, LeaseName};
use lease::{ElectionHost, Leadership, RunningElector, TermOutcome};
use mongodb::bson::{Document, doc};
use mongodb::event::EventHandler;
use mongodb::event::command::CommandEvent;
use mongodb::options::ClientOptions;
use testkit::mongo::shared;
use testkit::wait::wait_for;

use crate::{quick, secs};

fn lease_name(database: &str, key: &str, pod_id: &str) -> LeaseName {
    LeaseName { database: database.into(), key: key.into(), pod_id: pod_id.into(), fingerprint: "shop.events".into() }
}

async fn lead(leadership: Leadership) -> TermOutcome {
    leadership.wait_for_stop().await;
    TermOutcome::Done
}

fn enter(host: &ElectionHost, name: LeaseName) -> RunningElector {
    host.enter(name, lead, std::future::pending()).unwrap()
}

/// Records the keys in the replies of change streams.
fn record_changes(options: &mut ClientOptions) -> Arc<Mutex<Vec<String>>> {
    let keys = Arc::new(Mutex::new(vec![]));
    let recorded = Arc::clone(&keys);
    options.command_event_handler = Some(EventHandler::callback(move |event| {
        let CommandEvent::Succeeded(event) = event else { return };
        let batch = event.reply.get_document("cursor").and_then(|cursor| cursor.get_array("nextBatch"));
        let changes = batch.into_iter().flatten().filter_map(|change| change.as_document());
        let changed = changes.filter_map(|change| change.get_document("documentKey").ok()?.get_str("_id").ok());
        recorded.lock().unwrap().extend(changed.map(str::to_owned));
    }));
    keys
}

#[tokio::test]
async fn a_pod_receives_only_changes_of_its_own_leases() {
    let shared = shared().await.unwrap();
    let database = shared.database("own_leases");
    let client = ClientOptions::parse(shared.uri()).await.unwrap();
    let keys = |keys: &[&str]| keys.iter().map(|key| (*key).to_owned()).collect::<BTreeSet<_>>();
    let start = |client: ClientOptions, own: &[&str]| {
        ElectionHost::start(client, database.name().to_owned(), keys(own), quick()).unwrap()
    };
    let first = start(client.clone(), &["shop"]);
    let leader = enter(&first, lease_name(database.name(), "shop", "pod-1"));
    wait_for("a leader", secs(20), async || leader.handle().is_leader().then_some(()).ok_or(())).await;

    let mut observed = client;
    let received = record_changes(&mut observed);
    let second = start(observed, &["shop"]);
    let _standby = enter(&second, lease_name(database.name(), "shop", "pod-2"));
    let leases = database.collection::<Document>(COLLECTION);
    wait_for("changes of the own lease", secs(20), async || {
        // The lease of another deployment.
        let renewal = doc! { "$inc": { "heartbeat": 1_i64 } };
        leases.update_one(doc! { "_id": "bank" }, renewal).upsert(true).await.unwrap();
        let own = received.lock().unwrap().iter().filter(|key| *key == "shop").count();
        if own >= 3 { Ok(()) } else { Err(own) }
    })
    .await;
    let received = received.lock().unwrap().clone();
    assert!(received.iter().all(|key| key == "shop"), "{received:?}");

    let unknown = second.enter(lease_name(database.name(), "bank", "pod-2"), lead, std::future::pending());
    assert!(unknown.unwrap_err().to_string().contains("`bank` is not one of the leases of this process"));
}
