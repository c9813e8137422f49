//! Pods of a test cluster, with an HTTP client for their admin servers.

use std::net::SocketAddr;
use std::time::Duration;

use mongodb::bson::{Document, doc};
use serde_json::Value as Json;
use servicebus::{Client, Config};
use testkit::cluster::{self, MongoTopology, TestClusterConfig};
use testkit::process::{OutputStream, Process, Program};
use testkit::wait::wait_for;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::BINARY;

pub(crate) const SOON: Duration = Duration::from_secs(60);

/// One read model that takes every order.
pub(crate) const READ_MODELS: &str =
    "read_models: { orders: { when: { Placed: { $set: { customer: $$event.payload.customer } } } } }\n";

/// In the body of every event, and nowhere else.
pub(crate) const CUSTOMER: &str = "ann of the mill";

/// A test cluster whose pods run and follow the change stream.
pub(crate) struct PodFixture(pub(crate) cluster::TestCluster);

pub(crate) struct PodReply {
    pub(crate) status: u16,
    pub(crate) body: String,
}

pub(crate) fn cluster_config(mongo: MongoTopology) -> TestClusterConfig {
    TestClusterConfig { pods: 1, mongo, extra_yaml: READ_MODELS.into(), ..TestClusterConfig::new(BINARY) }
}

impl PodFixture {
    pub(crate) async fn start(config: TestClusterConfig) -> Self {
        let mut fixture = cluster::TestCluster::start(config).await.unwrap();
        fixture.start_pods().unwrap();
        fixture.wait_for_leader(SOON).await.unwrap();
        fixture.wait_for_stream_phase(SOON).await.unwrap();
        Self(fixture)
    }

    /// A client that may do everything.
    pub(crate) fn bus_client(&self) -> Client {
        self.0.broker().client(Config::default())
    }

    pub(crate) fn pod(&self) -> &Process {
        self.0.pod(0).process().expect("the pod runs")
    }

    /// The admin address, which is on any free port.
    pub(crate) async fn address_of(&self, pod: usize) -> SocketAddr {
        let pod = self.0.pod(pod).process().expect("the pod runs");
        let line = pod.wait_for_line("admin server listening", SOON).await.text;
        let line: Json = serde_json::from_str(&line).unwrap();
        line["address"].as_str().and_then(|address| address.parse().ok()).expect("the line has an address")
    }

    pub(crate) async fn get(&self, path: &str) -> PodReply {
        self.get_of(0, path).await
    }

    pub(crate) async fn get_of(&self, pod: usize, path: &str) -> PodReply {
        self.send(pod, &format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")).await
    }

    /// `token`: sent as bearer token.
    pub(crate) async fn post(&self, path: &str, token: Option<&str>, body: &str) -> PodReply {
        let header = token.map_or(String::new(), |token| format!("authorization: Bearer {token}\r\n"));
        self.request(&header, "POST", path, body).await
    }

    pub(crate) async fn request_with(&self, token: &str, method: &str, path: &str, body: &str) -> PodReply {
        self.request(&format!("authorization: Bearer {token}\r\n"), method, path, body).await
    }

    async fn request(&self, header: &str, method: &str, path: &str, body: &str) -> PodReply {
        let head = format!("{method} {path} HTTP/1.1\r\nhost: localhost\r\n{header}content-length: {}", body.len());
        self.send(0, &format!("{head}\r\nconnection: close\r\n\r\n{body}")).await
    }

    async fn send(&self, pod: usize, request: &str) -> PodReply {
        let mut stream = TcpStream::connect(self.address_of(pod).await).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).await.unwrap();
        let (head, body) = text.split_once("\r\n\r\n").expect("a response has a head");
        let status = head.split(' ').nth(1).and_then(|code| code.parse().ok()).expect("a response has a status");
        PodReply { status, body: body.to_owned() }
    }

    pub(crate) async fn json(&self, path: &str) -> Json {
        let reply = self.get(path).await;
        serde_json::from_str(&reply.body).unwrap_or(Json::Null)
    }

    /// The value of one sample of `/metrics`, given with its labels.
    pub(crate) async fn metric(&self, sample: &str) -> Option<f64> {
        let page = self.get("/metrics").await.body;
        let value = |line: &str| line.strip_prefix(sample)?.strip_prefix(' ')?.parse().ok();
        page.lines().find_map(value)
    }

    pub(crate) async fn insert(&self, aggregate: &str, version: i64) {
        self.insert_type("Placed", aggregate, version).await;
    }

    pub(crate) async fn insert_type(&self, kind: &str, aggregate: &str, version: i64) {
        let event = doc! {
            "aggregateId": aggregate, "version": version, "type": kind, "payload": { "customer": CUSTOMER },
        };
        self.0.events().insert_one(event).await.unwrap();
    }

    pub(crate) async fn wait_for_applied(&self, aggregate: &str) {
        let views = self.0.mongo().client().database(&self.views_database());
        let orders = views.collection::<Document>("orders");
        wait_for("the read model", SOON, async || match orders.find_one(doc! { "_id": aggregate }).await {
            Ok(Some(_)) => Ok(()),
            other => Err(format!("{other:?}")),
        })
        .await;
    }

    pub(crate) fn views_database(&self) -> String {
        format!("{}_views", self.0.mongo().source())
    }

    /// The output of a command with the configuration of the pod.
    pub(crate) async fn run_command(&self, arguments: &[&str]) -> String {
        let program = Program::new(BINARY).env("RUST_LOG", "off").args(arguments);
        let process = program.args(["--config", self.0.pod(0).config().to_str().unwrap()]).start().unwrap();
        process.wait_for_exit(SOON).await;
        let out = process.lines().into_iter().filter(|line| line.stream == OutputStream::Stdout);
        out.map(|line| line.text + "\n").collect()
    }

    /// Stops everything, and checks that no process died.
    pub(crate) async fn stop(mut self) {
        self.0.stop_pods().await;
        let views = self.0.mongo().client().database(&self.views_database());
        views.drop().await.unwrap();
        assert!(self.0.unexpected_exits().is_empty(), "{}", self.0.unexpected_exits()[0]);
        self.0.stop().await;
    }
}
