//! Replies of token endpoints and proxies to a command.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::StreamExt;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::process::Command;
use tokio::time::timeout;

use crate::exchange::http;
use crate::processes::command_memory;
use crate::table::HostileTable;

const HANG: Duration = Duration::from_secs(90);
/// Commands that run at the same time.
const COMMANDS: usize = 4;
const SECRET: &str = "open-sesame-0123456789";

/// Who sends the reply.
#[derive(Clone, Copy, PartialEq)]
enum Peer {
    TokenEndpoint,
    Proxy,
}

#[tokio::test]
async fn hostile_replies_do_not_harm_a_command() {
    let folder = tempfile::tempdir().unwrap();
    let mut table = HostileTable::new("replies");
    let results = futures_util::stream::iter(inputs()).map(async |(peer, name, reply)| {
        let (address, is_asked) = serve(reply).await;
        let result = apply_topology(folder.path(), peer, address).await;
        // A command that fails for another reason shows nothing.
        let result = if is_asked.load(Ordering::Relaxed) { result } else { Err("nobody is asked".to_owned()) };
        let peer = if peer == Peer::Proxy { "proxy" } else { "token endpoint" };
        (format!("{peer}: {name}"), result)
    });
    let mut results = Box::pin(results.buffered(COMMANDS));
    while let Some((name, result)) = results.next().await {
        table.record(&name, result);
    }
    table.finish(&command_memory());
}

/// Sends the reply to everyone who sends something, and says whether there was one.
async fn serve(reply: Vec<u8>) -> (SocketAddr, Arc<AtomicBool>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let is_asked = Arc::new(AtomicBool::new(false));
    let asked = Arc::clone(&is_asked);
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let read = stream.read(&mut [0; 1_024]).await;
            asked.fetch_or(read.is_ok_and(|bytes| bytes > 0), Ordering::Relaxed);
            // The client may close before it has read everything.
            let _ = stream.write_all(&reply).await;
        }
    });
    (address, is_asked)
}

/// A command that needs a token, and the proxy to reach Service Bus.
async fn apply_topology(folder: &Path, peer: Peer, address: SocketAddr) -> Result<String, String> {
    let bus = match peer {
        // A port where nobody listens: what follows the token fails.
        Peer::TokenEndpoint => {
            "fully_qualified_namespace: \"localhost:1\", entra: { credential: managed_identity }".to_owned()
        }
        Peer::Proxy => {
            format!("connection_string: \"Endpoint=sb://bus.example;SharedAccessKeyName=a;SharedAccessKey={SECRET}\"")
        }
    };
    let config = folder.join(format!("{}.yaml", address.port()));
    let source = "source: { uri: \"mongodb://localhost/\", database: shop, collection: events, sequence: version }";
    std::fs::write(&config, format!("format: 1\n{source}\nservice_bus: {{ {bus} }}\n")).unwrap();
    let mut command = Command::new(crate::BINARY);
    command.args(["topology", "apply", "--dry-run", "--config"]).arg(config).stdin(Stdio::null()).kill_on_drop(true);
    match peer {
        Peer::TokenEndpoint => command.env("IDENTITY_ENDPOINT", format!("http://{address}/")),
        Peer::Proxy => command.env("HTTPS_PROXY", format!("http://user:{SECRET}@{address}")),
    };
    command.env("IDENTITY_HEADER", SECRET).env_remove("NO_PROXY").env_remove("no_proxy");
    let output = timeout(HANG, command.output()).await.map_err(|_| "hangs".to_owned())?.unwrap();
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    match output.status.code() {
        None => Err(format!("ended by a signal: {}", output.status)),
        Some(101) => Err("panicked".to_owned()),
        Some(_) if text.contains(SECRET) => Err("prints a secret".to_owned()),
        Some(_) if text.len() > 10_000 => Err("prints the reply".to_owned()),
        Some(0) => Err("succeeds".to_owned()),
        Some(code) => Ok(format!("failed, exit code {code}")),
    }
}

fn reply(status: &str, body: &str) -> Vec<u8> {
    http(&format!("HTTP/1.1 {status}\ncontent-length: {}\nconnection: close\n\n{body}", body.len()))
}

fn inputs() -> Vec<(Peer, &'static str, Vec<u8>)> {
    let token = |body: &str| reply("200 OK", body);
    let endpoint = [
        ("nothing", vec![]),
        ("noise", vec![0xa5; 4_096]),
        ("status without a body", reply("200 OK", "")),
        ("not JSON", token("<html>")),
        ("not UTF-8", [token(""), vec![0xff; 100]].concat()),
        ("JSON 10,000 levels deep", token(&"[".repeat(10_000))),
        ("JSON of 1 MB", token(&format!("{{\"access_token\":\"{}\",\"expires_in\":60}}", "a".repeat(1 << 20)))),
        ("token of 20 KB", token(&format!("{{\"access_token\":\"{}\",\"expires_in\":60}}", "a".repeat(20 << 10)))),
        ("no expiry", token("{\"access_token\":\"t\"}")),
        ("expiry of 2^64", token("{\"access_token\":\"t\",\"expires_in\":18446744073709551615}")),
        ("negative expiry", token("{\"access_token\":\"t\",\"expires_in\":-5}")),
        ("line breaks in the token", token("{\"access_token\":\"t\\r\\nx: y\",\"expires_in\":60}")),
        ("refusal of 1 MB", reply("400 Bad Request", &format!("{{\"error\":\"{}\"}}", "e".repeat(1 << 20)))),
        ("refusal with many lines", reply("401 No", "{\"error\":\"e\",\"error_description\":\"a\\nb\\nc\"}")),
        ("redirect", http("HTTP/1.1 302 Found\nlocation: http://evil.example/\ncontent-length: 0\n\n")),
        ("length that is not there", http("HTTP/1.1 200 OK\ncontent-length: 99999999\n\n{")),
        ("chunk of 2^64", http("HTTP/1.1 200 OK\ntransfer-encoding: chunked\n\nfffffffffffffffff\n")),
    ];
    let proxy = [
        ("nothing", vec![]),
        ("noise", vec![0xa5; 40_000]),
        ("another protocol", b"SSH-2.0-OpenSSH_9.6\r\n\r\n".to_vec()),
        ("head of 1 MB", http(&format!("HTTP/1.1 200 OK\nx: {}\n\n", "a".repeat(1 << 20)))),
        ("head without an end", http("HTTP/1.1 200 OK\nx: y\n")),
        ("no status", http("HTTP/1.1\n\n")),
        ("status of 20 digits", http("HTTP/1.1 99999999999999999999 OK\n\n")),
        ("password refused", http("HTTP/1.1 407 No\ncontent-length: 0\n\n")),
        ("status 500", http("HTTP/1.1 500 No\n\n")),
        ("not UTF-8", [&b"HTTP/1.1 200 "[..], &[0xff; 100], b"\r\n\r\n"].concat()),
        ("accepted, then noise", [http("HTTP/1.1 200 OK\n\n"), vec![0xa5; 4_096]].concat()),
        ("accepted, then nothing", http("HTTP/1.1 200 OK\n\n")),
    ];
    let endpoint = endpoint.map(|(name, bytes)| (Peer::TokenEndpoint, name, bytes));
    endpoint.into_iter().chain(proxy.map(|(name, bytes)| (Peer::Proxy, name, bytes))).collect()
}
