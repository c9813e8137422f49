//! Each fault as the MongoDB driver sees it, in front of a real mongod.
//!
//! A second client that does not go through the proxy tells what really happened on the server. The driver's own retries
//! are off: they would hide what is to be seen.

use std::{
    io,
    time::{Duration, Instant},
};

use mongodb::{
    Client, Collection,
    bson::{Document, doc},
    error::{Error, ErrorKind, Result},
    options::{ClientOptions, ServerAddress},
};
use testkit::{
    mongo::{self, ScratchDatabase},
    proxy::{
        Connection, Counters,
        Direction::{ToClient, ToTarget},
        Ending, Fault, Proxy,
    },
    wait::wait_for,
};
use tokio::{task::JoinHandle, time::timeout};

const LIMIT: Duration = Duration::from_secs(30);
/// The least that the driver allows.
const HEARTBEAT: Duration = Duration::from_millis(500);
/// How long the driver's monitor waits for an answer before it gives up on a server. The driver has no other timeout
/// for a server that has gone silent: `socketTimeoutMS` is read and not used.
const SILENCE: Duration = Duration::from_secs(2);
const PATIENT: Duration = LIMIT;

/// One collection, seen through the proxy and seen directly.
struct Shop {
    proxy: Proxy,
    /// The one that carries commands; others are the driver's monitors.
    pooled: Connection,
    through_proxy: Collection<Document>,
    direct: Collection<Document>,
    _database: ScratchDatabase,
}

impl Shop {
    /// With a driver whose monitor bears this much silence from the server.
    async fn open(silence: Duration) -> Self {
        let shared = mongo::shared().await.unwrap();
        let database = shared.database("proxy");
        let mut options = ClientOptions::parse(shared.uri()).await.unwrap();
        let ServerAddress::Tcp { host, port } = &options.hosts[0] else { panic!("the shared set is on TCP") };
        let proxy = Proxy::start((host.as_str(), port.unwrap_or(27017))).await.unwrap();
        options.hosts = vec![ServerAddress::parse(proxy.address().to_string()).unwrap()];
        options.repl_set_name = None;
        options.direct_connection = Some(true);
        options.retry_reads = Some(false);
        options.retry_writes = Some(false);
        options.heartbeat_freq = Some(HEARTBEAT);
        options.connect_timeout = Some(silence);
        options.server_selection_timeout = Some(Duration::from_secs(1));
        let client = Client::with_options(options).unwrap();
        let through_proxy = client.database(database.name()).collection("orders");
        let direct = database.collection("orders");
        let pooled = pooled_connection(&proxy, &through_proxy).await;
        Self { proxy, pooled, through_proxy, direct, _database: database }
    }

    /// Starts an insert and leaves it under way.
    fn insert(&self, id: &'static str) -> JoinHandle<Result<()>> {
        let orders = self.through_proxy.clone();
        tokio::spawn(async move { orders.insert_one(doc! { "_id": id }).await.map(drop) })
    }

    async fn is_on_the_server(&self, id: &str) -> bool {
        self.direct.count_documents(doc! { "_id": id }).await.unwrap() == 1
    }

    async fn wait_until_on_the_server(&self, id: &str) {
        wait_for(format_args!("`{id}` to be on the server"), LIMIT, async || {
            if self.is_on_the_server(id).await { Ok(()) } else { Err(self.proxy.counters()) }
        })
        .await;
    }

    /// An insert that the server has done and whose answer has not come.
    async fn insert_without_answer(&self, id: &'static str) -> JoinHandle<Result<()>> {
        self.proxy.inject(Fault::Withhold(ToClient)).await;
        let insert = self.insert(id);
        self.wait_until_on_the_server(id).await;
        assert!(!insert.is_finished());
        insert
    }

    /// Waits on the counters of the commands' connection.
    async fn pooled_reaches(&self, what: &str, there: impl Fn(&Counters) -> bool) -> Counters {
        wait_for(what, LIMIT, async || {
            let counters = self.pooled.counters();
            if there(&counters) { Ok(counters) } else { Err(counters) }
        })
        .await
    }

    /// Commands fail for want of a server.
    async fn wait_until_out_of_reach(&self) {
        wait_for("the driver to be without a server", LIMIT, async || {
            match self.through_proxy.find_one(doc! {}).await {
                Err(error) if matches!(&*error.kind, ErrorKind::ServerSelection { .. }) => Ok(()),
                other => Err(other),
            }
        })
        .await;
    }

    /// The driver finds its way back by itself.
    async fn assert_recovers(&self) {
        wait_for("the driver to recover", LIMIT, async || self.through_proxy.find_one(doc! {}).await).await;
    }
}

/// Brings up a connection for commands before any fault, and tells it from the monitors' by its weight.
async fn pooled_connection(proxy: &Proxy, orders: &Collection<Document>) -> Connection {
    const HEAVY: usize = 16 * 1024;
    orders.insert_one(doc! { "_id": "first", "text": "x".repeat(HEAVY) }).await.unwrap();
    let carried = |connection: &Connection| connection.counters().to_target.delivered > HEAVY as u64;
    proxy.connections().into_iter().find(carried).expect("one connection has carried the insert")
}

async fn failure(command: JoinHandle<Result<()>>) -> Error {
    let ended = timeout(LIMIT, command).await.expect("the command ends").unwrap();
    ended.expect_err("the command fails")
}

fn io_kind(error: &Error) -> io::ErrorKind {
    match &*error.kind {
        ErrorKind::Io(io) => io.kind(),
        other => panic!("not a network error: {other:?}"),
    }
}

#[tokio::test]
async fn a_cut_fails_the_command_under_way_and_all_others_until_healed() {
    let shop = Shop::open(PATIENT).await;
    let insert = shop.insert_without_answer("done and cut").await;
    shop.proxy.inject(Fault::Cut).await;
    assert_eq!(io_kind(&failure(insert).await), io::ErrorKind::UnexpectedEof);
    assert_eq!(shop.pooled.ending(), Some(Ending::Cut));

    shop.wait_until_out_of_reach().await;
    shop.proxy.heal().await;
    shop.assert_recovers().await;
}

#[tokio::test]
async fn a_reset_is_seen_as_a_connection_reset() {
    let shop = Shop::open(PATIENT).await;
    let insert = shop.insert_without_answer("done and reset").await;
    shop.proxy.inject(Fault::Reset).await;
    assert_eq!(io_kind(&failure(insert).await), io::ErrorKind::ConnectionReset);
    assert_eq!(shop.pooled.ending(), Some(Ending::Reset));

    let (accepted, reset) = (shop.proxy.counters().accepted, shop.proxy.counters().reset);
    wait_for("the driver to come back and be reset", LIMIT, async || {
        let seen = shop.proxy.counters();
        if seen.accepted > accepted && seen.reset > reset { Ok(()) } else { Err(seen) }
    })
    .await;
    shop.proxy.heal().await;
    shop.assert_recovers().await;
}

#[tokio::test]
async fn a_black_hole_leaves_the_command_hanging_until_the_monitor_gives_up() {
    let shop = Shop::open(SILENCE).await;
    shop.proxy.inject(Fault::BlackHole).await;
    let started = Instant::now();
    let error = failure(shop.insert("never arrived")).await;
    assert!(matches!(&*error.kind, ErrorKind::ConnectionPoolCleared { .. }), "{error:?}");
    // The monitor counts from the last it heard, which may be a heartbeat ago.
    assert!(started.elapsed() >= SILENCE - HEARTBEAT, "{:?}", started.elapsed());

    let seen = shop.pooled.counters();
    assert!(seen.to_target.swallowed > 0, "{seen:?}");
    assert_eq!(shop.pooled.ending(), None, "the network never ended it");
    assert!(!shop.is_on_the_server("never arrived").await);
    shop.proxy.heal().await;
    shop.assert_recovers().await;
}

#[tokio::test]
async fn a_half_open_connection_does_the_write_and_loses_the_answer() {
    let shop = Shop::open(SILENCE).await;
    shop.proxy.inject(Fault::HalfOpen { dead: ToClient }).await;
    let insert = shop.insert("done, unknown to the client");
    shop.wait_until_on_the_server("done, unknown to the client").await;
    let error = failure(insert).await;
    assert!(matches!(&*error.kind, ErrorKind::ConnectionPoolCleared { .. }), "{error:?}");

    let seen = shop.pooled.counters();
    assert!(seen.to_client.swallowed > 0 && seen.to_target.swallowed == 0, "{seen:?}");
    shop.proxy.heal().await;
    shop.assert_recovers().await;
}

#[tokio::test]
async fn a_connection_half_open_towards_the_server_loses_the_write_while_the_server_is_still_heard() {
    let shop = Shop::open(PATIENT).await;
    shop.proxy.inject(Fault::HalfOpen { dead: ToTarget }).await;
    let heard = shop.proxy.counters().to_client.delivered;
    let insert = shop.insert("lost");
    shop.pooled_reaches("the write to be lost", |seen| seen.to_target.swallowed > 0).await;
    // Heard without being asked: the monitor's one request is answered again at every heartbeat.
    wait_for("the server to be heard", LIMIT, async || {
        let seen = shop.proxy.counters().to_client;
        if seen.delivered > heard && seen.swallowed == 0 { Ok(()) } else { Err(seen) }
    })
    .await;
    assert!(!insert.is_finished());
    assert!(!shop.is_on_the_server("lost").await);
    shop.proxy.heal().await;
    assert_eq!(io_kind(&failure(insert).await), io::ErrorKind::ConnectionReset);
    shop.assert_recovers().await;
}

#[tokio::test]
async fn a_delay_is_measured_by_the_driver_in_either_direction() {
    const LATE: Duration = Duration::from_millis(400);
    let shop = Shop::open(PATIENT).await;
    for direction in [ToTarget, ToClient] {
        shop.proxy.inject(Fault::Delay(direction, LATE)).await;
        let started = Instant::now();
        shop.through_proxy.find_one(doc! { "_id": "none" }).await.unwrap();
        let took = started.elapsed();
        assert!(took >= LATE, "{direction:?}: {took:?}");
    }
    let seen = shop.pooled.counters();
    assert!(seen.to_target.delayed > 0 && seen.to_client.delayed > 0, "{seen:?}");
}

#[tokio::test]
async fn a_freeze_holds_the_write_back_and_a_heal_lets_it_happen() {
    let shop = Shop::open(PATIENT).await;
    shop.proxy.inject(Fault::Freeze).await;
    let insert = shop.insert("late");
    shop.pooled_reaches("the write to be held", |seen| seen.to_target.withheld == 1).await;
    assert!(!insert.is_finished());
    assert!(!shop.is_on_the_server("late").await);
    shop.proxy.heal().await;
    timeout(LIMIT, insert).await.expect("the write goes on").unwrap().expect("nothing was lost");
    assert!(shop.is_on_the_server("late").await);
    assert_eq!(shop.pooled.ending(), None, "on the connection it had");
}

/// Part of the big document's answer.
const SOME: u64 = 64 * 1024;

async fn insert_big_document(shop: &Shop) -> String {
    let text = "headwater ".repeat(100_000);
    shop.direct.insert_one(doc! { "_id": "big", "text": &text }).await.unwrap();
    text
}

#[tokio::test]
async fn a_cut_in_the_middle_of_an_answer_fails_that_command_alone() {
    let shop = Shop::open(PATIENT).await;
    insert_big_document(&shop).await;
    let before = shop.pooled.counters().to_client.delivered;
    shop.pooled.add_rule(Fault::Cut.after(SOME, ToClient));
    let error = shop.through_proxy.find_one(doc! { "_id": "big" }).await.expect_err("it is cut short");
    assert_eq!(io_kind(&error), io::ErrorKind::UnexpectedEof);
    let seen = shop.pooled_reaches("the cut", |seen| seen.cut == 1).await;
    assert_eq!(seen.to_client.delivered, before + SOME);
    shop.assert_recovers().await;
    assert_eq!(shop.proxy.counters().cut, 1);
}

#[tokio::test]
async fn a_freeze_in_the_middle_of_an_answer_ends_with_the_whole_answer() {
    let shop = Shop::open(PATIENT).await;
    let text = insert_big_document(&shop).await;
    let before = shop.pooled.counters().to_client.delivered;
    shop.pooled.add_rule(Fault::Freeze.after(SOME, ToClient));
    let orders = shop.through_proxy.clone();
    let find = tokio::spawn(async move { orders.find_one(doc! { "_id": "big" }).await });
    let seen = shop.pooled_reaches("the rest of the answer to be held", |seen| seen.to_client.withheld == 1).await;
    assert_eq!(seen.to_client.delivered, before + SOME);
    assert!(!find.is_finished());
    shop.proxy.heal().await;
    let found = timeout(LIMIT, find).await.expect("the answer goes on").unwrap().unwrap().expect("it is there");
    assert!(found.get_str("text").unwrap() == text, "not a byte is missing");
}

#[tokio::test]
async fn every_connection_can_be_made_to_fail_its_handshake() {
    let shop = Shop::open(PATIENT).await;
    shop.proxy.on_each_connection(Fault::Cut.after(100, ToClient)).await;
    shop.proxy.inject_into_open(Fault::Cut).await;
    shop.wait_until_out_of_reach().await;
    let cut_short = |connection: &Connection| {
        connection.ending() == Some(Ending::Cut) && connection.counters().to_client.delivered == 100
    };
    assert!(shop.proxy.connections().iter().any(cut_short), "{:?}", shop.proxy.counters());
    shop.proxy.heal().await;
    shop.assert_recovers().await;
}
