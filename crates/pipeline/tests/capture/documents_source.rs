//! Ordinary documents: every operation, several collections.

use mongodb::bson::{Document, RawDocumentBuf, doc};
use mongodb::options::ChangeStreamPreAndPostImages;
use pipeline::capture::{Error, StartPosition};
use pipeline::event::{ChangeEvent, Operation};
use pipeline::source::{FullDocument, SourceConfig};

use crate::fixture::{CaptureFixture, CaptureRun, aggregate, majority};

fn document(event: &ChangeEvent) -> Document {
    Document::try_from(&*event.document).unwrap()
}

#[tokio::test]
async fn every_operation_is_an_event_with_the_new_document() {
    let fixture = CaptureFixture::new("operations").await;
    let mut reading = fixture.read(fixture.documents()).await;
    let orders = fixture.events();
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
async fn an_update_of_a_since_deleted_document_has_only_its_key() {
    let fixture = CaptureFixture::new("gone").await;
    let capture = fixture.capture(fixture.documents());
    let phase = capture.initial_phase(&StartPosition::Now).await.unwrap();
    fixture.events().insert_one(doc! { "_id": "x", "n": 1 }).await.unwrap();
    fixture.events().update_one(doc! {}, doc! { "$set": { "n": 2 } }).await.unwrap();
    fixture.events().delete_one(doc! {}).await.unwrap();
    let mut reading = CaptureRun::resume(capture, phase);
    let events = reading.events(3).await;
    assert_eq!(events[1].operation, Operation::Update);
    assert_eq!(events[1].document, RawDocumentBuf::try_from(&doc! { "_id": "x" }).unwrap());
    reading.stop().await;
}

#[tokio::test]
async fn post_images_show_every_intermediate_state() {
    let fixture = CaptureFixture::new("exact").await;
    let images = ChangeStreamPreAndPostImages::builder().enabled(true).build();
    fixture.database.create_collection("events").change_stream_pre_and_post_images(images).await.unwrap();
    let capture = fixture.capture(SourceConfig { full_document: FullDocument::PostImage, ..fixture.documents() });
    let phase = capture.initial_phase(&StartPosition::Now).await.unwrap();
    fixture.events().insert_one(doc! { "_id": 1, "n": 0 }).await.unwrap();
    for n in 1..=3 {
        fixture.events().update_one(doc! {}, doc! { "$set": { "n": n } }).await.unwrap();
    }
    fixture.events().delete_one(doc! {}).await.unwrap();
    let mut reading = CaptureRun::resume(capture, phase);
    let seen: Vec<_> = reading.events(4).await.iter().map(|event| document(event).get_i32("n").unwrap()).collect();
    assert_eq!(seen, [0, 1, 2, 3]);
    reading.stop().await;
}

#[tokio::test]
async fn a_missing_post_image_is_an_error() {
    let fixture = CaptureFixture::new("imageless").await;
    fixture.database.create_collection("events").await.unwrap();
    let capture = fixture.capture(SourceConfig { full_document: FullDocument::PostImage, ..fixture.documents() });
    let reading = CaptureRun::start(capture, StartPosition::Now).await;
    fixture.events().insert_one(doc! { "_id": 1 }).await.unwrap();
    fixture.events().update_one(doc! {}, doc! { "$set": { "n": 1 } }).await.unwrap();
    let error = reading.wait_for_error().await;
    assert!(matches!(error, Error::PostImageGone(_)), "{error:?}");
}

#[tokio::test]
async fn a_stream_covers_exactly_the_configured_collections() {
    let fixture = CaptureFixture::new("several").await;
    let source = SourceConfig {
        collection: None,
        collections: vec!["orders".into(), "customers".into()],
        ..fixture.documents()
    };
    let mut reading = fixture.read(source).await;
    for n in 0..30 {
        let name = ["orders", "customers", "audit"][n % 3];
        majority(&fixture.database, name).insert_one(doc! { "_id": n as i32 }).await.unwrap();
    }
    let seen: Vec<_> =
        reading.events(20).await.iter().map(|event| (event.namespace.collection.clone(), event.key.clone())).collect();
    let expected: Vec<_> =
        (0..30).filter(|n| n % 3 < 2).map(|n| (["orders", "customers"][n % 3].to_owned(), (n as i32).into())).collect();
    assert_eq!(seen, expected);
    reading.stop().await;
}
