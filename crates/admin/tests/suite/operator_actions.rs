//! Operator actions need the token.

use std::sync::{Arc, Mutex};

use admin::operator::{
    ActionDone, ActionFuture, ActionRefusal, AppliedAnswer, AppliedModel, AppliedRequest, EventSelector, OperationTime,
    OperatorActions, ParkedListEntry, ParkedSelector, ReadModelSelector,
};
use admin::{OperatorAccess, OperatorToken};

use crate::fixture::AdminFixture;

const TOKEN: &str = "sixteen-letters-or-more";

/// Records the requested actions.
#[derive(Default)]
struct RecordedActions(Mutex<Vec<String>>);

impl RecordedActions {
    fn record(&self, what: String) -> ActionFuture<'_, ActionDone> {
        self.0.lock().unwrap().push(what.clone());
        Box::pin(async move { Ok(ActionDone { done: what }) })
    }
}

impl OperatorActions for RecordedActions {
    fn step_down(&self) -> ActionFuture<'_, ActionDone> {
        self.record("step down".into())
    }

    fn list_parked(&self) -> ActionFuture<'_, Vec<ParkedListEntry>> {
        Box::pin(async { Ok(vec![]) })
    }

    fn retry_parked(&self, selector: ParkedSelector) -> ActionFuture<'_, ActionDone> {
        if selector.id == "nobody" {
            return Box::pin(async { Err(ActionRefusal::not_found("no such aggregate is parked")) });
        }
        if selector.id == "stubborn" {
            return Box::pin(async { Err(ActionRefusal::conflict("it still cannot be applied")) });
        }
        self.record(format!("retry {} in {}", selector.id, selector.read_model))
    }

    fn discard_parked(&self, selector: ParkedSelector) -> ActionFuture<'_, ActionDone> {
        self.record(format!("discard {} in {}, all: {}", selector.id, selector.read_model, selector.all))
    }

    fn rebuild(&self, selector: ReadModelSelector) -> ActionFuture<'_, ActionDone> {
        self.record(format!("rebuild {}", selector.read_model))
    }

    fn roll_back(&self, selector: ReadModelSelector) -> ActionFuture<'_, ActionDone> {
        self.record(format!("roll back {}", selector.read_model))
    }

    fn pause_build(&self) -> ActionFuture<'_, ActionDone> {
        self.record("pause build".into())
    }

    fn resume_build(&self) -> ActionFuture<'_, ActionDone> {
        self.record("resume build".into())
    }

    fn cancel_change(&self) -> ActionFuture<'_, ActionDone> {
        self.record("cancel".into())
    }

    fn verify(&self, selector: ReadModelSelector) -> ActionFuture<'_, ActionDone> {
        self.record(format!("verify {}", selector.read_model))
    }

    fn wait_applied(&self, request: AppliedRequest) -> ActionFuture<'_, AppliedAnswer> {
        let (aggregate, sequence) = match request.event {
            EventSelector::Sequence { aggregate, sequence } => (aggregate, sequence),
            EventSelector::Id(id) if id == "of the source" => (id, 7),
            EventSelector::Id(_) => return Box::pin(async { Err(ActionRefusal::not_found("no such event")) }),
        };
        let (state, reason) = match aggregate.as_str() {
            "a parked one" => ("parked", Some("poison".to_owned())),
            "late" => ("pending", None),
            "one of a paused model" => ("paused", None),
            _ => ("applied", None),
        };
        Box::pin(async move {
            Ok(AppliedAnswer {
                applied: state == "applied",
                parked: state == "parked",
                unavailable: state == "paused",
                sequence: Some(sequence),
                read_models: [("orders".to_owned(), AppliedModel { state, reason })].into(),
                operation_time: Some(OperationTime { t: 7, i: 1 }),
            })
        })
    }
}

fn start_with_token() -> (AdminFixture, Arc<RecordedActions>) {
    let actions = Arc::new(RecordedActions::default());
    let operator = OperatorAccess { token: OperatorToken::new(TOKEN).unwrap(), actions: actions.clone() };
    (AdminFixture::start_with(Some(operator)), actions)
}

const ROUTES: [(&str, &str); 11] = [
    ("POST", "/api/read-models/rebuild"),
    ("POST", "/api/read-models/rollback"),
    ("POST", "/api/read-models/cancel"),
    ("POST", "/api/read-models/build/pause"),
    ("POST", "/api/read-models/build/resume"),
    ("POST", "/api/read-models/verify"),
    ("GET", "/api/applied"),
    ("POST", "/api/step-down"),
    ("GET", "/api/parked"),
    ("POST", "/api/parked/retry"),
    ("POST", "/api/parked/discard"),
];
const SELECTOR: &str = r#"{"read_model": "orders", "id": "order-1"}"#;

fn bearer(token: &str) -> String {
    format!("authorization: Bearer {token}\r\n")
}

#[tokio::test]
async fn a_wait_answers_by_its_status() {
    let (fixture, _) = start_with_token();
    let get = async |query: &str| {
        let reply = fixture.send("GET", &format!("/api/applied?{query}"), &bearer(TOKEN), "").await;
        (reply.status, reply.body)
    };
    let (status, body) = get("aggregate=order-7&sequence=3").await;
    let expected = serde_json::json!({
        "applied": true, "parked": false, "unavailable": false, "sequence": 3, "read_models": { "orders": { "state": "applied" } },
        "operation_time": { "t": 7, "i": 1 },
    });
    assert_eq!((status, serde_json::from_str::<serde_json::Value>(&body).unwrap()), (200, expected));
    assert_eq!(get("aggregate=a%20parked+one&sequence=3").await.0, 409);
    assert_eq!(get("aggregate=one+of+a+paused+model&sequence=3").await.0, 409);
    assert_eq!(get("aggregate=late&sequence=3&timeout=0.1").await.0, 504);
    assert_eq!(get("aggregate=late").await, (400, "`sequence` is missing\n".to_owned()));
    let (status, body) = get("event=of+the+source").await;
    let reply: serde_json::Value = serde_json::from_str(&body).unwrap();
    assert_eq!((status, &reply["sequence"]), (200, &serde_json::json!(7)), "{body}");
    assert_eq!(get("event=unknown").await.0, 404);
    assert_eq!(get("event=of+the+source&sequence=3").await.0, 400);
    assert_eq!(fixture.send("POST", "/api/applied", &bearer(TOKEN), "").await.status, 405);
    fixture.stop().await;
}

#[tokio::test]
async fn without_a_configured_token_every_action_is_refused() {
    let fixture = AdminFixture::start();
    for (method, path) in ROUTES {
        let reply = fixture.send(method, path, &bearer(TOKEN), SELECTOR).await;
        assert_eq!(reply.status, 403, "{path}");
        assert!(reply.body.contains("admin.token"), "{}", reply.body);
    }
    assert_eq!(fixture.get("/api/operator").await.body.trim(), "{\n  \"token\": false\n}");
    fixture.stop().await;
}

#[tokio::test]
async fn without_the_token_no_action_is_done() {
    let (fixture, actions) = start_with_token();
    for (method, path) in ROUTES {
        for headers in
            [String::new(), bearer("sixteen-letters-or-mor"), bearer(""), format!("cookie: token={TOKEN}\r\n")]
        {
            let reply = fixture.send(method, path, &headers, SELECTOR).await;
            assert_eq!(reply.status, 401, "{path} with `{headers}`");
            assert!(reply.head.contains("www-authenticate: bearer"), "{}", reply.head);
        }
        // Not in the URL, which logs and browser histories keep.
        assert_eq!(fixture.send(method, &format!("{path}?token={TOKEN}"), "", SELECTOR).await.status, 401, "{path}");
    }
    assert!(actions.0.lock().unwrap().is_empty());
    fixture.stop().await;
}

#[tokio::test]
async fn with_the_token_each_action_is_done_and_reported() {
    let (fixture, actions) = start_with_token();
    let post = async |path, body| fixture.send("POST", path, &bearer(TOKEN), body).await;
    assert_eq!(post("/api/step-down", "").await.status, 200);
    let retried = post("/api/parked/retry", SELECTOR).await;
    assert_eq!((retried.status, retried.body.contains("retry order-1 in orders")), (200, true));
    let all = r#"{"read_model": "orders", "id": "order-1", "all": true}"#;
    assert_eq!(post("/api/parked/discard", all).await.status, 200);
    assert_eq!(post("/api/read-models/build/pause", "").await.status, 200);
    assert_eq!(post("/api/read-models/build/resume", "").await.status, 200);
    let parked = ["retry order-1 in orders", "discard order-1 in orders, all: true"];
    let done = [&["step down"], &parked[..], &["pause build", "resume build"]].concat();
    assert_eq!(*actions.0.lock().unwrap(), done);
    let list = fixture.send("GET", "/api/parked", &bearer(TOKEN), "").await;
    assert_eq!((list.status, list.body.trim()), (200, "[]"));
    fixture.stop().await;
}

#[tokio::test]
async fn refused_and_malformed_requests_change_nothing() {
    let (fixture, actions) = start_with_token();
    let retry = async |body: &str| fixture.send("POST", "/api/parked/retry", &bearer(TOKEN), body).await;
    let missing = retry(r#"{"read_model": "orders", "id": "nobody"}"#).await;
    assert_eq!((missing.status, missing.body.contains("no such aggregate is parked")), (404, true));
    assert_eq!(retry(r#"{"read_model": "orders", "id": "stubborn"}"#).await.status, 409);
    for body in ["", "order-1", r#"{"id": "order-1"}"#, r#"{"read_model": "orders", "id": "order-1", "force": true}"#] {
        assert_eq!(retry(body).await.status, 400, "`{body}`");
    }
    assert_eq!(retry(&"x".repeat(100 << 10)).await.status, 413);
    assert_eq!(fixture.send("GET", "/api/step-down", &bearer(TOKEN), "").await.status, 405, "a link cannot act");
    assert!(actions.0.lock().unwrap().is_empty());
    fixture.stop().await;
}

#[tokio::test]
async fn pages_of_other_sites_are_refused() {
    let (fixture, _) = start_with_token();
    let foreign = "origin: http://elsewhere.example\r\naccess-control-request-method: POST\r\n\
                   access-control-request-headers: authorization\r\n";
    for path in ["/api/step-down", "/api/parked/retry", "/api/status", "/"] {
        let asked = fixture.send("OPTIONS", path, foreign, "").await;
        assert!([401, 405].contains(&asked.status), "{path}: {}", asked.status);
        for method in ["GET", "POST"] {
            let reply = fixture.send(method, path, &format!("{foreign}{}", bearer(TOKEN)), "").await;
            assert!(!reply.head.contains("access-control-allow"), "{method} {path}: {}", reply.head);
        }
    }
    fixture.stop().await;
}
