//! A running admin server whose pod state the test sets.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use admin::status::{CollectionInfo, LeaderStatus};
use admin::{
    AdminServer, LatencyBuckets, OperatorAccess, OperatorSlot, PipelineStatus, PodHealth, PodSample, PodTelemetry,
    RunningServer, ServedPipeline, ServedPipelines, StatusCache, WallTime,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_util::sync::CancellationToken;

#[derive(Default)]
pub(crate) struct FakePodState {
    pub(crate) health: PodHealth,
    pub(crate) samples: Vec<PodSample>,
    pub(crate) latency: LatencyBuckets,
}

#[derive(Default)]
struct FakePod(Mutex<FakePodState>);

impl PodTelemetry for FakePod {
    fn health(&self, _: Instant) -> PodHealth {
        self.0.lock().unwrap().health.clone()
    }

    fn samples(&self) -> Vec<PodSample> {
        self.0.lock().unwrap().samples.clone()
    }

    fn latency(&self) -> LatencyBuckets {
        self.0.lock().unwrap().latency.clone()
    }
}

pub(crate) struct AdminFixture {
    pod: Arc<FakePod>,
    pub(crate) status_cache: Arc<StatusCache>,
    address: SocketAddr,
    shutdown: CancellationToken,
    running: RunningServer,
}

pub(crate) struct AdminReply {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: String,
}

impl AdminFixture {
    pub(crate) fn start() -> Self {
        Self::start_with(None)
    }

    pub(crate) fn start_with(operator: Option<OperatorAccess>) -> Self {
        Self::start_server(AdminServer::bind("127.0.0.1:0".parse().unwrap()).unwrap(), operator)
    }

    pub(crate) fn start_server(server: AdminServer, operator: Option<OperatorAccess>) -> Self {
        let (pod, status_cache, shutdown) =
            (Arc::new(FakePod::default()), Arc::new(StatusCache::default()), CancellationToken::new());
        let address = server.address();
        let slot = Arc::new(OperatorSlot::new(operator.is_some()));
        slot.set(operator);
        let served = ServedPipeline {
            name: "shop".into(),
            pod: pod.clone(),
            status_cache: status_cache.clone(),
            operator: slot,
        };
        let served = ServedPipelines { list: vec![served], is_list: false };
        let running = server.start(served, shutdown.clone()).unwrap();
        Self { pod, status_cache, address, shutdown, running }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) fn set(&self, change: impl FnOnce(&mut FakePodState)) {
        change(&mut self.pod.0.lock().unwrap());
    }

    pub(crate) async fn get(&self, path: &str) -> AdminReply {
        self.request("GET", path).await
    }

    pub(crate) async fn request(&self, method: &str, path: &str) -> AdminReply {
        self.send(method, path, "", "").await
    }

    /// `headers` are complete lines, each with its CRLF.
    pub(crate) async fn send(&self, method: &str, path: &str, headers: &str, body: &str) -> AdminReply {
        send_to(self.address, method, path, headers, body).await
    }

    pub(crate) async fn stop(mut self) {
        self.shutdown.cancel();
        self.running.ended().await.unwrap();
    }
}

pub(crate) async fn request_from(address: SocketAddr, method: &str, path: &str) -> AdminReply {
    send_to(address, method, path, "", "").await
}

async fn send_to(address: SocketAddr, method: &str, path: &str, headers: &str, body: &str) -> AdminReply {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let length = if body.is_empty() { String::new() } else { format!("content-length: {}\r\n", body.len()) };
    let request =
        format!("{method} {path} HTTP/1.1\r\nhost: localhost\r\n{headers}{length}connection: close\r\n\r\n{body}");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).await.unwrap();
    let (head, body) = text.split_once("\r\n\r\n").expect("a response has a head");
    let status = head.split(' ').nth(1).and_then(|code| code.parse().ok()).expect("a response has a status");
    AdminReply { status, head: head.to_ascii_lowercase(), body: body.to_owned() }
}

/// A healthy pipeline.
pub(crate) fn status() -> PipelineStatus {
    let collected = CollectionInfo {
        at: WallTime::from_millis(1_794_758_400_000),
        by: "pod-0".into(),
        ..CollectionInfo::default()
    };
    let mut status = PipelineStatus::unknown("shop", collected);
    status.leader = Some(LeaderStatus {
        pod: "pod-0".into(),
        term: 3,
        since: Some(WallTime::from_millis(1_794_754_800_000)),
        for_seconds: Some(3_600.0),
        heartbeat_seconds_ago: 1.5,
    });
    status
}
