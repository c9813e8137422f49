//! A broker process with helpers, and a bystander client that must not be affected.

use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use servicebus::{Client, Config, Message};
use tempfile::TempDir;
use testkit::process::{Process, Program};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

pub(crate) const BINARY: &str = env!("CARGO_BIN_EXE_headwater");
/// Long enough for a machine under load; no passing test waits this long.
pub(crate) const SOON: Duration = Duration::from_secs(60);
pub(crate) const BYSTANDERS_QUEUE: &str = "bystander";
pub(crate) const TOKEN: &str = "open sesame";

/// A `headwater broker` process with a data directory.
pub(crate) struct BrokerFixture {
    pub(crate) broker: Process,
    pub(crate) address: SocketAddr,
    _data: TempDir,
}

impl BrokerFixture {
    pub(crate) async fn start() -> Self {
        Self::with(&[]).await
    }

    pub(crate) async fn with(arguments: &[&str]) -> Self {
        let data = tempfile::tempdir().expect("a temporary folder");
        let program = Program::new(BINARY).args(["broker", "--data-dir"]).args([data.path()]).args(arguments);
        Self::of(program, data).await
    }

    /// Starts a broker command; `--listen` is added here.
    pub(crate) async fn of(program: Program, data: TempDir) -> Self {
        // Some tests send messages of half a megabyte.
        let program = program.named("broker").args(["--tier", "premium", "--listen", "127.0.0.1:0"]);
        let broker = program.start().expect("the binary starts");
        let ready = broker.wait_for_line("broker ready on", SOON).await;
        let address = address_in(&ready.to_string());
        Self { broker, address, _data: data }
    }

    pub(crate) fn connection_string(&self) -> String {
        let address = self.address;
        format!("Endpoint=sb://{address};SharedAccessKeyName=any;SharedAccessKey=any;UseDevelopmentEmulator=true")
    }

    pub(crate) fn client(&self) -> Client {
        let config = Config { operation_timeout: SOON, ..Config::default() };
        Client::new(&self.connection_string(), config).expect("a client")
    }

    /// Creates a queue; `settings` are elements of its description, in the service's order.
    pub(crate) async fn queue(&self, name: &str, settings: &str) {
        let body = format!(
            "<entry xmlns=\"http://www.w3.org/2005/Atom\"><content type=\"application/xml\">\
             <QueueDescription xmlns=\"http://schemas.microsoft.com/netservices/2010/10/servicebus/connect\">{settings}\
             </QueueDescription></content></entry>"
        );
        let answer = self.http("PUT", &format!("/{name}?api-version=2021-05"), "", body.as_bytes()).await;
        assert!(answer.starts_with("HTTP/1.1 201"), "{answer}");
    }

    /// See [`request`].
    pub(crate) async fn http(&self, method: &str, path: &str, headers: &str, body: &[u8]) -> String {
        request(self.address, method, path, headers, body).await
    }

    /// A `/$test` request with the token.
    pub(crate) async fn test(&self, method: &str, path: &str, body: &str) -> String {
        let token = format!("x-headwater-test-token: {TOKEN}\r\n");
        self.http(method, &format!("/$test/{path}"), &token, body.as_bytes()).await
    }

    pub(crate) async fn arm(&self, fault: &str) {
        let answer = self.test("POST", "faults", fault).await;
        assert!(answer.starts_with("HTTP/1.1 200"), "{fault}: {answer}");
    }

    /// Open file descriptors: connections and a few files.
    pub(crate) fn open_files(&self) -> usize {
        let path = Path::new("/proc").join(self.broker.pid().to_string()).join("fd");
        std::fs::read_dir(path).expect("it runs").count()
    }

    /// Resident memory in MiB: now, and at its peak.
    pub(crate) fn memory(&self) -> (u64, u64) {
        let path = Path::new("/proc").join(self.broker.pid().to_string()).join("status");
        let status = std::fs::read_to_string(path).expect("it runs");
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name)).expect("a field of every process");
            line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") / 1024
        };
        (field("VmRSS:"), field("VmHWM:"))
    }
}

/// Sends one request on a new connection; returns the whole response.
pub(crate) async fn request(address: SocketAddr, method: &str, path: &str, headers: &str, body: &[u8]) -> String {
    let head = format!(
        "{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{headers}content-length: {}\r\n\r\n",
        body.len()
    );
    let mut stream = TcpStream::connect(address).await.expect("the broker listens");
    // A broker that refuses early may not read the rest.
    let _ = stream.write_all(&[head.as_bytes(), body].concat()).await;
    let mut answer = Vec::new();
    let _ = tokio::time::timeout(SOON, stream.read_to_end(&mut answer)).await.expect("an answer in time");
    String::from_utf8_lossy(&answer).into_owned()
}

fn address_in(ready: &str) -> SocketAddr {
    ready.split_whitespace().find_map(|word| word.parse().ok()).expect("the line names the address")
}

/// A client that sends and receives all the time and records the slowest message.
pub(crate) struct Bystander {
    stop: oneshot::Sender<()>,
    running: JoinHandle<BystanderReport>,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct BystanderReport {
    pub(crate) messages: u32,
    pub(crate) slowest: Duration,
}

impl Bystander {
    pub(crate) async fn start(fixture: &BrokerFixture) -> Self {
        fixture.queue(BYSTANDERS_QUEUE, "").await;
        Self::of(fixture.client())
    }

    /// The queue is there.
    pub(crate) fn of(client: Client) -> Self {
        let (stop, mut stopped) = oneshot::channel();
        let running = tokio::spawn(async move {
            let (sender, mut receiver) = (client.sender(BYSTANDERS_QUEUE), client.receiver(BYSTANDERS_QUEUE));
            let mut report = BystanderReport { messages: 0, slowest: Duration::ZERO };
            while stopped.try_recv().is_err() {
                let begun = Instant::now();
                sender.send_message(&Message::new("still there?")).await.expect("a send");
                let received = receiver.receive(1, SOON).await.expect("a receive");
                assert_eq!(received.len(), 1, "the message is delivered");
                receiver.settler().expect("it received").complete(&received).await.expect("a settlement");
                report.slowest = report.slowest.max(begun.elapsed());
                report.messages += 1;
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            report
        });
        Self { stop, running }
    }

    /// Stops it and checks that it was served in time.
    pub(crate) async fn assert_served(self, fixture: &BrokerFixture, what: &str) {
        self.assert_unaffected(what).await;
        let (now, peak) = fixture.memory();
        println!("{what}: memory {now} MiB, peak {peak}");
    }

    /// The same for a broker in this process.
    pub(crate) async fn assert_unaffected(self, what: &str) {
        let _ = self.stop.send(());
        let report = self.running.await.expect("the bystander noticed nothing");
        println!("{what}: bystander {} messages, slowest {:?}", report.messages, report.slowest);
        assert!(report.messages > 0 && report.slowest < Duration::from_secs(10), "{what}: {report:?}");
    }
}
