//! A pod's HTTP side, and the two loops behind it: the one that announces this pod, and the one that gathers what all pods announce.
//!
//! Its door is opened before the services are started, so that an address that is taken is found at once; it is stopped last, so that a drain can
//! be watched.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use admin::{AdminServer, OperatorAccess, RunningServer, StatusCache};
use anyhow::Context;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::heartbeats::LoopHeartbeat;
use super::snapshot::{PodMonitor, PodServices};

use crate::pods::{Announcer, PodRegistry};
use crate::status::StatusCollector;

/// Where it is served when nobody says.
const USUAL: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 8080);
/// How often the status is collected while somebody looks, and while nobody does: for the plots' sake, and for metrics.
const WATCHED: Duration = Duration::from_millis(900);
const UNWATCHED: Duration = Duration::from_secs(5);
/// What the farewells may take.
const STOPPED_WITHIN: Duration = Duration::from_secs(3);

/// Bound, and not yet serving.
pub(crate) struct AdminListener {
    server: AdminServer,
}

/// The HTTP side at work.
pub(crate) struct AdminService {
    pod_monitor: Arc<PodMonitor>,
    server: RunningServer,
    loops: JoinSet<()>,
    stop: CancellationToken,
    server_stop: CancellationToken,
}

impl AdminListener {
    /// Without an address: port 8080 of loopback, or any other that is free, since several pods may share a machine.
    pub(crate) fn bind(listen: Option<SocketAddr>) -> anyhow::Result<Self> {
        let server = match listen {
            Some(address) => AdminServer::bind(address)?,
            None => AdminServer::bind(USUAL).or_else(|_| AdminServer::bind(SocketAddr::new(USUAL.ip(), 0)))?,
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
        services: PodServices,
        registry: PodRegistry,
        collector: StatusCollector,
        operator: Option<OperatorAccess>,
    ) -> anyhow::Result<AdminService> {
        let (stop, server_stop, status_cache) =
            (CancellationToken::new(), CancellationToken::new(), Arc::new(StatusCache::default()));
        let address = self.announced(&services.pod_id);
        let pod_monitor = Arc::new(PodMonitor::new(services, Arc::clone(&status_cache)));
        let server =
            self.server.start(pod_monitor.clone(), Arc::clone(&status_cache), operator, server_stop.clone())?;
        tracing::info!(address = %server.address(), "dashboard, metrics and health are served");
        let mut loops = JoinSet::new();
        loops.spawn(Announcer::new(registry, pod_monitor.clone(), address).run(stop.clone()));
        loops.spawn(collect_status(collector, status_cache, pod_monitor.heartbeats().gather.clone(), stop.clone()));
        Ok(AdminService { pod_monitor, server, loops, stop, server_stop })
    }
}

impl AdminService {
    pub(crate) fn monitor(&self) -> Arc<PodMonitor> {
        Arc::clone(&self.pod_monitor)
    }

    /// Returns only if the server ends before its time.
    pub(crate) async fn wait_for_failure(&mut self) -> anyhow::Error {
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
async fn collect_status(
    collector: StatusCollector,
    status_cache: Arc<StatusCache>,
    heartbeat: LoopHeartbeat,
    stop: CancellationToken,
) {
    let mut slow = None;
    loop {
        let collected = tokio::select! {
            () = stop.cancelled() => return,
            // cancel-safe: it only reads
            collected = collector.collect(&mut slow) => collected,
        };
        status_cache.post(collected, Instant::now());
        heartbeat.beat().await;
        let pause = if status_cache.is_watched(Instant::now()) { WATCHED } else { UNWATCHED };
        tokio::select! {
            () = stop.cancelled() => return,
            () = sleep(pause) => {}
            // cancel-safe: notified
            () = async {
                status_cache.asked().await;
                // Whoever asks every second is one who looks, not a reason to ask MongoDB more often.
                sleep(WATCHED).await;
            }, if pause == UNWATCHED => {}
        }
    }
}
