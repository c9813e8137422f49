//! What is refused before anything is read, and how it is said.

use mongodb::bson::{Document, doc};
use mongodb::options::ChangeStreamPreAndPostImages;
use pipeline::capture::{Capture, Config, Error, PipelineStart};
use pipeline::event::Namespace;
use pipeline::source::{FullDocument, SourceConfig};

use crate::house::{House, direct, index};

async fn refused(house: &House, source: SourceConfig, config: Config, start: PipelineStart) -> Error {
    let error = house.capture_with(source, config).check(&start).await.unwrap_err();
    assert!(!error.is_transient(), "{error:?}");
    error
}

#[tokio::test]
async fn a_sound_source_is_accepted() {
    let house = House::new("sound").await;
    house.capture(house.source()).check(&PipelineStart::Now).await.unwrap();
    index(&house.events()).await;
    let filter = vec![doc! { "$match": { "fullDocument.type": "Placed" } }, doc! { "$unset": "fullDocument.secret" }];
    let config = Config { filter, ..Config::default() };
    house.capture_with(house.source(), config).check(&PipelineStart::Beginning).await.unwrap();
}

#[tokio::test]
async fn a_stage_the_server_refuses_is_named() {
    let house = House::new("stages").await;
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
        match refused(&house, house.source(), config, PipelineStart::Now).await {
            Error::FilterRefused { number: 2, name: blamed, .. } => assert_eq!(blamed, name),
            other => panic!("{name}: {other:?}"),
        }
    }
    let config = Config { filter: vec![sound, doc! { "match": {} }], ..Config::default() };
    let error = refused(&house, house.source(), config, PipelineStart::Now).await;
    assert!(matches!(error, Error::FilterShape { number: 2, .. }), "{error:?}");
}

#[tokio::test]
async fn what_we_write_ourselves_is_no_source() {
    let house = House::new("own").await;
    let own = vec![Namespace::new(house.database.name(), "events")];
    let error = refused(&house, house.source(), Config { own, ..Config::default() }, PipelineStart::Now).await;
    assert!(matches!(error, Error::OwnNamespace { .. }), "{error:?}");
}

#[tokio::test]
async fn the_beginning_of_events_needs_a_sequence_and_its_index() {
    let house = House::new("order").await;
    let without = SourceConfig { sequence: None, ..house.source() };
    let error = refused(&house, without, Config::default(), PipelineStart::Beginning).await;
    assert!(matches!(error, Error::NoSequence), "{error:?}");
    // Neither is there a collection, nor, then, an index.
    let error = refused(&house, house.source(), Config::default(), PipelineStart::Beginning).await;
    assert!(matches!(error, Error::NoIndex { .. }), "{error:?}");
    house.events().insert_one(doc! { "aggregateId": "a", "version": 1 }).await.unwrap();
    let error = refused(&house, house.source(), Config::default(), PipelineStart::Beginning).await;
    assert!(error.to_string().contains("{ aggregateId: 1, version: 1 }"), "{error}");
}

#[tokio::test]
async fn post_images_must_be_kept_where_they_are_asked_for() {
    let house = House::new("images").await;
    let source = SourceConfig { full_document: FullDocument::PostImage, ..house.documents() };
    house.database.create_collection("events").await.unwrap();
    let error = refused(&house, source.clone(), Config::default(), PipelineStart::Now).await;
    assert!(matches!(error, Error::NoPostImages { .. }), "{error:?}");
    house.events().drop().await.unwrap();
    let images = ChangeStreamPreAndPostImages::builder().enabled(true).build();
    house.database.create_collection("events").change_stream_pre_and_post_images(images).await.unwrap();
    house.capture(source).check(&PipelineStart::Now).await.unwrap();
}

#[tokio::test]
async fn a_server_that_is_away_is_told_apart_from_a_wrong_request() {
    let config = Config { response_timeout: std::time::Duration::from_millis(200), ..Config::default() };
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let client = direct(&format!("mongodb://{nobody}/?serverSelectionTimeoutMS=100000")).await;
    let error = Capture::new(&client, SourceConfig::events("shop", "events"), config)
        .check(&PipelineStart::Now)
        .await
        .unwrap_err();
    assert!(error.is_transient(), "{error:?}");
}

#[tokio::test]
async fn a_filter_that_changes_the_id_of_events_ends_the_stream_and_is_blamed() {
    let house = House::new("ids").await;
    let filter = vec![doc! { "$set": { "_id": "mine" } }];
    let capture = house.capture_with(house.source(), Config { filter, ..Config::default() });
    let reading = crate::house::Reading::of(capture, PipelineStart::Now).await;
    house.events().insert_one(crate::house::event("a", 1)).await.unwrap();
    let error = reading.error().await;
    assert!(matches!(error, Error::FilterChangesId), "{error:?}");
}
