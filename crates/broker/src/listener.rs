//! The broker's ports, which all serve the same: accepts connections up to a limit, and detects AMQP, TLS, HTTP and AMQP over WebSocket by
//! their first bytes. `refusal` tells peers why they are not served.

mod refusal;

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Buf, BytesMut};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{debug, warn};

use crate::connection::{self, BrokerConnectionConfig};
use crate::engine::EngineHandle;
use crate::http;
use crate::http_engine_backend::HttpEngineBackend;

/// Delay after a failed accept. The usual cause is a lack of file descriptors.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(100);

pub(crate) struct Listener {
    pub(crate) sockets: Vec<TcpListener>,
    pub(crate) tls: Option<TlsAcceptor>,
    /// Refuse connections without TLS.
    pub(crate) require_tls: bool,
    pub(crate) engine: EngineHandle,
    pub(crate) http: http::HttpService<HttpEngineBackend>,
    pub(crate) settings: Arc<BrokerConnectionConfig>,
    pub(crate) max_connections: usize,
}

/// Everything that the task of one connection needs.
#[derive(Clone)]
struct ConnectionHandler {
    tls: Option<TlsAcceptor>,
    require_tls: bool,
    engine: EngineHandle,
    http: http::HttpService<HttpEngineBackend>,
    settings: Arc<BrokerConnectionConfig>,
    shutdown: CancellationToken,
}

enum WireProtocol {
    Amqp,
    Tls,
    Http,
    /// AMQP over WebSocket; the request has not been read yet.
    WebSocket,
}

/// Connections over the limit that are refused with a reason at the same time; those beyond are closed at once.
const MAX_REFUSALS: usize = 64;

/// File descriptors besides connections: store files, pipes, and a reserve for other code in the process.
const OTHER_DESCRIPTORS: u64 = 1_000;

/// Raises the limit of open files to the configured number of connections. The usual soft limit, 1,024, exists for programs that use `select`;
/// beyond it, connections would wait in the kernel without a reply.
pub(crate) fn raise_open_file_limit(connections: usize) {
    let wanted = connections as u64 + OTHER_DESCRIPTORS;
    let Ok((now, most)) = getrlimit(Resource::RLIMIT_NOFILE) else { return };
    if now < wanted && setrlimit(Resource::RLIMIT_NOFILE, wanted.min(most), most).is_err() || most < wanted {
        warn!(
            allowed = most.max(now),
            wanted, "open file limit is below the connection limit; raise it with `ulimit -n`"
        );
    }
}

impl Listener {
    /// Accepts until `shutdown`, then waits until every connection is closed.
    pub(crate) async fn run(self, shutdown: CancellationToken) {
        let permits = Arc::new(ConnectionPermits::new(self.max_connections));
        let tasks = TaskTracker::new();
        let Self { sockets, tls, require_tls, engine, http, settings, .. } = self;
        let handler = ConnectionHandler { tls, require_tls, engine, http, settings, shutdown };
        for socket in sockets {
            tasks.spawn(handler.clone().accept_all(socket, Arc::clone(&permits), tasks.clone()));
        }
        tasks.close();
        tasks.wait().await;
    }
}

/// How many connections are served and refused at the same time.
struct ConnectionPermits {
    served: Arc<Semaphore>,
    refused: Arc<Semaphore>,
    limit: usize,
    /// The limit was logged, and no connection was admitted since.
    is_logged: AtomicBool,
}

enum Admission {
    Serve(OwnedSemaphorePermit),
    Refuse(OwnedSemaphorePermit),
    Close,
}

impl ConnectionPermits {
    fn new(limit: usize) -> Self {
        let [served, refused] = [limit, MAX_REFUSALS].map(|permits| Arc::new(Semaphore::new(permits)));
        Self { served, refused, limit, is_logged: AtomicBool::new(false) }
    }

    fn acquire(&self) -> Admission {
        if let Ok(permit) = Arc::clone(&self.served).try_acquire_owned() {
            self.is_logged.store(false, Ordering::Relaxed);
            return Admission::Serve(permit);
        }
        // One line for each time that the limit is reached, not for each peer: a peer must not fill the log.
        if !self.is_logged.swap(true, Ordering::Relaxed) {
            warn!(limit = self.limit, "connection limit reached; refusing connections until one closes");
        }
        match Arc::clone(&self.refused).try_acquire_owned() {
            Ok(permit) => Admission::Refuse(permit),
            Err(_) => Admission::Close,
        }
    }
}

impl ConnectionHandler {
    /// Accepts on one address until the shutdown.
    async fn accept_all(self, socket: TcpListener, permits: Arc<ConnectionPermits>, tasks: TaskTracker) {
        loop {
            // cancel-safe: accept
            let accepted = tokio::select! {
                accepted = socket.accept() => accepted,
                () = self.shutdown.cancelled() => return,
            };
            match accepted {
                Err(error) => {
                    warn!(error = %error, "failed to accept connection; retrying");
                    tokio::time::sleep(ACCEPT_RETRY_DELAY).await;
                }
                Ok((stream, _)) => match permits.acquire() {
                    Admission::Serve(permit) => {
                        let handler = self.clone();
                        tasks.spawn(async move {
                            handler.handle(stream).await;
                            drop(permit);
                        });
                    }
                    Admission::Refuse(permit) => {
                        let (handler, limit) = (self.clone(), permits.limit);
                        tasks.spawn(async move {
                            handler.refuse_over_limit(stream, limit).await;
                            drop(permit);
                        });
                    }
                    // Many are being refused: closing at once tells a peer more than a connection that nobody serves.
                    Admission::Close => {}
                },
            }
        }
    }

    async fn handle(self, stream: TcpStream) {
        // Frames are batched before they are written, so Nagle's algorithm would only delay them.
        let _ = stream.set_nodelay(true);
        let Some((protocol, stream)) = self.detect_protocol(stream).await else { return };
        match (protocol, &self.tls) {
            (WireProtocol::Tls, Some(tls)) => Box::pin(self.handle_tls(tls, stream)).await,
            (WireProtocol::Tls, None) => debug!("connection closed: peer uses TLS, but no certificate is configured"),
            (protocol, _) if self.require_tls => refusal::refuse_plain(&protocol, stream).await,
            (protocol, _) => self.serve(&protocol, stream, false).await,
        }
    }

    async fn handle_tls(&self, tls: &TlsAcceptor, stream: PrefixedStream<TcpStream>) {
        match timeout(self.settings.timeouts.first_bytes, tls.accept(stream)).await {
            Ok(Ok(stream)) => {
                if let Some((protocol, stream)) = self.detect_protocol(stream).await {
                    self.serve(&protocol, stream, true).await;
                }
            }
            Ok(Err(error)) => debug!(error = %error, "TLS handshake failed"),
            Err(_) => debug!("TLS handshake timed out"),
        }
    }

    async fn serve<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
        &self,
        protocol: &WireProtocol,
        stream: S,
        over_tls: bool,
    ) {
        // Boxed: otherwise the task of each connection would be as large as the largest protocol's.
        match protocol {
            WireProtocol::Amqp => {
                self.serve_amqp(stream).await;
            }
            WireProtocol::Http => {
                let service = if over_tls { self.http.clone().over_tls() } else { self.http.clone() };
                Box::pin(http::serve_connection(stream, service, self.shutdown.cancelled())).await;
            }
            WireProtocol::WebSocket => {
                let handshake = timeout(
                    self.settings.timeouts.handshake,
                    websocket::accept(stream, |headers| self.http.allows_web_socket(headers)),
                );
                let handshake = handshake.await;
                let stream = match handshake {
                    Ok(Ok(stream)) => stream,
                    Ok(Err(error)) => return debug!(error = %error, "WebSocket connection refused"),
                    Err(_) => return debug!("WebSocket handshake timed out"),
                };
                self.serve_amqp(stream).await;
            }
            WireProtocol::Tls => debug!("connection closed: TLS inside TLS"),
        }
    }

    async fn serve_amqp<S: AsyncRead + AsyncWrite + Unpin>(&self, stream: S) {
        let Some(shutdown) = self.settings.profile.admit(&self.shutdown) else {
            return debug!("connection refused: the profile fails over");
        };
        Box::pin(connection::serve(stream, &self.engine, Arc::clone(&self.settings), shutdown)).await;
    }

    async fn detect_protocol<S: AsyncRead + Unpin>(&self, mut stream: S) -> Option<(WireProtocol, PrefixedStream<S>)> {
        let mut first = BytesMut::with_capacity(64);
        let read = async {
            while first.len() < 4 || is_start_of_web_socket(&first) {
                if first.first() == Some(&TLS_HANDSHAKE) || stream.read_buf(&mut first).await? == 0 {
                    break;
                }
            }
            Ok::<_, io::Error>(())
        };
        // cancel-safe enough: if this is dropped, the connection is closed
        tokio::select! {
            read = timeout(self.settings.timeouts.first_bytes, read) => read.ok()?.ok()?,
            () = self.shutdown.cancelled() => return None,
        }
        let protocol = recognize_protocol(&first)?;
        Some((protocol, PrefixedStream { first, stream }))
    }
}

const TLS_HANDSHAKE: u8 = 0x16;
const HTTP_VERBS: [&[u8]; 7] = [b"GET ", b"PUT ", b"DELE", b"POST", b"HEAD", b"OPTI", b"PATC"];

const WEB_SOCKET_REQUEST: &[u8] = b"GET /$servicebus/websocket";

/// Whether more bytes decide between a WebSocket and another request.
fn is_start_of_web_socket(first: &[u8]) -> bool {
    first.len() < WEB_SOCKET_REQUEST.len() && starts_like(first, WEB_SOCKET_REQUEST)
}

/// Whether one of the two begins with the other, without case.
fn starts_like(first: &[u8], request: &[u8]) -> bool {
    first.iter().zip(request).all(|(one, other)| one.eq_ignore_ascii_case(other))
}

fn recognize_protocol(first: &[u8]) -> Option<WireProtocol> {
    match first {
        [TLS_HANDSHAKE, ..] => Some(WireProtocol::Tls),
        [b'A', b'M', b'Q', b'P', ..] => Some(WireProtocol::Amqp),
        first if starts_like(first, WEB_SOCKET_REQUEST) && first.len() >= WEB_SOCKET_REQUEST.len() => {
            Some(WireProtocol::WebSocket)
        }
        first if HTTP_VERBS.iter().any(|verb| first.starts_with(verb)) => Some(WireProtocol::Http),
        _ => None,
    }
}

/// A stream with bytes that were read ahead.
struct PrefixedStream<S> {
    first: BytesMut,
    stream: S,
}

impl<S: AsyncRead + Unpin> AsyncRead for PrefixedStream<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.first.is_empty() {
            return Pin::new(&mut self.stream).poll_read(cx, buf);
        }
        let count = self.first.len().min(buf.remaining());
        buf.put_slice(&self.first[..count]);
        self.first.advance(count);
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for PrefixedStream<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
