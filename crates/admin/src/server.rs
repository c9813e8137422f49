//! The HTTP server of a pod. It has a thread and a tokio runtime of its own, so that a busy pipeline cannot delay a probe.
//!
//! Responds from [`PodTelemetry`] and the status caches, and waits for another component only in an operator action. Limits the number of
//! connections, the size of a request head, and the time a peer may take; a new connection never waits for another one to end. Sends no
//! CORS header: pages of other sites can neither read nor act.

use std::convert::Infallible;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use nix::sys::socket::{Backlog, listen};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{debug, warn};

use crate::allowed_hosts::AllowedHosts;
use crate::health::PodHealth;
use crate::latency::LatencyBuckets;
use crate::metrics::PodSample;
use crate::open_connections::{ConnectionSlot, OpenConnections};
use crate::operator_routes::OperatorRoute;
use crate::pipelines::{OperatorState, ServedPipelines, requested_name};
use crate::response::{self, AdminResponse};
use crate::tls::{AdminTlsError, AdminTlsFiles, ReloadingAcceptor};
use crate::{dashboard, metrics};

/// How long a peer may take for the TLS handshake, and to send a request head. Also how long an idle connection is kept.
const HEAD_TIMEOUT: Duration = Duration::from_secs(3);
/// How long one connection may last, so that a peer that reads nothing cannot hold it for ever. Browsers reconnect by themselves.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(600);
/// How long open requests may take once the pod stops.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(1);
/// Pause after a failed accept. The usual cause is a lack of file descriptors, and retrying at once would only burn a core.
const ACCEPT_BACKOFF: Duration = Duration::from_millis(100);
const MAX_HEAD: usize = 16 << 10;
/// Connections that wait to be accepted. With the 128 of the standard library a burst of peers delays a probe by a second: its first packet
/// is dropped and sent again.
const BACKLOG: i32 = 1024;
/// What a connection may buffer: a head, and the beginning of the next request.
pub(crate) const MAX_BUFFER: usize = 2 * MAX_HEAD;

/// What the server reads from its pod. Implementations must return at once.
pub trait PodTelemetry: Send + Sync + 'static {
    fn health(&self, now: Instant) -> PodHealth;

    /// Samples of one metric must follow each other.
    fn samples(&self) -> Vec<PodSample>;

    fn latency(&self) -> LatencyBuckets;
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("cannot listen on `{address}` for health, metrics and the dashboard")]
    Listen { address: SocketAddr, source: std::io::Error },
    #[error("cannot use the TLS files of the admin server")]
    Tls(#[from] AdminTlsError),
    #[error("cannot start the admin server thread")]
    Thread(#[source] std::io::Error),
    #[error("admin server stopped unexpectedly")]
    Died,
}

/// A bound server that does not serve yet.
#[derive(Debug)]
pub struct AdminServer {
    listener: TcpListener,
    address: SocketAddr,
    hosts: Vec<String>,
    tls: Option<Arc<ReloadingAcceptor>>,
}

/// A started server.
#[derive(Debug)]
pub struct RunningServer {
    address: SocketAddr,
    /// `None` once the result has been returned.
    ended: Option<oneshot::Receiver<Result<(), Error>>>,
}

impl AdminServer {
    pub fn bind(address: SocketAddr) -> Result<Self, Error> {
        let bind = || {
            let listener = TcpListener::bind(address)?;
            listen(&listener, Backlog::new(BACKLOG)?)?;
            listener.set_nonblocking(true)?;
            let address = listener.local_addr()?;
            Ok(Self { listener, address, hosts: vec![], tls: None })
        };
        bind().map_err(|source| Error::Listen { address, source })
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Host names that requests may use. Local names always work; without names, any name works unless the listener is on loopback.
    #[must_use]
    pub fn with_hosts(mut self, hosts: Vec<String>) -> Self {
        self.hosts = hosts;
        self
    }

    /// Serves HTTPS only.
    pub fn with_tls(mut self, files: AdminTlsFiles) -> Result<Self, Error> {
        self.tls = Some(Arc::new(ReloadingAcceptor::load(files)?));
        Ok(self)
    }

    /// Serves until `shutdown`.
    pub fn start(self, pipelines: ServedPipelines, shutdown: CancellationToken) -> Result<RunningServer, Error> {
        let (result_sender, ended) = oneshot::channel();
        let address = self.address;
        let hosts = AllowedHosts::of_listener(address, self.hosts.clone());
        let handler = RequestHandler { pipelines, hosts, connections: Arc::default() };
        let run_server = move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(Error::Thread);
            let result = runtime.and_then(|runtime| runtime.block_on(self.serve(handler, shutdown)));
            // The receiver may be gone: no task has to wait for the end.
            drop(result_sender.send(result));
        };
        thread::Builder::new().name("admin".into()).spawn(run_server).map_err(Error::Thread)?;
        Ok(RunningServer { address, ended: Some(ended) })
    }

    async fn serve(self, handler: RequestHandler, shutdown: CancellationToken) -> Result<(), Error> {
        let listener = tokio::net::TcpListener::from_std(self.listener).map_err(Error::Thread)?;
        let (open, connections) = (Arc::clone(&handler.connections), TaskTracker::new());
        let reload = self.tls.clone().map(|tls| tokio::spawn(tls.reload_on_change()));
        loop {
            tokio::select! {
                () = shutdown.cancelled() => break,
                // cancel-safe: accept
                accepted = listener.accept() => match accepted {
                    Ok((stream, peer)) => {
                        let (handler, shutdown, slot) = (handler.clone(), shutdown.clone(), open.open(peer.ip()));
                        let tls = self.tls.clone();
                        connections.spawn(async move { handler.serve_stream(stream, tls, &slot, shutdown).await });
                        // The new connection reads its request before others can push it out of the table.
                        tokio::task::yield_now().await;
                    }
                    Err(error) => {
                        warn!(error = %error, "admin server failed to accept a connection; it retries");
                        tokio::time::sleep(ACCEPT_BACKOFF).await;
                    }
                },
            }
        }
        if let Some(reload) = reload {
            reload.abort();
        }
        connections.close();
        let _ = timeout(SHUTDOWN_GRACE, connections.wait()).await;
        Ok(())
    }
}

impl RunningServer {
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Waits for the end of the server. Cancel-safe. Returns the result once, and `Ok` on later calls.
    pub async fn ended(&mut self) -> Result<(), Error> {
        let Some(ended) = &mut self.ended else { return Ok(()) };
        let ended = ended.await;
        self.ended = None;
        ended.unwrap_or(Err(Error::Died))
    }
}

#[derive(Clone)]
struct RequestHandler {
    pipelines: ServedPipelines,
    hosts: AllowedHosts,
    connections: Arc<OpenConnections>,
}

impl RequestHandler {
    async fn serve_stream(
        &self,
        stream: TcpStream,
        tls: Option<Arc<ReloadingAcceptor>>,
        slot: &ConnectionSlot,
        shutdown: CancellationToken,
    ) {
        let Some(tls) = tls else { return self.serve_connection(stream, slot, shutdown).await };
        let handshake = timeout(HEAD_TIMEOUT, tls.acceptor().accept(stream));
        // cancel-safe: a dropped handshake closes the connection
        let accepted = tokio::select! {
            accepted = handshake => accepted,
            () = slot.closed() => return,
            () = shutdown.cancelled() => return,
        };
        match accepted {
            Ok(Ok(stream)) => self.serve_connection(stream, slot, shutdown).await,
            Ok(Err(error)) => debug!(error = %error, "TLS handshake failed"),
            Err(_) => debug!("TLS handshake timed out"),
        }
    }

    async fn serve_connection<S>(&self, stream: S, slot: &ConnectionSlot, shutdown: CancellationToken)
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let respond = service_fn(|request: Request<Incoming>| async {
            // Anything else may be closed at any time: it is answered at once, or waits for a newer status.
            let _in_work = OperatorRoute::from_path(request.uri().path()).map(|_| slot.begin_request());
            Ok::<_, Infallible>(self.respond(request).await)
        });
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEAD_TIMEOUT)
            .max_header_size(MAX_HEAD)
            .max_buf_size(MAX_BUFFER)
            .serve_connection(TokioIo::new(stream), respond);
        let mut connection = std::pin::pin!(connection);
        // cancel-safe: the connection is only borrowed, and the last arm ends it gracefully.
        let ended = tokio::select! {
            ended = connection.as_mut() => ended,
            () = slot.closed() => Ok(()),
            () = tokio::time::sleep(CONNECTION_TIMEOUT) => Ok(()),
            () = shutdown.cancelled() => {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
        };
        if let Err(error) = ended {
            debug!(error = %error, "admin connection closed with an error");
        }
    }

    async fn respond(&self, request: Request<Incoming>) -> AdminResponse {
        if !self.hosts.accept(&request) {
            return response::wrong_host();
        }
        if let Some(route) = OperatorRoute::from_path(request.uri().path()) {
            let begun = if route.is_wait() { self.connections.begin_wait() } else { self.connections.begin_action() };
            let Some(_action) = begun else { return response::too_many_actions() };
            let pipeline = match self.pipelines.select(request.uri().query()) {
                Ok(pipeline) => pipeline,
                Err(error_response) => return *error_response,
            };
            return match pipeline.operator.state() {
                OperatorState::Off => route.respond(None, request).await,
                OperatorState::Ready(access) => route.respond(Some(&access), request).await,
                OperatorState::NotRunning => response::not_running(),
            };
        }
        match *request.method() {
            // hyper drops the body of a response to HEAD.
            Method::GET | Method::HEAD if request.uri().path() == "/api/status" => {
                self.get_status(request.uri().query()).await
            }
            Method::GET | Method::HEAD => self.get(request.uri().path(), request.uri().query()),
            _ => response::allow_get_only(),
        }
    }

    /// Of several pipelines without a name, all of them.
    async fn get_status(&self, query: Option<&str>) -> AdminResponse {
        if self.pipelines.list.len() > 1 && requested_name(query).is_none() {
            let statuses = self.pipelines.list.iter().map(|pipeline| pipeline.status_cache.refreshed());
            let statuses: Vec<_> = join_all(statuses).await.into_iter().flatten().collect();
            return response::json(StatusCode::OK, &serde_json::json!({ "pipelines": statuses }));
        }
        let pipeline = match self.pipelines.select(query) {
            Ok(pipeline) => pipeline,
            Err(error_response) => return *error_response,
        };
        match pipeline.status_cache.refreshed().await {
            Some(status) => response::json(StatusCode::OK, &status),
            None => response::text(StatusCode::SERVICE_UNAVAILABLE, "no status has been collected yet\n"),
        }
    }

    fn get(&self, path: &str, query: Option<&str>) -> AdminResponse {
        let now = Instant::now();
        match path {
            "/healthz" => self.get_health(now, |live, _| live),
            "/readyz" => self.get_health(now, |_, ready| ready),
            "/metrics" => response::metrics(metrics::render(&self.pipelines.metrics(now))),
            "/api/history" => match self.pipelines.select(query) {
                Ok(pipeline) => {
                    pipeline.status_cache.request_refresh(now);
                    response::json(StatusCode::OK, &pipeline.status_cache.history())
                }
                Err(error_response) => *error_response,
            },
            "/api/pipelines" => response::json(StatusCode::OK, &self.pipelines.summaries(now)),
            // Tells the dashboard whether to offer the unlock form.
            "/api/operator" => {
                response::json(StatusCode::OK, &serde_json::json!({ "token": self.pipelines.has_token() }))
            }
            path => dashboard::file(path)
                .unwrap_or_else(|| response::text(StatusCode::NOT_FOUND, "not found; the dashboard is at /\n")),
        }
    }

    /// `choose`: from live and ready.
    fn get_health(&self, now: Instant, choose: fn(bool, bool) -> bool) -> AdminResponse {
        match &self.pipelines {
            ServedPipelines { list, is_list: false } => {
                let report = list[0].pod.health(now).evaluate(now);
                response::json(ok_or_unavailable(choose(report.live, report.ready)), &report)
            }
            several => {
                let report = several.health(now);
                response::json(ok_or_unavailable(choose(report.live, report.ready)), &report)
            }
        }
    }
}

fn ok_or_unavailable(ok: bool) -> StatusCode {
    if ok { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }
}
