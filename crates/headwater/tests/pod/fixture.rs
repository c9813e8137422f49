//! Pods of `testkit`'s fixture, asked over HTTP.

use std::net::SocketAddr;
use std::time::Duration;

use mongodb::bson::{Document, doc};
use serde_json::Value as Json;
use testkit::cluster::{self, MongoTopology, TestClusterConfig};
use testkit::process::{OutputStream, Process, Program};
use testkit::wait::wait_for;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::BINARY;

pub(crate) const SOON: Duration = Duration::from_secs(60);

/// One read model, of everything.
pub(crate) const READ_MODELS: &str =
    "read_models: { orders: { when: { Placed: { $set: { customer: $$event.payload.customer } } } } }\n";

/// In every event's body, and nowhere else.
pub(crate) const CUSTOMER: &str = "ann of the mill";

/// The fixture, with pods that run and follow the stream.
pub(crate) struct PodFixture(pub(crate) cluster::TestCluster);

pub(crate) struct HttpReply {
    pub(crate) status: u16,
    pub(crate) body: String,
}

pub(crate) fn blueprint(store: MongoTopology) -> TestClusterConfig {
    TestClusterConfig { pods: 1, mongo: store, extra_yaml: READ_MODELS.into(), ..TestClusterConfig::new(BINARY) }
}

impl PodFixture {
    pub(crate) async fn start(blueprint: TestClusterConfig) -> Self {
        let mut fixture = cluster::TestCluster::start(blueprint).await.unwrap();
        fixture.start_pods().unwrap();
        fixture.wait_for_leader(SOON).await.unwrap();
        fixture.wait_for_stream_phase(SOON).await.unwrap();
        Self(fixture)
    }

    pub(crate) fn pod(&self) -> &Process {
        self.0.pod(0).process().expect("the pod runs")
    }

    /// Of a pod's HTTP side, which takes any port that is free.
    pub(crate) async fn address_of(&self, pod: usize) -> SocketAddr {
        let pod = self.0.pod(pod).process().expect("the pod runs");
        let line = pod.wait_for_line("dashboard, metrics and health are served", SOON).await.text;
        let line: Json = serde_json::from_str(&line).unwrap();
        line["address"].as_str().and_then(|address| address.parse().ok()).expect("the line has an address")
    }

    pub(crate) async fn get(&self, path: &str) -> HttpReply {
        self.get_of(0, path).await
    }

    pub(crate) async fn get_of(&self, pod: usize, path: &str) -> HttpReply {
        self.send(pod, &format!("GET {path} HTTP/1.1\r\nhost: pod\r\nconnection: close\r\n\r\n")).await
    }

    /// With a token, if any.
    pub(crate) async fn post(&self, path: &str, token: Option<&str>, body: &str) -> HttpReply {
        let header = token.map_or(String::new(), |token| format!("authorization: Bearer {token}\r\n"));
        self.ask_by(&header, "POST", path, body).await
    }

    pub(crate) async fn ask_with(&self, token: &str, method: &str, path: &str, body: &str) -> HttpReply {
        self.ask_by(&format!("authorization: Bearer {token}\r\n"), method, path, body).await
    }

    async fn ask_by(&self, header: &str, method: &str, path: &str, body: &str) -> HttpReply {
        let head = format!("{method} {path} HTTP/1.1\r\nhost: pod\r\n{header}content-length: {}", body.len());
        self.send(0, &format!("{head}\r\nconnection: close\r\n\r\n{body}")).await
    }

    async fn send(&self, pod: usize, request: &str) -> HttpReply {
        let mut stream = TcpStream::connect(self.address_of(pod).await).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).await.unwrap();
        let (head, body) = text.split_once("\r\n\r\n").expect("an answer has a head");
        let status = head.split(' ').nth(1).and_then(|code| code.parse().ok()).expect("an answer has a status");
        HttpReply { status, body: body.to_owned() }
    }

    pub(crate) async fn json(&self, path: &str) -> Json {
        let answer = self.get(path).await;
        serde_json::from_str(&answer.body).unwrap_or(Json::Null)
    }

    /// One sample of `/metrics`, named with its labels.
    pub(crate) async fn metric(&self, sample: &str) -> Option<f64> {
        let page = self.get("/metrics").await.body;
        let value = |line: &str| line.strip_prefix(sample)?.strip_prefix(' ')?.parse().ok();
        page.lines().find_map(value)
    }

    pub(crate) async fn insert(&self, aggregate: &str, version: i64) {
        self.insert_of("Placed", aggregate, version).await;
    }

    pub(crate) async fn insert_of(&self, kind: &str, aggregate: &str, version: i64) {
        let event = doc! {
            "aggregateId": aggregate, "version": version, "type": kind, "payload": { "customer": CUSTOMER },
        };
        self.0.events().insert_one(event).await.unwrap();
    }

    pub(crate) async fn applied(&self, aggregate: &str) {
        let views = self.0.mongo().client().database(&self.views());
        let orders = views.collection::<Document>("orders");
        wait_for("the read model", SOON, async || match orders.find_one(doc! { "_id": aggregate }).await {
            Ok(Some(_)) => Ok(()),
            other => Err(format!("{other:?}")),
        })
        .await;
    }

    pub(crate) fn views(&self) -> String {
        format!("{}_views", self.0.mongo().source())
    }

    /// What a command says of the pod's pipeline.
    pub(crate) async fn ask(&self, arguments: &[&str]) -> String {
        let program = Program::new(BINARY).env("RUST_LOG", "off").args(arguments);
        let process = program.args(["--config", self.0.pod(0).config().to_str().unwrap()]).start().unwrap();
        process.wait_for_exit(SOON).await;
        let out = process.lines().into_iter().filter(|line| line.stream == OutputStream::Stdout);
        out.map(|line| line.text + "\n").collect()
    }

    /// Everything ends well.
    pub(crate) async fn stop(mut self) {
        self.0.stop_pods().await;
        let views = self.0.mongo().client().database(&self.views());
        views.drop().await.unwrap();
        assert!(self.0.unexpected_exits().is_empty(), "{}", self.0.unexpected_exits()[0]);
        self.0.stop().await;
    }
}
