//! What is measured: Headwater, or the design of the notes in NestJS. A pod is one process of either.

use std::fmt::Write as _;
use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use local_cluster::process::{Process, Program};
use local_cluster::usage::{cpu_time, peak_resident_mb, resident_mb};
use local_cluster::{LeaseTimings, PodConfig, connection_string, pod_program};
use mongod::ReservedPort;
use mongodb::bson::{Document, doc};
use mongodb::{Collection, Database, IndexModel};
use testkit::wait::wait_for;

use super::BenchCluster;
use crate::processes::headwater_binary;

const START_TIMEOUT: Duration = Duration::from_secs(60);
const STOP_TIMEOUT: Duration = Duration::from_secs(30);
const UPDATE: &str =
    "{ when: { ItemAdded: { $inc: { events: 1, total: $$event.payload.price }, $set: { last: $$event.version } } } }";

/// Both systems have these by default.
pub const LEASE_OF_THE_NOTES: LeaseTimings = LeaseTimings {
    ttl: Duration::from_secs(15),
    renew_deadline: Duration::from_secs(10),
    heartbeat: Duration::from_secs(5),
};

#[derive(Clone, Debug)]
pub enum BenchSystem {
    Headwater {
        /// `totals`, and copies of it.
        read_models: u64,
        lease: LeaseTimings,
    },
    NestJs {
        /// The built peer.
        folder: PathBuf,
        tuned: bool,
    },
}

/// The databases and the topic of one system.
#[derive(Clone, Debug)]
pub struct PipelineNames {
    pub source: Database,
    pub topic: String,
}

impl PipelineNames {
    pub fn new(source: &Database, topic: &str) -> Self {
        Self { source: source.clone(), topic: topic.to_owned() }
    }

    pub fn views(&self) -> Database {
        self.source.client().database(&format!("{}_views", self.source.name()))
    }

    fn coordination(&self) -> Database {
        self.source.client().database(&format!("{}_coordination", self.source.name()))
    }
}

/// One process of a system.
pub struct BenchPod {
    pub id: String,
    process: Process,
    /// Its admin server; Headwater only.
    pub admin: Option<SocketAddr>,
    _port: Option<ReservedPort>,
}

impl BenchSystem {
    /// Starts pods; returns when one of them follows the change stream.
    ///
    /// # Panics
    /// When a pod does not start.
    pub async fn start(&self, cluster: &BenchCluster, names: &PipelineNames, pods: u64) -> Vec<BenchPod> {
        let index = IndexModel::builder().keys(doc! { "aggregateId": 1, "version": 1 }).build();
        names.source.collection::<Document>("events").create_index(index).await.expect("an index");
        let pods: Vec<_> = (0..pods).map(|pod| self.start_pod(cluster, names, &format!("pod-{pod}"))).collect();
        match self {
            Self::Headwater { .. } => wait_for_stream(&names.coordination()).await,
            Self::NestJs { .. } => {
                wait_for("a leader with a change stream", START_TIMEOUT, async || {
                    let started = pods.iter().any(|pod| pod.process.find_line("started ChangeStream").is_some());
                    if started { Ok(()) } else { Err(pods[0].process.tail().to_string()) }
                })
                .await;
            }
        }
        pods
    }

    /// Starts one pod and does not wait.
    ///
    /// # Panics
    /// When the program cannot be started.
    pub fn start_pod(&self, cluster: &BenchCluster, names: &PipelineNames, id: &str) -> BenchPod {
        match self {
            Self::Headwater { read_models, lease } => start_headwater(cluster, names, id, *read_models, *lease),
            Self::NestJs { folder, tuned } => {
                let program = Program::new("node")
                    .named(id)
                    .args([folder.join("dist/main.js")])
                    .env("HOSTNAME", id)
                    .env("NODE_ENV", "production")
                    .env("NO_COLOR", "1")
                    .env("MONGODB_URI", cluster.mongo.uri())
                    .env("DATABASE", names.source.name())
                    .env("SERVICE_BUS_CONNECTION_STRING", connection_string(cluster.broker.address()))
                    .env("TOPIC", &names.topic)
                    .env("SUBSCRIPTION", "read-models")
                    .env("MODE", if *tuned { "tuned" } else { "single" });
                let process = program.start().expect("node can be started");
                BenchPod { id: id.to_owned(), process, admin: None, _port: None }
            }
        }
    }

    /// The pod that holds the lease.
    ///
    /// # Panics
    /// When MongoDB does not respond.
    pub async fn leader(&self, names: &PipelineNames) -> Option<String> {
        let leases: Collection<Document> = match self {
            Self::Headwater { .. } => names.coordination().collection("leader_leases"),
            Self::NestJs { .. } => names.source.collection("leader_leases"),
        };
        let lease = leases.find_one(doc! {}).await.expect("MongoDB responds")?;
        lease.get_str("leaderId").ok().map(str::to_owned)
    }
}

fn start_headwater(
    cluster: &BenchCluster,
    names: &PipelineNames,
    id: &str,
    read_models: u64,
    lease: LeaseTimings,
) -> BenchPod {
    let port = ReservedPort::reserve(None).expect("a free port");
    let admin = SocketAddr::from(([127, 0, 0, 1], port.number()));
    let mut extra_yaml = format!("producer: {{ start: beginning }}\nadmin: {{ listen: \"{admin}\" }}\nread_models:\n");
    for copy in 0..read_models {
        let name = if copy == 0 { "totals".to_owned() } else { format!("totals_{copy}") };
        writeln!(extra_yaml, "  {name}: {UPDATE}").expect("a text grows");
    }
    let coordination = names.coordination();
    let config = PodConfig {
        pipeline: Some(&names.topic),
        ca_file: None,
        mongodb_uri: cluster.mongo.uri(),
        database: names.source.name(),
        source: "sequence: version",
        coordination: coordination.name(),
        lease,
        connection_string: &connection_string(cluster.broker.address()),
        topic: &names.topic,
        extra_yaml: &extra_yaml,
    };
    let file = cluster.folder.path().join(format!("{}-{id}.yaml", names.topic));
    fs::write(&file, config.to_yaml()).expect("the folder is writable");
    let program =
        pod_program(headwater_binary(), &file).named(id).env("RUST_LOG", "warn").env("HOSTNAME", id).inherit_stderr();
    let process = program.start().expect("the headwater binary can be started");
    BenchPod { id: id.to_owned(), process, admin: Some(admin), _port: Some(port) }
}

impl BenchPod {
    pub fn cpu(&self) -> Duration {
        cpu_time(self.process.pid())
    }

    pub fn rss_mb(&self) -> f64 {
        resident_mb(self.process.pid())
    }

    pub fn peak_rss_mb(&self) -> f64 {
        peak_resident_mb(self.process.pid())
    }

    /// SIGTERM, without waiting.
    pub fn terminate(&self) {
        self.process.terminate();
    }

    /// # Panics
    /// When it fails or does not end in time.
    pub async fn stop(self) {
        self.process.terminate();
        let ended = self.process.wait_for_exit(STOP_TIMEOUT).await;
        assert!(ended.success(), "{} failed: {}", self.id, self.process.tail());
    }

    pub async fn kill(self) {
        self.process.kill().await;
    }
}

/// Waits until a pod has finished its snapshot of nothing and follows the change stream.
async fn wait_for_stream(coordination: &Database) {
    let checkpoints = coordination.collection::<Document>("checkpoints");
    wait_for("the change stream", START_TIMEOUT, async || {
        let found = checkpoints.find_one(doc! {}).await.expect("MongoDB responds");
        let phase = found.and_then(|found| found.get_str("phase").ok().map(str::to_owned));
        if phase.as_deref() == Some("stream") { Ok(()) } else { Err(phase) }
    })
    .await;
}
