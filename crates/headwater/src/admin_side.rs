//! A pod's HTTP side, and the two loops behind it: the one that announces this pod, and the one that gathers what all pods announce.
//!
//! Its door is opened before the services are started, so that an address that is taken is found at once; it is stopped last, so that a drain can
//! be watched.

mod hearts;
mod pulses;
mod readings;
mod words;

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use admin::{Board, Operator, Running, Server};
use anyhow::Context;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

pub(crate) use hearts::Heart;
pub(crate) use readings::{Parts, Readings};

use crate::pods::{Announcer, Register};
use crate::status::Observer;

/// Where it is served when nobody says.
const USUAL: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 8080);
/// How often the status is gathered while somebody looks, and while nobody does: for the plots' sake, and for metrics.
const WATCHED: Duration = Duration::from_millis(900);
const UNWATCHED: Duration = Duration::from_secs(5);
/// What the farewells may take.
const STOPPED_WITHIN: Duration = Duration::from_secs(3);

/// Bound, and not yet serving.
pub(crate) struct Door {
    server: Server,
}

/// The HTTP side at work.
pub(crate) struct Side {
    readings: Arc<Readings>,
    server: Running,
    loops: JoinSet<()>,
    stop: CancellationToken,
    server_stop: CancellationToken,
}

impl Door {
    /// Without an address: port 8080 of loopback, or any other that is free, since several pods may share a machine.
    pub(crate) fn open(listen: Option<SocketAddr>) -> anyhow::Result<Self> {
        let server = match listen {
            Some(address) => Server::bind(address)?,
            None => Server::bind(USUAL).or_else(|_| Server::bind(SocketAddr::new(USUAL.ip(), 0)))?,
        };
        Ok(Self { server })
    }

    /// As other machines would reach it: where it listens on all addresses, by the pod's name.
    fn announced(&self, pod_id: &str) -> String {
        let address = self.server.address();
        if address.ip().is_unspecified() { format!("{pod_id}:{}", address.port()) } else { address.to_string() }
    }

    /// Without an operator everything it serves is for reading.
    pub(crate) fn start(
        self,
        parts: Parts,
        register: Register,
        observer: Observer,
        operator: Option<Operator>,
    ) -> anyhow::Result<Side> {
        let (stop, server_stop, board) =
            (CancellationToken::new(), CancellationToken::new(), Arc::new(Board::default()));
        let address = self.announced(&parts.pod_id);
        let readings = Arc::new(Readings::new(parts, Arc::clone(&board)));
        let server = self.server.start(readings.clone(), Arc::clone(&board), operator, server_stop.clone())?;
        tracing::info!(address = %server.address(), "dashboard, metrics and health are served");
        let mut loops = JoinSet::new();
        loops.spawn(Announcer::new(register, readings.clone(), address).run(stop.clone()));
        loops.spawn(gather(observer, board, readings.hearts().gather.clone(), stop.clone()));
        Ok(Side { readings, server, loops, stop, server_stop })
    }
}

impl Side {
    pub(crate) fn readings(&self) -> Arc<Readings> {
        Arc::clone(&self.readings)
    }

    /// Returns only if the server ends before its time.
    pub(crate) async fn died(&mut self) -> anyhow::Error {
        match self.server.ended().await {
            Ok(()) => anyhow::anyhow!("the dashboard's server ended before its time"),
            Err(error) => error.into(),
        }
    }

    /// Takes the announcement away, then closes the door.
    pub(crate) async fn stop(mut self) -> anyhow::Result<()> {
        self.stop.cancel();
        let _ = timeout(STOPPED_WITHIN, async { while self.loops.join_next().await.is_some() {} }).await;
        self.server_stop.cancel();
        self.server.ended().await.context("stop the dashboard")
    }
}

/// Gathers now and then, and more often while somebody looks.
async fn gather(observer: Observer, board: Arc<Board>, heart: Heart, stop: CancellationToken) {
    let mut slow = None;
    loop {
        let gathered = tokio::select! {
            () = stop.cancelled() => return,
            // cancel-safe: it only reads
            gathered = observer.gather(&mut slow) => gathered,
        };
        board.post(gathered, Instant::now());
        heart.beat().await;
        let pause = if board.is_watched(Instant::now()) { WATCHED } else { UNWATCHED };
        tokio::select! {
            () = stop.cancelled() => return,
            () = sleep(pause) => {}
            // cancel-safe: notified
            () = async {
                board.asked().await;
                // Whoever asks every second is one who looks, not a reason to ask MongoDB more often.
                sleep(WATCHED).await;
            }, if pause == UNWATCHED => {}
        }
    }
}
