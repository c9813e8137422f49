//! Change events larger than 16 MB.

use futures_util::StreamExt;
use mongodb::bson::{Document, doc};
use pipeline::capture::StartPosition;
use pipeline::checkpoint::CheckpointPhase;
use pipeline::event::{Operation, ResumeToken};

use crate::fixture::{CaptureFixture, CaptureRun};

const MEGABYTE: usize = 1 << 20;

/// An update whose event holds the document (15 MB) and the change (6 MB).
async fn write_large(fixture: &CaptureFixture) {
    let orders = fixture.events();
    orders.insert_one(doc! { "_id": 1, "old": "x".repeat(9 * MEGABYTE) }).await.unwrap();
    orders.update_one(doc! { "_id": 1 }, doc! { "$set": { "new": "y".repeat(6 * MEGABYTE) } }).await.unwrap();
    orders.insert_one(doc! { "_id": 2 }).await.unwrap();
}

#[tokio::test]
async fn no_token_lies_inside_a_split_event() {
    let fixture = CaptureFixture::new("split").await;
    let capture = fixture.capture(fixture.documents());
    let start = capture.initial_phase(&StartPosition::Now).await.unwrap();
    write_large(&fixture).await;
    let fragments = fragments(&fixture, &start).await;
    assert!(fragments.len() >= 2);

    let mut reading = CaptureRun::resume(capture, start.clone());
    let events = reading.events(3).await;
    assert_eq!(
        events.iter().map(|event| event.operation).collect::<Vec<_>>(),
        [Operation::Insert, Operation::Update, Operation::Insert]
    );
    let large = &events[1];
    let document = Document::try_from(&*large.document).unwrap();
    assert_eq!(document.get_str("old").unwrap().len(), 9 * MEGABYTE);
    assert_eq!(document.get_str("new").unwrap().len(), 6 * MEGABYTE);
    assert_eq!(Some(&large.token), fragments.last());
    let inside = &fragments[..fragments.len() - 1];
    for phase in &reading.watermarks {
        let CheckpointPhase::Stream { token } = phase else { panic!("{phase:?}") };
        assert!(!inside.contains(token));
    }
    reading.stop().await;

    // A resume before the event reads all of it again; a resume after it reads only later events.
    let mut again = CaptureRun::resume(
        fixture.capture(fixture.documents()),
        CheckpointPhase::Stream { token: events[0].token.clone() },
    );
    assert_eq!(again.event().await.token, large.token);
    again.stop().await;
    let mut after = CaptureRun::resume(
        fixture.capture(fixture.documents()),
        CheckpointPhase::Stream { token: large.token.clone() },
    );
    assert_eq!(after.event().await.key, 2.into());
    after.stop().await;
}

/// The tokens of the fragments, as the server sends them.
async fn fragments(fixture: &CaptureFixture, start: &CheckpointPhase) -> Vec<ResumeToken> {
    let CheckpointPhase::Stream { token } = start else { panic!("{start:?}") };
    let stages = [
        doc! { "$changeStream": { "startAfter": token.to_document(), "fullDocument": "updateLookup" } },
        doc! { "$changeStreamSplitLargeEvent": {} },
    ];
    let mut raw = fixture.events().aggregate(stages).batch().await.unwrap();
    let mut tokens = Vec::new();
    loop {
        let batch = raw.next().await.unwrap().unwrap();
        for event in batch.doc_slices().unwrap() {
            let event = event.unwrap().as_document().unwrap();
            let Ok(split) = event.get_document("splitEvent") else { continue };
            tokens.push(ResumeToken::try_from(event.get_document("_id").unwrap()).unwrap());
            if split.get_i32("fragment").unwrap() == split.get_i32("of").unwrap() {
                return tokens;
            }
        }
    }
}
