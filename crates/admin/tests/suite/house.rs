//! A server with a pod whose readings the test sets.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use admin::status::{Gathered, Leader};
use admin::{Board, Counters, Health, Operator, Pod, Running, Server, Status, Time};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_util::sync::CancellationToken;

#[derive(Default)]
pub(crate) struct Readings {
    pub(crate) health: Health,
    pub(crate) counters: Counters,
}

#[derive(Default)]
struct Fake(Mutex<Readings>);

impl Pod for Fake {
    fn health(&self, _: Instant) -> Health {
        self.0.lock().unwrap().health.clone()
    }

    fn counters(&self) -> Counters {
        self.0.lock().unwrap().counters.clone()
    }
}

pub(crate) struct House {
    pod: Arc<Fake>,
    pub(crate) board: Arc<Board>,
    address: SocketAddr,
    shutdown: CancellationToken,
    running: Running,
}

pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: String,
}

impl House {
    pub(crate) fn start() -> Self {
        Self::with(None)
    }

    pub(crate) fn with(operator: Option<Operator>) -> Self {
        let server = Server::bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let (pod, board, shutdown) = (Arc::new(Fake::default()), Arc::new(Board::default()), CancellationToken::new());
        let address = server.address();
        let running = server.start(pod.clone(), board.clone(), operator, shutdown.clone()).unwrap();
        Self { pod, board, address, shutdown, running }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) fn set(&self, change: impl FnOnce(&mut Readings)) {
        change(&mut self.pod.0.lock().unwrap());
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        self.ask("GET", path).await
    }

    pub(crate) async fn ask(&self, method: &str, path: &str) -> Answer {
        self.send(method, path, "", "").await
    }

    /// `headers`: lines, each with its end.
    pub(crate) async fn send(&self, method: &str, path: &str, headers: &str, body: &str) -> Answer {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        let length = if body.is_empty() { String::new() } else { format!("content-length: {}\r\n", body.len()) };
        let request =
            format!("{method} {path} HTTP/1.1\r\nhost: pod\r\n{headers}{length}connection: close\r\n\r\n{body}");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).await.unwrap();
        let (head, body) = text.split_once("\r\n\r\n").expect("an answer has a head");
        let status = head.split(' ').nth(1).and_then(|code| code.parse().ok()).expect("an answer has a status");
        Answer { status, head: head.to_ascii_lowercase(), body: body.to_owned() }
    }

    pub(crate) async fn stop(mut self) {
        self.shutdown.cancel();
        self.running.ended().await.unwrap();
    }
}

/// A pipeline that is well.
pub(crate) fn status() -> Status {
    let gathered = Gathered { at: Time::from_millis(1_794_758_400_000), by: "pod-0".into(), ..Gathered::default() };
    let mut status = Status::unknown("shop", gathered);
    status.leader = Some(Leader {
        pod: "pod-0".into(),
        term: 3,
        since: Some(Time::from_millis(1_794_754_800_000)),
        for_seconds: Some(3_600.0),
        heartbeat_seconds_ago: 1.5,
    });
    status
}
