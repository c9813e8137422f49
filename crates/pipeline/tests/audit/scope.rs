//! What the audit leaves alone: filtered events, aggregates older than the pipeline, sources without proof.

use mongodb::bson::doc;
use pipeline::audit::{AuditState, Error, UnauditableReason};
use pipeline::source::{SourceConfig, SourceKind};
use pipeline::view::PipelineStart;
use testkit::wait::wait_for;
use tokio_util::sync::CancellationToken;

use crate::fixture::{AuditFixture, SOON, TestEvent, event, events};

#[tokio::test]
async fn a_pipeline_from_now_is_audited_above_its_cursors() {
    let mut fixture = AuditFixture::start("audit_now").await;
    fixture.start = PipelineStart::Now;
    // The pipeline started before version 3 of the first order; it never saw the second.
    let all = events(2, 4);
    fixture.write(&all).await;
    let delivered = [event("order-000", 3)];
    fixture.publish(&delivered).await;
    let consumer = fixture.consume();
    fixture.wait_until_applied(&delivered).await;
    let totals = fixture.audit(&consumer, false).await.unwrap();
    assert_eq!((totals.found, totals.healed_events, totals.before_start), (1, 1, 1), "{totals:?}");
    fixture.wait_until_applied(&[event("order-000", 3), event("order-000", 4)]).await;
    consumer.stop().await;
}

#[tokio::test]
async fn filtered_events_are_neither_missed_nor_healed() {
    let mut fixture = AuditFixture::start("audit_filter").await;
    fixture.capture.filter =
        vec![doc! { "$match": { "fullDocument.type": "Added" } }, doc! { "$unset": "fullDocument.secret" }];
    let hidden = |order: &str, version| TestEvent { event_type: "Hidden", ..event(order, version) };
    let passing = [event("order-000", 1), event("order-001", 1), event("order-002", 2)];
    let lost = event("order-001", 3);
    let all = [&passing[..], &[hidden("order-000", 2), hidden("order-001", 2), lost.clone(), hidden("order-003", 1)]];
    fixture.write(&all.concat()).await;
    fixture.publish(&passing).await;
    let consumer = fixture.consume();
    fixture.wait_until_applied(&passing).await;
    // Only a healed event shows that the filter lets it pass; a dry run must ask the filter.
    let dry = fixture.audit(&consumer, true).await.unwrap();
    assert_eq!((dry.compared, dry.found, dry.healed), (4, 1, 0), "{dry:?}");
    let totals = fixture.audit(&consumer, false).await.unwrap();
    assert_eq!((totals.compared, totals.found, totals.healed_events), (4, 1, 1), "{totals:?}");
    let expected = [&passing[..], &[lost]].concat();
    fixture.wait_until_applied(&expected).await;
    consumer.stop().await;
}

#[tokio::test]
async fn without_a_sequence_or_an_index_nothing_is_proven() {
    let mut fixture = AuditFixture::start("audit_unauditable").await;
    fixture.write(&events(2, 2)).await;
    let consumer = fixture.consume();
    fixture.source.collection::<mongodb::bson::Document>("events").drop_indexes().await.unwrap();
    let refused = fixture.audit(&consumer, true).await;
    assert!(matches!(refused, Err(Error::Unauditable(UnauditableReason::NoIndex))), "{refused:?}");
    let stop = CancellationToken::new();
    let auditor = fixture.auditor(&consumer, "pod-0");
    let handle = auditor.handle();
    let running = tokio::spawn(auditor.run(Default::default(), stop.clone()));
    wait_for("the pod to report it", SOON, async || {
        let stored = fixture.record().await.and_then(|record| record.unauditable);
        match (handle.state(), stored.as_deref()) {
            (AuditState::Unauditable(UnauditableReason::NoIndex), Some("no_index")) => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
    stop.cancel();
    running.await.unwrap();
    let sequenced = fixture.config.clone();
    fixture.config = SourceConfig { sequence: None, ..sequenced.clone() };
    let refused = fixture.audit(&consumer, false).await;
    assert!(matches!(refused, Err(Error::Unauditable(UnauditableReason::NoSequence))), "{refused:?}");
    fixture.config = SourceConfig { kind: SourceKind::Documents, ..sequenced };
    let refused = fixture.audit(&consumer, false).await;
    assert!(matches!(refused, Err(Error::Unauditable(UnauditableReason::Documents))), "{refused:?}");
    assert!(fixture.applied().await.is_empty(), "nothing was healed");
    consumer.stop().await;
}
