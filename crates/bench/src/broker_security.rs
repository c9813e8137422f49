//! What keys and TLS cost: the loads of the broker bench by turns on a plain broker, on one with keys, and on one with keys and TLS.

use std::io;
use std::path::Path;
use std::time::Instant;

use amqp::message::{BatchBuilder, FORMAT};
use bytes::Bytes;
use local_cluster::usage::cpu_time;
use local_cluster::{BrokerAccess, BrokerOptions, BrokerProcess};

use crate::broker_load::{AcceptLoad, SingleSessionReceiver, batches, messages, send};
use crate::processes::headwater_binary;

const BODY: usize = 1024;
const QUEUE: &str = "<MaxSizeInMegabytes>5120</MaxSizeInMegabytes>";
const SESSIONS: &str = "<RequiresSession>true</RequiresSession><MaxSizeInMegabytes>5120</MaxSizeInMegabytes>";
const CONSUMER: AcceptLoad = AcceptLoad { connections: 8, sessions: 8, credit: 1 };

pub const LOADS: [&str; 4] = ["single", "batch", "receive", "accepts"];

/// What a broker requires of its clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BrokerSecurity {
    Plain,
    Keys,
    KeysAndTls,
}

impl BrokerSecurity {
    pub const ALL: [Self; 3] = [Self::Plain, Self::Keys, Self::KeysAndTls];

    pub fn name(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::Keys => "keys",
            Self::KeysAndTls => "keys, TLS",
        }
    }

    /// Its name in JSON.
    pub fn key(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::Keys => "keys",
            Self::KeysAndTls => "tls",
        }
    }

    fn access(self, folder: &Path) -> io::Result<Option<BrokerAccess>> {
        let access = testkit::bus::create_access(folder)?;
        Ok(match self {
            Self::Plain => None,
            Self::Keys => Some(BrokerAccess { certificate: None, ..access }),
            Self::KeysAndTls => Some(access),
        })
    }
}

/// Messages per second, and microseconds of the broker's CPU for each.
#[derive(Clone, Copy, Debug)]
pub struct LoadFigure {
    pub rate: f64,
    pub cpu_us: f64,
}

/// The figures of each of the [`LOADS`] on a new broker.
pub async fn measure(security: BrokerSecurity, count: u64) -> io::Result<[LoadFigure; 4]> {
    let folder = tempfile::tempdir()?;
    let options = BrokerOptions {
        binary: headwater_binary(),
        data_dir: folder.path().join("broker"),
        entities: None,
        test_hooks: false,
        access: security.access(folder.path())?,
        arguments: vec![],
        environment: vec![],
    };
    let broker = BrokerProcess::start(&options).await.map_err(io::Error::other)?;
    for (name, properties) in [("single", QUEUE), ("batch", SESSIONS), ("short", SESSIONS)] {
        broker.create_queue(name, properties).await.map_err(io::Error::other)?;
    }
    let endpoint = broker.endpoint();
    let made: Vec<Bytes> = messages(0..count, 1, BODY).collect();
    let single = time(&broker, count, send(endpoint, "single", made.iter().cloned(), FORMAT)).await?;
    let made = batches(made.into_iter());
    let batch = time(&broker, count, send(endpoint, "batch", made, BatchBuilder::FORMAT)).await?;
    let receiver = SingleSessionReceiver::accept(endpoint, "batch", "session-0").await?;
    let receive = time(&broker, count, receiver.receive(count as usize)).await?;
    let accepts = count / 5;
    send(endpoint, "short", batches(messages(0..accepts, accepts, BODY)), BatchBuilder::FORMAT).await?;
    let accepts = time(&broker, accepts, CONSUMER.complete_messages(endpoint, "short", accepts)).await?;
    Ok([single, batch, receive, accepts])
}

async fn time(
    broker: &BrokerProcess,
    count: u64,
    load: impl Future<Output = io::Result<()>>,
) -> io::Result<LoadFigure> {
    let (began, before) = (Instant::now(), cpu_time(broker.pid()));
    load.await?;
    let cpu = cpu_time(broker.pid()).saturating_sub(before).as_secs_f64();
    Ok(LoadFigure { rate: count as f64 / began.elapsed().as_secs_f64(), cpu_us: cpu * 1e6 / count as f64 })
}
