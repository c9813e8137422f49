//! A history that is lost is a state, and there is a documented way out of it (`docs/errors/E0001.md`).

use std::sync::Arc;

use bench::soak::Drain;
use mongodb::bson::{Document, doc};
use testkit::checker::{Checker, Duplicates, Kind};
use testkit::cluster::{Blueprint, House, StoreKind};
use testkit::load::Load;
use tokio::process::Command;

use super::{BINARY, SOON, all_come, checkpoint, phase};

async fn house(producer: &str) -> House {
    let blueprint =
        Blueprint { pods: 2, store: StoreKind::Shared, producer: producer.into(), ..Blueprint::new(BINARY) };
    House::build(blueprint).await.unwrap()
}

/// As if nobody had led for years: the token names a moment that no oplog holds.
async fn age_the_checkpoint(house: &House) {
    let checkpoints = house.coordination().collection::<Document>("checkpoints");
    let stored = checkpoints.find_one(doc! { "_id": "shop" }).await.unwrap().expect("a checkpoint");
    let token = stored.get_document("token").unwrap().get_str("_data").unwrap();
    // Two digits of type, eight of seconds.
    let aged = format!("{}00000001{}", &token[..2], &token[10..]);
    let update = doc! { "$set": { "token._data": &aged, "position": &aged } };
    checkpoints.update_one(doc! { "_id": "shop" }, update).await.unwrap();
}

/// Runs the pipeline until its first events are out, then stops it and takes its history away.
async fn a_pipeline_without_its_history(house: &mut House, checker: &Arc<Checker>) -> Drain {
    house.start_pods().unwrap();
    let drain = Drain::start(&house.broker().connection_string(), &house.broker().subscription(), checker);
    checkpoint(house, "the stream", |stored| phase(stored) == "stream").await;
    Load { events: 300, aggregates: 20, seed: 21, ..Load::default() }.write(&house.events(), checker).await;
    all_come(checker).await;
    house.stop_pods().await;
    age_the_checkpoint(house).await;
    // Written while nobody leads.
    Load { events: 300, aggregates: 20, seed: 22, ..Load::default() }.write(&house.events(), checker).await;
    drain
}

fn is_complete_and_in_order(checker: &Checker) {
    // What was published before the history was lost comes again: consumers know it by its sequence.
    let verdict = checker.judge(Duplicates::Counted);
    assert_eq!(
        (verdict.count(Kind::Lost), verdict.count(Kind::OutOfOrder), verdict.count(Kind::Alien)),
        (0, 0, 0),
        "{verdict}"
    );
}

#[tokio::test]
async fn a_lost_history_halts_the_producer_until_the_checkpoint_is_reset() {
    let checker = Arc::new(Checker::new());
    let mut house = house("start: beginning").await;
    let _drain = a_pipeline_without_its_history(&mut house, &checker).await;
    house.start_pods().unwrap();
    let leader = house.wait_for_leader(SOON).await.unwrap();
    let said = house.pod(leader).process().unwrap().wait_for_line("waits for an operator", SOON).await;
    assert!(said.text.contains("E0001"), "{}", said.text);

    // Without --yes it only says what it would do.
    let config = house.pod(leader).config().to_owned();
    let reset = async |yes: &[&str]| {
        let mut command = Command::new(BINARY);
        command.args(["checkpoint", "reset", "--start", "beginning", "--config"]).arg(&config).args(yes);
        command.output().await.expect("the binary runs")
    };
    let refused = reset(&[]).await;
    assert!(!refused.status.success());
    assert!(String::from_utf8_lossy(&refused.stderr).contains("say --yes"));
    let done = reset(&["--yes"]).await;
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));

    all_come(&checker).await;
    is_complete_and_in_order(&checker);
    checkpoint(&house, "the stream again", |stored| {
        phase(stored) == "stream" && stored.get_i64("epoch").ok() == Some(2)
    })
    .await;
    house.stop().await;
}

#[tokio::test]
async fn a_lost_history_is_read_anew_where_that_is_configured() {
    let checker = Arc::new(Checker::new());
    let mut house = house("start: beginning, on_history_lost: snapshot").await;
    let _drain = a_pipeline_without_its_history(&mut house, &checker).await;
    house.start_pods().unwrap();
    all_come(&checker).await;
    is_complete_and_in_order(&checker);
    checkpoint(&house, "the stream again", |stored| {
        phase(stored) == "stream" && stored.get_i64("epoch").ok() == Some(2)
    })
    .await;
    house.stop().await;
}
