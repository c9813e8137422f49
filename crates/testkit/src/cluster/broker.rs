//! The broker's process: on one port and one folder, however often it is killed.

use std::ffi::OsStr;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use mongod::Port;
use tokio::time::timeout;

use super::blueprint::{Blueprint, COPY, ECHO, SUBSCRIPTION, TOPIC, connection_string};
use super::{Error, Standing, http, write};
use crate::process::{Process, Program};

const TOKEN: &str = "house";
/// With a journal to read first, on a busy machine.
const READY_WITHIN: Duration = Duration::from_secs(60);
const ANSWER_WITHIN: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub struct Broker {
    program: Program,
    process: Option<Process>,
    standing: Standing,
    address: SocketAddr,
    /// Stays ours while the broker is down.
    _port: Port,
}

impl Broker {
    pub(super) async fn start(blueprint: &Blueprint, folder: &Path) -> Result<Self, Error> {
        let config = folder.join("entities.json");
        write(&config, &blueprint.entities())?;
        let port = Port::reserve(None).map_err(Error::io("reserve a port for the broker"))?;
        let address = SocketAddr::from(([127, 0, 0, 1], port.number()));
        let program = Program::new(&blueprint.binary)
            .named("broker")
            .args(["broker", "--listen", &address.to_string(), "--test-token", TOKEN])
            .args([OsStr::new("--data-dir"), folder.join("broker").as_os_str()])
            .args([OsStr::new("--config"), config.as_os_str()]);
        let mut broker = Self { program, process: None, standing: Standing::Down, address, _port: port };
        broker.restart().await?;
        Ok(broker)
    }

    pub fn standing(&self) -> Standing {
        self.standing
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// For a client that goes around the proxies.
    pub fn connection_string(&self) -> String {
        connection_string(self.address)
    }

    /// The path of the subscription.
    pub fn subscription(&self) -> String {
        format!("{TOPIC}/Subscriptions/{SUBSCRIPTION}")
    }

    /// The path of the second subscription, where the [topic](super::Topic) has one.
    pub fn echo(&self) -> String {
        format!("{TOPIC}/Subscriptions/{ECHO}")
    }

    /// The path of the one that is read beside the pods, where the [topic](super::Topic) has one.
    pub fn copy(&self) -> String {
        format!("{TOPIC}/Subscriptions/{COPY}")
    }

    pub fn topic(&self) -> &'static str {
        TOPIC
    }

    /// SIGKILL.
    pub async fn kill(&mut self) {
        if let Some(process) = self.process.take() {
            process.kill().await;
        }
        self.standing = Standing::Down;
    }

    /// On the same port and folder; returns when it serves.
    pub async fn restart(&mut self) -> Result<(), Error> {
        let process = self.program.start()?;
        process.wait_for_line("broker ready on", READY_WITHIN).await;
        self.process = Some(process);
        self.standing = Standing::Up;
        Ok(())
    }

    /// SIGSTOP.
    pub async fn pause(&mut self) {
        if let Some(process) = &self.process {
            process.pause().await;
            self.standing = Standing::Paused;
        }
    }

    /// SIGCONT.
    pub fn resume(&mut self) {
        if let Some(process) = self.process.as_ref().filter(|_| self.standing == Standing::Paused) {
            process.resume();
            self.standing = Standing::Up;
        }
    }

    /// Arms a fault at its test hooks, written as they take it: `{"kind": "server_busy", "times": 3}`.
    pub async fn arm(&self, fault: &str) -> Result<(), Error> {
        self.ask("arm a fault", "POST", "/$test/faults", fault).await.map(drop)
    }

    pub async fn disarm(&self) -> Result<(), Error> {
        self.ask("disarm all faults", "DELETE", "/$test/faults", "").await.map(drop)
    }

    /// How often armed faults have struck since the broker started.
    pub async fn struck(&self) -> Result<u64, Error> {
        let report = self.ask("read the test hooks", "GET", "/$test/state", "").await?;
        let after = report.split_once("\"struck\":").map_or("", |(_, after)| after);
        let digits: String = after.chars().take_while(char::is_ascii_digit).collect();
        Ok(digits.parse().unwrap_or(0))
    }

    /// Messages that wait in the subscription.
    pub async fn waiting(&self) -> Result<u64, Error> {
        let path = format!("/{}?api-version=2021-05", self.subscription());
        let entry = self.ask("count messages", "GET", &path, "").await?;
        let after = entry.split_once("ActiveMessageCount>").map_or("", |(_, after)| after);
        let digits: String = after.chars().take_while(char::is_ascii_digit).collect();
        Ok(digits.parse().unwrap_or(0))
    }

    pub(super) async fn heal(&mut self) -> Result<(), Error> {
        self.resume();
        if self.standing == Standing::Down {
            self.restart().await?;
        }
        self.disarm().await
    }

    pub(super) async fn stop(&mut self, within: Duration) {
        if let Some(process) = self.process.take() {
            process.terminate();
            process.wait_for_exit(within).await;
        }
        self.standing = Standing::Down;
    }

    async fn ask(&self, doing: &'static str, method: &str, path: &str, body: &str) -> Result<String, Error> {
        let length = body.len();
        let request = format!(
            "{method} {path} HTTP/1.1\r\nhost: {}\r\nx-headwater-test-token: {TOKEN}\r\ncontent-type: application/json\r\n\
             content-length: {length}\r\nconnection: close\r\n\r\n{body}",
            self.address
        );
        let exchange = http::exchange(self.address, &request);
        let answered = timeout(ANSWER_WITHIN, exchange).await.map_err(|_| Error::NoAnswer { doing })?;
        let (head, body) = answered.map_err(Error::io(doing))?;
        let status = head.lines().next().unwrap_or_default();
        if !status.starts_with("HTTP/1.1 200") {
            return Err(Error::Refused { doing, status: status.to_owned() });
        }
        Ok(body)
    }
}
