//! Each fault as the MongoDB driver sees it, in front of a real mongod.
//!
//! A second client connects directly and shows what the server did. The driver's own retries are off, because they would
//! hide the faults.

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
        Direction::{ToClient, ToTarget},
        NetworkFault, Proxy, ProxyCloseReason, ProxyConnection, ProxyCounters,
    },
    wait::wait_for,
};
use tokio::{task::JoinHandle, time::timeout};

const LIMIT: Duration = Duration::from_secs(30);
/// The least that the driver allows.
const HEARTBEAT: Duration = Duration::from_millis(500);
/// How long the driver's monitor waits for a response before it marks a server as unknown. The driver has no other timeout
/// for a server that stops responding: `socketTimeoutMS` is read and not used.
const SILENCE: Duration = Duration::from_secs(2);
const PATIENT: Duration = LIMIT;

/// One collection, through the proxy and directly.
struct DriverFixture {
    proxy: Proxy,
    /// The one that carries commands; others are the driver's monitors.
    pooled: ProxyConnection,
    through_proxy: Collection<Document>,
    direct: Collection<Document>,
    _database: ScratchDatabase,
}

impl DriverFixture {
    /// With a driver whose monitor tolerates this much silence from the server.
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

    /// Starts an insert and leaves it in flight.
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

    /// An insert that the server has executed and whose response has not arrived.
    async fn insert_without_response(&self, id: &'static str) -> JoinHandle<Result<()>> {
        self.proxy.inject(NetworkFault::Withhold(ToClient)).await;
        let insert = self.insert(id);
        self.wait_until_on_the_server(id).await;
        assert!(!insert.is_finished());
        insert
    }

    /// Waits on the counters of the commands' connection.
    async fn pooled_reaches(&self, what: &str, there: impl Fn(&ProxyCounters) -> bool) -> ProxyCounters {
        wait_for(what, LIMIT, async || {
            let counters = self.pooled.counters();
            if there(&counters) { Ok(counters) } else { Err(counters) }
        })
        .await
    }

    /// Waits until commands fail because no server is available.
    async fn wait_until_out_of_reach(&self) {
        wait_for("the driver to be without a server", LIMIT, async || {
            match self.through_proxy.find_one(doc! {}).await {
                Err(error) if matches!(&*error.kind, ErrorKind::ServerSelection { .. }) => Ok(()),
                other => Err(other),
            }
        })
        .await;
    }

    /// Waits until the driver reconnects by itself.
    async fn assert_recovers(&self) {
        wait_for("the driver to recover", LIMIT, async || self.through_proxy.find_one(doc! {}).await).await;
    }
}

/// Opens a connection for commands before any fault, and finds it by its byte count: monitors transfer less.
async fn pooled_connection(proxy: &Proxy, orders: &Collection<Document>) -> ProxyConnection {
    const HEAVY: usize = 16 * 1024;
    orders.insert_one(doc! { "_id": "first", "text": "x".repeat(HEAVY) }).await.unwrap();
    let carried = |connection: &ProxyConnection| connection.counters().to_target.delivered > HEAVY as u64;
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
async fn a_cut_fails_all_commands_until_healed() {
    let fixture = DriverFixture::open(PATIENT).await;
    let insert = fixture.insert_without_response("done and cut").await;
    fixture.proxy.inject(NetworkFault::Cut).await;
    assert_eq!(io_kind(&failure(insert).await), io::ErrorKind::UnexpectedEof);
    assert_eq!(fixture.pooled.close_reason(), Some(ProxyCloseReason::Cut));

    fixture.wait_until_out_of_reach().await;
    fixture.proxy.heal().await;
    fixture.assert_recovers().await;
}

#[tokio::test]
async fn a_reset_is_seen_as_a_connection_reset() {
    let fixture = DriverFixture::open(PATIENT).await;
    let insert = fixture.insert_without_response("done and reset").await;
    fixture.proxy.inject(NetworkFault::Reset).await;
    assert_eq!(io_kind(&failure(insert).await), io::ErrorKind::ConnectionReset);
    assert_eq!(fixture.pooled.close_reason(), Some(ProxyCloseReason::Reset));

    let (accepted, reset) = (fixture.proxy.counters().accepted, fixture.proxy.counters().reset);
    wait_for("the driver to come back and be reset", LIMIT, async || {
        let seen = fixture.proxy.counters();
        if seen.accepted > accepted && seen.reset > reset { Ok(()) } else { Err(seen) }
    })
    .await;
    fixture.proxy.heal().await;
    fixture.assert_recovers().await;
}

#[tokio::test]
async fn a_black_hole_hangs_the_command_until_the_monitor_times_out() {
    let fixture = DriverFixture::open(SILENCE).await;
    fixture.proxy.inject(NetworkFault::BlackHole).await;
    let started = Instant::now();
    let error = failure(fixture.insert("never arrived")).await;
    assert!(matches!(&*error.kind, ErrorKind::ConnectionPoolCleared { .. }), "{error:?}");
    // The monitor counts from the last response, which may be a heartbeat ago.
    assert!(started.elapsed() >= SILENCE - HEARTBEAT, "{:?}", started.elapsed());

    let seen = fixture.pooled.counters();
    assert!(seen.to_target.dropped > 0, "{seen:?}");
    assert_eq!(fixture.pooled.close_reason(), None, "the network never ended it");
    assert!(!fixture.is_on_the_server("never arrived").await);
    fixture.proxy.heal().await;
    fixture.assert_recovers().await;
}

#[tokio::test]
async fn a_half_open_connection_writes_and_loses_the_response() {
    let fixture = DriverFixture::open(SILENCE).await;
    fixture.proxy.inject(NetworkFault::HalfOpen { dead: ToClient }).await;
    let insert = fixture.insert("done, unknown to the client");
    fixture.wait_until_on_the_server("done, unknown to the client").await;
    let error = failure(insert).await;
    assert!(matches!(&*error.kind, ErrorKind::ConnectionPoolCleared { .. }), "{error:?}");

    let seen = fixture.pooled.counters();
    assert!(seen.to_client.dropped > 0 && seen.to_target.dropped == 0, "{seen:?}");
    fixture.proxy.heal().await;
    fixture.assert_recovers().await;
}

#[tokio::test]
async fn a_connection_half_open_to_the_server_loses_the_write() {
    let fixture = DriverFixture::open(PATIENT).await;
    fixture.proxy.inject(NetworkFault::HalfOpen { dead: ToTarget }).await;
    let heard = fixture.proxy.counters().to_client.delivered;
    let insert = fixture.insert("lost");
    fixture.pooled_reaches("the write to be lost", |seen| seen.to_target.dropped > 0).await;
    // The monitor's single streaming request gets a response at every heartbeat.
    wait_for("the server to be heard", LIMIT, async || {
        let seen = fixture.proxy.counters().to_client;
        if seen.delivered > heard && seen.dropped == 0 { Ok(()) } else { Err(seen) }
    })
    .await;
    assert!(!insert.is_finished());
    assert!(!fixture.is_on_the_server("lost").await);
    fixture.proxy.heal().await;
    assert_eq!(io_kind(&failure(insert).await), io::ErrorKind::ConnectionReset);
    fixture.assert_recovers().await;
}

#[tokio::test]
async fn a_delay_is_measured_by_the_driver_in_either_direction() {
    const LATE: Duration = Duration::from_millis(400);
    let fixture = DriverFixture::open(PATIENT).await;
    for direction in [ToTarget, ToClient] {
        fixture.proxy.inject(NetworkFault::Delay(direction, LATE)).await;
        let started = Instant::now();
        fixture.through_proxy.find_one(doc! { "_id": "none" }).await.unwrap();
        let took = started.elapsed();
        assert!(took >= LATE, "{direction:?}: {took:?}");
    }
    let seen = fixture.pooled.counters();
    assert!(seen.to_target.delayed > 0 && seen.to_client.delayed > 0, "{seen:?}");
}

#[tokio::test]
async fn a_freeze_holds_the_write_back_and_a_heal_lets_it_happen() {
    let fixture = DriverFixture::open(PATIENT).await;
    fixture.proxy.inject(NetworkFault::Freeze).await;
    let insert = fixture.insert("late");
    fixture.pooled_reaches("the write to be held", |seen| seen.to_target.withheld == 1).await;
    assert!(!insert.is_finished());
    assert!(!fixture.is_on_the_server("late").await);
    fixture.proxy.heal().await;
    timeout(LIMIT, insert).await.expect("the write goes on").unwrap().expect("nothing was lost");
    assert!(fixture.is_on_the_server("late").await);
    assert_eq!(fixture.pooled.close_reason(), None, "on the connection it had");
}

/// Part of the big document's answer.
const SOME: u64 = 64 * 1024;

async fn insert_big_document(fixture: &DriverFixture) -> String {
    let text = "headwater ".repeat(100_000);
    fixture.direct.insert_one(doc! { "_id": "big", "text": &text }).await.unwrap();
    text
}

#[tokio::test]
async fn a_cut_in_a_response_fails_only_that_command() {
    let fixture = DriverFixture::open(PATIENT).await;
    insert_big_document(&fixture).await;
    let before = fixture.pooled.counters().to_client.delivered;
    fixture.pooled.add_rule(NetworkFault::Cut.after(SOME, ToClient));
    let error = fixture.through_proxy.find_one(doc! { "_id": "big" }).await.expect_err("it is cut short");
    assert_eq!(io_kind(&error), io::ErrorKind::UnexpectedEof);
    let seen = fixture.pooled_reaches("the cut", |seen| seen.cut == 1).await;
    assert_eq!(seen.to_client.delivered, before + SOME);
    fixture.assert_recovers().await;
    assert_eq!(fixture.proxy.counters().cut, 1);
}

#[tokio::test]
async fn a_frozen_response_arrives_whole_after_the_heal() {
    let fixture = DriverFixture::open(PATIENT).await;
    let text = insert_big_document(&fixture).await;
    let before = fixture.pooled.counters().to_client.delivered;
    fixture.pooled.add_rule(NetworkFault::Freeze.after(SOME, ToClient));
    let orders = fixture.through_proxy.clone();
    let find = tokio::spawn(async move { orders.find_one(doc! { "_id": "big" }).await });
    let seen = fixture.pooled_reaches("the rest of the answer to be held", |seen| seen.to_client.withheld == 1).await;
    assert_eq!(seen.to_client.delivered, before + SOME);
    assert!(!find.is_finished());
    fixture.proxy.heal().await;
    let found = timeout(LIMIT, find).await.expect("the answer goes on").unwrap().unwrap().expect("it is there");
    assert!(found.get_str("text").unwrap() == text, "not a byte is missing");
}

#[tokio::test]
async fn every_connection_can_be_made_to_fail_its_handshake() {
    let fixture = DriverFixture::open(PATIENT).await;
    fixture.proxy.on_each_connection(NetworkFault::Cut.after(100, ToClient)).await;
    fixture.proxy.inject_into_open(NetworkFault::Cut).await;
    fixture.wait_until_out_of_reach().await;
    let cut_short = |connection: &ProxyConnection| {
        connection.close_reason() == Some(ProxyCloseReason::Cut) && connection.counters().to_client.delivered == 100
    };
    assert!(fixture.proxy.connections().iter().any(cut_short), "{:?}", fixture.proxy.counters());
    fixture.proxy.heal().await;
    fixture.assert_recovers().await;
}
