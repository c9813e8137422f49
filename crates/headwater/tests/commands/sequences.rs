//! Sequences of every kind: those that are whole numbers order events, and events without one are rejected and reported.

use mongodb::bson::{Bson, Document, doc};
use testkit::wait::wait_for;

use crate::fixture::{CliFixture, SOON};

const MODELS: &str =
    "read_models: { database: VIEWS, totals: { when: { Added: { $inc: { total: $$event.payload.amount } } } } }";

async fn insert(fixture: &CliFixture, id: &str, version: impl Into<Bson>) {
    let event = doc! { "aggregateId": id, "version": version.into(), "type": "Added", "payload": { "amount": 1 } };
    fixture.source.collection("events").insert_one(event).await.unwrap();
}

fn decimal(text: &str) -> Bson {
    Bson::Decimal128(text.parse().unwrap())
}

async fn wait_for_totals(fixture: &CliFixture, expected: &[(&str, i32)]) {
    wait_for("the totals", SOON, async || {
        let mut found = vec![];
        for (id, _) in expected {
            let total = fixture.views.collection::<Document>("totals").find_one(doc! { "_id": *id }).await.unwrap();
            found.push((*id, total.and_then(|total| total.get_i32("total").ok()).unwrap_or(0)));
        }
        if found == expected { Ok(()) } else { Err(found) }
    })
    .await;
}

#[tokio::test]
async fn events_without_a_usable_sequence_are_rejected() {
    let fixture = CliFixture::new("sequences", MODELS).await;
    fixture.run(&["topology", "apply"]).await.success();
    let whole: [Bson; 4] = [decimal("1"), decimal("2.00"), 3.0.into(), 4_i64.into()];
    for version in whole {
        insert(&fixture, "numbered", version).await;
    }
    let without: [Bson; 6] = ["1".into(), "2".into(), 3.5.into(), f64::NAN.into(), (-1).into(), Bson::Null];
    let rejected = without.len();
    for version in without {
        insert(&fixture, "without", version).await;
    }
    let checked = fixture.run(&["check", "--sample", "50"]).await;
    let problem = format!("error: source: {rejected} of 10 sampled events have no whole number from 0 in `version`");
    assert!(checked.stdout.contains(&problem), "{}", checked.stdout);
    checked.failure();

    // The snapshot reads all of them; then the stream brings one more of each.
    let pod = fixture.start_pod("pod-1");
    wait_for_totals(&fixture, &[("numbered", 4)]).await;
    insert(&fixture, "numbered", decimal("5")).await;
    insert(&fixture, "without", "7").await;
    wait_for_totals(&fixture, &[("numbered", 5)]).await;
    let events = fixture.coordination.collection::<Document>("rejected_events");
    wait_for("the rejected events", SOON, async || {
        let found = events.count_documents(doc! { "reason": "no_sequence" }).await.unwrap();
        if found == rejected as u64 + 1 { Ok(()) } else { Err(found) }
    })
    .await;
    wait_for_totals(&fixture, &[("numbered", 5), ("without", 0)]).await;
    let status = fixture.run(&["status", "--json"]).await.json();
    let said = status["rejected"].as_array().is_some_and(|all| all.iter().any(|one| one["reason"] == "no_sequence"));
    assert!(said && status["problems"].as_array().is_some_and(|all| !all.is_empty()), "{status:#}");
    pod.terminate();
    assert!(pod.wait_for_exit(SOON).await.success());
}
