//! One HTTP request to a local process.

use std::io;
use std::net::SocketAddr;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;

/// Sends a request with `connection: close` and reads the response to its end: head and body.
pub async fn send_request(address: SocketAddr, request: &str) -> io::Result<(String, String)> {
    exchange(TcpStream::connect(address).await?, request).await
}

pub(crate) async fn exchange(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    request: &str,
) -> io::Result<(String, String)> {
    stream.write_all(request.as_bytes()).await?;
    let mut response = String::new();
    stream.read_to_string(&mut response).await?;
    let (head, body) = response.split_once("\r\n\r\n").unwrap_or((&response, ""));
    Ok((head.to_owned(), body.to_owned()))
}
