//! The HTTP server of a pod: on a thread and a runtime of its own, so that a busy pipeline cannot blind it.
//!
//! Answers from what it is given ([`PodStatus`], [`StatusCache`]) and waits for nobody, but for an operator's act. A peer is bounded in headers, in number,
//! and in how long it may take. No header here lets another site's page read or send anything.

use std::convert::Infallible;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpStream;
use tokio::sync::{Semaphore, oneshot};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{debug, warn};

use crate::counters::PodCounters;
use crate::health::{HealthReport, PodHealth};
use crate::operator::OperatorAccess;
use crate::operator_routes::Act;
use crate::response::{self, HttpResponse};
use crate::status_cache::StatusCache;
use crate::{dashboard, metrics};

/// A page holds a few connections, a scraper and a probe one each.
const CONNECTIONS: usize = 64;
/// How long a peer may take to say what it wants.
const HEAD_WITHIN: Duration = Duration::from_secs(10);
/// How long one connection may last: a peer that reads nothing does not hold its place for ever. Browsers open another unasked.
const CONNECTION_WITHIN: Duration = Duration::from_secs(600);
/// What answers under way may take once the pod stops.
const GRACE: Duration = Duration::from_secs(1);
const MAX_HEAD: usize = 16 << 10;

/// What the server asks of its pod; must answer at once.
pub trait PodTelemetry: Send + Sync + 'static {
    fn health(&self, now: Instant) -> PodHealth;

    fn counters(&self) -> PodCounters;
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("listen on `{address}`, for health, metrics and the dashboard")]
    Listen { address: SocketAddr, source: std::io::Error },
    #[error("start the thread that serves health, metrics and the dashboard")]
    Thread(#[source] std::io::Error),
    #[error("the server for health, metrics and the dashboard ended before its time")]
    Died,
}

/// Bound, and not yet serving.
#[derive(Debug)]
pub struct AdminServer {
    listener: TcpListener,
    address: SocketAddr,
}

/// A started server.
#[derive(Debug)]
pub struct RunningServer {
    address: SocketAddr,
    /// `None` once it is known how it ended.
    ended: Option<oneshot::Receiver<Result<(), Error>>>,
}

impl AdminServer {
    pub fn bind(address: SocketAddr) -> Result<Self, Error> {
        let listen = || {
            let listener = TcpListener::bind(address)?;
            listener.set_nonblocking(true)?;
            let address = listener.local_addr()?;
            Ok(Self { listener, address })
        };
        listen().map_err(|source| Error::Listen { address, source })
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves until `shutdown`. Without an operator it is for reading.
    pub fn start(
        self,
        pod: Arc<dyn PodTelemetry>,
        status_cache: Arc<StatusCache>,
        operator: Option<OperatorAccess>,
        shutdown: CancellationToken,
    ) -> Result<RunningServer, Error> {
        let (end, ended) = oneshot::channel();
        let address = self.address;
        let body = move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(Error::Thread);
            let result = runtime.and_then(|runtime| {
                runtime.block_on(self.serve(RequestHandler { pod, status_cache, operator }, shutdown))
            });
            // nobody may be waiting for it
            drop(end.send(result));
        };
        thread::Builder::new().name("admin".into()).spawn(body).map_err(Error::Thread)?;
        Ok(RunningServer { address, ended: Some(ended) })
    }

    async fn serve(self, handler: RequestHandler, shutdown: CancellationToken) -> Result<(), Error> {
        let listener = tokio::net::TcpListener::from_std(self.listener).map_err(Error::Thread)?;
        let (places, connections) = (Arc::new(Semaphore::new(CONNECTIONS)), TaskTracker::new());
        loop {
            let place = tokio::select! {
                () = shutdown.cancelled() => break,
                // cancel-safe: a place that was not given is not taken
                place = Arc::clone(&places).acquire_owned() => place.expect("it is never closed"),
            };
            tokio::select! {
                () = shutdown.cancelled() => break,
                // cancel-safe: accept
                accepted = listener.accept() => match accepted {
                    Ok((stream, _)) => {
                        let (handler, shutdown) = (handler.clone(), shutdown.clone());
                        connections.spawn(async move {
                            handler.serve(stream, shutdown).await;
                            drop(place);
                        });
                    }
                    Err(error) => {
                        warn!(error = %error, "accept a connection to the dashboard");
                        // Out of file descriptors, most likely: trying at once would only burn a core.
                        tokio::time::sleep(Duration::from_millis(100)).await;
                    }
                },
            }
        }
        connections.close();
        let _ = timeout(GRACE, connections.wait()).await;
        Ok(())
    }
}

impl RunningServer {
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Waits until it has ended. Cancel-safe; told once, and `Ok` from then on.
    pub async fn ended(&mut self) -> Result<(), Error> {
        let Some(ended) = &mut self.ended else { return Ok(()) };
        let ended = ended.await;
        self.ended = None;
        ended.unwrap_or(Err(Error::Died))
    }
}

/// Answers requests.
#[derive(Clone)]
struct RequestHandler {
    pod: Arc<dyn PodTelemetry>,
    status_cache: Arc<StatusCache>,
    operator: Option<OperatorAccess>,
}

impl RequestHandler {
    async fn serve(&self, stream: TcpStream, shutdown: CancellationToken) {
        let answer = service_fn(|request: Request<Incoming>| async { Ok::<_, Infallible>(self.answer(request).await) });
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEAD_WITHIN)
            .max_header_size(MAX_HEAD)
            .serve_connection(TokioIo::new(stream), answer);
        let mut connection = std::pin::pin!(connection);
        // cancel-safe: the connection is only borrowed, and ends gracefully in the last arm.
        let ended = tokio::select! {
            ended = connection.as_mut() => ended,
            () = tokio::time::sleep(CONNECTION_WITHIN) => Ok(()),
            () = shutdown.cancelled() => {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
        };
        if let Err(error) = ended {
            debug!(error = %error, "a connection to the dashboard ended badly");
        }
    }

    async fn answer(&self, request: Request<Incoming>) -> HttpResponse {
        if let Some(act) = Act::at(request.uri().path()) {
            return act.answer(self.operator.as_ref(), request).await;
        }
        match *request.method() {
            // hyper leaves the body of an answer to HEAD out.
            Method::GET | Method::HEAD => self.page(request.uri().path()),
            _ => response::only_for_reading(),
        }
    }

    fn page(&self, path: &str) -> HttpResponse {
        let now = Instant::now();
        match path {
            "/healthz" => {
                let report = self.report(now);
                response::json(ok_if(report.live), &report)
            }
            "/readyz" => {
                let report = self.report(now);
                response::json(ok_if(report.ready), &report)
            }
            "/metrics" => {
                let status = self.status_cache.read(now);
                response::metrics(metrics::page(status.as_ref(), &self.pod.counters(), &self.report(now)))
            }
            "/api/status" => {
                self.status_cache.ask(now);
                match self.status_cache.read(now) {
                    Some(status) => response::json(StatusCode::OK, &status),
                    None => response::text(StatusCode::SERVICE_UNAVAILABLE, "nothing has been collected yet\n"),
                }
            }
            "/api/history" => {
                self.status_cache.ask(now);
                response::json(StatusCode::OK, &self.status_cache.history())
            }
            // For the page: whether there is a lock that a token opens.
            "/api/operator" => response::json(StatusCode::OK, &serde_json::json!({ "token": self.operator.is_some() })),
            path => dashboard::file(path).unwrap_or_else(|| {
                response::text(StatusCode::NOT_FOUND, "there is nothing here: the dashboard is at /\n")
            }),
        }
    }

    fn report(&self, now: Instant) -> HealthReport {
        self.pod.health(now).evaluate(now)
    }
}

fn ok_if(well: bool) -> StatusCode {
    if well { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }
}
