//! An operator's operator_routes: for whoever shows the token, and for nobody else.

use std::sync::{Arc, Mutex};

use admin::operator::{ActionDone, ActionFuture, ActionRefusal, OperatorActions, ParkedEntry, ParkedSelector};
use admin::{OperatorAccess, OperatorToken};

use crate::fixture::AdminFixture;

const TOKEN: &str = "sixteen-letters-or-more";

/// Remembers what was asked of it.
#[derive(Default)]
struct Recorded(Mutex<Vec<String>>);

impl Recorded {
    fn act(&self, what: String) -> ActionFuture<'_, ActionDone> {
        self.0.lock().unwrap().push(what.clone());
        Box::pin(async move { Ok(ActionDone { done: what }) })
    }
}

impl OperatorActions for Recorded {
    fn step_down(&self) -> ActionFuture<'_, ActionDone> {
        self.act("step down".into())
    }

    fn parked(&self) -> ActionFuture<'_, Vec<ParkedEntry>> {
        Box::pin(async { Ok(vec![]) })
    }

    fn retry(&self, which: ParkedSelector) -> ActionFuture<'_, ActionDone> {
        if which.id == "nobody" {
            return Box::pin(async { Err(ActionRefusal::not_found("no such aggregate is parked")) });
        }
        if which.id == "stubborn" {
            return Box::pin(async { Err(ActionRefusal::conflict("it still cannot be applied")) });
        }
        self.act(format!("retry {} in {}", which.id, which.read_model))
    }

    fn discard(&self, which: ParkedSelector) -> ActionFuture<'_, ActionDone> {
        self.act(format!("discard {} in {}, all: {}", which.id, which.read_model, which.all))
    }
}

fn locked() -> (AdminFixture, Arc<Recorded>) {
    let actions = Arc::new(Recorded::default());
    let operator = OperatorAccess { token: OperatorToken::new(TOKEN).unwrap(), actions: actions.clone() };
    (AdminFixture::with(Some(operator)), actions)
}

const ACTS: [(&str, &str); 4] = [
    ("POST", "/api/step-down"),
    ("GET", "/api/parked"),
    ("POST", "/api/parked/retry"),
    ("POST", "/api/parked/discard"),
];
const WHICH: &str = r#"{"read_model": "orders", "id": "order-1"}"#;

fn shown(token: &str) -> String {
    format!("authorization: Bearer {token}\r\n")
}

#[tokio::test]
async fn without_a_configured_token_nobody_may_act_whatever_he_shows() {
    let fixture = AdminFixture::start();
    for (method, path) in ACTS {
        let answer = fixture.send(method, path, &shown(TOKEN), WHICH).await;
        assert_eq!(answer.status, 403, "{path}");
        assert!(answer.body.contains("admin.token"), "{}", answer.body);
    }
    assert_eq!(fixture.get("/api/operator").await.body.trim(), "{\n  \"token\": false\n}");
    fixture.stop().await;
}

#[tokio::test]
async fn without_the_token_nothing_is_done() {
    let (fixture, actions) = locked();
    for (method, path) in ACTS {
        for headers in [String::new(), shown("sixteen-letters-or-mor"), shown(""), format!("cookie: token={TOKEN}\r\n")]
        {
            let answer = fixture.send(method, path, &headers, WHICH).await;
            assert_eq!(answer.status, 401, "{path} with `{headers}`");
            assert!(answer.head.contains("www-authenticate: bearer"), "{}", answer.head);
        }
        // Not in an address, which logs and histories keep.
        assert_eq!(fixture.send(method, &format!("{path}?token={TOKEN}"), "", WHICH).await.status, 401, "{path}");
    }
    assert!(actions.0.lock().unwrap().is_empty());
    fixture.stop().await;
}

#[tokio::test]
async fn with_the_token_each_act_is_done_and_told() {
    let (fixture, actions) = locked();
    let post = async |path, body| fixture.send("POST", path, &shown(TOKEN), body).await;
    assert_eq!(post("/api/step-down", "").await.status, 200);
    let retried = post("/api/parked/retry", WHICH).await;
    assert_eq!((retried.status, retried.body.contains("retry order-1 in orders")), (200, true));
    let all = r#"{"read_model": "orders", "id": "order-1", "all": true}"#;
    assert_eq!(post("/api/parked/discard", all).await.status, 200);
    let done = ["step down", "retry order-1 in orders", "discard order-1 in orders, all: true"];
    assert_eq!(*actions.0.lock().unwrap(), done);
    let list = fixture.send("GET", "/api/parked", &shown(TOKEN), "").await;
    assert_eq!((list.status, list.body.trim()), (200, "[]"));
    fixture.stop().await;
}

#[tokio::test]
async fn what_cannot_be_done_is_told_and_what_is_not_understood_is_not_done() {
    let (fixture, actions) = locked();
    let retry = async |body: &str| fixture.send("POST", "/api/parked/retry", &shown(TOKEN), body).await;
    let missing = retry(r#"{"read_model": "orders", "id": "nobody"}"#).await;
    assert_eq!((missing.status, missing.body.contains("no such aggregate is parked")), (404, true));
    assert_eq!(retry(r#"{"read_model": "orders", "id": "stubborn"}"#).await.status, 409);
    for body in ["", "order-1", r#"{"id": "order-1"}"#, r#"{"read_model": "orders", "id": "order-1", "force": true}"#] {
        assert_eq!(retry(body).await.status, 400, "`{body}`");
    }
    assert_eq!(retry(&"x".repeat(100 << 10)).await.status, 413);
    assert_eq!(fixture.send("GET", "/api/step-down", &shown(TOKEN), "").await.status, 405, "a link does nothing");
    assert!(actions.0.lock().unwrap().is_empty());
    fixture.stop().await;
}

#[tokio::test]
async fn another_site_s_page_is_let_in_nowhere() {
    let (fixture, _) = locked();
    let foreign = "origin: http://elsewhere.example\r\naccess-control-request-method: POST\r\n\
                   access-control-request-headers: authorization\r\n";
    for path in ["/api/step-down", "/api/parked/retry", "/api/status", "/"] {
        let asked = fixture.send("OPTIONS", path, foreign, "").await;
        assert!([401, 405].contains(&asked.status), "{path}: {}", asked.status);
        for method in ["GET", "POST"] {
            let answer = fixture.send(method, path, &format!("{foreign}{}", shown(TOKEN)), "").await;
            assert!(!answer.head.contains("access-control-allow"), "{method} {path}: {}", answer.head);
        }
    }
    fixture.stop().await;
}
