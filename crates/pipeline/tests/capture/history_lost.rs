//! An oplog that no longer holds the events after the checkpoint.

use std::num::NonZeroU32;

use mongodb::Client;
use mongodb::bson::{Bson, DateTime, Document, Timestamp, doc};
use pipeline::capture::{Capture, CaptureState, Config, Error, StartPosition};
use pipeline::checkpoint::CheckpointPhase;
use pipeline::event::ResumeToken;
use pipeline::source::SourceConfig;
use testkit::mongo::ReplicaSetConfig;
use testkit::wait::wait_for;

use crate::fixture::{CaptureFixture, CaptureRun, TIMEOUT, event, majority, short_await};

#[tokio::test]
async fn history_lost_is_reported_on_open_and_on_an_open_stream() {
    // The server truncates the oplog only up to its last storage checkpoint, by default one per minute.
    let set = ReplicaSetConfig::with_members(1).oplog_megabytes(1).argument("--syncdelay=1").start().await.unwrap();
    let client = set.client().await.unwrap();
    let events = majority(&client.database("shop"), "events");
    let source = SourceConfig { sequence: Some("version".into()), ..SourceConfig::events("shop", "events") };
    let config = Config {
        batch_size: NonZeroU32::new(10).unwrap(),
        read_ahead_events: NonZeroU32::new(10).unwrap(),
        ..Config::default()
    };
    let capture = || Capture::new(&client, source.clone(), short_await(config.clone()));
    let start = capture().initial_phase(&StartPosition::Now).await.unwrap();

    // An open stream that nobody receives from; its cursor stays far behind the end of the oplog.
    let behind = CaptureRun::resume(capture(), start.clone());
    events.insert_many((0..1000).map(|version| event("a", version))).await.unwrap();
    wait_for("the queue to be full", TIMEOUT, async || {
        let status = behind.handle.status();
        if status.state == CaptureState::Full { Ok(()) } else { Err(status) }
    })
    .await;

    overrun(&client, &start).await;
    let error = behind.wait_for_error().await;
    assert_eq!(code(&error), Some(136), "{error:?}");

    let late = CaptureRun::resume(capture(), start);
    let error = late.wait_for_error().await;
    assert_eq!(code(&error), Some(286), "{error:?}");
    assert!(error.to_string().contains("history"), "{error}");

    let early = StartPosition::At(DateTime::from_millis(1_000_000_000_000));
    let error = capture().initial_phase(&early).await.unwrap_err();
    assert!(matches!(error, Error::StartTooEarly { .. }), "{error:?}");
    assert!(error.to_string().contains("2001-09-09"), "{error}");
}

/// Another server version or a person may write such a token. An error about the token itself is not transient.
#[tokio::test]
async fn a_token_the_server_cannot_parse_is_history_lost() {
    let fixture = CaptureFixture::new("tokens").await;
    let mut reading = fixture.read(fixture.source()).await;
    fixture.events().insert_one(event("a", 1)).await.unwrap();
    let token = reading.event().await.token.key().to_owned();
    reading.stop().await;
    let (later_version, another_kind) = (token.replacen("2B04", "2B0A", 1), token.replacen("2C0100", "2C0300", 1));
    for (garbled, expected) in [(later_version, 50795), (another_kind, 51057), (token[..30].to_owned(), 50872)] {
        let token = ResumeToken::try_from(doc! { "_data": garbled }).unwrap();
        let error = CaptureRun::resume(fixture.capture(fixture.source()), CheckpointPhase::Stream { token })
            .wait_for_error()
            .await;
        assert_eq!(code(&error), Some(expected), "{error:?}");
    }
}

fn code(error: &Error) -> Option<i32> {
    match error {
        Error::HistoryLost(source) => source.code(),
        _ => None,
    }
}

/// Writes until the oplog no longer reaches back to `start`.
async fn overrun(client: &Client, start: &CheckpointPhase) {
    let CheckpointPhase::Stream { token } = start else { panic!("{start:?}") };
    let start = token.cluster_time().unwrap();
    let filler = client.database("filler").collection::<Document>("filler");
    wait_for("the oplog to be overrun", 2 * TIMEOUT, async || {
        filler.insert_many((0..10).map(|_| doc! { "x": "x".repeat(1 << 20) })).await.unwrap();
        let oldest = oldest(client).await;
        // With a margin: the unread events of the open stream must be gone too.
        if oldest.time > start.time + 1 { Ok(()) } else { Err(oldest) }
    })
    .await;
}

async fn oldest(client: &Client) -> Timestamp {
    let oplog = client.database("local").collection::<Document>("oplog.rs");
    let first = oplog.find_one(doc! {}).sort(doc! { "$natural": 1 }).await.unwrap().unwrap();
    match first.get("ts") {
        Some(Bson::Timestamp(time)) => *time,
        other => panic!("{other:?}"),
    }
}
