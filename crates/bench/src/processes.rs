//! The broker and pods under measurement, and their progress by the messages that the broker holds. A process that fails ends the bench
//! with a panic.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use local_cluster::process::Process;
use local_cluster::usage::{cpu_time, peak_resident_mb};
use local_cluster::{
    BrokerOptions, BrokerProcess, LeaseTimings, PodConfig, TopicEntity, connection_string, emulator_config, pod_program,
};
use mongodb::Client;
use mongodb::bson::doc;
use tokio::time::sleep;

const STOP_TIMEOUT: Duration = Duration::from_secs(30);

/// `HEADWATER_BIN`, or the binary beside this program.
pub fn headwater_binary() -> PathBuf {
    let beside = || Some(std::env::current_exe().ok()?.with_file_name("headwater"));
    std::env::var_os("HEADWATER_BIN").map(PathBuf::from).or_else(beside).expect("a path to the headwater binary")
}

/// Starts the broker on a data folder.
pub async fn start_broker(data_dir: &Path) -> BrokerProcess {
    start_broker_with(&headwater_binary(), data_dir, None).await
}

/// Starts the broker with these topics, with everything below a folder.
pub async fn start_broker_with_topics(folder: &Path, topics: &[TopicEntity]) -> BrokerProcess {
    let entities = folder.join("entities.json");
    fs::write(&entities, emulator_config(topics)).expect("the folder is writable");
    start_broker_with(&headwater_binary(), &folder.join("broker"), Some(entities)).await
}

pub async fn start_broker_with(binary: &Path, data_dir: &Path, entities: Option<PathBuf>) -> BrokerProcess {
    let (binary, data_dir) = (binary.to_owned(), data_dir.to_owned());
    // Benches without entities of their own fill large queues.
    let arguments = if entities.is_none() { vec!["--tier".to_owned(), "premium".to_owned()] } else { vec![] };
    let options =
        BrokerOptions { binary, data_dir, entities, test_hooks: false, access: None, arguments, environment: vec![] };
    BrokerProcess::start(&options).await.expect("the broker starts")
}

/// The process id of mongod.
pub async fn server_pid(client: &Client) -> u32 {
    let status = client.database("admin").run_command(doc! { "serverStatus": 1 }).await.expect("MongoDB responds");
    let pid = status.get("pid").and_then(|pid| pid.as_i64().or_else(|| pid.as_i32().map(i64::from)));
    pid.and_then(|pid| u32::try_from(pid).ok()).expect("a server has a pid")
}

/// A pod under measurement.
pub struct MeasuredPod(Process);

impl MeasuredPod {
    /// Starts a pod of a pipeline that is named like its topic; `extra_yaml` is the rest of its configuration.
    pub fn start(
        folder: &Path,
        uri: &str,
        database: &str,
        topic: &str,
        broker: &BrokerProcess,
        extra_yaml: &str,
    ) -> Self {
        let config = PodConfig {
            pipeline: Some(topic),
            ca_file: None,
            mongodb_uri: uri,
            database,
            source: "sequence: version",
            coordination: &format!("{database}-coordination"),
            lease: LeaseTimings {
                ttl: Duration::from_secs(5),
                renew_deadline: Duration::from_secs(3),
                heartbeat: Duration::from_secs(1),
            },
            connection_string: &connection_string(broker.address()),
            topic,
            extra_yaml,
        };
        let file = folder.join(format!("{topic}.yaml"));
        fs::write(&file, config.to_yaml()).expect("the folder is writable");
        let program = pod_program(headwater_binary(), &file).env("RUST_LOG", "warn").inherit_stderr();
        Self(program.start().expect("the headwater binary can be started"))
    }

    pub async fn stop(self) {
        self.0.terminate();
        assert!(self.0.wait_for_exit(STOP_TIMEOUT).await.success(), "the pod failed");
    }

    pub fn peak_rss_mb(&self) -> f64 {
        peak_resident_mb(self.0.pid())
    }

    pub fn cpu(&self) -> Duration {
        cpu_time(self.0.pid())
    }
}

async fn active_messages(broker: &BrokerProcess, topic: &str) -> u64 {
    broker.active_messages(&format!("{topic}/Subscriptions/read-models")).await.expect("the broker responds")
}

/// Messages per second, from the first poll that finds some on the topic's subscription to the one that finds all.
pub async fn measure_published(broker: &BrokerProcess, topic: &str, count: u64) -> f64 {
    let mut first = None;
    let began = Instant::now();
    loop {
        let (now, there) = (Instant::now(), active_messages(broker, topic).await);
        let (since, had) = *first.get_or_insert((now, there));
        if had == 0 {
            first = None;
        }
        if there >= count {
            return (there - had) as f64 / now.duration_since(since).as_secs_f64();
        }
        assert!(began.elapsed() < Duration::from_secs(300), "{there} of {count} after five minutes");
        sleep(Duration::from_millis(20)).await;
    }
}

/// A backlog that does not shrink for this long has stalled.
const STALL: Duration = Duration::from_secs(10);

/// Transactions that the server has started.
pub async fn started_transactions(client: &Client) -> i64 {
    let status = client.database("admin").run_command(doc! { "serverStatus": 1 }).await.expect("MongoDB responds");
    let transactions = status.get_document("transactions").expect("a replica set counts transactions");
    transactions.get_i64("totalStarted").expect("a count")
}

/// Messages per second, from the start of the pod's first transaction to the poll that finds no more than `left_over` active.
///
/// `before` are the transactions that were started before the pod. The clock starts like the one of the raw transactions: before the first one, not
/// after it.
pub async fn measure_consumed(
    broker: &BrokerProcess,
    client: &Client,
    before: i64,
    topic: &str,
    count: u64,
    left_over: u64,
) -> f64 {
    let mut since = None;
    let (mut moved, mut least) = (Instant::now(), u64::MAX);
    loop {
        if since.is_none() && started_transactions(client).await > before {
            since = Some(Instant::now());
        }
        let (now, left) = (Instant::now(), active_messages(broker, topic).await);
        if left < least {
            (moved, least) = (now, left);
        }
        if let (Some(since), true) = (since, left <= left_over) {
            return (count - left) as f64 / now.duration_since(since).as_secs_f64();
        }
        assert!(moved.elapsed() < STALL, "{left} of {count} messages are left and the backlog stalls");
        // The start matters to the millisecond, the end to a hundredth of the whole.
        sleep(Duration::from_millis(if since.is_none() { 2 } else { 20 })).await;
    }
}
