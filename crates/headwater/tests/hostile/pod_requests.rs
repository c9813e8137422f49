//! Requests to the admin server of a pod.

use crate::exchange::{http, send_all};
use crate::processes::{admin_address, pod_memory, start_pod};
use crate::table::HostileTable;

#[tokio::test]
async fn hostile_requests_do_not_harm_a_pod() {
    let cluster = start_pod("admin: { token: \"0123456789abcdef0123456789abcdef\" }\n").await;
    let address = admin_address(&cluster).await;
    let mut table = HostileTable::new("pod HTTP");
    send_all(&mut table, address, "/healthz", inputs()).await;
    table.finish(&pod_memory(&cluster));
    assert!(cluster.stop().await.is_empty());
}

fn inputs() -> Vec<(String, Vec<u8>)> {
    let mut inputs: Vec<(String, Vec<u8>)> = [
        ("nothing", ""),
        ("half a head", "GET /healthz HTT"),
        ("foreign host", "GET / HTTP/1.1\nhost: evil.example\n\n"),
        ("foreign host in the line", "GET http://evil.example/ HTTP/1.1\nhost: localhost\n\n"),
        ("two hosts", "GET / HTTP/1.1\nhost: localhost\nhost: evil.example\n\n"),
        ("no host", "GET / HTTP/1.1\n\n"),
        ("HTTP/0.9", "GET /\n"),
        ("HTTP/2 preface", "PRI * HTTP/2.0\n\nSM\n\n"),
        ("TLS hello", "\u{16}\u{3}\u{1}"),
        ("AMQP header", "AMQP\0\u{1}\0\0"),
        ("spaces", "   \n\n\n"),
        ("tab in the line", "GET\t/ HTTP/1.1\nhost: localhost\n\n"),
        ("folded header", "GET / HTTP/1.1\nhost: localhost\nx: a\n b\n\n"),
        ("header without a name", "GET / HTTP/1.1\nhost: localhost\n: a\n\n"),
        ("NUL in a header", "GET / HTTP/1.1\nhost: localhost\nx: \0\n\n"),
        ("negative length", "POST / HTTP/1.1\nhost: localhost\ncontent-length: -1\n\n"),
        ("length of 20 digits", "POST / HTTP/1.1\nhost: localhost\ncontent-length: 99999999999999999999\n\n"),
        ("two lengths", "POST / HTTP/1.1\nhost: localhost\ncontent-length: 1\ncontent-length: 2\n\nab"),
        (
            "length and chunks",
            "POST / HTTP/1.1\nhost: localhost\ncontent-length: 4\ntransfer-encoding: chunked\n\n0\n\n",
        ),
        ("chunk of 2^64", "POST / HTTP/1.1\nhost: localhost\ntransfer-encoding: chunked\n\nfffffffffffffffff\n"),
        ("expect nonsense", "POST / HTTP/1.1\nhost: localhost\nexpect: tea\ncontent-length: 1\n\na"),
        ("upgrade", "GET / HTTP/1.1\nhost: localhost\nupgrade: h2c\nconnection: upgrade\n\n"),
        ("trace", "TRACE / HTTP/1.1\nhost: localhost\n\n"),
        ("connect", "CONNECT mongo:27017 HTTP/1.1\nhost: localhost\n\n"),
        ("options *", "OPTIONS * HTTP/1.1\nhost: localhost\n\n"),
    ]
    .map(|(name, text)| (name.to_owned(), http(text)))
    .to_vec();
    for path in [
        "/../../etc/passwd",
        "/%2e%2e/etc/passwd",
        "//etc/passwd",
        "/dashboard.js/../..",
        "/%00",
        "/healthz%0a",
        "/metrics?x=%ff",
        "/api/status/",
        "/api/parked",
        "/API/STATUS",
        "/\u{7f}",
    ] {
        inputs.push((
            format!("path `{}`", path.escape_debug()),
            http(&format!("GET {path} HTTP/1.1\nhost: localhost\n\n")),
        ));
    }
    for method in ["PUT", "DELETE", "PATCH", "POST", "BREW"] {
        inputs.push((
            format!("{method} /api/status"),
            http(&format!("{method} /api/status HTTP/1.1\nhost: localhost\ncontent-length: 0\n\n")),
        ));
    }
    for token in [
        "",
        "Bearer",
        "Bearer ",
        "Bearer wrong",
        "Basic 0123456789abcdef0123456789abcdef",
        "bearer 0123456789abcdef0123456789abcdee",
        "Bearer 0123456789abcdef0123456789abcdef0",
    ] {
        for path in ["/api/step-down", "/api/parked/discard"] {
            let request =
                format!("POST {path} HTTP/1.1\nhost: localhost\nauthorization: {token}\ncontent-length: 2\n\n{{}}");
            inputs.push((format!("{path} with `{token}`"), http(&request)));
        }
    }
    let operator = |body: &str| {
        http(&format!(
            "POST /api/parked/retry HTTP/1.1\nhost: localhost\nauthorization: Bearer 0123456789abcdef0123456789abcdef\ncontent-length: {}\n\n{body}",
            body.len()
        ))
    };
    for (name, body) in [
        ("not JSON", "}{".to_owned()),
        ("JSON 60,000 deep", "[".repeat(60_000)),
        ("unknown id", "{\"read_model\":\"orders\",\"id\":\"$gt\"}".to_owned()),
        ("body of 1 MB", "a".repeat(1 << 20)),
        ("numbers as names", "{\"read_model\":1,\"id\":2}".to_owned()),
    ] {
        inputs.push((format!("operator body: {name}"), operator(&body)));
    }
    inputs.push((
        "header of 1 MB".into(),
        http(&format!("GET / HTTP/1.1\nhost: localhost\nx: {}\n\n", "a".repeat(1 << 20))),
    ));
    inputs.push(("path of 1 MB".into(), http(&format!("GET /{} HTTP/1.1\nhost: localhost\n\n", "a".repeat(1 << 20)))));
    inputs.push((
        "1,000 headers".into(),
        http(&format!("GET / HTTP/1.1\nhost: localhost\n{}\n", "x: y\n".repeat(1_000))),
    ));
    inputs.push((
        "1,000 requests in one write".into(),
        http(&"GET /metrics HTTP/1.1\nhost: localhost\n\n".repeat(1_000)),
    ));
    inputs
}
