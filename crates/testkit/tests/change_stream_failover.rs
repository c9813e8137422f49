//! A change stream loses no event when the primary is killed.

use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::Duration;

use futures_util::StreamExt;
use mongodb::bson::{Document, doc};
use mongodb::change_stream::event::{ChangeStreamEvent, ResumeToken};
use mongodb::{Client, Collection};
use testkit::mongo::ReplicaSet;
use testkit::wait::wait_for;
use tokio::sync::watch;
use tokio::time::timeout;

const DOCUMENTS: i32 = 10_000;
const WRITTEN_AT_ONCE: i32 = 50;
/// The reader stops here until the primary is dead.
const READ_BEFORE_THE_KILL: usize = 1_000;
const UNREAD_AT_THE_KILL: i32 = 2_000;
/// The writer usually has not come this far when the primary dies, and waits here if it has.
const WRITTEN_BEFORE_THE_KILL: i32 = 9_000;
/// Small, so that unread events lie in the oplog and not in the reader's memory.
const READ_AT_ONCE: u32 = 100;
const IN_TIME: Duration = Duration::from_secs(120);

fn orders(client: &Client) -> Collection<Document> {
    client.database("shop").collection("orders")
}

/// A cursor belongs to one server. When that server dies between two reads, the driver looks for it for as long as it
/// would for any server, half a minute by default, before it says so.
async fn impatient_client(set: &ReplicaSet) -> Client {
    Client::with_uri_str(format!("{}&serverSelectionTimeoutMS=2000", set.uri())).await.unwrap()
}

/// Writes documents 0.. in order, each batch acknowledged by a majority before the next, whoever is primary.
async fn write_all(client: Client, acknowledged: Arc<AtomicI32>, mut gate: watch::Receiver<bool>) {
    let orders = orders(&client);
    let mut next = 0;
    while next < DOCUMENTS {
        if next >= WRITTEN_BEFORE_THE_KILL {
            gate.wait_for(|open| *open).await.expect("the test opens the gate");
        }
        let batch = (next..next + WRITTEN_AT_ONCE).map(|id| doc! { "_id": id });
        match orders.insert_many(batch).await {
            Ok(_) => next += WRITTEN_AT_ONCE,
            // Nobody knows how much of the batch was kept: the new primary is asked.
            Err(_) => next = first_missing(&orders).await,
        }
        acknowledged.store(next, Ordering::SeqCst);
    }
}

async fn first_missing(orders: &Collection<Document>) -> i32 {
    let last = wait_for("an answer from the new primary", IN_TIME, async || {
        orders.find_one(doc! {}).sort(doc! { "_id": -1 }).await.map_err(|error| error.to_string())
    });
    last.await.map_or(0, |last| last.get_i32("_id").unwrap() + 1)
}

/// Reads order numbers as they come, pausing at the gate after the first thousand; reopens where it stood on any error.
struct OrderReader {
    orders: Collection<Document>,
    token: ResumeToken,
    seen: Vec<i32>,
    gate: watch::Receiver<bool>,
}

impl OrderReader {
    async fn read_all(mut self, paused: watch::Sender<Option<usize>>) -> Vec<i32> {
        while self.seen.len() < DOCUMENTS as usize {
            // An error here is the primary's death, or an election that is not over; the test's deadline bounds the tries.
            let _ = self.read_until_error(&paused).await;
        }
        self.seen
    }

    async fn read_until_error(&mut self, paused: &watch::Sender<Option<usize>>) -> mongodb::error::Result<()> {
        let mut stream = self.orders.watch().batch_size(READ_AT_ONCE).resume_after(self.token.clone()).await?;
        while self.seen.len() < DOCUMENTS as usize {
            if self.seen.len() == READ_BEFORE_THE_KILL {
                paused.send_replace(Some(self.seen.len()));
                self.gate.wait_for(|open| *open).await.expect("the test opens the gate");
            }
            if let Some(event) = stream.next().await {
                self.keep(event?);
            }
        }
        Ok(())
    }

    fn keep(&mut self, event: ChangeStreamEvent<Document>) {
        self.seen.push(event.full_document.expect("an insert").get_i32("_id").expect("our number"));
        self.token = event.id;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_writes_are_read_in_order_across_a_primary_kill() {
    // GIVEN a set of three, a reader that has read a thousand events and stopped, and a writer that goes on
    let mut set = ReplicaSet::start(3).await.unwrap();
    let (writing, reading) = (set.client().await.unwrap(), impatient_client(&set).await);
    let start = orders(&reading).watch().await.unwrap().resume_token().expect("a token at the start");
    let acknowledged = Arc::new(AtomicI32::new(0));
    let (open_gate, gate) = watch::channel(false);
    let writer = tokio::spawn(write_all(writing, acknowledged.clone(), gate.clone()));
    let (paused, mut reader_paused) = watch::channel(None);
    let reader = OrderReader { orders: orders(&reading), token: start, seen: vec![], gate };
    let reader = tokio::spawn(reader.read_all(paused));
    timeout(IN_TIME, reader_paused.wait_for(Option::is_some)).await.unwrap().unwrap();
    let enough = READ_BEFORE_THE_KILL as i32 + UNREAD_AT_THE_KILL;
    wait_for("enough acknowledged writes", IN_TIME, async || {
        let now = acknowledged.load(Ordering::SeqCst);
        if now >= enough { Ok(()) } else { Err(now) }
    })
    .await;

    // WHEN the primary is killed in the middle of the writing
    let primary = set.primary().await.unwrap();
    set.kill(primary).await.unwrap();
    // By the reader's own count, which stands still until the gate opens.
    let read = reader_paused.borrow().expect("the reader has paused");
    let unread = acknowledged.load(Ordering::SeqCst) - i32::try_from(read).expect("a small number");
    assert!(unread >= UNREAD_AT_THE_KILL, "only {unread} acknowledged events are unread at the kill");
    println!("at the kill {unread} acknowledged events were unread");
    open_gate.send_replace(true);

    // THEN every document comes once, in the order it was written
    timeout(IN_TIME, writer).await.expect("the writer ends").unwrap();
    let seen = timeout(IN_TIME, reader).await.expect("the reader ends").unwrap();
    assert_eq!(seen, (0..DOCUMENTS).collect::<Vec<_>>());
    assert_ne!(set.primary().await.unwrap(), primary);
}
