//! `headwater checkpoint`: show, set and reset.

use std::time::Duration;

use mongodb::bson::{Document, Timestamp, doc, serialize_to_document};
use serde_json::{Value as Json, json};
use testkit::wait::wait_for;

use crate::fixture::{CliFixture, SOON};

const MODELS: &str =
    "read_models: { database: VIEWS, totals: { when: { Added: { $inc: { total: $$event.payload.amount } } } } }";

const USAGE: Option<i32> = Some(2);

async fn show(fixture: &CliFixture) -> Json {
    let output = fixture.run(&["checkpoint", "show", "--json"]).await;
    let shown = output.json();
    output.success();
    shown
}

/// Waits until the read model has this total.
async fn wait_for_total(fixture: &CliFixture, expected: i32) {
    wait_for("the total", SOON, async || {
        let found = fixture.views.collection::<Document>("totals").find_one(doc! { "_id": "order-1" }).await.unwrap();
        let total = found.and_then(|found| found.get_i32("total").ok());
        if total == Some(expected) { Ok(()) } else { Err(total) }
    })
    .await;
}

/// Waits until the checkpoint has passed this token.
async fn wait_past(fixture: &CliFixture, token: &Json) -> Json {
    wait_for("the checkpoint to move on", SOON, async || {
        let now = show(fixture).await;
        let moved = now["phase"] == "stream" && now["token"].as_str() > token.as_str();
        if moved { Ok(now) } else { Err(now) }
    })
    .await
}

#[tokio::test]
async fn the_checkpoint_is_shown_set_and_reset() {
    let fixture = CliFixture::new("checkpoint", MODELS).await;
    fixture.run(&["topology", "apply"]).await.success();
    assert_eq!(show(&fixture).await, json!({ "pipeline": "shop", "phase": null }));
    assert!(fixture.run(&["checkpoint", "show"]).await.success().contains("`shop` has no checkpoint yet"));
    let early = fixture.run(&["checkpoint", "set", "--token", &"82".repeat(20), "--yes"]).await.failure();
    assert!(early.contains("lies in the future"), "{early}");
    let early = fixture.run(&["checkpoint", "reset", "--start", "now", "--yes"]).await.failure();
    assert!(early.contains("no checkpoint yet"), "{early}");

    fixture.insert("order-1", 1, "Added", doc! { "amount": 5 }).await;
    let pod = fixture.start_pod("pod-1");
    wait_for_total(&fixture, 5).await;
    let first = wait_past(&fixture, &Json::Null).await;
    assert_eq!((&first["pipeline"], &first["term"], &first["epoch"]), (&json!("shop"), &json!(1), &json!(1)));
    assert_eq!((&first["saved_by"], &first["snapshot"]), (&json!("pod-1"), &Json::Null));
    assert!(first["saved_at"].as_str().is_some_and(|at| at.starts_with("20") && at.ends_with('Z')), "{first}");
    let token = first["token"].as_str().unwrap();
    let text = fixture.run(&["checkpoint", "show"]).await.success();
    for line in ["pipeline      shop", "term          1", "epoch         1", "phase         stream"] {
        assert!(text.lines().any(|found| found == line), "{line}: {text}");
    }
    assert!(text.contains(" by pod-1"), "{text}");

    fixture.insert("order-1", 2, "Added", doc! { "amount": 7 }).await;
    wait_for_total(&fixture, 12).await;
    let second = wait_past(&fixture, &first["token"]).await;

    // Back to the first token: later events are published again, and applied once.
    let unconfirmed = fixture.run(&["checkpoint", "set", "--token", token]).await;
    assert_eq!(unconfirmed.status.code(), USAGE);
    assert!(
        unconfirmed.stderr.contains("published again; consumers skip") && unconfirmed.stderr.contains("--yes"),
        "{}",
        unconfirmed.stderr
    );
    let unread = fixture.run(&["checkpoint", "set", "--token", "here", "--yes"]).await;
    assert_eq!(unread.status.code(), USAGE);
    assert!(unread.stderr.contains("hexadecimal digits"), "{}", unread.stderr);
    // In lower case every later token would sort below it, and the checkpoint would stand still.
    let lower = token.to_ascii_lowercase();
    let set = fixture.run(&["checkpoint", "set", "--token", &lower, "--yes", "--json"]).await.json();
    assert_eq!((&set["epoch"], &set["term"], &set["phase"]), (&json!(2), &json!(2), &json!("stream")));
    assert_eq!(set["token"], first["token"]);
    assert_eq!(fixture.history().await[0], "checkpoint moved");
    assert!(set["saved_by"].as_str().is_some_and(|by| by.ends_with("(operator)")), "{set}");
    assert!(set["consequence"].as_str().unwrap().contains("published again"), "{set}");
    fixture.insert("order-1", 3, "Added", doc! { "amount": 1 }).await;
    wait_for_total(&fixture, 13).await;
    let third = wait_past(&fixture, &second["token"]).await;
    assert_eq!(third["epoch"], 2, "the leader took it up from there");

    // A truncated token, and a token in the future, change nothing.
    let half = &token[..token.len() - 9];
    let refused = fixture.run(&["checkpoint", "set", "--token", half, "--yes"]).await.failure();
    assert!(refused.contains("nothing was changed: the source cannot resume after that token"), "{refused}");
    let future = format!("82FFFFFFF0{}", &token[10..]);
    let refused = fixture.run(&["checkpoint", "set", "--token", &future, "--yes"]).await.failure();
    assert!(refused.contains("nothing was changed: that token lies in the future"), "{refused}");
    assert_eq!(show(&fixture).await["epoch"], 2);

    let unconfirmed = fixture.run(&["checkpoint", "reset", "--start", "beginning"]).await;
    assert_eq!(unconfirmed.status.code(), USAGE);
    assert!(unconfirmed.stderr.contains("all events of the source are published again"), "{}", unconfirmed.stderr);
    let reset = fixture.run(&["checkpoint", "reset", "--start", "beginning", "--yes", "--json"]).await.json();
    assert_eq!(
        (&reset["epoch"], &reset["phase"], &reset["snapshot"]["scanned"]),
        (&json!(3), &json!("snapshot"), &json!(0))
    );
    fixture.insert("order-1", 4, "Added", doc! { "amount": 2 }).await;
    wait_for_total(&fixture, 15).await;
    pod.terminate();
    assert!(pod.wait_for_exit(SOON).await.success());
}

/// Further in the future than any clock skew.
const IN_THE_FUTURE: &str = "2091-01-01T00:00:00Z";
const IN_THE_FUTURE_SECONDS: u32 = 3_818_448_000;

#[tokio::test]
async fn a_start_in_the_future_is_refused_everywhere() {
    let fixture = CliFixture::new("yet_to_come", MODELS).await;
    fixture.run(&["topology", "apply"]).await.success();
    let start = format!("producer.start={IN_THE_FUTURE}");

    let checked = fixture.run(&["check", "--set", &start]).await;
    let found = checked.stdout.lines().find(|line| line.starts_with("error: producer: `producer.start`: "));
    assert!(found.is_some_and(|line| line.contains("is in the future")), "{}", checked.stdout);
    assert_eq!(checked.status.code(), Some(4), "{}", checked.stdout);

    // A pod that would create the pipeline at that time halts, and creates nothing.
    let first_pod = fixture.start_pod_with("pod-0", &["--set", &start]);
    let output = first_pod.wait_for_line("operator action required", SOON).await.text;
    assert!(output.contains("E0002") && output.contains("is in the future"), "{output}");
    assert_eq!(show(&fixture).await["phase"], "unstarted");
    first_pod.terminate();
    assert!(first_pod.wait_for_exit(SOON).await.success());

    fixture.insert("order-1", 1, "Added", doc! { "amount": 5 }).await;
    let pod = fixture.start_pod("pod-1");
    wait_for_total(&fixture, 5).await;
    let before = show(&fixture).await;
    let refused = fixture.run(&["checkpoint", "reset", "--start", IN_THE_FUTURE, "--yes"]).await;
    assert_eq!(refused.status.code(), USAGE);
    let words = ["nothing was changed", "is in the future", "`now`, `beginning` or a time in the past"];
    assert!(words.iter().all(|words| refused.stderr.contains(words)), "{}", refused.stderr);
    assert_eq!(show(&fixture).await["epoch"], before["epoch"]);
    pod.terminate();
    assert!(pod.wait_for_exit(SOON).await.success());
}

/// Moves the checkpoint into the future. The token of such a stream does not advance, so the leader has nothing to save.
async fn move_checkpoint_into_future(fixture: &CliFixture) {
    let at = Timestamp { time: IN_THE_FUTURE_SECONDS, increment: 0 };
    let events = fixture.source.collection::<Document>("events");
    let stream = events.watch().start_at_operation_time(at).batch_size(0).await.unwrap();
    let token = stream.resume_token().expect("a stream that was opened has one");
    let token = serialize_to_document(&token).expect("a token is a document");
    let key = token.get_str("_data").expect("it has its key").to_owned();
    let set = doc! { "phase": "stream", "token": token, "position": key, "clusterTime": null };
    let moved = doc! { "$set": set, "$inc": { "term": 1_i64, "epoch": 1_i64 } };
    let checkpoints = fixture.coordination.collection::<Document>("checkpoints");
    assert_eq!(checkpoints.update_one(doc! { "_id": "shop" }, moved).await.unwrap().modified_count, 1);
}

#[tokio::test]
async fn an_idle_leader_notices_a_checkpoint_reset() {
    let fixture = CliFixture::new("idle_reset", MODELS).await;
    fixture.run(&["topology", "apply"]).await.success();
    fixture.insert("order-1", 1, "Added", doc! { "amount": 5 }).await;
    let pod = fixture.start_pod("pod-1");
    wait_for_total(&fixture, 5).await;
    wait_past(&fixture, &Json::Null).await;
    move_checkpoint_into_future(&fixture).await;
    // The leader continues from there in a new term, and publishes nothing. It is term 3, or a later one if a reply of the lease store was late.
    pod.wait_for_line("\"epoch\":\"2\",\"from\":\"stream\"", SOON).await;
    wait_for("the status to tell it", SOON, async || {
        let output = fixture.run(&["status", "--json"]).await;
        let status = output.json();
        let ahead =
            status["problems"].as_array().is_some_and(|all| all.iter().any(|one| one["code"] == "checkpoint_ahead"));
        if ahead && output.status.code() == Some(4) && status["leader"]["term"].as_u64() >= Some(3) {
            Ok(())
        } else {
            Err(output.stdout)
        }
    })
    .await;
    fixture.insert("order-1", 2, "Added", doc! { "amount": 7 }).await;

    let reset = fixture.run(&["checkpoint", "reset", "--start", "beginning", "--yes", "--json"]).await.json();
    assert_eq!((&reset["epoch"], &reset["phase"]), (&json!(3), &json!("snapshot")));
    // The leader polls once a second; the rest of the time is for the command itself.
    wait_for("the leader to take it up", Duration::from_secs(20), async || {
        let now = show(&fixture).await;
        if now["term"].as_u64() > reset["term"].as_u64() { Ok(()) } else { Err(now) }
    })
    .await;
    wait_for_total(&fixture, 12).await;
    pod.terminate();
    assert!(pod.wait_for_exit(SOON).await.success());
}
