//! A pipeline whose servers run, without pods, and the commands of the built binary.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::Duration;

use broker::{Config, StorageLocation};
use mongodb::IndexModel;
use mongodb::bson::{Document, doc};
use servicebus::administration::AdministrationClient;
use tempfile::TempDir;
use testkit::bus::TestBroker;
use testkit::mongo::{ScratchDatabase, shared};
use testkit::process::{OutputStream, Process, Program};

pub(crate) const SOON: Duration = Duration::from_secs(60);

pub(crate) struct CliFixture {
    pub(crate) source: ScratchDatabase,
    pub(crate) views: ScratchDatabase,
    pub(crate) coordination: ScratchDatabase,
    pub(crate) broker: TestBroker,
    folder: TempDir,
}

/// The output and exit status of a command.
pub(crate) struct CommandOutput {
    pub(crate) status: ExitStatus,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl CliFixture {
    /// `more`: the rest of the configuration, as YAML.
    pub(crate) async fn new(purpose: &str, more: &str) -> Self {
        let shared = shared().await.unwrap();
        let [source, views, coordination] =
            ["source", "views", "pods"].map(|part| shared.database(&format!("{purpose}_{part}")));
        let index = IndexModel::builder().keys(doc! { "aggregateId": 1, "version": 1 }).build();
        source.collection::<Document>("events").create_index(index).await.unwrap();
        let config = Config::new(SocketAddr::from(([127, 0, 0, 1], 0)), StorageLocation::Ephemeral);
        let broker = TestBroker::start(config).await;
        let fixture = Self { source, views, coordination, broker, folder: tempfile::tempdir().unwrap() };
        fixture.configure(shared.uri(), more);
        fixture
    }

    pub(crate) fn configure(&self, uri: &str, more: &str) {
        let Self { source, views, coordination, broker, .. } = self;
        let [source, views, coordination] = [source, views, coordination].map(|database| database.name());
        let bus = broker.endpoint().connection_string();
        let ca_file =
            broker.endpoint().ca_file().map_or(String::new(), |file| format!(", ca_file: {}", file.display()));
        let more = more.replace("VIEWS", views);
        let text = format!(
            "format: 1
pipeline: shop
source: {{ uri: \"{uri}\", database: {source}, collection: events, sequence: version }}
coordination: {{ database: {coordination}, lease: {{ ttl: 2s, renew_deadline: 1500ms, heartbeat: 500ms }} }}
service_bus: {{ connection_string: \"{bus}\"{ca_file} }}
{more}"
        );
        std::fs::write(self.config_path(), text).unwrap();
    }

    /// Changes the text of the configuration.
    pub(crate) fn edit_config(&self, edit: impl FnOnce(String) -> String) {
        let text = std::fs::read_to_string(self.config_path()).unwrap();
        std::fs::write(self.config_path(), edit(text)).unwrap();
    }

    /// The folder of `headwater.yaml`.
    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    fn config_path(&self) -> PathBuf {
        self.folder.path().join("headwater.yaml")
    }

    pub(crate) fn administration(&self) -> AdministrationClient {
        self.broker.administration()
    }

    pub(crate) async fn insert(&self, id: &str, version: i64, kind: &str, payload: Document) {
        let event = doc! { "aggregateId": id, "version": version, "type": kind, "payload": payload };
        self.source.collection("events").insert_one(event).await.unwrap();
    }

    pub(crate) fn start_pod(&self, name: &str) -> Process {
        self.start_pod_with(name, &[])
    }

    pub(crate) fn start_pod_with(&self, name: &str, arguments: &[&str]) -> Process {
        let program = Program::new(env!("CARGO_BIN_EXE_headwater")).named(name).env("HOSTNAME", name);
        program.args(["run", "--config", self.config_path().to_str().unwrap()]).args(arguments).start().unwrap()
    }

    /// The recorded actions of operators, the newest first.
    pub(crate) async fn history(&self) -> Vec<String> {
        let history = self.run(&["history", "--json"]).await.json();
        history.as_array().unwrap().iter().map(|action| action["action"].as_str().unwrap().to_owned()).collect()
    }

    /// Runs a command until it exits.
    pub(crate) async fn run(&self, arguments: &[&str]) -> CommandOutput {
        let program = Program::new(env!("CARGO_BIN_EXE_headwater")).env("RUST_LOG", "off");
        let process = program.args(arguments).args(["--config", self.config_path().to_str().unwrap()]).start().unwrap();
        let status = process.wait_for_exit(SOON).await;
        let output = |stream: OutputStream| {
            let lines = process.lines().into_iter().filter(|line| line.stream == stream);
            lines.map(|line| line.text + "\n").collect::<String>()
        };
        CommandOutput { status, stdout: output(OutputStream::Stdout), stderr: output(OutputStream::Stderr) }
    }
}

impl CommandOutput {
    /// Stdout of a command that must succeed.
    pub(crate) fn success(self) -> String {
        assert!(self.status.success(), "{}\n{}", self.stdout, self.stderr);
        self.stdout
    }

    /// Stderr of a command that must fail.
    pub(crate) fn failure(self) -> String {
        assert!(!self.status.success(), "{}", self.stdout);
        self.stderr
    }

    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|_| panic!("no JSON: {}\n{}", self.stdout, self.stderr))
    }
}
