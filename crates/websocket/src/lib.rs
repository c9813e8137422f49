//! AMQP over WebSocket, as Service Bus has it: one byte stream in binary messages, under the path [`PATH`].
//!
//! [`accept`] is the broker's side, [`connect`] the client's. Both return a [`WebSocketIo`], which reads and writes like
//! the stream it wraps. Message boundaries have no meaning. Pings are answered by the crate below.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use futures_util::{Sink, Stream};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::handshake::server::{ErrorResponse, Request, Response};
use tokio_tungstenite::tungstenite::http::{HeaderMap, HeaderValue, StatusCode, header};
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;
use tokio_tungstenite::tungstenite::{self, Message};

pub const PATH: &str = "/$servicebus/websocket";

/// The name that SDKs of Service Bus use, and the registered one.
const SUBPROTOCOLS: [&str; 2] = ["AMQPWSB10", "amqp"];

/// A larger message or frame of a peer is refused. AMQP frames are at most 64 KiB here, and clients send one or a few.
const MAX_MESSAGE: usize = 4 << 20;
/// Bytes per message that we write.
const MAX_WRITE: usize = 64 << 10;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("WebSocket handshake failed")]
    Handshake(#[source] Box<tungstenite::Error>),
    #[error("`{0}` is not a valid host")]
    Host(String),
}

/// Accepts a connection whose request has not been read yet, if its headers are allowed.
pub async fn accept<S: AsyncRead + AsyncWrite + Unpin>(
    stream: S,
    is_allowed: impl Fn(&HeaderMap) -> bool + Unpin,
) -> Result<WebSocketIo<S>, Error> {
    #[allow(clippy::result_large_err, reason = "the signature of the callback")]
    let answer = |request: &Request, response: Response| match is_allowed(request.headers()) {
        true => choose_subprotocol(request, response),
        false => Err(refuse(StatusCode::FORBIDDEN, "this host or origin is not allowed\n")),
    };
    let accepted = tokio_tungstenite::accept_hdr_async_with_config(stream, answer, Some(limits())).await;
    accepted.map(WebSocketIo::new).map_err(|error| Error::Handshake(Box::new(error)))
}

/// Connects over a stream to `host`, which is TLS if `secure`.
pub async fn connect<S: AsyncRead + AsyncWrite + Unpin>(
    stream: S,
    host: &str,
    secure: bool,
) -> Result<WebSocketIo<S>, Error> {
    let scheme = if secure { "wss" } else { "ws" };
    let request = format!("{scheme}://{host}{PATH}").into_client_request();
    let mut request = request.map_err(|_| Error::Host(host.to_owned()))?;
    request.headers_mut().insert(header::SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_static(SUBPROTOCOLS[0]));
    let connected = tokio_tungstenite::client_async_with_config(request, stream, Some(limits())).await;
    connected.map(|(stream, _)| WebSocketIo::new(stream)).map_err(|error| Error::Handshake(Box::new(error)))
}

fn limits() -> WebSocketConfig {
    WebSocketConfig::default()
        .max_message_size(Some(MAX_MESSAGE))
        .max_frame_size(Some(MAX_MESSAGE))
        .write_buffer_size(0)
        .max_write_buffer_size(MAX_MESSAGE)
}

/// Answers with the first sub-protocol that both know. A client that names only others would not understand us.
#[allow(clippy::result_large_err, reason = "the signature of the callback")]
fn choose_subprotocol(request: &Request, mut response: Response) -> Result<Response, ErrorResponse> {
    let asked = request.headers().get_all(header::SEC_WEBSOCKET_PROTOCOL).iter();
    let asked: Vec<&str> = asked.filter_map(|value| value.to_str().ok()).flat_map(|text| text.split(',')).collect();
    let known = |name: &&&str| SUBPROTOCOLS.iter().any(|ours| ours.eq_ignore_ascii_case(name.trim()));
    match asked.iter().find(known) {
        Some(chosen) => {
            let chosen = HeaderValue::from_str(chosen.trim()).expect("it was a header value");
            response.headers_mut().insert(header::SEC_WEBSOCKET_PROTOCOL, chosen);
            Ok(response)
        }
        None if asked.is_empty() => Ok(response),
        None => Err(refuse(StatusCode::BAD_REQUEST, "sub-protocol: expected AMQPWSB10 or amqp\n")),
    }
}

fn refuse(status: StatusCode, text: &str) -> ErrorResponse {
    let mut refusal = ErrorResponse::new(Some(text.to_owned()));
    *refusal.status_mut() = status;
    refusal
}

/// A byte stream in the binary messages of a WebSocket.
#[derive(Debug)]
pub struct WebSocketIo<S> {
    stream: WebSocketStream<S>,
    /// The rest of the last message.
    unread: Bytes,
}

impl<S> WebSocketIo<S> {
    fn new(stream: WebSocketStream<S>) -> Self {
        Self { stream, unread: Bytes::new() }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for WebSocketIo<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        while self.unread.is_empty() {
            match ready!(Pin::new(&mut self.stream).poll_next(cx)) {
                Some(Ok(Message::Binary(bytes))) => self.unread = bytes,
                Some(Ok(Message::Close(_))) | None => return Poll::Ready(Ok(())),
                Some(Ok(Message::Text(_))) => {
                    return Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, "text message")));
                }
                Some(Ok(Message::Ping(_) | Message::Pong(_) | Message::Frame(_))) => {}
                Some(Err(error)) => return Poll::Ready(Err(to_io(error))),
            }
        }
        let count = self.unread.len().min(buf.remaining());
        buf.put_slice(&self.unread[..count]);
        self.unread.advance(count);
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for WebSocketIo<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        ready!(Pin::new(&mut self.stream).poll_ready(cx)).map_err(to_io)?;
        let part = &bytes[..bytes.len().min(MAX_WRITE)];
        let message = Message::Binary(Bytes::copy_from_slice(part));
        Pin::new(&mut self.stream).start_send(message).map_err(to_io)?;
        Poll::Ready(Ok(part.len()))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx).map_err(to_io)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_close(cx).map_err(to_io)
    }
}

fn to_io(error: tungstenite::Error) -> io::Error {
    match error {
        tungstenite::Error::Io(error) => error,
        tungstenite::Error::ConnectionClosed | tungstenite::Error::AlreadyClosed => io::ErrorKind::BrokenPipe.into(),
        error => io::Error::other(error),
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    #[tokio::test]
    async fn headers_that_are_not_allowed_are_refused() {
        let (near, far) = tokio::io::duplex(1 << 10);
        let (client, server) = tokio::join!(connect(near, "localhost", false), accept(far, |_| false));
        assert!(client.is_err() && server.is_err());
    }

    #[tokio::test]
    async fn bytes_go_both_ways_whatever_their_number() {
        let (near, far) = tokio::io::duplex(1 << 10);
        let (client, server) = tokio::join!(connect(near, "localhost", false), accept(far, |_| true));
        let (mut client, mut server) = (client.unwrap(), server.unwrap());
        let bytes: Vec<u8> = (0..300_000_u32).map(|n| n as u8).collect();
        let sent = bytes.clone();
        let echo = tokio::spawn(async move {
            let mut received = vec![0; sent.len()];
            server.read_exact(&mut received).await.unwrap();
            server.write_all(&received).await.unwrap();
            server.flush().await.unwrap();
            assert_eq!(server.read(&mut [0]).await.unwrap(), 0, "the client closes");
        });
        client.write_all(&bytes).await.unwrap();
        client.flush().await.unwrap();
        let mut received = vec![0; bytes.len()];
        client.read_exact(&mut received).await.unwrap();
        assert_eq!(received, bytes);
        client.shutdown().await.unwrap();
        echo.await.unwrap();
    }
}
