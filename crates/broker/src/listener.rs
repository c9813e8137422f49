//! The one port: accepts, caps how many connections there are, and tells AMQP, TLS and HTTP apart by their first bytes.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Buf, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{debug, warn};

use crate::connection::{self, Settings};
use crate::engine::Engine;
use crate::http;
use crate::namespace::Namespace;

/// How long a peer may take to say which protocol it speaks.
const FIRST_BYTES: Duration = Duration::from_secs(10);
/// After an accept that failed for want of file descriptors, when to try again.
const BREATH: Duration = Duration::from_millis(100);

pub(crate) struct Listener {
    pub(crate) socket: TcpListener,
    pub(crate) tls: Option<TlsAcceptor>,
    pub(crate) engine: Engine,
    pub(crate) http: http::Service<Namespace>,
    pub(crate) settings: Arc<Settings>,
    pub(crate) max_connections: usize,
}

/// What one connection's task needs.
#[derive(Clone)]
struct Reception {
    tls: Option<TlsAcceptor>,
    engine: Engine,
    http: http::Service<Namespace>,
    settings: Arc<Settings>,
    shutdown: CancellationToken,
}

enum Protocol {
    Amqp,
    Tls,
    Http,
}

impl Listener {
    /// Accepts until `shutdown`, then waits until every connection has ended.
    pub(crate) async fn run(self, shutdown: CancellationToken) {
        let places = Arc::new(Semaphore::new(self.max_connections));
        let tasks = TaskTracker::new();
        let Self { socket, tls, engine, http, settings, .. } = self;
        let reception = Reception { tls, engine, http, settings, shutdown: shutdown.clone() };
        loop {
            // cancel-safe: accept
            let accepted = tokio::select! {
                accepted = socket.accept() => accepted,
                () = shutdown.cancelled() => break,
            };
            match accepted {
                Err(error) => {
                    warn!(error = %error, "a connection could not be accepted");
                    tokio::time::sleep(BREATH).await;
                }
                Ok((stream, _)) => match Arc::clone(&places).try_acquire_owned() {
                    // Hanging up at once tells the peer more than a connection nobody serves.
                    Err(_) => warn!("a connection was refused: there are as many as allowed"),
                    Ok(place) => {
                        let reception = reception.clone();
                        tasks.spawn(async move {
                            reception.receive(stream).await;
                            drop(place);
                        });
                    }
                },
            }
        }
        tasks.close();
        tasks.wait().await;
    }
}

impl Reception {
    async fn receive(self, stream: TcpStream) {
        // Frames are gathered before they are written: waiting for more would only delay them.
        let _ = stream.set_nodelay(true);
        let Some((protocol, stream)) = self.first_bytes(stream).await else { return };
        match (protocol, &self.tls) {
            (Protocol::Tls, Some(tls)) => match timeout(FIRST_BYTES, tls.accept(stream)).await {
                Ok(Ok(stream)) => {
                    if let Some((protocol, stream)) = self.first_bytes(stream).await {
                        self.serve(&protocol, stream, true).await;
                    }
                }
                Ok(Err(error)) => debug!(error = %error, "TLS handshake failed"),
                Err(_) => debug!("TLS handshake took too long"),
            },
            (Protocol::Tls, None) => debug!("a peer speaks TLS, and there is no certificate"),
            (protocol, _) => self.serve(&protocol, stream, false).await,
        }
    }

    async fn serve<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
        &self,
        protocol: &Protocol,
        stream: S,
        over_tls: bool,
    ) {
        match protocol {
            Protocol::Amqp => {
                connection::serve(stream, &self.engine, Arc::clone(&self.settings), self.shutdown.clone()).await;
            }
            Protocol::Http => {
                let service = if over_tls { self.http.clone().over_tls() } else { self.http.clone() };
                http::serve_connection(stream, service, self.shutdown.cancelled()).await;
            }
            Protocol::Tls => debug!("TLS inside TLS"),
        }
    }

    async fn first_bytes<S: AsyncRead + Unpin>(&self, mut stream: S) -> Option<(Protocol, Prefixed<S>)> {
        let mut first = BytesMut::with_capacity(64);
        let read = async {
            while first.len() < 4 {
                if first.first() == Some(&TLS_HANDSHAKE) || stream.read_buf(&mut first).await? == 0 {
                    break;
                }
            }
            Ok::<_, io::Error>(())
        };
        // cancel-safe enough: a connection whose first bytes are given up is hung up
        tokio::select! {
            read = timeout(FIRST_BYTES, read) => read.ok()?.ok()?,
            () = self.shutdown.cancelled() => return None,
        }
        let protocol = protocol(&first)?;
        Some((protocol, Prefixed { first, stream }))
    }
}

const TLS_HANDSHAKE: u8 = 0x16;
const HTTP_VERBS: [&[u8]; 7] = [b"GET ", b"PUT ", b"DELE", b"POST", b"HEAD", b"OPTI", b"PATC"];

fn protocol(first: &[u8]) -> Option<Protocol> {
    match first {
        [TLS_HANDSHAKE, ..] => Some(Protocol::Tls),
        [b'A', b'M', b'Q', b'P', ..] => Some(Protocol::Amqp),
        first if HTTP_VERBS.iter().any(|verb| first.starts_with(verb)) => Some(Protocol::Http),
        _ => None,
    }
}

/// A stream whose first bytes were read already.
struct Prefixed<S> {
    first: BytesMut,
    stream: S,
}

impl<S: AsyncRead + Unpin> AsyncRead for Prefixed<S> {
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

impl<S: AsyncWrite + Unpin> AsyncWrite for Prefixed<S> {
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
