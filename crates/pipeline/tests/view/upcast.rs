//! Old events reach read models in their present form, wherever they come from.

use mongodb::bson::{Document, doc};
use pipeline::view::{ApplyOutcome, FoldScratch, ParkReason};
use serde_json::{Value, json};

use crate::fixture::{ViewFixture, aggregate, all_delivered, event, events_namespace, model};

/// `Added` once had `cents` as text; a later version has `price` as a number.
fn models() -> Value {
    json!({
        "totals": {
            "when": { "Added": { "$inc": { "total": "$$event.payload.price" } }, "Noted": { "$push": { "notes": "$$event.payload.text" } } },
            "upcast": {
                "stages": {
                    "Added": [
                        { "$set": { "payload.price": { "$ifNull": ["$payload.price", { "$toInt": "$payload.cents" }] } } },
                        { "$unset": "payload.cents" },
                    ],
                },
                "keep": ["_id", "aggregateId", "version", "type"],
            },
        },
        // Without an upcast it sees the event as it is.
        "raw": { "when": { "Added": { "$push": { "payloads": "$$event.payload" } } } },
    })
}

fn history(order: &str, cents: &str) -> Vec<Document> {
    vec![
        event(order, 1, "Added", doc! { "cents": cents }),
        event(order, 2, "Noted", doc! { "text": "$payload.cents" }),
        event(order, 3, "Added", doc! { "price": 7 }),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn old_events_are_applied_in_their_present_form() {
    let fixture = ViewFixture::new("upcast", models()).await;
    let events = [history("a", "5"), history("b", "six"), history("c", "9")].concat();
    let outcomes = fixture.pod().apply(all_delivered(&events)).await;
    assert_eq!(
        outcomes.iter().filter(|outcome| **outcome == ApplyOutcome::Parked).count(),
        3,
        "one bad event, one aggregate"
    );
    let total = |id: &str, total: i32| doc! { "_id": id, "total": total, "notes": ["$payload.cents"] };
    assert_eq!(fixture.view("totals").await, [total("a", 12), total("c", 16)]);
    let raw = fixture.view("raw").await;
    assert_eq!(raw[0].get_array("payloads").unwrap()[0], doc! { "cents": "5" }.into(), "other models see it as it was");
    let store = fixture.parked_store();
    let parked = &store.list(10).await.unwrap()[0];
    assert_eq!((parked.parked.reason, parked.parked.sequence), (ParkReason::Poison, Some(1)));
    assert!(parked.parked.detail.contains("upcast"), "{}", parked.parked.detail);

    // A replay upcasts as well: the bad event is left out, the rest applied.
    let discard = pipeline::view::DiscardScope::First;
    store.discard(&aggregate("b"), &events_namespace(), "totals", discard).await.unwrap();
    assert_eq!(store.retry(&aggregate("b"), &events_namespace(), "totals").await.unwrap(), 2);
    assert_eq!(fixture.view("totals").await[1], doc! { "_id": "b", "notes": ["$payload.cents"], "total": 7 });

    // And so does a fold, which verify, preview and test use.
    let scratch = FoldScratch::create(&fixture.views).await.unwrap();
    let totals = model("totals", &models()["totals"]);
    let mut fold = scratch.fold(&totals);
    for event in all_delivered(&history("a", "5")) {
        fold.add(&event).await.unwrap();
    }
    let folded: Vec<Document> =
        fold.finish().await.unwrap().iter().map(|it| Document::try_from(&**it).unwrap()).collect();
    assert_eq!(folded, [total("a", 12)]);
    scratch.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upcast_cannot_change_the_place_of_an_event() {
    let mut models = models();
    models["totals"]["upcast"]["stages"]["Added"] = json!([{ "$set": { "version": 9 } }]);
    let fixture = ViewFixture::new("upcast_place", models).await;
    let outcomes = fixture.pod().apply(all_delivered(&history("a", "5"))).await;
    assert_eq!(outcomes, [ApplyOutcome::Parked; 3]);
    let parked = &fixture.parked_store().list(10).await.unwrap()[0].parked;
    assert!(parked.detail.contains("changes the id"), "{}", parked.detail);
}
