//! The broker process: always on the same port and data folder, however often it is killed.

use std::ffi::OsStr;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use mongod::ReservedPort;
use tokio::time::timeout;

use super::config::{OBSERVER, REPUBLISH, SUBSCRIPTION, TOPIC, TestClusterConfig, connection_string};
use super::{Error, ProcessState, http, write_file};
use crate::process::{Process, Program};

const TOKEN: &str = "test";
/// The broker reads its journal first, and the machine may be busy.
const READY_TIMEOUT: Duration = Duration::from_secs(60);
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub struct ClusterBroker {
    program: Program,
    process: Option<Process>,
    state: ProcessState,
    address: SocketAddr,
    /// Reserves the port while the broker is down.
    _port: ReservedPort,
}

impl ClusterBroker {
    pub(super) async fn start(config: &TestClusterConfig, folder: &Path) -> Result<Self, Error> {
        let entities = folder.join("entities.json");
        write_file(&entities, &config.entities())?;
        let port = ReservedPort::reserve(None).map_err(Error::io("reserve a port for the broker"))?;
        let address = SocketAddr::from(([127, 0, 0, 1], port.number()));
        let program = Program::new(&config.binary)
            .named("broker")
            .args(["broker", "--listen", &address.to_string(), "--test-token", TOKEN])
            .args([OsStr::new("--data-dir"), folder.join("broker").as_os_str()])
            .args([OsStr::new("--config"), entities.as_os_str()]);
        let mut broker = Self { program, process: None, state: ProcessState::Stopped, address, _port: port };
        broker.restart().await?;
        Ok(broker)
    }

    pub fn state(&self) -> ProcessState {
        self.state
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// For a client that connects directly, not through a proxy.
    pub fn connection_string(&self) -> String {
        connection_string(self.address)
    }

    /// The path of the pods' subscription.
    pub fn subscription(&self) -> String {
        format!("{TOPIC}/Subscriptions/{SUBSCRIPTION}")
    }

    /// The path of the subscription without sessions, if [configured](super::TopicConfig).
    pub fn republish_subscription(&self) -> String {
        format!("{TOPIC}/Subscriptions/{REPUBLISH}")
    }

    /// The path of the subscription that a test reads beside the pods, if [configured](super::TopicConfig).
    pub fn observer_subscription(&self) -> String {
        format!("{TOPIC}/Subscriptions/{OBSERVER}")
    }

    pub fn topic(&self) -> &'static str {
        TOPIC
    }

    /// SIGKILL.
    pub async fn kill(&mut self) {
        if let Some(process) = self.process.take() {
            process.kill().await;
        }
        self.state = ProcessState::Stopped;
    }

    /// Starts it on the same port and folder; returns when it is ready.
    pub async fn restart(&mut self) -> Result<(), Error> {
        let process = self.program.start()?;
        process.wait_for_line("broker ready on", READY_TIMEOUT).await;
        self.process = Some(process);
        self.state = ProcessState::Running;
        Ok(())
    }

    /// SIGSTOP.
    pub async fn pause(&mut self) {
        if let Some(process) = &self.process {
            process.pause().await;
            self.state = ProcessState::Paused;
        }
    }

    /// SIGCONT.
    pub fn resume(&mut self) {
        if let Some(process) = self.process.as_ref().filter(|_| self.state == ProcessState::Paused) {
            process.resume();
            self.state = ProcessState::Running;
        }
    }

    /// Arms a fault at the broker's test hooks, in their format: `{"kind": "server_busy", "times": 3}`.
    pub async fn inject_fault(&self, fault: &str) -> Result<(), Error> {
        self.request("inject a broker fault", "POST", "/$test/faults", fault).await.map(drop)
    }

    pub async fn clear_faults(&self) -> Result<(), Error> {
        self.request("clear broker faults", "DELETE", "/$test/faults", "").await.map(drop)
    }

    /// How often injected faults took effect since the broker started.
    pub async fn injected_faults(&self) -> Result<u64, Error> {
        let report = self.request("read the test hooks", "GET", "/$test/state", "").await?;
        Ok(number_after(&report, "\"injected\":"))
    }

    /// Active messages of the pods' subscription.
    pub async fn active_messages(&self) -> Result<u64, Error> {
        let path = format!("/{}?api-version=2021-05", self.subscription());
        let entry = self.request("count messages", "GET", &path, "").await?;
        Ok(number_after(&entry, "ActiveMessageCount>"))
    }

    pub(super) async fn heal(&mut self) -> Result<(), Error> {
        self.resume();
        if self.state == ProcessState::Stopped {
            self.restart().await?;
        }
        self.clear_faults().await
    }

    pub(super) async fn stop(&mut self, within: Duration) {
        if let Some(process) = self.process.take() {
            process.terminate();
            process.wait_for_exit(within).await;
        }
        self.state = ProcessState::Stopped;
    }

    async fn request(&self, doing: &'static str, method: &str, path: &str, body: &str) -> Result<String, Error> {
        let length = body.len();
        let request = format!(
            "{method} {path} HTTP/1.1\r\nhost: {}\r\nx-headwater-test-token: {TOKEN}\r\ncontent-type: application/json\r\n\
             content-length: {length}\r\nconnection: close\r\n\r\n{body}",
            self.address
        );
        let response = timeout(RESPONSE_TIMEOUT, http::send_request(self.address, &request)).await;
        let (head, body) = response.map_err(|_| Error::NoResponse { doing })?.map_err(Error::io(doing))?;
        let status = head.lines().next().unwrap_or_default();
        if !status.starts_with("HTTP/1.1 200") {
            return Err(Error::Refused { doing, status: status.to_owned() });
        }
        Ok(body)
    }
}

fn number_after(text: &str, label: &str) -> u64 {
    let after = text.split_once(label).map_or("", |(_, after)| after);
    let digits: String = after.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().unwrap_or(0)
}
