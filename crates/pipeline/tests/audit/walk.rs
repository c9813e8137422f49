//! The walk visits every aggregate once, whatever its type and its number of events.

use mongodb::bson::oid::ObjectId;
use mongodb::bson::{Bson, Document, doc};
use pipeline::source::SourceConfig;
use pipeline::source_walk::{SourceHead, SourceWalk};
use pipeline::stored::Identity;

use crate::fixture::{AuditFixture, TestEvent, event};

async fn walk_all(walk: &SourceWalk) -> (Vec<SourceHead>, u64) {
    let (mut heads, mut unusable, mut position, mut slices) = (vec![], 0, None, 0);
    while let Some(slice) = walk.next_slice(position.as_ref()).await.unwrap() {
        heads.extend(slice.heads);
        unusable += slice.unusable;
        position = Some(slice.end);
        slices += 1;
        assert!(slices < 1_000, "the walk does not end");
    }
    (heads, unusable)
}

#[tokio::test]
async fn every_aggregate_is_visited_once_with_its_highest_sequence() {
    let fixture = AuditFixture::start("audit_walk").await;
    let ids: Vec<Bson> = vec![
        "a".into(),
        "b".into(),
        "é".into(),
        7.into(),
        8_i64.into(),
        9.5.into(),
        true.into(),
        ObjectId::new().into(),
        doc! { "tenant": 1, "order": 2 }.into(),
    ];
    let events: Vec<TestEvent> = ids
        .iter()
        .zip(1..)
        // One aggregate of 40 events among those with one to nine.
        .flat_map(|(id, last)| (1..=if last == 4 { 40 } else { last }).map(|version| event(id.clone(), version)))
        .collect();
    fixture.write(&events).await;
    // The same number as another type is the same aggregate.
    let collection = fixture.source.collection::<Document>("events");
    collection.insert_one(doc! { "aggregateId": 7.0, "version": 41.0, "type": "Added" }).await.unwrap();
    let unusable = [doc! { "version": 1 }, doc! { "aggregateId": "text", "version": "1" }, doc! { "aggregateId": "c" }];
    collection.insert_many(unusable).await.unwrap();
    for slice_keys in [1, 2, 3, 7, 10_000] {
        let walk = SourceWalk::new(fixture.source.client(), &fixture.config).unwrap().with_slice_keys(slice_keys);
        let (heads, unusable) = walk_all(&walk).await;
        assert_eq!((heads.len(), unusable), (ids.len(), 3), "slices of {slice_keys}");
        for (id, last) in ids.iter().zip(1..) {
            let last = if last == 4 { 41 } else { last };
            let same: Vec<_> =
                heads.iter().filter(|head| Identity::of(head.aggregate.value()) == Identity::of(id)).collect();
            assert_eq!((same.len(), same[0].sequence), (1, last), "slices of {slice_keys}");
        }
    }
}

#[tokio::test]
async fn every_collection_of_the_source_is_walked() {
    let fixture = AuditFixture::start("audit_collections").await;
    fixture.write(&[event("a", 1), event("b", 1)]).await;
    fixture.create_index("more").await;
    let more = fixture.source.collection::<Document>("more");
    more.insert_many([event("a", 2).document(), event("c", 1).document()]).await.unwrap();
    let source = SourceConfig {
        collection: None,
        collections: vec!["more".into(), "events".into(), "absent".into()],
        ..fixture.config.clone()
    };
    let walk = SourceWalk::new(fixture.source.client(), &source).unwrap().with_slice_keys(1);
    let (heads, _) = walk_all(&walk).await;
    let heads: Vec<_> = heads.iter().map(|head| (head.aggregate.value().as_str().unwrap(), head.sequence)).collect();
    assert_eq!(heads, [("a", 1), ("b", 1), ("a", 2), ("c", 1)]);
}
