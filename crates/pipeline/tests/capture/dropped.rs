//! Collections that are dropped, renamed and made again.

use mongodb::bson::doc;
use pipeline::checkpoint::CheckpointPhase;
use pipeline::source::SourceConfig;

use crate::house::{House, Reading, event, insert_all, majority, versions};

#[tokio::test]
async fn a_dropped_and_re_created_collection_goes_on() {
    let house = House::new("dropped").await;
    let mut reading = house.read(house.source()).await;
    for round in 0..3 {
        insert_all(&house.events(), (0..10).map(|n| event("a", round * 10 + n))).await;
        house.events().drop().await.unwrap();
    }
    house.events().insert_one(event("a", 30)).await.unwrap();
    assert_eq!(versions(&reading.events(31).await), (0..31).collect::<Vec<_>>());
    // A drop and an invalidate each time.
    assert_eq!(reading.handle.status().collection_drops, 6);
    assert!(reading.handle.status().reopens >= 3);
    // Every token handed on can be resumed from, an invalidate's too.
    let marks = std::mem::take(&mut reading.marks);
    reading.stop().await;
    assert!(!marks.is_empty());
    let mut invalidates = 0;
    for phase in marks {
        let CheckpointPhase::Stream { token } = phase.clone() else { panic!("{phase:?}") };
        let stages = [doc! { "$changeStream": { "resumeAfter": token.to_document() } }];
        if let Err(error) = house.events().aggregate(stages).await {
            assert_eq!(mongo_error::error_code(&error), Some(260), "by `resumeAfter` an invalidate's cannot");
            invalidates += 1;
        }
        let mut resumed = Reading::from(house.capture(house.source()), phase);
        assert!(resumed.event().await.token > token);
        resumed.stop().await;
    }
    assert!(invalidates > 0);
}

#[tokio::test]
async fn a_renamed_collection_is_gone_and_its_name_is_followed() {
    let house = House::new("renamed").await;
    let mut reading = house.read(house.source()).await;
    house.events().insert_one(event("a", 1)).await.unwrap();
    let name = house.database.name();
    let rename = doc! { "renameCollection": format!("{name}.events"), "to": format!("{name}.old") };
    house.database.client().database("admin").run_command(rename).await.unwrap();
    majority(&house.database, "old").insert_one(event("a", 2)).await.unwrap();
    house.events().insert_one(event("a", 3)).await.unwrap();
    assert_eq!(versions(&reading.events(2).await), [1, 3]);
    reading.stop().await;
}

#[tokio::test]
async fn a_dropped_database_goes_on_too() {
    let house = House::new("database").await;
    let source = SourceConfig { collection: None, collections: vec!["events".into(), "more".into()], ..house.source() };
    let mut reading = house.read(source).await;
    house.events().insert_one(event("a", 1)).await.unwrap();
    majority(&house.database, "more").drop().await.unwrap();
    house.events().insert_one(event("a", 2)).await.unwrap();
    mongodb::Database::drop(&house.database).await.unwrap();
    house.events().insert_one(event("a", 3)).await.unwrap();
    assert_eq!(versions(&reading.events(3).await), [1, 2, 3]);
    reading.stop().await;
}
