//! Tells a peer in its own protocol why it is not served. The work for one peer is bounded in time and bytes.

use std::time::{Duration, Instant};

use amqp::{ConnectionEvent, ServerSasl, condition};
use bytes::BytesMut;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tracing::debug;

use super::{ConnectionHandler, PrefixedStream, WireProtocol};

/// For a peer to say what it speaks, and to read why it is refused.
const REFUSAL_TIMEOUT: Duration = Duration::from_secs(2);
/// Bytes of a refused peer that are read, so that the reply is not lost with them.
const MAX_DISCARDED: u64 = 64 << 10;

impl ConnectionHandler {
    /// Refuses a connection over the limit.
    pub(super) async fn refuse_over_limit(self, stream: TcpStream, limit: usize) {
        let text = format!(
            "the connection limit of {limit} is reached: close connections that are not used, or raise the limit with `--max-connections`"
        );
        let refused = timeout(REFUSAL_TIMEOUT, async {
            let (protocol, stream) = self.detect_protocol(stream).await?;
            match (protocol, &self.tls) {
                (WireProtocol::Tls, Some(tls)) => {
                    let stream = tls.accept(stream).await.ok()?;
                    let (protocol, stream) = self.detect_protocol(stream).await?;
                    refuse(&protocol, stream, &text).await;
                }
                (protocol, _) => refuse(&protocol, stream, &text).await,
            }
            Some(())
        });
        if refused.await.is_err() {
            debug!("connection over the limit closed: the peer did not read why");
        }
    }
}

async fn refuse<S: AsyncRead + AsyncWrite + Unpin>(protocol: &WireProtocol, stream: S, text: &str) {
    match protocol {
        WireProtocol::Amqp => refuse_amqp(stream, text).await,
        WireProtocol::Http | WireProtocol::WebSocket => {
            reply_and_close(stream, http_refusal("503 Service Unavailable", text).as_bytes()).await;
        }
        WireProtocol::Tls => {}
    }
}

/// Answers the open with an open and a close, which has the reason.
async fn refuse_amqp<S: AsyncRead + AsyncWrite + Unpin>(mut stream: S, text: &str) {
    let config = amqp::Config { container_id: "headwater-broker".to_owned(), ..amqp::Config::default() };
    // No password is checked: nothing is served.
    let mut peer = amqp::Connection::server(config, ServerSasl::default(), Instant::now());
    let mut input = BytesMut::new();
    let mut received = 0;
    while received < MAX_DISCARDED {
        match stream.read_buf(&mut input).await {
            Ok(0) | Err(_) => return,
            Ok(read) => received += read as u64,
        }
        peer.feed(&mut input, Instant::now());
        let mut is_closed = false;
        while let Some(event) = peer.poll_event() {
            match event {
                ConnectionEvent::Opened(_) => {
                    // Fails only if the connection is already closed.
                    let _ = peer.close(Some(amqp::Error::new(condition::RESOURCE_LIMIT_EXCEEDED, text.to_owned())));
                }
                ConnectionEvent::Closed { .. } => is_closed = true,
                _ => {}
            }
        }
        let output = peer.take_output();
        if stream.write_all(&output).await.is_err() || stream.flush().await.is_err() || is_closed {
            return;
        }
    }
}

/// Tells a peer without TLS what is required.
pub(super) async fn refuse_plain(protocol: &WireProtocol, stream: PrefixedStream<TcpStream>) {
    let http = http_refusal("403 Forbidden", "TLS is required: use https://...");
    let refusal = match protocol {
        // The protocol header of AMQP over TLS: the peer learns which protocol is expected.
        WireProtocol::Amqp => b"AMQP\x02\x01\x00\x00",
        WireProtocol::Http | WireProtocol::WebSocket => http.as_bytes(),
        WireProtocol::Tls => return,
    };
    debug!("connection refused: TLS is required");
    let _ = timeout(REFUSAL_TIMEOUT, reply_and_close(stream, refusal)).await;
}

fn http_refusal(status: &str, text: &str) -> String {
    let length = text.len() + 1;
    format!(
        "HTTP/1.1 {status}\r\nconnection: close\r\ncontent-type: text/plain\r\ncontent-length: {length}\r\n\r\n{text}\n"
    )
}

/// Reads what the peer still sends: a close with unread bytes would be a reset, and the reply would be lost.
async fn reply_and_close<S: AsyncRead + AsyncWrite + Unpin>(mut stream: S, reply: &[u8]) {
    if stream.write_all(reply).await.is_ok() && stream.shutdown().await.is_ok() {
        let _ = tokio::io::copy(&mut stream.take(MAX_DISCARDED), &mut tokio::io::sink()).await;
    }
}
