//! Folds: the documents that a read model would have, evaluated by the server away from its collection.

use mongodb::bson::{Document, doc};
use pipeline::view::{FoldError, FoldScratch};
use serde_json::json;

use crate::fixture::{ViewFixture, all_delivered, event, model, shop_models};

fn orders(number: i64) -> Vec<Document> {
    let id = format!("order-{number}");
    vec![
        event(&id, 1, "Placed", doc! { "customer": "ada" }),
        event(&id, 2, "Added", doc! { "customer": "ada", "price": number }),
        event(&id, 3, "Paid", doc! { "amount": 2 }),
        event(&id, 4, if number == 3 { "Cancelled" } else { "Ignored" }, doc! {}),
    ]
}

async fn collections(fixture: &ViewFixture) -> Vec<String> {
    let mut names = fixture.views.list_collection_names().await.unwrap();
    names.sort();
    names
}

fn sorted(mut documents: Vec<Document>) -> Vec<Document> {
    documents.sort_by_key(|document| document.get_str("_id").unwrap().to_owned());
    documents
}

#[tokio::test]
async fn a_fold_gives_what_the_applier_writes() {
    let fixture = ViewFixture::shop("fold_equal").await;
    let events: Vec<_> = (1..=5).flat_map(orders).collect();
    fixture.pod().apply(all_delivered(&events)).await;
    let before = collections(&fixture).await;
    let scratch = FoldScratch::create(&fixture.views).await.unwrap();
    for name in ["orders", "customers"] {
        let model = model(name, &shop_models()[name]);
        let mut fold = scratch.fold(&model);
        for event in &all_delivered(&events) {
            fold.add(event).await.unwrap();
        }
        let folded = fold.finish().await.unwrap();
        let folded = folded.iter().map(|document| Document::try_from(&**document).unwrap()).collect();
        assert_eq!(sorted(folded), fixture.view(name).await, "{name}");
    }
    scratch.close().await;
    assert_eq!(collections(&fixture).await, before, "nothing remains");
}

#[tokio::test]
async fn a_long_history_is_folded_in_parts() {
    let fixture = ViewFixture::new("fold_long", json!({})).await;
    let model = model("lists", &json!({ "when": { "Added": { "$push": { "seen": "$$event.version" } } } }));
    let scratch = FoldScratch::create(&fixture.views).await.unwrap();
    let before = collections(&fixture).await;
    let events: Vec<_> = (1..=2_500).map(|version| event("order-1", version, "Added", doc! {})).collect();
    let mut fold = scratch.fold(&model);
    for event in &all_delivered(&events) {
        fold.add(event).await.unwrap();
    }
    let folded = fold.finish().await.unwrap();
    let [folded] = &folded[..] else { panic!("{} documents", folded.len()) };
    let seen = Document::try_from(&**folded).unwrap().get_array("seen").unwrap().clone();
    assert_eq!(seen, (1..=2_500_i64).map(Into::into).collect::<Vec<_>>());
    assert_eq!(collections(&fixture).await, before, "the part that was committed is dropped");
    scratch.close().await;
}

#[tokio::test]
async fn a_fold_names_the_event_the_server_refuses() {
    let fixture = ViewFixture::shop("fold_refused").await;
    let model = model("orders", &shop_models()["orders"]);
    let scratch = FoldScratch::create(&fixture.views).await.unwrap();
    let mut events = orders(1);
    events.extend([
        event("order-2", 1, "Added", doc! { "price": 1 }),
        event("order-2", 2, "Added", doc! { "price": "x" }),
    ]);
    let mut fold = scratch.fold(&model);
    for event in &all_delivered(&events) {
        fold.add(event).await.unwrap();
    }
    let Err(FoldError::Refused(refused)) = fold.finish().await else { panic!("it cannot be applied") };
    assert_eq!((refused.sequence, refused.number, refused.event_type.as_deref()), (Some(2), 6, Some("Added")));
    assert_eq!(refused.detail, "the server refused a statement with error 14");
    scratch.close().await;
}
