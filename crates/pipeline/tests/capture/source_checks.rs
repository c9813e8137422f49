//! The checks before capture starts, and their errors.

use mongodb::bson::{Document, doc};
use mongodb::options::ChangeStreamPreAndPostImages;
use pipeline::capture::{Capture, Config, Error, StartPosition};
use pipeline::event::Namespace;
use pipeline::source::{FullDocument, SourceConfig};

use crate::fixture::{CaptureFixture, direct, index};

async fn check_error(fixture: &CaptureFixture, source: SourceConfig, config: Config, start: StartPosition) -> Error {
    let error = fixture.capture_with(source, config).check(&start).await.unwrap_err();
    assert!(!error.is_transient(), "{error:?}");
    error
}

#[tokio::test]
async fn a_valid_source_is_accepted() {
    let fixture = CaptureFixture::new("sound").await;
    fixture.capture(fixture.source()).check(&StartPosition::Now).await.unwrap();
    index(&fixture.events()).await;
    let filter = vec![doc! { "$match": { "fullDocument.type": "Placed" } }, doc! { "$unset": "fullDocument.secret" }];
    let config = Config { filter, ..Config::default() };
    fixture.capture_with(fixture.source(), config).check(&StartPosition::Beginning).await.unwrap();
}

#[tokio::test]
async fn a_refused_filter_stage_is_named() {
    let fixture = CaptureFixture::new("stages").await;
    let sound = doc! { "$match": { "operationType": "insert" } };
    let wrong: [Document; 4] = [
        doc! { "$group": { "_id": 1 } },
        doc! { "$nonsense": {} },
        doc! { "$match": { "$nonsense": 1 } },
        doc! { "$set": { "a": { "$nonsense": 1 } } },
    ];
    for stage in wrong {
        let name = stage.keys().next().unwrap().clone();
        let config = Config { filter: vec![sound.clone(), stage, sound.clone()], ..Config::default() };
        match check_error(&fixture, fixture.source(), config, StartPosition::Now).await {
            Error::FilterRefused { number: 2, name: blamed, .. } => assert_eq!(blamed, name),
            other => panic!("{name}: {other:?}"),
        }
    }
    let config = Config { filter: vec![sound, doc! { "match": {} }], ..Config::default() };
    let error = check_error(&fixture, fixture.source(), config, StartPosition::Now).await;
    assert!(matches!(error, Error::FilterShape { number: 2, .. }), "{error:?}");
}

#[tokio::test]
async fn our_own_collections_are_refused_as_a_source() {
    let fixture = CaptureFixture::new("own").await;
    let own = vec![Namespace::new(fixture.database.name(), "events")];
    let error = check_error(&fixture, fixture.source(), Config { own, ..Config::default() }, StartPosition::Now).await;
    assert!(matches!(error, Error::OwnNamespace { .. }), "{error:?}");
}

#[tokio::test]
async fn start_at_beginning_needs_a_sequence_and_its_index() {
    let fixture = CaptureFixture::new("order").await;
    let without = SourceConfig { sequence: None, ..fixture.source() };
    let error = check_error(&fixture, without, Config::default(), StartPosition::Beginning).await;
    assert!(matches!(error, Error::NoSequence), "{error:?}");
    // The collection does not exist, so it has no index.
    let error = check_error(&fixture, fixture.source(), Config::default(), StartPosition::Beginning).await;
    assert!(matches!(error, Error::NoIndex { .. }), "{error:?}");
    fixture.events().insert_one(doc! { "aggregateId": "a", "version": 1 }).await.unwrap();
    let error = check_error(&fixture, fixture.source(), Config::default(), StartPosition::Beginning).await;
    assert!(error.to_string().contains("{ aggregateId: 1, version: 1 }"), "{error}");
}

#[tokio::test]
async fn post_images_must_be_enabled_if_configured() {
    let fixture = CaptureFixture::new("images").await;
    let source = SourceConfig { full_document: FullDocument::PostImage, ..fixture.documents() };
    fixture.database.create_collection("events").await.unwrap();
    let error = check_error(&fixture, source.clone(), Config::default(), StartPosition::Now).await;
    assert!(matches!(error, Error::NoPostImages { .. }), "{error:?}");
    fixture.events().drop().await.unwrap();
    let images = ChangeStreamPreAndPostImages::builder().enabled(true).build();
    fixture.database.create_collection("events").change_stream_pre_and_post_images(images).await.unwrap();
    fixture.capture(source).check(&StartPosition::Now).await.unwrap();
}

#[tokio::test]
async fn an_unreachable_server_is_a_transient_error() {
    let config = Config { response_timeout: std::time::Duration::from_millis(200), ..Config::default() };
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let client = direct(&format!("mongodb://{nobody}/?serverSelectionTimeoutMS=100000")).await;
    let error = Capture::new(&client, SourceConfig::events("shop", "events"), config)
        .check(&StartPosition::Now)
        .await
        .unwrap_err();
    assert!(error.is_transient(), "{error:?}");
}

#[tokio::test]
async fn a_filter_that_changes_event_ids_is_an_error() {
    let fixture = CaptureFixture::new("ids").await;
    let filter = vec![doc! { "$set": { "_id": "mine" } }];
    let capture = fixture.capture_with(fixture.source(), Config { filter, ..Config::default() });
    let reading = crate::fixture::CaptureRun::start(capture, StartPosition::Now).await;
    fixture.events().insert_one(crate::fixture::event("a", 1)).await.unwrap();
    let error = reading.wait_for_error().await;
    assert!(matches!(error, Error::FilterChangesId), "{error:?}");
}
