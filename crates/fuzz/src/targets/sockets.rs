//! Running servers, reached over loopback.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use admin::{
    AdminServer, LatencyBuckets, OperatorSlot, PodHealth, PodSample, PodTelemetry, RunningServer, ServedPipeline,
    ServedPipelines, StatusCache,
};
use amqp::frame::ProtocolHeader;
use broker::core::{EntityDefinition, QueueDescription};
use broker::{Broker, Config, StorageLocation};
use tokio::runtime::Runtime;
use tokio_util::sync::CancellationToken;

use super::amqp_bytes;

pub(super) const HTTP_WORDS: &[&[u8]] = &[
    b"GET / HTTP/1.1\r\n",
    b"host: localhost\r\n",
    b"content-length: 99999999999999999999\r\n",
    b"transfer-encoding: chunked\r\n",
    b"\r\n\r\n",
    b"ffffffffffffffff\r\n",
    b"expect: 100-continue\r\n",
    b"upgrade: websocket\r\n",
    b"authorization: Bearer ",
    b"authorization: SharedAccessSignature sr=a&sig=b&se=1&skn=c",
    b"HTTP/0.9",
    b"%00",
    b"..%2f",
    b"AMQP\x03\x01\x00\x00",
    b"AMQP\x00\x01\x00\x00",
    b"\x16\x03\x01",
];

struct IdlePod;

impl PodTelemetry for IdlePod {
    fn health(&self, _: Instant) -> PodHealth {
        PodHealth::default()
    }

    fn samples(&self) -> Vec<PodSample> {
        vec![]
    }

    fn latency(&self) -> LatencyBuckets {
        LatencyBuckets::default()
    }
}

struct Servers {
    _runtime: Runtime,
    _admin: RunningServer,
    _broker: Broker,
    admin: SocketAddr,
    broker: SocketAddr,
    /// For actions of the broker's page.
    page_token: String,
}

/// Started once, for the life of the process: a target is a function.
static SERVERS: LazyLock<Servers> = LazyLock::new(|| {
    let loopback = SocketAddr::from(([127, 0, 0, 1], 0));
    let server = AdminServer::bind(loopback).expect("a free port");
    let served = ServedPipeline {
        name: "shop".to_owned(),
        pod: Arc::new(IdlePod),
        status_cache: Arc::new(StatusCache::default()),
        operator: Arc::new(OperatorSlot::new(false)),
    };
    let running = server.start(ServedPipelines { list: vec![served], is_list: false }, CancellationToken::new());
    let admin = running.expect("a thread");
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime");
    let mut config = Config::new(loopback, StorageLocation::Ephemeral);
    config.entities = vec![("q".to_owned(), EntityDefinition::Queue(QueueDescription::default()))];
    let broker = runtime.block_on(Broker::start(config)).expect("a broker");
    let page_token = broker.page_url().split_once("#token=").expect("a token").1.to_owned();
    let (admin_address, address) = (admin.address(), broker.address());
    Servers { admin: admin_address, broker: address, page_token, _admin: admin, _broker: broker, _runtime: runtime }
});

pub(super) fn send_to_admin(data: &[u8]) {
    exchange(SERVERS.admin, data);
}

pub(super) fn send_to_broker(data: &[u8]) {
    exchange(SERVERS.broker, data);
}

/// Stands for the token of the page, which is new in every process.
const PAGE_TOKEN: &[u8] = b"PAGE-TOKEN";

pub(super) fn send_to_page(data: &[u8]) {
    let mut request = Vec::with_capacity(data.len() + 32);
    let mut rest = data;
    while let Some(at) = rest.windows(PAGE_TOKEN.len()).position(|part| part == PAGE_TOKEN) {
        request.extend_from_slice(&rest[..at]);
        request.extend_from_slice(SERVERS.page_token.as_bytes());
        rest = &rest[at + PAGE_TOKEN.len()..];
    }
    request.extend_from_slice(rest);
    exchange(SERVERS.broker, &request);
}

pub(super) const PAGE_WORDS: &[&[u8]] = &[
    b"/$page/api/",
    b"path=q",
    b"&from=18446744073709551615",
    b"&top=4294967296",
    b"&skip=-1",
    b"&subqueue=dead-letter",
    b"&state=scheduled",
    b"&session=%00",
    b"\"messages\":[",
    b"\"sequence\":\"9223372036854775808\"",
    b"\"copies\":500",
    b"\"session\":null",
    b"[[[[[[[[",
    b"authorization: Bearer PAGE-TOKEN\r\n",
];

pub(super) fn page_requests() -> Vec<Vec<u8>> {
    let get = |path: &str| format!("GET /$page/{path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
    // Mutations change the length of the body; the head ends where the body begins.
    let post = |name: &str, body: &str| {
        format!(
            "POST /$page/api/{name} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\nauthorization: Bearer PAGE-TOKEN\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        )
    };
    let queries = ["broker.js", "api/access", "api/entities?filter=q&skip=0&top=10", "api/entity?path=q"].map(get);
    let messages = [
        "api/messages?path=q&subqueue=main&state=active&from=1&top=5",
        "api/message?path=q&sequence=1",
        "api/sessions?path=q",
        "api/session-state?path=q&session=s",
        "api/rules?path=t/Subscriptions/s",
    ];
    let actions = [
        post("check", "{}"),
        post("send", r#"{"path":"q","message":{"body":"x"},"copies":1}"#),
        post("dead-letter", r#"{"path":"q","messages":[{"sequence":"1"}],"reason":"r","description":"d"}"#),
        post("resubmit", r#"{"path":"q","subqueue":"dead-letter","messages":[{"sequence":"1","session":"s"}]}"#),
        post("resubmit-all", r#"{"path":"q","subqueue":"dead-letter","from":"1","last":"2"}"#),
        post("delete", r#"{"path":"q","messages":[{"sequence":"1"}]}"#),
        post("purge", r#"{"path":"q","state":"active"}"#),
    ];
    queries.into_iter().chain(messages.map(get)).chain(actions).map(String::into_bytes).collect()
}

/// More than a server may hold a peer that has closed its side.
const REPLY_TIMEOUT: Duration = Duration::from_secs(10);

/// Sends everything, closes the sending side and reads to the end. The server must close, with or without a reply.
fn exchange(address: SocketAddr, data: &[u8]) {
    let mut stream = TcpStream::connect(address).expect("the server accepts connections");
    stream.set_read_timeout(Some(REPLY_TIMEOUT)).expect("a timeout");
    stream.set_write_timeout(Some(REPLY_TIMEOUT)).expect("a timeout");
    // The server may close early: both may fail.
    let _ = stream.write_all(data);
    let _ = stream.shutdown(Shutdown::Write);
    let mut reply = vec![];
    let _ = stream.take(1 << 20).read_to_end(&mut reply);
}

/// Plain AMQP up to two links.
pub(super) fn amqp_conversations() -> Vec<Vec<u8>> {
    let conversation = amqp_bytes::handshake("$cbs", "events/$management");
    let frames_only = conversation[ProtocolHeader::Amqp.bytes().len()..].to_vec();
    vec![conversation, frames_only]
}

pub(super) fn http_requests() -> Vec<Vec<u8>> {
    let requests = [
        "GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n",
        "GET /metrics HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n",
        "POST /api/step-down HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer x\r\ncontent-length: 2\r\n\r\n{}",
        "PUT /queue?api-version=2021-05 HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/xml\r\ncontent-length: 7\r\n\r\n<entry>",
        "GET /$servicebus/websocket HTTP/1.1\r\nhost: localhost\r\nupgrade: websocket\r\nconnection: upgrade\r\nsec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n",
    ];
    requests.map(|request| request.as_bytes().to_vec()).to_vec()
}
