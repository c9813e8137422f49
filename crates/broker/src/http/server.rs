//! One HTTP/1.1 connection, with limits for headers, body and slow peers.

use std::convert::Infallible;
use std::future::Future;
use std::pin::pin;
use std::time::Duration;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::timeout;
use tracing::debug;

use super::backend::NamespaceBackend;
use super::service::HttpService;
use super::write_timeout::WriteTimeoutStream;

/// Time limit for a peer to read a response.
const WRITE_TIMEOUT: Duration = Duration::from_secs(30);
/// Time limit for responses in flight when the broker stops.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(5);
/// Tokens of Entra ID can have several kilobytes; nothing else is long.
const MAX_HEADER_BYTES: usize = 64 << 10;
const MAX_HEADERS: usize = 64;

/// Serves requests on `stream` until the peer closes, exceeds a limit, or `shutdown` completes. A response in flight is
/// finished first.
pub async fn serve_connection<S, N>(stream: S, service: HttpService<N>, shutdown: impl Future<Output = ()>)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    N: NamespaceBackend,
{
    let header_timeout = service.header_timeout();
    let answer = service_fn(move |request| {
        let service = service.clone();
        async move { Ok::<_, Infallible>(service.handle(request).await) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(header_timeout)
        .max_headers(MAX_HEADERS)
        .max_header_size(MAX_HEADER_BYTES)
        .max_buf_size(2 * MAX_HEADER_BYTES)
        .serve_connection(TokioIo::new(WriteTimeoutStream::new(stream, WRITE_TIMEOUT)), answer);
    let mut connection = pin!(connection);
    // cancel-safe: the connection is only borrowed and continues in the other arm; `shutdown` is not polled again
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = shutdown => {
            connection.as_mut().graceful_shutdown();
            timeout(SHUTDOWN_TIMEOUT, connection).await.unwrap_or(Ok(()))
        }
    };
    if let Err(error) = ended {
        debug!(error = %error, "HTTP connection closed with error");
    }
}
