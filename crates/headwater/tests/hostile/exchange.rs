//! Connections that send bytes and read the reply to its end.

use std::net::SocketAddr;
use std::time::Duration;

use futures_util::StreamExt;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::table::HostileTable;

/// The longest a server may hold a peer that has closed its sending side.
const HANG: Duration = Duration::from_secs(15);
/// The limit of a usual probe.
const PROBE: Duration = Duration::from_secs(5);
/// A server that is silent for so long waits for the peer.
const SILENCE: Duration = Duration::from_secs(3);
/// What is kept of a reply.
const MAX_REPLY: usize = 1 << 20;
/// Many inputs wait for silence: they wait together.
const CONNECTIONS: usize = 16;

/// Sends every input on a connection of its own. After each, the server must still answer a probe.
pub(crate) async fn send_all(
    table: &mut HostileTable,
    address: SocketAddr,
    probe: &str,
    inputs: Vec<(String, Vec<u8>)>,
) {
    let results = futures_util::stream::iter(inputs).map(async |(name, bytes)| {
        let result = exchange(address, &bytes).await;
        (name, check_alive(address, probe).await.and(result))
    });
    let mut results = Box::pin(results.buffered(CONNECTIONS));
    while let Some((name, result)) = results.next().await {
        table.record(&name, result);
    }
}

/// A short description of the reply; an error if the server does not close in time.
async fn exchange(address: SocketAddr, bytes: &[u8]) -> Result<String, String> {
    let mut stream = TcpStream::connect(address).await.map_err(|error| format!("refuses connections: {error}"))?;
    // The server may close before it has read everything.
    let _ = timeout(HANG, stream.write_all(bytes)).await.map_err(|_| "the server does not read".to_owned())?;
    let mut reply = vec![];
    while !is_complete(&reply) {
        match timeout(SILENCE, stream.read_buf(&mut reply)).await {
            Ok(Ok(1..)) => {}
            Ok(Ok(0) | Err(_)) => return Ok(describe(&reply)),
            Err(_) => break,
        }
    }
    let _ = stream.shutdown().await;
    let rest = async { while reply.len() < MAX_REPLY && matches!(stream.read_buf(&mut reply).await, Ok(1..)) {} };
    timeout(HANG, rest).await.map_err(|_| "the connection hangs".to_owned())?;
    Ok(describe(&reply))
}

/// Whether the result is known: nothing that follows changes its description.
fn is_complete(reply: &[u8]) -> bool {
    if reply.starts_with(b"HTTP/") {
        reply.windows(2).any(|two| two == b"\r\n")
    } else {
        find_condition(reply).is_some()
    }
}

fn describe(reply: &[u8]) -> String {
    let text = String::from_utf8_lossy(reply);
    match text.lines().next() {
        Some(status) if status.starts_with("HTTP/") => status.to_owned(),
        _ => match find_condition(reply) {
            Some(condition) => format!("refused: {condition}"),
            None if reply.is_empty() => "closed".to_owned(),
            None => "answered".to_owned(),
        },
    }
}

/// The AMQP error condition of a reply, if it is there to its end.
fn find_condition(reply: &[u8]) -> Option<String> {
    let prefixes = [&b"amqp:"[..], b"com.microsoft:"];
    let at = (0..reply.len()).find(|at| prefixes.iter().any(|prefix| reply[*at..].starts_with(prefix)))?;
    // The byte before a symbol is its length.
    let length = usize::from(*reply.get(at.checked_sub(1)?)?);
    reply.get(at..at + length).map(|name| String::from_utf8_lossy(name).into_owned())
}

/// A request, as text with `\n` for line ends.
pub(crate) fn http(text: &str) -> Vec<u8> {
    text.replace('\n', "\r\n").into_bytes()
}

/// Sends a good request.
async fn check_alive(address: SocketAddr, path: &str) -> Result<(), String> {
    let request = http(&format!("GET {path} HTTP/1.1\nhost: localhost\nconnection: close\n\n"));
    match timeout(PROBE, exchange(address, &request)).await.map_err(|_| "no answer to a probe".to_owned())?? {
        reply if reply.starts_with("HTTP/1.1 200") => Ok(()),
        reply => Err(format!("answers a probe with {reply}")),
    }
}
