//! The broker process: always on the same port and data folder, however often it is killed.

use std::ffi::OsStr;
use std::io;
use std::net::SocketAddr;
use std::ops::{Deref, DerefMut};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use mongod::ReservedPort;
use tokio::time::timeout;

use crate::access::{BrokerAccess, BrokerCertificate};
use crate::endpoint::BrokerEndpoint;
use crate::managed_process::ManagedProcess;
use crate::process::{self, Program};

/// The broker reads its journal first, and the machine may be busy.
const READY_TIMEOUT: Duration = Duration::from_secs(60);
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(10);
const TEST_TOKEN: &str = "test";

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Process(#[from] process::Error),
    #[error("failed to {doing}")]
    Io {
        doing: &'static str,
        #[source]
        source: io::Error,
    },
    #[error("failed to {doing}: no response in time")]
    NoResponse { doing: &'static str },
    #[error("failed to {doing}: the broker responded `{status}`")]
    Refused { doing: &'static str, status: String },
}

/// How to start the broker.
#[derive(Clone, Debug)]
pub struct BrokerOptions {
    /// The `headwater` program.
    pub binary: PathBuf,
    pub data_dir: PathBuf,
    /// A file with entities, in the format of the official emulator.
    pub entities: Option<PathBuf>,
    /// Whether the broker serves its test hooks.
    pub test_hooks: bool,
    /// With it, clients need a key, and TLS if it has a certificate.
    pub access: Option<BrokerAccess>,
    /// Further arguments.
    pub arguments: Vec<String>,
    /// Environment variables.
    pub environment: Vec<(String, String)>,
}

impl BrokerOptions {
    /// `headwater broker` on this address.
    pub fn program(&self, address: SocketAddr) -> Program {
        let program = Program::new(&self.binary)
            .named("broker")
            .args(["broker", "--listen", &address.to_string()])
            .args([OsStr::new("--data-dir"), self.data_dir.as_os_str()]);
        let entities = self.entities.iter().flat_map(|file| [OsStr::new("--config"), file.as_os_str()]);
        let test_hooks = self.test_hooks.then_some(["--test-token", TEST_TOKEN]);
        let access = self.access.iter().flat_map(|access| {
            let tls = access.certificate.iter().flat_map(|BrokerCertificate { certificate, private_key, .. }| {
                let files = [
                    OsStr::new("--tls-cert"),
                    certificate.as_os_str(),
                    OsStr::new("--tls-key"),
                    private_key.as_os_str(),
                ];
                files.into_iter().chain([OsStr::new("--require-tls")])
            });
            tls.chain([OsStr::new("--keys"), access.keys.as_os_str()])
        });
        let program = program.args(entities).args(test_hooks.into_iter().flatten()).args(access).args(&self.arguments);
        self.environment.iter().fold(program, |program, (key, value)| program.env(key, value))
    }
}

#[derive(Debug)]
pub struct BrokerProcess {
    process: ManagedProcess,
    endpoint: BrokerEndpoint,
    ready_after: Duration,
    /// Reserves the port while the broker is down.
    _port: ReservedPort,
}

impl BrokerProcess {
    /// Starts it on a free port; returns when it is ready.
    pub async fn start(options: &BrokerOptions) -> Result<Self, Error> {
        let reserve = |source| Error::Io { doing: "reserve a port for the broker", source };
        let port = ReservedPort::reserve(None).map_err(reserve)?;
        let address = SocketAddr::from(([127, 0, 0, 1], port.number()));
        let process = ManagedProcess::new(options.program(address));
        let endpoint = BrokerEndpoint { address, access: options.access.clone() };
        let mut broker = Self { process, endpoint, ready_after: Duration::ZERO, _port: port };
        broker.restart().await?;
        Ok(broker)
    }

    /// Starts it on the same port and folder; returns when it is ready. [`ManagedProcess::start`] does not wait.
    pub async fn restart(&mut self) -> Result<(), Error> {
        let started = Instant::now();
        let ready = self.process.start()?.wait_for_line("broker ready on", READY_TIMEOUT).await;
        self.ready_after = ready.at.saturating_duration_since(started);
        Ok(())
    }

    /// # Panics
    /// When it is not running.
    pub fn pid(&self) -> u32 {
        self.process().expect("the broker is running").pid()
    }

    pub fn address(&self) -> SocketAddr {
        self.endpoint.address
    }

    /// What clients need to reach it.
    pub fn endpoint(&self) -> &BrokerEndpoint {
        &self.endpoint
    }

    /// How long its last start took.
    pub fn ready_after(&self) -> Duration {
        self.ready_after
    }

    /// Active messages of a queue or subscription.
    pub async fn active_messages(&self, entity: &str) -> Result<u64, Error> {
        self.count_messages(entity, ":ActiveMessageCount>").await
    }

    /// Messages in the dead-letter queue of a queue or subscription.
    pub async fn dead_letter_messages(&self, entity: &str) -> Result<u64, Error> {
        self.count_messages(entity, ":DeadLetterMessageCount>").await
    }

    async fn count_messages(&self, entity: &str, count: &str) -> Result<u64, Error> {
        let path = format!("/{entity}?api-version=2021-05");
        Ok(number_after(&self.request("count messages", "GET", &path, "").await?, count))
    }

    /// Creates a queue with these properties, written as elements of the administration API.
    pub async fn create_queue(&self, name: &str, properties: &str) -> Result<(), Error> {
        let body = format!(
            "<entry xmlns=\"http://www.w3.org/2005/Atom\"><content type=\"application/xml\"><QueueDescription \
             xmlns=\"http://schemas.microsoft.com/netservices/2010/10/servicebus/connect\">{properties}</QueueDescription></content></entry>"
        );
        self.request("create a queue", "PUT", &format!("/{name}?api-version=2021-05"), &body).await.map(drop)
    }

    /// Arms a fault at the broker's test hooks, in their format: `{"kind": "server_busy", "times": 3}`.
    pub async fn inject_fault(&self, fault: &str) -> Result<(), Error> {
        self.request("inject a broker fault", "POST", "/$test/faults", fault).await.map(drop)
    }

    pub async fn clear_faults(&self) -> Result<(), Error> {
        self.request("clear broker faults", "DELETE", "/$test/faults", "").await.map(drop)
    }

    /// Advances the broker's clock at its test hooks.
    pub async fn advance_clock(&self, by: Duration) -> Result<(), Error> {
        let body = format!("{{\"advance_ms\": {}}}", by.as_millis());
        self.request("advance the broker's clock", "POST", "/$test/clock", &body).await.map(drop)
    }

    /// How often injected faults took effect since the broker started.
    pub async fn injected_faults(&self) -> Result<u64, Error> {
        Ok(number_after(&self.request("read the test hooks", "GET", "/$test/state", "").await?, "\"injected\":"))
    }

    async fn request(&self, doing: &'static str, method: &str, path: &str, body: &str) -> Result<String, Error> {
        let token = format!("x-headwater-test-token: {TEST_TOKEN}\r\n");
        let response = timeout(RESPONSE_TIMEOUT, self.endpoint.request(method, path, &token, body)).await;
        let response = response.map_err(|_| Error::NoResponse { doing })?;
        let (head, body) = response.map_err(|source| Error::Io { doing, source })?;
        let status = head.lines().next().unwrap_or_default();
        if !status.starts_with("HTTP/1.1 20") {
            return Err(Error::Refused { doing, status: status.to_owned() });
        }
        Ok(body)
    }
}

impl Deref for BrokerProcess {
    type Target = ManagedProcess;

    fn deref(&self) -> &ManagedProcess {
        &self.process
    }
}

impl DerefMut for BrokerProcess {
    fn deref_mut(&mut self) -> &mut ManagedProcess {
        &mut self.process
    }
}

fn number_after(text: &str, label: &str) -> u64 {
    let after = text.split_once(label).map_or("", |(_, after)| after);
    let digits: String = after.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().unwrap_or(0)
}
