//! Ordinary documents: every operation, several collections.

use mongodb::bson::{Document, RawDocumentBuf, doc};
use mongodb::options::ChangeStreamPreAndPostImages;
use pipeline::capture::{Error, PipelineStart};
use pipeline::event::{ChangeEvent, Operation};
use pipeline::source::{FullDocument, SourceConfig};

use crate::house::{House, Reading, aggregate, majority};

fn document(event: &ChangeEvent) -> Document {
    Document::try_from(&*event.document).unwrap()
}

#[tokio::test]
async fn every_operation_is_an_event_with_the_document_it_leaves() {
    let house = House::new("operations").await;
    let mut reading = house.read(house.documents()).await;
    let orders = house.events();
    orders.insert_one(doc! { "_id": 7, "state": "new" }).await.unwrap();
    let inserted = reading.event().await;
    orders.update_one(doc! { "_id": 7 }, doc! { "$set": { "state": "paid" } }).await.unwrap();
    let updated = reading.event().await;
    orders.replace_one(doc! { "_id": 7 }, doc! { "other": true }).await.unwrap();
    let replaced = reading.event().await;
    orders.delete_one(doc! { "_id": 7 }).await.unwrap();
    let deleted = reading.event().await;
    let expected = [
        (inserted, Operation::Insert, doc! { "_id": 7, "state": "new" }),
        (updated, Operation::Update, doc! { "_id": 7, "state": "paid" }),
        (replaced, Operation::Replace, doc! { "_id": 7, "other": true }),
        (deleted, Operation::Delete, doc! { "_id": 7 }),
    ];
    for (event, operation, left) in expected {
        assert_eq!((event.operation, document(&event)), (operation, left));
        assert_eq!(event.event_type.as_deref(), Some(operation.as_str()));
        assert_eq!((aggregate(&event), event.key), (7.into(), 7.into()));
    }
    assert_eq!(reading.handle.status().non_inserts, 0);
    reading.stop().await;
}

#[tokio::test]
async fn an_update_of_a_document_that_is_gone_since_has_its_key_alone() {
    let house = House::new("gone").await;
    let capture = house.capture(house.documents());
    let phase = capture.initial_phase(&PipelineStart::Now).await.unwrap();
    house.events().insert_one(doc! { "_id": "x", "n": 1 }).await.unwrap();
    house.events().update_one(doc! {}, doc! { "$set": { "n": 2 } }).await.unwrap();
    house.events().delete_one(doc! {}).await.unwrap();
    let mut reading = Reading::from(capture, phase);
    let events = reading.events(3).await;
    assert_eq!(events[1].operation, Operation::Update);
    assert_eq!(events[1].document, RawDocumentBuf::try_from(&doc! { "_id": "x" }).unwrap());
    reading.stop().await;
}

#[tokio::test]
async fn post_images_are_exact_where_a_lookup_is_not() {
    let house = House::new("exact").await;
    let images = ChangeStreamPreAndPostImages::builder().enabled(true).build();
    house.database.create_collection("events").change_stream_pre_and_post_images(images).await.unwrap();
    let capture = house.capture(SourceConfig { full_document: FullDocument::PostImage, ..house.documents() });
    let phase = capture.initial_phase(&PipelineStart::Now).await.unwrap();
    house.events().insert_one(doc! { "_id": 1, "n": 0 }).await.unwrap();
    for n in 1..=3 {
        house.events().update_one(doc! {}, doc! { "$set": { "n": n } }).await.unwrap();
    }
    house.events().delete_one(doc! {}).await.unwrap();
    let mut reading = Reading::from(capture, phase);
    let seen: Vec<_> = reading.events(4).await.iter().map(|event| document(event).get_i32("n").unwrap()).collect();
    assert_eq!(seen, [0, 1, 2, 3]);
    reading.stop().await;
}

#[tokio::test]
async fn a_post_image_that_is_gone_ends_the_stream_rather_than_look_like_a_document_that_is() {
    let house = House::new("imageless").await;
    house.database.create_collection("events").await.unwrap();
    let capture = house.capture(SourceConfig { full_document: FullDocument::PostImage, ..house.documents() });
    let reading = Reading::of(capture, PipelineStart::Now).await;
    house.events().insert_one(doc! { "_id": 1 }).await.unwrap();
    house.events().update_one(doc! {}, doc! { "$set": { "n": 1 } }).await.unwrap();
    let error = reading.error().await;
    assert!(matches!(error, Error::PostImageGone(_)), "{error:?}");
}

#[tokio::test]
async fn several_collections_are_one_stream_and_others_are_not_in_it() {
    let house = House::new("several").await;
    let source =
        SourceConfig { collection: None, collections: vec!["orders".into(), "customers".into()], ..house.documents() };
    let mut reading = house.read(source).await;
    for n in 0..30 {
        let name = ["orders", "customers", "audit"][n % 3];
        majority(&house.database, name).insert_one(doc! { "_id": n as i32 }).await.unwrap();
    }
    let seen: Vec<_> =
        reading.events(20).await.iter().map(|event| (event.namespace.collection.clone(), event.key.clone())).collect();
    let expected: Vec<_> =
        (0..30).filter(|n| n % 3 < 2).map(|n| (["orders", "customers"][n % 3].to_owned(), (n as i32).into())).collect();
    assert_eq!(seen, expected);
    reading.stop().await;
}
