//! Dropped, renamed and re-created collections.

use mongodb::bson::doc;
use pipeline::checkpoint::CheckpointPhase;
use pipeline::source::SourceConfig;

use crate::fixture::{CaptureFixture, CaptureRun, event, insert_all, majority, versions};

#[tokio::test]
async fn capture_continues_after_a_drop_and_re_create() {
    let fixture = CaptureFixture::new("dropped").await;
    let mut reading = fixture.read(fixture.source()).await;
    for round in 0..3 {
        insert_all(&fixture.events(), (0..10).map(|n| event("a", round * 10 + n))).await;
        fixture.events().drop().await.unwrap();
    }
    fixture.events().insert_one(event("a", 30)).await.unwrap();
    assert_eq!(versions(&reading.events(31).await), (0..31).collect::<Vec<_>>());
    // Each drop sends a drop and an invalidate event.
    assert_eq!(reading.handle.status().collection_drops, 6);
    assert!(reading.handle.status().reopens >= 3);
    // Every captured token resumes, also that of an invalidate event.
    let marks = std::mem::take(&mut reading.watermarks);
    reading.stop().await;
    assert!(!marks.is_empty());
    let mut invalidates = 0;
    for phase in marks {
        let CheckpointPhase::Stream { token } = phase.clone() else { panic!("{phase:?}") };
        let stages = [doc! { "$changeStream": { "resumeAfter": token.to_document() } }];
        if let Err(error) = fixture.events().aggregate(stages).await {
            assert_eq!(mongo_error::error_code(&error), Some(260), "by `resumeAfter` an invalidate's cannot");
            invalidates += 1;
        }
        let mut resumed = CaptureRun::resume(fixture.capture(fixture.source()), phase);
        assert!(resumed.event().await.token > token);
        resumed.stop().await;
    }
    assert!(invalidates > 0);
}

#[tokio::test]
async fn capture_follows_the_name_after_a_rename() {
    let fixture = CaptureFixture::new("renamed").await;
    let mut reading = fixture.read(fixture.source()).await;
    fixture.events().insert_one(event("a", 1)).await.unwrap();
    let name = fixture.database.name();
    let rename = doc! { "renameCollection": format!("{name}.events"), "to": format!("{name}.old") };
    fixture.database.client().database("admin").run_command(rename).await.unwrap();
    majority(&fixture.database, "old").insert_one(event("a", 2)).await.unwrap();
    fixture.events().insert_one(event("a", 3)).await.unwrap();
    assert_eq!(versions(&reading.events(2).await), [1, 3]);
    reading.stop().await;
}

#[tokio::test]
async fn capture_continues_after_a_dropped_database() {
    let fixture = CaptureFixture::new("database").await;
    let source =
        SourceConfig { collection: None, collections: vec!["events".into(), "more".into()], ..fixture.source() };
    let mut reading = fixture.read(source).await;
    fixture.events().insert_one(event("a", 1)).await.unwrap();
    majority(&fixture.database, "more").drop().await.unwrap();
    fixture.events().insert_one(event("a", 2)).await.unwrap();
    mongodb::Database::drop(&fixture.database).await.unwrap();
    fixture.events().insert_one(event("a", 3)).await.unwrap();
    assert_eq!(versions(&reading.events(3).await), [1, 2, 3]);
    reading.stop().await;
}
