//! Read models over time: what is added, changed, removed or brought back is built from the source, and what cannot be built is not healthy.

use mongodb::bson::{Bson, Document, doc};
use serde_json::Value;
use testkit::process::Process;
use testkit::wait::wait_for;

use crate::fixture::{CliFixture, SOON};

pub(crate) const TOTALS: &str = "totals: { when: { Added: { $inc: { total: $$event.payload.amount } } } }";
const COUNTS: &str = "counts: { when: { Added: { $inc: { events: 1 } } } }";
/// By something other than the aggregate.
const CUSTOMERS: &str =
    "customers: { key: $$event.payload.customer, when: { Added: { $inc: { spent: $$event.payload.amount } } } }";

pub(crate) async fn configure(fixture: &CliFixture, models: &[&str]) {
    let shared = testkit::mongo::shared().await.unwrap();
    let models = models.join(", ");
    let models =
        format!("read_models: {{ database: VIEWS, change_delay: 0s, {models} }}\naudit: {{ enabled: false }}\n");
    fixture.configure(shared.uri(), &models);
}

async fn configure_without_sequence(fixture: &CliFixture, models: &[&str]) {
    configure(fixture, models).await;
    fixture.edit_config(|text| text.replace(", sequence: version", "") + "producer: { start: now }\n");
}

/// Three orders of two customers, with four events each.
async fn insert_orders(fixture: &CliFixture) {
    for version in 1..=4 {
        for (order, customer) in [("order-1", "ann"), ("order-2", "bob"), ("order-3", "ann")] {
            fixture.insert(order, version, "Added", doc! { "amount": 10, "customer": customer }).await;
        }
    }
}

fn number(document: &Document, field: &str) -> Option<i64> {
    match document.get(field)? {
        Bson::Int32(number) => Some(i64::from(*number)),
        Bson::Int64(number) => Some(*number),
        _ => None,
    }
}

/// Waits until the document has this value.
pub(crate) async fn wait_for_value(fixture: &CliFixture, model: &str, id: &str, field: &str, value: i64) {
    let documents = fixture.views.collection::<Document>(model);
    wait_for(&format!("`{model}` to have {field} {value}"), SOON, async || {
        let found = documents.find_one(doc! { "_id": id }).await.unwrap();
        let found = found.and_then(|found| number(&found, field));
        if found == Some(value) { Ok(()) } else { Err(found) }
    })
    .await;
}

pub(crate) async fn read_models(fixture: &CliFixture) -> Value {
    fixture.run(&["read-model", "list", "--json"]).await.json()
}

/// Waits until no change is in progress and the read models have these states.
pub(crate) async fn wait_for_states(fixture: &CliFixture, expected: &[(&str, &str)]) -> Value {
    wait_for("the states of the read models", SOON, async || {
        let list = read_models(fixture).await;
        let models = list["read_models"].as_array().cloned().unwrap_or_default();
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let states: Vec<_> = models.iter().map(|model| (text(&model["name"]), text(&model["state"]))).collect();
        let expected: Vec<_> = expected.iter().map(|(name, state)| ((*name).to_owned(), (*state).to_owned())).collect();
        if states == expected && list["stage"] == "active" { Ok(list) } else { Err(list) }
    })
    .await
}

/// The read models that `status` calls incomplete, with the reason.
async fn incomplete(fixture: &CliFixture) -> Vec<(String, String)> {
    let status = fixture.run(&["status", "--json"]).await.json();
    let problems = status["problems"].as_array().unwrap();
    let named = problems.iter().filter(|problem| problem["code"] == "read_model_incomplete").count();
    let models = status["read_models"].as_array().unwrap().iter().filter(|model| model.get("incomplete").is_some());
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let mut models: Vec<_> = models.map(|model| (text(&model["name"]), text(&model["incomplete"]["reason"]))).collect();
    models.sort();
    assert_eq!(named, models.len(), "each is a problem: {status}");
    assert!(models.is_empty() || status["healthy"] == false, "{status}");
    models
}

pub(crate) async fn stop(pod: Process) {
    pod.terminate();
    assert!(pod.wait_for_exit(SOON).await.success());
}

#[tokio::test]
async fn added_and_changed_read_models_are_built() {
    let fixture = CliFixture::new("read_model_built", "").await;
    fixture.run(&["topology", "apply"]).await.success();
    configure(&fixture, &[TOTALS]).await;
    let pod = fixture.start_pod("pod-0");
    insert_orders(&fixture).await;
    wait_for_value(&fixture, "totals", "order-3", "total", 40).await;
    stop(pod).await;

    configure(&fixture, &[&TOTALS.replace("$inc", "$max"), COUNTS, CUSTOMERS]).await;
    let pod = fixture.start_pod("pod-0");
    let states = [("counts", "complete"), ("customers", "complete"), ("totals", "complete")];
    wait_for_states(&fixture, &states).await;
    wait_for_value(&fixture, "counts", "order-2", "events", 4).await;
    wait_for_value(&fixture, "totals", "order-1", "total", 10).await;
    wait_for_value(&fixture, "customers", "ann", "spent", 80).await;
    assert_eq!(incomplete(&fixture).await, []);

    // Later events reach the new versions, those of new aggregates as well.
    fixture.insert("order-1", 5, "Added", doc! { "amount": 70, "customer": "ann" }).await;
    fixture.insert("order-9", 1, "Added", doc! { "amount": 5, "customer": "bob" }).await;
    wait_for_value(&fixture, "totals", "order-1", "total", 70).await;
    wait_for_value(&fixture, "counts", "order-1", "events", 5).await;
    wait_for_value(&fixture, "customers", "ann", "spent", 150).await;
    wait_for_value(&fixture, "customers", "bob", "spent", 45).await;
    stop(pod).await;
}

#[tokio::test]
async fn a_removed_read_model_stays_until_it_is_dropped() {
    let fixture = CliFixture::new("read_model_removed", "").await;
    fixture.run(&["topology", "apply"]).await.success();
    configure(&fixture, &[TOTALS, COUNTS]).await;
    let pod = fixture.start_pod("pod-0");
    insert_orders(&fixture).await;
    wait_for_value(&fixture, "counts", "order-3", "events", 4).await;
    let refused = fixture.run(&["read-model", "drop", "counts", "--yes"]).await.failure();
    assert!(refused.contains("is declared"), "{refused}");
    stop(pod).await;

    configure(&fixture, &[TOTALS]).await;
    let pod = fixture.start_pod("pod-0");
    wait_for_states(&fixture, &[("counts", "removed"), ("totals", "complete")]).await;
    fixture.insert("order-1", 5, "Added", doc! { "amount": 1, "customer": "ann" }).await;
    wait_for_value(&fixture, "totals", "order-1", "total", 41).await;
    wait_for_value(&fixture, "counts", "order-1", "events", 4).await;
    stop(pod).await;

    // It comes back whole: what happened meanwhile is in it.
    configure(&fixture, &[TOTALS, COUNTS]).await;
    let pod = fixture.start_pod("pod-0");
    wait_for_states(&fixture, &[("counts", "complete"), ("totals", "complete")]).await;
    wait_for_value(&fixture, "counts", "order-1", "events", 5).await;
    stop(pod).await;

    configure(&fixture, &[TOTALS]).await;
    let pod = fixture.start_pod("pod-0");
    wait_for_states(&fixture, &[("counts", "removed"), ("totals", "complete")]).await;
    let refused = fixture.run(&["read-model", "drop", "counts"]).await.failure();
    assert!(refused.contains("--yes"), "{refused}");
    fixture.run(&["read-model", "drop", "counts", "--yes"]).await.success();
    assert_eq!(fixture.history().await[0], "read-model drop");
    wait_for_states(&fixture, &[("totals", "complete")]).await;
    let left = fixture.views.list_collection_names().await.unwrap();
    assert!(!left.contains(&"counts".to_owned()), "{left:?}");
    stop(pod).await;
}

#[tokio::test]
async fn a_read_model_is_rebuilt_and_rolled_back_on_request() {
    let fixture = CliFixture::new("read_model_rebuilt", "").await;
    fixture.run(&["topology", "apply"]).await.success();
    configure(&fixture, &[TOTALS, COUNTS]).await;
    let pod = fixture.start_pod("pod-0");
    insert_orders(&fixture).await;
    wait_for_value(&fixture, "totals", "order-3", "total", 40).await;
    wait_for_value(&fixture, "counts", "order-3", "events", 4).await;

    // Somebody damages it.
    let totals = fixture.views.collection::<Document>("totals");
    totals.update_one(doc! { "_id": "order-2" }, doc! { "$set": { "total": 7 } }).await.unwrap();
    totals.delete_one(doc! { "_id": "order-3" }).await.unwrap();
    let done = fixture.run(&["read-model", "rebuild", "totals", "--wait"]).await.success();
    assert!(done.contains("is active"), "{done}");
    wait_for_value(&fixture, "totals", "order-2", "total", 40).await;
    wait_for_value(&fixture, "totals", "order-3", "total", 40).await;
    let none = fixture.run(&["read-model", "cancel"]).await.failure();
    assert!(none.contains("no change is in progress"), "{none}");
    stop(pod).await;

    configure(&fixture, &[&TOTALS.replace("$inc", "$max"), COUNTS]).await;
    let pod = fixture.start_pod("pod-0");
    wait_for_value(&fixture, "totals", "order-1", "total", 10).await;
    let refused = fixture.run(&["read-model", "rebuild", "counts", "--rollback", "--yes"]).await.failure();
    assert!(refused.contains("`counts` has no earlier definition"), "{refused}");
    let refused = fixture.run(&["read-model", "rebuild", "totals", "--rollback"]).await.failure();
    assert!(refused.contains("--yes"), "{refused}");
    fixture.run(&["read-model", "rebuild", "totals", "--rollback", "--yes", "--wait"]).await.success();
    wait_for_value(&fixture, "totals", "order-1", "total", 40).await;
    // And forward again, to the definition of the configuration.
    fixture.run(&["read-model", "rollback", "totals", "--yes", "--wait"]).await.success();
    wait_for_value(&fixture, "totals", "order-1", "total", 10).await;
    fixture.run(&["read-model", "rollback", "totals", "--yes", "--wait"]).await.success();
    wait_for_value(&fixture, "totals", "order-1", "total", 40).await;
    let [back, build] = ["read-model rollback", "read-model rebuild"];
    assert_eq!(fixture.history().await, [back, back, back, build, "topology apply"]);
    fixture.insert("order-1", 5, "Added", doc! { "amount": 2, "customer": "ann" }).await;
    wait_for_value(&fixture, "totals", "order-1", "total", 42).await;
    wait_for_value(&fixture, "counts", "order-1", "events", 5).await;
    stop(pod).await;
}

#[tokio::test]
async fn without_a_sequence_a_new_read_model_is_incomplete() {
    let fixture = CliFixture::new("read_model_holes", "").await;
    fixture.run(&["topology", "apply"]).await.success();
    configure_without_sequence(&fixture, &[TOTALS]).await;
    let pod = fixture.start_pod("pod-0");
    wait_for("the stream to begin", SOON, async || {
        let status = fixture.run(&["status", "--json"]).await.json();
        if status["pods"][0]["producer"] == "publishing" { Ok(()) } else { Err(status) }
    })
    .await;
    fixture.insert("order-1", 1, "Added", doc! { "amount": 1 }).await;
    wait_for_value(&fixture, "totals", "order-1", "total", 1).await;
    assert_eq!(incomplete(&fixture).await, []);
    stop(pod).await;

    configure_without_sequence(&fixture, &[&TOTALS.replace("$inc", "$max"), COUNTS]).await;
    let pod = fixture.start_pod("pod-0");
    wait_for_states(&fixture, &[("counts", "incomplete"), ("totals", "incomplete")]).await;
    let model = |name: &str, reason: &str| (name.to_owned(), reason.to_owned());
    let changed = model("totals", "changed after events had been applied");
    assert_eq!(incomplete(&fixture).await, [model("counts", "added after events had been applied"), changed.clone()]);
    let list = fixture.run(&["read-model", "list"]).await.success();
    assert!(list.contains("counts") && list.contains("incomplete: added after"), "{list}");

    let refused = fixture.run(&["read-model", "rebuild", "counts"]).await.failure();
    assert!(refused.contains("the source has no sequence"), "{refused}");
    let refused = fixture.run(&["read-model", "accept", "counts"]).await.failure();
    assert!(refused.contains("--yes"), "{refused}");
    fixture.run(&["read-model", "accept", "counts", "--yes"]).await.success();
    assert_eq!(fixture.history().await[0], "read-model accept");
    assert_eq!(incomplete(&fixture).await, [changed]);
    let unknown = fixture.run(&["read-model", "accept", "count", "--yes"]).await.failure();
    assert!(unknown.contains("there is no read model"), "{unknown}");
    stop(pod).await;
}

#[tokio::test]
async fn another_index_needs_no_build() {
    let fixture = CliFixture::new("read_model_index", "").await;
    fixture.run(&["topology", "apply"]).await.success();
    configure(&fixture, &[TOTALS]).await;
    let pod = fixture.start_pod("pod-0");
    fixture.insert("order-1", 1, "Added", doc! { "amount": 1 }).await;
    wait_for_value(&fixture, "totals", "order-1", "total", 1).await;
    stop(pod).await;
    configure(&fixture, &[&TOTALS.replace("when:", "indexes: [{ keys: { total: 1 } }], when:")]).await;
    let pod = fixture.start_pod("pod-0");
    fixture.insert("order-1", 2, "Added", doc! { "amount": 1 }).await;
    wait_for_value(&fixture, "totals", "order-1", "total", 2).await;
    assert_eq!(read_models(&fixture).await["generation"], 1);
    let indexes = fixture.views.collection::<Document>("totals").list_index_names().await.unwrap();
    assert!(indexes.contains(&"total_1".to_owned()), "{indexes:?}");
    stop(pod).await;
}

#[tokio::test]
async fn a_build_that_breaks_a_unique_index_stops_before_the_switch() {
    let fixture = CliFixture::new("read_model_unique", "").await;
    fixture.run(&["topology", "apply"]).await.success();
    configure(&fixture, &[TOTALS]).await;
    insert_orders(&fixture).await;
    let pod = fixture.start_pod("pod-0");
    wait_for_value(&fixture, "totals", "order-3", "total", 40).await;
    // Two orders of one customer.
    let unique = "owners: { when: { Added: { $set: { customer: $$event.payload.customer } } }, indexes: [ { keys: { customer: 1 }, unique: true } ] }";
    configure(&fixture, &[TOTALS, unique]).await;
    stop(pod).await;
    let pod = fixture.start_pod("pod-0");
    let problem = wait_for("the problem", SOON, async || {
        let list = read_models(&fixture).await;
        match list["problem"].as_str() {
            Some(problem) => Ok(problem.to_owned()),
            None => Err(list),
        }
    })
    .await;
    let expected = "several documents of `owners` have the same values of `customer`, which a unique index forbids";
    assert!(problem.contains(expected) && !problem.contains("ann"), "{problem}");
    assert_eq!(read_models(&fixture).await["stage"], "building", "nothing is switched");
    let status = fixture.run(&["status", "--json"]).await;
    assert!(status.stdout.contains("read_model_change_stopped"), "{}", status.stdout);

    // Once the documents differ, the build goes on.
    fixture.insert("order-3", 5, "Added", doc! { "amount": 10, "customer": "cy" }).await;
    wait_for_value(&fixture, "totals", "order-3", "total", 50).await;
    fixture.run(&["read-model", "accept", "owners", "--yes"]).await.success();
    wait_for_states(&fixture, &[("owners", "complete"), ("totals", "complete")]).await;
    let indexes = fixture.views.collection::<Document>("owners").list_index_names().await.unwrap();
    assert!(indexes.contains(&"customer_1".to_owned()), "{indexes:?}");
    stop(pod).await;
}

#[tokio::test]
async fn a_change_waits_for_a_request_is_slowed_down_and_cancelled() {
    let fixture = CliFixture::new("read_model_waits", "").await;
    fixture.run(&["topology", "apply"]).await.success();
    let wait_for_request = |text: String| text.replace("change_delay: 0s", "change_delay: 0s, on_change: wait");
    configure(&fixture, &[TOTALS]).await;
    let pod = fixture.start_pod("pod-0");
    for number in 0..30 {
        fixture.insert(&format!("order-{number:02}"), 1, "Added", doc! { "amount": 10 }).await;
    }
    wait_for_value(&fixture, "totals", "order-29", "total", 10).await;
    stop(pod).await;

    configure(&fixture, &[TOTALS, COUNTS]).await;
    fixture.edit_config(wait_for_request);
    let pod = fixture.start_pod("pod-0");
    fixture.insert("order-00", 2, "Added", doc! { "amount": 10 }).await;
    wait_for_value(&fixture, "totals", "order-00", "total", 20).await;
    let before = wait_for_states(&fixture, &[("totals", "complete")]).await;
    assert_eq!(before["generation"], 1, "nothing changes by itself: {before}");
    fixture.run(&["read-model", "rebuild", "counts", "--rate", "1"]).await.success();
    let building = wait_for("a part of the build", SOON, async || {
        let list = read_models(&fixture).await;
        let built = list["build"]["aggregates"].as_i64().unwrap_or(0);
        if built > 0 && list["stage"] == "building" { Ok(list) } else { Err(list) }
    })
    .await;
    assert!(building["build"]["aggregates"].as_i64().is_some_and(|built| built < 30), "one event a second: {building}");
    let second = fixture.run(&["read-model", "rebuild", "totals"]).await.failure();
    assert!(second.contains("a change is in progress (building)"), "{second}");
    fixture.run(&["read-model", "cancel"]).await.success();
    assert_eq!(fixture.history().await[..2], ["read-model cancel", "read-model rebuild"]);
    let after = wait_for_states(&fixture, &[("totals", "complete")]).await;
    assert!(after["generation"].as_i64().is_some_and(|number| number > 2), "{after}");
    wait_for("the collection of the build to be dropped", SOON, async || {
        let names = fixture.views.list_collection_names().await.unwrap();
        if names.iter().any(|name| name.starts_with("_headwater_build_")) { Err(names) } else { Ok(()) }
    })
    .await;
    stop(pod).await;
}
