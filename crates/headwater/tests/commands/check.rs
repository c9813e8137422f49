//! What `check` finds, and what it says to do.

use std::time::Duration;

use mongod::{Binaries, Environment, Progress, Role, Server, ServerConfig, Source};
use mongodb::IndexModel;
use mongodb::bson::{Document, doc};
use mongodb::options::IndexOptions;
use servicebus::administration::Description;

use crate::house::House;

const MODELS: &str =
    "read_models: { database: VIEWS, totals: { when: { Added: { $inc: { total: $$event.payload.amount } } } } }";

#[tokio::test]
async fn all_is_well_with_what_topology_apply_made() {
    let house = House::new("check_well", MODELS).await;
    house.ask(&["topology", "apply"]).await.well();
    let said = house.ask(&["check", "--json"]).await;
    assert_eq!(said.json()["ok"], true, "{}", said.out);
    said.well();
}

#[tokio::test]
async fn a_bus_that_would_lose_events_is_found() {
    let house = House::new("check_bus", "").await;
    let missing = house.ask(&["check"]).await;
    assert!(
        missing.out.contains("`events` is not there; create it with `headwater topology apply`"),
        "{}",
        missing.out
    );
    missing.refused();

    let bus = house.administration();
    bus.create("events", &Description::topic(&[])).await.unwrap();
    let poor = [("LockDuration", "PT30S"), ("DefaultMessageTimeToLive", "P1D"), ("MaxDeliveryCount", "10")];
    let poor = poor.map(|(name, value)| (name, value.to_owned()));
    bus.create("events/Subscriptions/read-models", &Description::subscription(&poor)).await.unwrap();
    let said = house.ask(&["check"]).await;
    for (level, word) in [
        ("warning", "RequiresDuplicateDetection is false"),
        ("error", "RequiresSession is false: without sessions there is no order"),
        ("error", "DefaultMessageTimeToLive is P1D"),
        ("error", "MaxDeliveryCount is 10"),
        ("error", "LockDuration is PT30S"),
    ] {
        let found = said.out.lines().any(|line| line.starts_with(level) && line.contains(word));
        assert!(found, "{level} {word}: {}", said.out);
    }
    said.refused();
}

#[tokio::test]
async fn an_index_that_deletes_leases_is_found() {
    let house = House::new("check_ttl", "").await;
    let expiring = IndexOptions::builder().expire_after(Duration::from_secs(60)).build();
    let index = IndexModel::builder().keys(doc! { "expiresAt": 1 }).options(expiring).build();
    house.coordination.collection::<Document>("leader_leases").create_index(index).await.unwrap();
    let said = house.ask(&["check"]).await;
    let line = "error: coordination: the TTL index `expiresAt_1` on `leader_leases`";
    assert!(said.out.contains(line) && said.out.contains("dropIndex"), "{}", said.out);
    said.refused();
}

#[tokio::test]
async fn a_missing_index_and_a_mistake_in_a_read_model_are_found() {
    let wrong = "read_models: { database: VIEWS, totals: { when: { Added: { $incr: { total: 1 } } } } }";
    let house = House::new("check_models", wrong).await;
    house.source.collection::<Document>("events").drop_indexes().await.unwrap();
    let said = house.ask(&["check"]).await;
    let (all, _) = (format!("{}{}", said.out, said.err), said.status);
    assert!(all.contains("$incr"), "{all}");
    house.configure(testkit::mongo::shared().await.unwrap().uri(), MODELS);
    let said = house.ask(&["check"]).await;
    assert!(said.out.contains("error: source: `start: beginning` needs the index"), "{}", said.out);
}

#[tokio::test]
async fn a_lone_mongod_is_told_from_a_replica_set() {
    let folder = tempfile::tempdir().unwrap();
    let find = || mongod::provide(None, &Environment::of_this_process(), Progress::Silent);
    let binaries: Binaries = match tokio::task::spawn_blocking(find).await.unwrap().unwrap() {
        Source::Binaries(binaries) => binaries,
        Source::Uri(_) => unreachable!("none was given"),
    };
    let alone = Server::start(&binaries, ServerConfig::new(Role::Alone, folder.path())).await.unwrap();
    let house = House::new("check_alone", MODELS).await;
    house.configure(&format!("mongodb://{}/?directConnection=true", alone.address()), MODELS);
    let said = house.ask(&["check"]).await;
    for line in [
        "error: source: is a standalone mongod, which has no change streams; start mongod with `--replSet",
        "error: coordination: is a standalone mongod",
        "error: read_models: are on a standalone mongod",
    ] {
        assert!(said.out.contains(line), "{line}: {}", said.out);
    }
    said.refused();
}

#[tokio::test]
async fn offline_asks_nobody_and_a_server_that_is_away_is_told() {
    let house = House::new("check_offline", "").await;
    house.configure("mongodb://127.0.0.1:1/?serverSelectionTimeoutMS=200", "producer: { start: now }");
    let offline = house.ask(&["check", "--offline", "--json"]).await;
    assert_eq!(offline.json()["findings"][0]["about"], "read_models");
    offline.well();
    let online = house.ask(&["check"]).await;
    assert!(online.out.contains("error: source: cannot be reached"), "{}", online.out);
    online.refused();
}
