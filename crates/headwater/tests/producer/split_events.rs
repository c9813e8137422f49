//! Change events larger than 16 MB arrive in fragments: a leader killed between two fragments loses nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use mongodb::bson::{Bson, Document, RawDocument, doc};
use pipeline::envelope::property;
use pipeline::failpoints::Failpoint;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use servicebus::Config;
use testkit::cluster::{MongoTopology, TestCluster, TestClusterConfig};

use super::{BINARY, TIMEOUT};

/// An update event holds the new fields and the document: twice this size.
const LARGE: usize = 9 << 20;
const UPDATES: i64 = 14;

/// Updates large documents while leaders are killed; returns the number of missing updates by document.
async fn find_missing_updates(seed: u64, defect: Option<Failpoint>) -> BTreeMap<i64, usize> {
    let mut environment = vec![("HEADWATER__SOURCE__KIND".to_owned(), "documents".to_owned())];
    environment.extend(defect.map(|defect| (Failpoint::VARIABLE.to_owned(), format!("{defect:?}"))));
    let producer = "start: now, checkpoint: 1ms".to_owned();
    let config = TestClusterConfig {
        pods: 2,
        mongo: MongoTopology::Shared,
        producer,
        environment,
        ..TestClusterConfig::new(BINARY)
    };
    let mut cluster = TestCluster::start(config).await.unwrap();
    cluster.events().drop_indexes().await.unwrap();
    cluster.events().insert_many((0..2_i64).map(|id| doc! { "_id": id })).await.unwrap();
    cluster.start_pods().unwrap();
    cluster.wait_for_stream_phase(TIMEOUT).await.unwrap();

    let mut random = StdRng::seed_from_u64(seed);
    for number in 0..UPDATES {
        let blob = "x".repeat(LARGE);
        let update = doc! { "$set": { "blob": blob, "number": number } };
        cluster.events().update_one(doc! { "_id": number % 2 }, update).await.unwrap();
        if number % 3 == 2 {
            let leader = cluster.wait_for_leader(TIMEOUT).await.unwrap();
            tokio::time::sleep(Duration::from_millis(random.random_range(0..400))).await;
            cluster.pod_mut(leader).kill().await;
            cluster.restart_pod(leader).await.unwrap();
        }
    }
    let received = receive_updates(&cluster).await;
    cluster.stop().await;
    let expected = usize::try_from(UPDATES / 2).unwrap();
    let missing = (0..2).map(|id| (id, expected - received.get(&id).map_or(0, BTreeSet::len)));
    missing.filter(|(_, count)| *count > 0).collect()
}

/// The message ids of each document's updates; waits for all, or until no more arrive.
async fn receive_updates(cluster: &TestCluster) -> BTreeMap<i64, BTreeSet<String>> {
    let client = cluster.broker().client(Config::default());
    let mut received: BTreeMap<i64, BTreeSet<String>> = BTreeMap::new();
    let mut last = Instant::now();
    while received.values().map(BTreeSet::len).sum::<usize>() < usize::try_from(UPDATES).unwrap()
        && last.elapsed() < Duration::from_secs(15)
    {
        let session =
            client.accept_next_session(&cluster.broker().subscription(), Duration::from_secs(1)).await.unwrap();
        let Some(mut session) = session else { continue };
        let messages = session.receive(100, Duration::from_millis(200)).await.unwrap();
        for message in &messages {
            let text =
                |name: &str| message.application_property(name).and_then(|value| value.as_str().map(str::to_owned));
            if text(property::OPERATION).as_deref() == Some("update") {
                let id = aggregate(message).expect("an aggregate");
                received.entry(id).or_default().insert(message.message_id().expect("an id"));
                last = Instant::now();
            }
        }
        session.settler().complete(&messages).await.unwrap();
        session.close().await.unwrap();
    }
    received
}

fn aggregate(message: &servicebus::ReceivedMessage) -> Option<i64> {
    let value = message.application_property(property::AGGREGATE)?;
    let document = Document::try_from(RawDocument::from_bytes(value.as_binary()?).ok()?).ok()?;
    document.get("v").and_then(Bson::as_i64)
}

#[tokio::test]
async fn split_events_are_published_whole_across_leader_kills() {
    let missing = find_missing_updates(1, None).await;
    assert!(missing.is_empty(), "{missing:?}");
}

#[tokio::test]
async fn a_token_saved_inside_a_split_event_loses_it() {
    let mut found = None;
    for seed in 0..10 {
        if !find_missing_updates(seed, Some(Failpoint::TokenInsideSplit)).await.is_empty() {
            found = Some(seed);
            break;
        }
    }
    let seed = found.expect("ten seeds did not show it");
    println!("{:?}: seed {seed}", Failpoint::TokenInsideSplit);
    let without = find_missing_updates(seed, None).await;
    assert!(without.is_empty(), "{without:?}");
}
