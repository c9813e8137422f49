//! What pods keep has a lifetime or a size at which `status` warns.

use mongodb::bson::{Binary, DateTime, Document, doc, spec::BinarySubtype};
use serde_json::Value;
use testkit::wait::wait_for;

use crate::fixture::{CliFixture, SOON};

const MODELS: &str =
    "read_models: { database: VIEWS, totals: { when: { Added: { $inc: { total: $$event.payload.amount } } } } }";
const HOUR: i64 = 3_600_000;
const MEBIBYTE: usize = 1024 * 1024;

fn before(millis: i64) -> DateTime {
    DateTime::from_millis(DateTime::now().timestamp_millis() - millis)
}

/// The problems of this code, by severity.
async fn storage_problems(fixture: &CliFixture) -> Vec<(String, String)> {
    let status = fixture.run(&["status", "--json"]).await.json();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let problems = status["problems"].as_array().unwrap().iter().filter(|problem| problem["code"] == "storage");
    problems.map(|problem| (text(&problem["severity"]), text(&problem["text"]))).collect()
}

/// The size of a collection as `status` has it.
async fn storage(fixture: &CliFixture, collection: &str) -> (u64, u64) {
    let status = fixture.run(&["status", "--json"]).await.json();
    let sizes = status["storage"].as_array().unwrap();
    let size = sizes.iter().find(|size| size["collection"] == collection).unwrap_or_else(|| panic!("{status}"));
    (size["documents"].as_u64().unwrap(), size["bytes"].as_u64().unwrap())
}

#[tokio::test]
async fn bodies_and_pods_expire() {
    let fixture = CliFixture::new("retention_expiry", MODELS).await;
    fixture.run(&["topology", "apply"]).await.success();
    let pods = fixture.coordination.collection::<Document>("pods");
    let crashed = |name: &str, hours: i64| {
        let id = doc! { "pipeline": "shop", "pod": name };
        doc! { "_id": id, "format": 1_i64, "startedAt": before(9 * HOUR), "seenAt": before(hours * HOUR) }
    };
    pods.insert_many([crashed("gone", 2), crashed("missing", 0)]).await.unwrap();
    let bodies = fixture.coordination.collection::<Document>("oversize_events");
    let body = |message: &str, expires: DateTime| {
        doc! { "_id": { "message": message, "chunk": 0_i64 }, "format": 1, "expiresAt": expires }
    };
    bodies.insert_many([body("expired", before(HOUR)), body("needed", before(-HOUR))]).await.unwrap();
    // It looks once a minute by itself.
    let faster = doc! { "setParameter": 1, "ttlMonitorSleepSecs": 1 };
    fixture.coordination.client().database("admin").run_command(faster).await.unwrap();

    let pod = fixture.start_pod("pod-1");
    let is_there = async |name: &str| pods.find_one(doc! { "_id.pod": name }).await.unwrap().is_some();
    wait_for("the long dead pod to be removed", SOON, async || {
        if is_there("pod-1").await && !is_there("gone").await { Ok(()) } else { Err("it is there") }
    })
    .await;
    assert!(is_there("missing").await, "operators see that it is silent");
    wait_for("the expired body to be removed", SOON, async || {
        let left: Vec<_> = bodies.distinct("_id.message", doc! {}).await.unwrap();
        if left == ["needed".into()] { Ok(()) } else { Err(left) }
    })
    .await;
    pod.terminate();
    assert!(pod.wait_for_exit(SOON).await.success());
}

#[tokio::test]
async fn status_warns_before_stores_grow_out_of_hand() {
    let fixture = CliFixture::new("retention_alarm", MODELS).await;
    fixture.run(&["topology", "apply"]).await.success();
    let pod = fixture.start_pod("pod-1");
    fixture.insert("order-1", 1, "Added", doc! { "amount": 5 }).await;
    fixture.run(&["wait", "order-1", "--sequence", "1", "--timeout", "60s"]).await.success();
    let (cursors, bytes) = storage(&fixture, "_headwater_cursors").await;
    assert!(cursors == 1 && (100..400).contains(&bytes), "about 200 bytes for an aggregate: {bytes}");
    let (actions, bytes) = storage(&fixture, "operator_actions").await;
    assert!(actions == 1 && bytes < 400, "about 200 bytes for an action: {bytes}");
    assert_eq!(storage_problems(&fixture).await, []);

    // Half of the limit, and then more than all of it.
    let actions = fixture.coordination.collection::<Document>("operator_actions");
    for (documents, severity, all) in [(9, "warning", 129), (9, "critical", 257)] {
        for _ in 0..documents {
            let bytes = vec![7; 15 * MEBIBYTE];
            let text = Binary { subtype: BinarySubtype::Generic, bytes };
            actions.insert_one(doc! { "pipeline": "another", "text": text }).await.unwrap();
        }
        let problems = wait_for("the alarm", SOON, async || {
            let problems = storage_problems(&fixture).await;
            if problems.iter().any(|(found, _)| found == severity) { Ok(problems) } else { Err(problems) }
        })
        .await;
        assert_eq!(problems.len(), 1, "{problems:?}");
        assert!(problems[0].1.contains("`operator_actions` has") && problems[0].1.contains("256 MiB"), "{problems:?}");
        let (_, bytes) = storage(&fixture, "operator_actions").await;
        assert!(bytes >= all * MEBIBYTE as u64, "{bytes}");
    }
    let status = fixture.run(&["status", "--json"]).await;
    assert!(!status.status.success() && status.json()["healthy"] == false, "{}", status.stdout);
    pod.terminate();
    assert!(pod.wait_for_exit(SOON).await.success());
}
