//! The real broker process under measurement, with entities made over its administration API.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::process::{Child, Command};

pub struct BrokerProcess {
    child: Child,
    address: SocketAddr,
    pub ready_after: Duration,
}

/// `HEADWATER_BIN`, or the binary beside this program.
pub fn binary() -> PathBuf {
    let beside = || Some(std::env::current_exe().ok()?.with_file_name("headwater"));
    std::env::var_os("HEADWATER_BIN").map(PathBuf::from).or_else(beside).expect("a path to the headwater binary")
}

impl BrokerProcess {
    /// Starts it on a data folder and waits for its line.
    pub async fn start(data: &Path, config: Option<&Path>) -> Self {
        Self::start_with(&binary(), data, config).await
    }

    pub async fn start_with(binary: &Path, data: &Path, config: Option<&Path>) -> Self {
        let began = Instant::now();
        let mut command = Command::new(binary);
        command.args(["broker", "--listen", "127.0.0.1:0", "--data-dir"]).arg(data);
        if let Some(config) = config {
            command.arg("--config").arg(config);
        }
        let mut child =
            command.stdout(Stdio::piped()).kill_on_drop(true).spawn().expect("the headwater binary can be started");
        let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        let line = lines.next_line().await.expect("its output can be read").expect("a line when ready");
        let address = line.split_whitespace().find_map(|word| word.parse().ok()).expect("an address in its line");
        Self { child, address, ready_after: began.elapsed() }
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    pub async fn kill(mut self) {
        self.child.kill().await.expect("a child can be killed");
    }

    /// Resident memory in megabytes.
    pub fn rss_mb(&self) -> f64 {
        let pid = self.child.id().expect("it runs");
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("a process has a status");
        let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("with its memory");
        line.split_whitespace().nth(1).and_then(|kib| kib.parse::<f64>().ok()).expect("in kibibytes") / 1024.0
    }

    /// Processor time its threads have taken so far.
    pub fn cpu(&self) -> Duration {
        cpu_of(self.child.id().expect("it runs"))
    }

    /// Messages that wait in an entity.
    pub async fn waiting(&self, entity: &str) -> u64 {
        let request = format!(
            "GET /{entity}?api-version=2021-05 HTTP/1.1\r\nhost: {}\r\nconnection: close\r\n\r\n",
            self.address
        );
        let answer = self.ask(&request).await;
        let after = answer.split_once("ActiveMessageCount>").map_or("", |(_, after)| after);
        let digits: String = after.chars().take_while(char::is_ascii_digit).collect();
        digits.parse().unwrap_or_else(|_| panic!("{}", answer.lines().next().unwrap_or_default()))
    }

    /// Creates a queue with these properties, written as the administration API's elements.
    pub async fn create_queue(&self, name: &str, properties: &str) {
        let body = format!(
            "<entry xmlns=\"http://www.w3.org/2005/Atom\"><content type=\"application/xml\"><QueueDescription \
             xmlns=\"http://schemas.microsoft.com/netservices/2010/10/servicebus/connect\">{properties}</QueueDescription></content></entry>"
        );
        let request = format!(
            "PUT /{name}?api-version=2021-05 HTTP/1.1\r\nhost: {}\r\ncontent-type: application/atom+xml\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
            self.address,
            body.len()
        );
        let answer = self.ask(&request).await;
        assert!(answer.starts_with("HTTP/1.1 201"), "{}", answer.lines().next().unwrap_or_default());
    }

    async fn ask(&self, request: &str) -> String {
        let mut stream = TcpStream::connect(self.address).await.expect("the broker listens");
        stream.write_all(request.as_bytes()).await.expect("it reads");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.expect("it answers");
        answer
    }
}

/// Processor time the threads of a process have taken so far.
pub fn cpu_of(pid: u32) -> Duration {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).expect("a process has threads");
    let taken = threads.filter_map(|thread| {
        let stat = std::fs::read_to_string(thread.ok()?.path().join("schedstat")).ok()?;
        stat.split_whitespace().next()?.parse::<u64>().ok()
    });
    Duration::from_nanos(taken.sum())
}
