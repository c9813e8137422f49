//! Test hooks: usable with the token, 404 without.

use broker::http::{Config, FaultKind, TEST_TOKEN_HEADER, TestCommand, TestReport};
use hyper::{Method, StatusCode};

use crate::administration::HttpClient;

fn with_hooks() -> HttpClient {
    HttpClient::new(Config { test_token: Some("open sesame".into()), ..Config::default() })
}

const TOKEN: [(&str, &str); 1] = [(TEST_TOKEN_HEADER, "open sesame")];

#[tokio::test]
async fn commands_reach_the_engine() {
    let client = with_hooks();
    let before = client.namespace.with(|state| state.now.0);
    let advanced = client.request(Method::POST, "/$test/clock", &TOKEN, r#"{"advance_ms": 60000}"#).await;
    assert_eq!((advanced.status, advanced.kind.as_str()), (StatusCode::OK, "application/json"));
    let report: TestReport = serde_json::from_str(&advanced.body).unwrap();
    assert_eq!(report.now_ms, before + 60_000);

    let busy = r#"{"kind": "server_busy", "times": 3, "entity": "orders", "seed": 7, "one_in": 2}"#;
    assert_eq!(client.request(Method::POST, "/$test/faults", &TOKEN, busy).await.status, StatusCode::OK);
    assert_eq!(client.request(Method::DELETE, "/$test/faults", &TOKEN, "").await.status, StatusCode::OK);
    assert_eq!(client.request(Method::GET, "/$test/state", &TOKEN, "").await.status, StatusCode::OK);
    assert_eq!(client.request(Method::POST, "/$test/reset", &TOKEN, "").await.status, StatusCode::OK);
    let commands = client.namespace.with(|state| state.commands.clone());
    let [
        TestCommand::AdvanceClock { ms: 60_000 },
        TestCommand::Arm(fault),
        TestCommand::Disarm,
        TestCommand::Report,
        TestCommand::Reset,
    ] = &commands[..]
    else {
        panic!("{commands:?}")
    };
    assert_eq!((&fault.kind, fault.times, fault.one_in, fault.seed), (&FaultKind::ServerBusy, 3, 2, 7));
    assert_eq!(fault.entity.as_deref(), Some("orders"));
}

#[tokio::test]
async fn without_the_token_the_hooks_return_404() {
    let (open, closed) = (with_hooks(), HttpClient::new(Config::default()));
    let wrong = [(TEST_TOKEN_HEADER, "open sesamE")];
    let replies = [
        open.request(Method::GET, "/$test/state", &[], "").await,
        open.request(Method::GET, "/$test/state", &wrong, "").await,
        closed.request(Method::GET, "/$test/state", &TOKEN, "").await,
        closed.request(Method::POST, "/$test/clock", &TOKEN, r#"{"advance_ms": 1}"#).await,
    ];
    for reply in replies {
        assert_eq!(reply.status, StatusCode::NOT_FOUND);
    }
    assert!(closed.namespace.with(|state| state.commands.is_empty()));
    assert!(open.namespace.with(|state| state.commands.is_empty()));
}

#[tokio::test]
async fn invalid_test_commands_are_refused() {
    let client = with_hooks();
    for (method, path, body, status) in [
        (Method::POST, "/$test/clock", r#"{"advance": 1}"#, 400),
        (Method::POST, "/$test/clock", "", 400),
        (Method::POST, "/$test/faults", r#"{"kind": "server_busy", "tims": 3}"#, 400),
        (Method::POST, "/$test/faults", r#"{"kind": "meteor"}"#, 400),
        (Method::GET, "/$test/clock", "", 405),
        (Method::GET, "/$test/weather", "", 404),
    ] {
        let reply = client.request(method, path, &TOKEN, body).await;
        assert_eq!(reply.status.as_u16(), status, "{path} {body}: {}", reply.body);
    }
}
