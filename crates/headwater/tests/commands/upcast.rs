//! `source.upcast`: a changed upcast is a changed read model.

use mongodb::bson::{Document, doc};
use testkit::wait::wait_for;

use crate::fixture::{CliFixture, SOON};

const MODELS: &str = "read_models:
  database: VIEWS
  change_delay: 1s
  orders: { when: { Placed: { $set: { currency: $$event.payload.currency } } } }
  counts: { when: { Paid: { $inc: { paid: 1 } } } }
";

const UPCAST: &str = "sequence: version, upcast: { Placed: [ { $set: { payload.currency: { $ifNull: [ $payload.currency, EUR ] } } } ] } }";

#[tokio::test]
async fn a_changed_upcast_rebuilds_what_it_affects() {
    let fixture = CliFixture::new("upcast", MODELS).await;
    fixture.run(&["topology", "apply"]).await.success();
    fixture.insert("order-1", 1, "Placed", doc! {}).await;
    let pod = fixture.start_pod("pod-1");
    fixture.run(&["wait", "order-1", "--sequence", "1", "--timeout", "60s"]).await.success();
    pod.terminate();
    assert!(pod.wait_for_exit(SOON).await.success());

    fixture.edit_config(|text| text.replace("sequence: version }", UPCAST));
    let pod = fixture.start_pod("pod-1");
    let orders = fixture.views.collection::<Document>("orders");
    wait_for("the rebuilt read model", SOON, async || {
        let found = orders.find_one(doc! { "_id": "order-1" }).await.unwrap();
        if found == Some(doc! { "_id": "order-1", "currency": "EUR" }) { Ok(()) } else { Err(format!("{found:?}")) }
    })
    .await;
    let generation = fixture.coordination.collection::<Document>("read_model_generations");
    let generation = generation.find_one(doc! {}).await.unwrap().unwrap();
    let since = |name: &str| {
        let serving = generation.get_array("serving").unwrap().iter().filter_map(|it| it.as_document());
        serving
            .filter(|it| it.get_str("name").is_ok_and(|found| found == name))
            .map(|it| it.get_i64("since").unwrap())
            .next()
            .unwrap()
    };
    assert!(since("orders") > 1, "its fingerprint has changed");
    assert_eq!(since("counts"), 1, "no upcast concerns it");
    // Live events, and the comparison with the source.
    fixture.insert("order-2", 1, "Placed", doc! {}).await;
    fixture.insert("order-3", 1, "Placed", doc! { "currency": "SEK" }).await;
    for (id, currency) in [("order-2", "EUR"), ("order-3", "SEK")] {
        fixture.run(&["wait", id, "--sequence", "1", "--timeout", "60s"]).await.success();
        let found = orders.find_one(doc! { "_id": id }).await.unwrap();
        assert_eq!(found, Some(doc! { "_id": id, "currency": currency }));
    }
    fixture.run(&["read-model", "verify", "orders", "--all"]).await.success();
    pod.terminate();
    assert!(pod.wait_for_exit(SOON).await.success());
}

#[tokio::test]
async fn an_upcast_that_cannot_work_is_refused() {
    let fixture = CliFixture::new("upcast_refused", MODELS).await;
    let wrong = "sequence: version, upcast: { Placed: [ { $match: { a: 1 } } ], Paid: [ { $set: { at: $$NOW } } ] } }";
    fixture.edit_config(|text| text.replace("sequence: version }", wrong));
    let refused = fixture.run(&["check", "--offline"]).await.failure();
    assert!(refused.contains("source.upcast.Placed") && refused.contains("each stage must be one of"), "{refused}");
    assert!(refused.contains("source.upcast.Paid") && refused.contains("`$$NOW` gives another result"), "{refused}");
}

#[tokio::test]
async fn a_sample_is_upcast_before_it_is_checked() {
    let fixture = CliFixture::new("upcast_sample", MODELS).await;
    fixture.run(&["topology", "apply"]).await.success();
    fixture.insert("order-1", 1, "Placed", doc! { "cents": "a secret" }).await;
    fixture.insert("order-2", 1, "Placed", doc! { "currency": "SEK", "cents": 5 }).await;
    fixture.insert("order-2", 2, "Paid", doc! {}).await;
    let missing = "`$$event.payload.currency`: is missing in 1 of 2 sampled events of type `Placed`";
    let before = fixture.run(&["check", "--sample", "50"]).await.success();
    assert!(before.contains(missing), "{before}");
    fixture.edit_config(|text| text.replace("sequence: version }", UPCAST));
    let after = fixture.run(&["check", "--sample", "50"]).await.success();
    assert!(!after.contains("is missing in"), "{after}");
    // An upcast that fails for some events parks them.
    let failing = UPCAST.replace("{ $ifNull: [ $payload.currency, EUR ] }", "{ $add: [ $payload.cents, 1 ] }");
    fixture.edit_config(|text| text.replace(UPCAST, &failing));
    let failed = fixture.run(&["check", "--sample", "50"]).await;
    assert!(failed.stdout.contains("1 of 3 sampled events cannot be upcast, so they are parked"), "{}", failed.stdout);
    assert!(!failed.stdout.contains("a secret"), "{}", failed.stdout);
    failed.failure();
}
