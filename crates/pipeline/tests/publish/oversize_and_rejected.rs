//! Oversize events use claim checks, and rejected events are stored; neither blocks later events.

use std::time::Duration;

use mongodb::bson::{Bson, RawDocumentBuf, doc};
use pipeline::capture::CaptureItem;
use pipeline::envelope::property;
use pipeline::event::ChangeEvent;
use pipeline::publish::{Config, PublishEnd, rejected};
use pipeline::stored::{ClaimCheckStore, claim_check};

use crate::fixture::*;

fn large(aggregate: &str, number: i64, size: usize) -> CaptureItem {
    let document = doc! { "aggregateId": aggregate, "n": number, "text": "x".repeat(size) };
    CaptureItem::Change(ChangeEvent {
        document: RawDocumentBuf::try_from(&document).unwrap(),
        ..event(aggregate, number)
    })
}

#[tokio::test]
async fn an_oversize_body_uses_a_claim_check_and_keeps_order() {
    let fixture = PublishFixture::start(|topic| topic.ingress.max_message_size_in_kilobytes = Some(256)).await;
    let run = fixture.publish(1, Config::default()).await;
    let large = large("a", 2, 5_000_000);
    let CaptureItem::Change(original) = &large else { unreachable!() };
    let body = original.document.as_bytes().to_vec();
    run.send(&[CaptureItem::Change(event("a", 1)), large, CaptureItem::Change(event("a", 3))]).await;
    run.wait_until_published(3).await;
    assert_eq!((run.counts().oversize, run.counts().rejected), (1, 0));
    assert_eq!(run.drain().await.unwrap(), PublishEnd::Drained);
    assert_eq!(fixture.phase().await, stream(3));

    let received = fixture.receive_all(3).await.remove("a").unwrap();
    assert_eq!((number(&received[0]), number(&received[2])), (1, 3));
    assert!(received[1].body().is_empty());
    let id = text(&received[1], property::OVERSIZE).unwrap();
    assert_eq!(received[1].message_id().as_deref(), Some(id.as_str()));
    assert_eq!(fixture.claim_checks().read(&id).await.unwrap(), body);
    let chunks = fixture.documents(claim_check::COLLECTION).await;
    assert!(chunks.len() > 1 && chunks.iter().all(|chunk| chunk.get_datetime("expiresAt").is_ok()));
    let missing = fixture.claim_checks().read("never stored").await.unwrap_err();
    assert!(matches!(missing, claim_check::Error::Missing { chunk: 0, .. }), "{missing}");
}

#[tokio::test]
async fn storing_a_claim_check_twice_is_idempotent() {
    let fixture = PublishFixture::start(|_| {}).await;
    let oversize = ClaimCheckStore::new(&fixture.database, Duration::from_secs(3_600));
    oversize.create_indexes().await.unwrap();
    oversize.create_indexes().await.unwrap();
    let body: Vec<u8> = (0..9_000_000_u32).map(|number| number.to_le_bytes()[1]).collect();
    oversize.store("id", &body).await.unwrap();
    oversize.store("id", &body).await.unwrap();
    assert_eq!(oversize.read("id").await.unwrap(), body);
    assert_eq!(fixture.documents(claim_check::COLLECTION).await.len(), 3);
}

#[tokio::test]
async fn an_event_without_aggregate_id_is_rejected_and_skipped() {
    let fixture = PublishFixture::start(|_| {}).await;
    let run = fixture.publish(1, Config::default()).await;
    let without_id = event(Bson::Null, 2);
    let key = without_id.key.clone();
    run.send(&[
        CaptureItem::Change(event("a", 1)),
        CaptureItem::Change(without_id),
        CaptureItem::Change(event("a", 3)),
    ])
    .await;
    run.wait_until_published(2).await;
    assert_eq!(run.drain().await.unwrap(), PublishEnd::Drained);
    assert_eq!(fixture.phase().await, stream(3), "a rejected event counts as acknowledged once it is stored");
    fixture.receive_all(2).await;
    let kept = fixture.documents(rejected::COLLECTION).await;
    assert_eq!(kept.len(), 1);
    assert_eq!(kept[0].get_str("reason").unwrap(), "no_aggregate_id");
    assert_eq!(kept[0].get_str("namespace").unwrap(), "shop.events");
    assert_eq!(kept[0].get("key"), Some(&key));
    assert_eq!(kept[0].get_str("token").unwrap(), token(2).key());
    assert_eq!(kept[0].get_i64("term").unwrap(), 1);
    let document = RawDocumentBuf::from_bytes(kept[0].get_binary_generic("document").unwrap().clone()).unwrap();
    assert_eq!(document.get_i64("n").unwrap(), 2);
}

#[tokio::test]
async fn a_large_rejected_event_is_stored_once() {
    let fixture = PublishFixture::start(|_| {}).await;
    for term in [1, 2] {
        let run = fixture.publish(term, Config::default()).await;
        let CaptureItem::Change(event) = large("a", 1, 15_000_000) else { unreachable!() };
        run.send(&[CaptureItem::Change(ChangeEvent { aggregate: None, ..event })]).await;
        assert_eq!(run.drain().await.unwrap(), PublishEnd::Drained);
    }
    let kept = fixture.documents(rejected::COLLECTION).await;
    let bytes: usize = kept.iter().map(|part| part.get_binary_generic("document").unwrap().len()).sum();
    assert!(kept.len() == 2 && bytes > 15_000_000, "{} parts of {bytes} bytes", kept.len());
    assert_eq!(kept.iter().filter(|part| part.contains_key("reason")).count(), 1);
}
