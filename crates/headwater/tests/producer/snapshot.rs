//! A snapshot under writes, with a takeover in its middle: complete, in order, resumed and not restarted.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bench::soak::Drain;
use futures_util::TryStreamExt;
use mongodb::Collection;
use mongodb::bson::{Bson, Document, RawDocument, doc};
use pipeline::envelope::property;
use servicebus::{Client, Config};
use testkit::checker::{Checker, Duplicates, Kind};
use testkit::cluster::{Blueprint, House, StoreKind, Topic};
use testkit::load::Load;
use testkit::nemesis::FarEnd;
use testkit::proxy::{Direction, Fault};
use testkit::wait::wait_for;
use tokio::task::JoinSet;

use super::{BINARY, SOON, all_come, checkpoint, phase};

/// Small, so that a takeover that begins again would show.
const WINDOW: &str = "start: beginning, checkpoint: 20ms, window: { events: 64, bytes: 1MiB }";

const WINDOW_EVENTS: u64 = 64;

fn scanned(checkpoint: &Document) -> i64 {
    checkpoint.get_document("snapshot").and_then(|snapshot| snapshot.get_i64("scanned")).unwrap_or(0)
}

fn run(checkpoint: &Document) -> String {
    checkpoint.get_document("snapshot").and_then(|snapshot| snapshot.get_str("run")).unwrap_or_default().to_owned()
}

/// Starts the pods; their links to the bus freeze when so many bytes have gone out, which is some 1,100 a message.
async fn start_and_freeze_after(house: &mut House, bytes: u64) {
    for pod in house.pods() {
        let bus = pod.link(FarEnd::Broker).expect("a pod is linked to the bus");
        bus.on_each_connection(Fault::Freeze.after(bytes, Direction::ToTarget)).await;
    }
    house.start_pods().unwrap();
}

async fn has_scanned(house: &House, least: i64) {
    let on_its_way = |stored: &Document| phase(stored) == "snapshot" && scanned(stored) >= least;
    checkpoint(house, "a snapshot on its way", on_its_way).await;
}

/// The links are free; sees the same snapshot go on behind where it was `left`.
async fn goes_on(house: &House, left: &Document) {
    for pod in house.pods() {
        pod.link(FarEnd::Broker).expect("a pod is linked to the bus").heal().await;
    }
    let further = |stored: &Document| phase(stored) == "stream" || scanned(stored) > scanned(left);
    let next = checkpoint(house, "the snapshot to go on", further).await;
    if phase(&next) == "snapshot" {
        assert_eq!(run(&next), run(left), "another run");
    }
}

/// Kills the leader in the middle of its snapshot, and sees the next one go on there.
async fn takeover_in_the_middle(house: &mut House) {
    let leader = house.wait_for_leader(SOON).await.unwrap();
    house.pod_mut(leader).kill().await;
    let left = checkpoint(house, "what the leader left", |_| true).await;
    assert_eq!(phase(&left), "snapshot");
    goes_on(house, &left).await;
}

#[tokio::test]
async fn a_snapshot_of_events_under_inserts_goes_on_with_the_next_leader() {
    const INSERTS: u64 = 1_500;
    // More than what comes twice because snapshot and stream both bring it: reading from the beginning again would show.
    const BEFORE: i64 = 2_000;
    // Without duplicate detection, so that what is read again is seen again.
    let topic = Topic { duplicate_window: None, ..Topic::default() };
    let blueprint =
        Blueprint { pods: 2, store: StoreKind::Shared, topic, producer: WINDOW.into(), ..Blueprint::new(BINARY) };
    let mut house = House::build(blueprint).await.unwrap();
    let checker = Arc::new(Checker::new());
    Load { events: 4_000, aggregates: 400, writers: 16, seed: 31, ..Load::default() }
        .write(&house.events(), &checker)
        .await;
    start_and_freeze_after(&mut house, 3_000_000).await;
    has_scanned(&house, 1).await;
    let (events, ledger) = (house.events(), Arc::clone(&checker));
    let inserts =
        Load { events: INSERTS, aggregates: 400, writers: 16, rate: Some(1_000.0), seed: 32, ..Load::default() };
    let inserting = tokio::spawn(async move { inserts.write(&events, &ledger).await });
    has_scanned(&house, BEFORE).await;
    takeover_in_the_middle(&mut house).await;
    let _drain = Drain::start(&house.broker().connection_string(), &house.broker().subscription(), &checker);
    inserting.await.unwrap();
    all_come(&checker).await;
    checkpoint(&house, "the stream", |stored| phase(stored) == "stream").await;
    house.stop_pods().await;
    let verdict = checker.judge(Duplicates::Counted);
    assert_eq!(
        (verdict.count(Kind::Lost), verdict.count(Kind::OutOfOrder), verdict.count(Kind::Alien)),
        (0, 0, 0),
        "{verdict}"
    );
    // Each insert at most twice, and of the rest no more than was under way.
    let most = INSERTS + WINDOW_EVENTS;
    assert!(verdict.duplicates() <= most, "{} copies: the snapshot was read again", verdict.duplicates());
    house.stop().await;
}

#[tokio::test]
async fn a_snapshot_goes_on_when_the_primary_is_killed_in_its_middle() {
    // Without duplicate detection, so that what is read again is seen again.
    let topic = Topic { duplicate_window: None, ..Topic::default() };
    let blueprint = Blueprint { pods: 2, topic, producer: WINDOW.into(), ..Blueprint::new(BINARY) };
    let mut house = House::build(blueprint).await.unwrap();
    let checker = Arc::new(Checker::new());
    Load { events: 3_000, aggregates: 200, writers: 16, seed: 33, ..Load::default() }
        .write(&house.events(), &checker)
        .await;
    start_and_freeze_after(&mut house, 300_000).await;
    // More than a window: reading it all again would show.
    has_scanned(&house, 2 * WINDOW_EVENTS as i64).await;
    house.store_mut().kill_primary().await.unwrap();
    let left = checkpoint(&house, "what the others have of it", |_| true).await;
    assert_eq!(phase(&left), "snapshot");
    goes_on(&house, &left).await;
    let _drain = Drain::start(&house.broker().connection_string(), &house.broker().subscription(), &checker);
    all_come(&checker).await;
    checkpoint(&house, "the stream", |stored| phase(stored) == "stream").await;
    house.stop_pods().await;
    let verdict = checker.judge(Duplicates::Counted);
    assert!(verdict.is_clean(), "{verdict}");
    assert!(verdict.most_duplicates_in_a_term() <= WINDOW_EVENTS, "it was read again: {:?}", verdict.duplicates);
    house.stop().await;
}

/// Documents before the snapshot begins.
const HELD: i64 = 1_500;

/// Inserts, updates and deletes at about 1,000 a second, until told that it is enough.
async fn churn(documents: Collection<Document>, enough: Arc<std::sync::atomic::AtomicBool>) {
    let began = Instant::now();
    let mut number = 0_i64;
    while !enough.load(std::sync::atomic::Ordering::Relaxed) {
        number += 1;
        match number % 4 {
            0 => drop(documents.delete_one(doc! { "_id": number * 7 % HELD }).await.unwrap()),
            1 => drop(documents.insert_one(doc! { "_id": 10_000 + number, "n": 0 }).await.unwrap()),
            _ => drop(
                documents.update_one(doc! { "_id": number * 5 % HELD }, doc! { "$inc": { "n": 1 } }).await.unwrap(),
            ),
        }
        let due = began + Duration::from_millis(u64::try_from(number).unwrap());
        tokio::time::sleep_until(due.into()).await;
    }
}

#[tokio::test]
async fn a_snapshot_of_documents_under_every_kind_of_write_ends_as_the_source_is() {
    let environment = vec![("HEADWATER__SOURCE__KIND".to_owned(), "documents".to_owned())];
    let blueprint =
        Blueprint { pods: 2, store: StoreKind::Shared, producer: WINDOW.into(), environment, ..Blueprint::new(BINARY) };
    let mut house = House::build(blueprint).await.unwrap();
    // The house's index is for events; documents have no version.
    house.events().drop_indexes().await.unwrap();
    let all: Vec<_> = (0..HELD).map(|id| doc! { "_id": id, "n": 0 }).collect();
    house.events().insert_many(all).await.unwrap();
    let enough = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let churning = tokio::spawn(churn(house.events(), Arc::clone(&enough)));
    start_and_freeze_after(&mut house, 300_000).await;
    has_scanned(&house, 100).await;
    takeover_in_the_middle(&mut house).await;
    checkpoint(&house, "the stream", |stored| phase(stored) == "stream").await;
    enough.store(true, std::sync::atomic::Ordering::Relaxed);
    churning.await.unwrap();

    let source: Vec<Document> = house.events().find(doc! {}).await.unwrap().try_collect().await.unwrap();
    let source: HashMap<String, Document> =
        source.into_iter().map(|document| (document.get("_id").unwrap().to_string(), document)).collect();
    let fold = Arc::new(Mutex::new(Fold::default()));
    let client = Client::new(&house.broker().connection_string(), Config::default()).unwrap();
    let mut readers = JoinSet::new();
    for _ in 0..32 {
        readers.spawn(fold_all(client.clone(), house.broker().subscription(), Arc::clone(&fold)));
    }
    wait_for("the fold to be the source", SOON, async || {
        let fold = fold.lock().unwrap();
        if fold.documents == source { Ok(()) } else { Err((fold.documents.len(), source.len())) }
    })
    .await;
    drop(readers);
    let fold = fold.lock().unwrap();
    assert!(fold.out_of_order.is_empty(), "{:?}", fold.out_of_order);
}

async fn fold_all(client: Client, subscription: String, fold: Arc<Mutex<Fold>>) {
    loop {
        let Some(mut session) = client.accept_next_session(&subscription, Duration::from_secs(5)).await.unwrap() else {
            continue;
        };
        loop {
            let messages = session.receive(200, Duration::from_millis(1)).await.unwrap();
            if messages.is_empty() {
                break;
            }
            {
                let mut fold = fold.lock().unwrap();
                messages.iter().for_each(|message| fold.apply(message));
            }
            session.settler().complete(&messages).await.unwrap();
        }
        session.close().await.unwrap();
    }
}

/// What a consumer would make of the messages, and whether each session was in order.
#[derive(Default)]
struct Fold {
    documents: HashMap<String, Document>,
    last: HashMap<String, String>,
    out_of_order: Vec<String>,
}

impl Fold {
    fn apply(&mut self, message: &servicebus::ReceivedMessage) {
        let text = |name: &str| {
            message.application_property(name).and_then(|value| value.as_str().map(str::to_owned)).unwrap_or_default()
        };
        let (session, token) = (message.session_id().unwrap().to_owned(), text(property::TOKEN));
        if self.last.get(&session).is_some_and(|last| *last > token) {
            self.out_of_order.push(session.clone());
        }
        self.last.insert(session, token);
        let body = message.body();
        let document = Document::try_from(RawDocument::from_bytes(&body).unwrap()).unwrap();
        let id: &Bson = document.get("_id").unwrap();
        let is_key_alone = document.len() == 1;
        match text(property::OPERATION).as_str() {
            "delete" => drop(self.documents.remove(&id.to_string())),
            // Looked up, and gone meanwhile: its delete follows.
            "update" if is_key_alone => {}
            _ => drop(self.documents.insert(id.to_string(), document)),
        }
    }
}
