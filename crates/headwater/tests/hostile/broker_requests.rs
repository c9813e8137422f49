//! Requests to the broker's HTTP.

use crate::exchange::{http, send_all};
use crate::processes::{SOON, broker_memory, start_broker};
use crate::table::HostileTable;

#[tokio::test]
async fn hostile_requests_do_not_harm_the_broker() {
    let folder = tempfile::tempdir().unwrap();
    let broker = start_broker(folder.path()).await;
    let mut table = HostileTable::new("broker HTTP");
    send_all(&mut table, broker.address(), "/health", inputs()).await;
    let line = broker.process().unwrap().wait_for_line("page: ", SOON).await.text;
    let token = line.split_once("#token=").unwrap().1.trim().to_owned();
    let queue = put("/page-queue", &entry("<QueueDescription/>"));
    send_all(&mut table, broker.address(), "/health", vec![("queue of the page".to_owned(), queue)]).await;
    send_all(&mut table, broker.address(), "/health", page_inputs(&token)).await;
    table.finish(&broker_memory(&broker));
}

fn put(path: &str, body: &str) -> Vec<u8> {
    http(&format!("PUT {path} HTTP/1.1\nhost: localhost\nconnection: close\ncontent-length: {}\n\n{body}", body.len()))
}

fn entry(inner: &str) -> String {
    format!("<entry xmlns=\"http://www.w3.org/2005/Atom\"><content type=\"application/xml\">{inner}</content></entry>")
}

fn inputs() -> Vec<(String, Vec<u8>)> {
    let mut inputs: Vec<(String, Vec<u8>)> = [
        ("foreign host", "PUT /q HTTP/1.1\nhost: evil.example\ncontent-length: 0\n\n"),
        ("no host", "GET / HTTP/1.1\n\n"),
        ("HTTP/0.9", "GET /\n"),
        ("HTTP/9.9", "GET / HTTP/9.9\nhost: localhost\n\n"),
        ("unknown method", "BREW /q HTTP/1.1\nhost: localhost\nconnection: close\n\n"),
        ("negative length", "PUT /q HTTP/1.1\nhost: localhost\ncontent-length: -1\n\n"),
        ("length of 20 digits", "PUT /q HTTP/1.1\nhost: localhost\ncontent-length: 99999999999999999999\n\n"),
        ("two lengths", "PUT /q HTTP/1.1\nhost: localhost\ncontent-length: 1\ncontent-length: 2\n\nab"),
        (
            "length and chunks",
            "PUT /q HTTP/1.1\nhost: localhost\ncontent-length: 4\ntransfer-encoding: chunked\n\n0\n\n",
        ),
        ("chunk of 2^64", "PUT /q HTTP/1.1\nhost: localhost\ntransfer-encoding: chunked\n\nfffffffffffffffff\n"),
        ("body that never comes", "PUT /q HTTP/1.1\nhost: localhost\ncontent-length: 5000\n\n"),
        (
            "test hooks without a token",
            "POST /$test/clock HTTP/1.1\nhost: localhost\nconnection: close\ncontent-length: 2\n\n{}",
        ),
        (
            "websocket without a key",
            "GET /$servicebus/websocket HTTP/1.1\nhost: localhost\nupgrade: websocket\nconnection: upgrade\n\n",
        ),
        (
            "page of -1",
            "GET /$Resources/queues?$skip=-1&$top=99999999999 HTTP/1.1\nhost: localhost\nconnection: close\n\n",
        ),
    ]
    .map(|(name, text)| (name.to_owned(), http(text)))
    .to_vec();
    inputs.push((
        "header of 1 MB".into(),
        http(&format!("GET / HTTP/1.1\nhost: localhost\nx: {}\n\n", "a".repeat(1 << 20))),
    ));
    inputs.push((
        "1,000 headers".into(),
        http(&format!("GET / HTTP/1.1\nhost: localhost\n{}\n", "x: y\n".repeat(1_000))),
    ));
    inputs.push(("100 requests in one write".into(), http(&"GET /health HTTP/1.1\nhost: localhost\n\n".repeat(100))));
    for path in [
        "/../../etc/passwd",
        "/%2e%2e/%2e%2e",
        "/%00",
        "/a%ff",
        "//",
        "/a/b/c/d/e/f",
        "/$Resources/nothing",
        "/a/Subscriptions/b/rules/c/d",
        "/\u{7f}",
    ] {
        inputs.push((format!("entity `{}`", path.escape_debug()), put(path, &entry("<QueueDescription/>"))));
    }
    let bodies = [
        (
            "entities of a DTD",
            "<!DOCTYPE a [<!ENTITY b \"cccccccc\"><!ENTITY d \"&b;&b;&b;\">]><entry>&d;</entry>".to_owned(),
        ),
        ("external entity", "<!DOCTYPE a [<!ENTITY b SYSTEM \"file:///etc/passwd\">]><entry>&b;</entry>".to_owned()),
        ("elements 10,000 deep", "<a>".repeat(10_000)),
        ("100,000 elements", entry(&"<a/>".repeat(100_000))),
        ("broken XML", entry("<QueueDescription>")),
        ("no description", entry("")),
        ("unknown description", entry("<Nothing/>")),
        (
            "lock of a thousand years",
            entry("<QueueDescription><LockDuration>P365000D</LockDuration></QueueDescription>"),
        ),
        ("negative lock", entry("<QueueDescription><LockDuration>-PT1M</LockDuration></QueueDescription>")),
        ("text as a number", entry("<QueueDescription><MaxDeliveryCount>many</MaxDeliveryCount></QueueDescription>")),
        (
            "size of 2^63",
            entry("<QueueDescription><MaxSizeInMegabytes>9223372036854775808</MaxSizeInMegabytes></QueueDescription>"),
        ),
        ("forwarding to itself", entry("<QueueDescription><ForwardTo>q11</ForwardTo></QueueDescription>")),
        (
            "SQL filter",
            entry(
                "<RuleDescription><Filter i:type=\"SqlFilter\" xmlns:i=\"http://www.w3.org/2001/XMLSchema-instance\"><SqlExpression>1=1; DROP</SqlExpression></Filter></RuleDescription>",
            ),
        ),
    ];
    let bodies = bodies.into_iter().enumerate();
    // Each in its own queue: the inputs run at the same time.
    inputs.extend(bodies.map(|(number, (name, body))| (name.to_owned(), put(&format!("/q{number}"), &body))));
    inputs
}

/// Requests to the broker's page. The names do not contain the token: it is new in every process.
fn page_inputs(token: &str) -> Vec<(String, Vec<u8>)> {
    let mut inputs = vec![];
    for path in [
        "",
        "../../etc/passwd",
        "%2e%2e/broker.js",
        "api/",
        "api/nothing",
        "api/entities?skip=18446744073709551615&top=18446744073709551615",
        "api/entities?skip=-1",
        "api/entities?filter=%ff",
        "api/entity",
        "api/entity?path=%00",
        "api/messages?path=nothing",
        "api/messages?path=page-queue&from=99999999999999999999",
        "api/messages?path=page-queue&subqueue=other",
        "api/message?path=page-queue",
        "api/session-state?path=page-queue&session=%00",
        "api/rules?path=page-queue",
    ] {
        let request = format!("GET /$page/{path} HTTP/1.1\nhost: localhost\nconnection: close\n\n");
        inputs.push((format!("page `{path}`"), http(&request)));
    }
    let long = format!("GET /$page/api/entity?path={} HTTP/1.1\nhost: localhost\n\n", "a".repeat(1 << 20));
    inputs.push(("page query of 1 MB".into(), http(&long)));
    let foreign =
        "GET /$page/api/entities HTTP/1.1\nhost: localhost\nconnection: close\norigin: https://evil.example\n\n";
    inputs.push(("page query of another site".into(), http(foreign)));
    let post = |name: &str, token: &str, body: &str| {
        let head =
            format!("POST /$page/api/{name} HTTP/1.1\nhost: localhost\nconnection: close\nauthorization: {token}\n");
        [http(&format!("{head}content-length: {}\n\n", body.len())), body.as_bytes().to_vec()].concat()
    };
    for wrong in ["", "Bearer", "Bearer ", "Bearer wrong", "Basic eDp5"] {
        inputs.push((format!("page action with `{wrong}`"), post("purge", wrong, "{\"path\":\"page-queue\"}")));
    }
    let bearer = format!("Bearer {token}");
    for (name, action, body) in [
        ("no JSON", "send", "}{".to_owned()),
        ("JSON 100,000 levels deep", "send", "[".repeat(100_000)),
        ("a body of 4 MB", "send", "a".repeat(4 << 20)),
        ("an unknown field", "purge", r#"{"path":"page-queue","x":1}"#.to_owned()),
        ("an unknown action", "drop", "{}".to_owned()),
        ("no entity", "purge", r#"{"path":"nothing"}"#.to_owned()),
        ("501 copies", "send", r#"{"path":"page-queue","message":{"body":"x"},"copies":501}"#.to_owned()),
        ("0 copies", "send", r#"{"path":"page-queue","message":{"body":"x"},"copies":0}"#.to_owned()),
        (
            "2^64 copies",
            "send",
            r#"{"path":"page-queue","message":{"body":"x"},"copies":18446744073709551616}"#.to_owned(),
        ),
        ("a false sequence", "delete", r#"{"path":"page-queue","messages":[{"sequence":"-1"}]}"#.to_owned()),
        (
            "501 messages",
            "delete",
            format!(r#"{{"path":"page-queue","messages":[{}]}}"#, vec![r#"{"sequence":"1"}"#; 501].join(",")),
        ),
        ("resubmit of the main queue", "resubmit-all", r#"{"path":"page-queue","subqueue":"main"}"#.to_owned()),
    ] {
        inputs.push((format!("page action: {name}"), post(action, &bearer, &body)));
    }
    inputs
}
