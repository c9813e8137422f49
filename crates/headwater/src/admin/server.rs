//! Starts and stops the admin server of a pod, and for each pipeline two background loops: the announcer and the status collector.
//!
//! The address is bound before the services start, so that a taken port is found at once. The server stops last, so that a drain can be
//! observed over HTTP.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use admin::{AdminServer, RunningServer, ServedPipelines, StatusCache};
use anyhow::Context;
use tokio::task::JoinSet;
use tokio::time::{sleep, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use super::heartbeats::LoopHeartbeat;
use super::snapshot::PodMonitor;
use crate::config::AdminConfig;
use crate::pods::{Announcer, PodRegistry};
use crate::status::StatusCollector;

const DEFAULT_ADDRESS: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 8080);
/// How often the status is collected while a client watches, and while none does: metrics and plots need it anyway.
const WATCHED_INTERVAL: Duration = Duration::from_millis(900);
const UNWATCHED_INTERVAL: Duration = Duration::from_secs(5);
/// How long the background loops may take to stop.
const STOP_TIMEOUT: Duration = Duration::from_secs(3);

/// A bound admin server that does not serve yet.
pub(crate) struct AdminListener {
    server: AdminServer,
}

/// The running admin server.
pub(crate) struct AdminService {
    server: RunningServer,
    stop_server: CancellationToken,
}

/// The background loops of one pipeline.
pub(crate) struct PipelineLoops {
    loops: JoinSet<()>,
    stop: CancellationToken,
}

impl AdminListener {
    /// Without an address: port 8080 of loopback, or any free port, since several pods may share a machine.
    pub(crate) fn bind(config: &AdminConfig) -> anyhow::Result<Self> {
        let server = match config.listen {
            Some(address) => AdminServer::bind(address)?,
            None => AdminServer::bind(DEFAULT_ADDRESS)
                .or_else(|_| AdminServer::bind(SocketAddr::new(DEFAULT_ADDRESS.ip(), 0)))?,
        };
        let server = server.with_hosts(config.hosts.clone());
        let server = match &config.tls {
            Some(files) => server.with_tls(files.clone())?,
            None => server,
        };
        Ok(Self { server })
    }

    /// The address for other machines. A server that listens on all interfaces is reached by the pod's name.
    pub(crate) fn announced_address(&self, pod_id: &str) -> String {
        let address = self.server.address();
        if address.ip().is_unspecified() { format!("{pod_id}:{}", address.port()) } else { address.to_string() }
    }

    pub(crate) fn start(self, pipelines: ServedPipelines) -> anyhow::Result<AdminService> {
        let stop_server = CancellationToken::new();
        let server = self.server.start(pipelines, stop_server.clone())?;
        tracing::info!(address = %server.address(), "admin server listening: dashboard, metrics and health");
        Ok(AdminService { server, stop_server })
    }
}

impl PipelineLoops {
    pub(crate) fn start(
        monitor: &Arc<PodMonitor>,
        registry: PodRegistry,
        collector: StatusCollector,
        status_cache: Arc<StatusCache>,
        address: String,
    ) -> Self {
        let (mut loops, stop) = (JoinSet::new(), CancellationToken::new());
        loops.spawn(Announcer::new(registry, Arc::clone(monitor), address).run(stop.clone()));
        let heartbeat = monitor.heartbeats().status_collector.clone();
        loops.spawn(collect_status(collector, status_cache, heartbeat, stop.clone()));
        Self { loops, stop }
    }

    /// Removes the announcement of this pod.
    pub(crate) async fn stop(mut self) {
        self.stop.cancel();
        let _ = timeout(STOP_TIMEOUT, async { while self.loops.join_next().await.is_some() {} }).await;
    }
}

impl AdminService {
    /// Returns only if the server stops unexpectedly.
    pub(crate) async fn wait_for_failure(&mut self) -> anyhow::Error {
        match self.server.ended().await {
            Ok(()) => anyhow::anyhow!("admin server stopped unexpectedly"),
            Err(error) => error.into(),
        }
    }

    pub(crate) async fn stop(mut self) -> anyhow::Result<()> {
        self.stop_server.cancel();
        self.server.ended().await.context("failed to stop the admin server")
    }
}

/// Collects the status at intervals, and more often while a client watches.
async fn collect_status(
    collector: StatusCollector,
    status_cache: Arc<StatusCache>,
    heartbeat: LoopHeartbeat,
    stop: CancellationToken,
) {
    let mut slow_reads = None;
    loop {
        let started_at = Instant::now();
        let status = tokio::select! {
            () = stop.cancelled() => return,
            // cancel-safe: it only reads
            status = collector.collect(&mut slow_reads) => status,
        };
        status_cache.store(status, started_at);
        heartbeat.beat().await;
        let pause = if status_cache.is_watched(Instant::now()) { WATCHED_INTERVAL } else { UNWATCHED_INTERVAL };
        tokio::select! {
            () = stop.cancelled() => return,
            () = sleep(pause) => {}
            // cancel-safe: notified
            () = async {
                status_cache.refresh_requested().await;
                // A client that polls every second must not make MongoDB work more often than that.
                sleep_until((started_at + WATCHED_INTERVAL).into()).await;
            }, if pause == UNWATCHED_INTERVAL => {}
        }
    }
}
