//! What is missing is found and healed; what is on the way is not.

use pipeline::audit::{AuditState, RoundOptions, WaitReason};
use testkit::wait::wait_for;
use tokio_util::sync::CancellationToken;

use crate::fixture::{AuditFixture, SOON, TestEvent, event, events};

/// 20 orders of 3 events. The last event of two orders, and all events of a third, are lost on the bus.
fn with_losses() -> (Vec<TestEvent>, Vec<TestEvent>) {
    let all = events(20, 3);
    let is_lost = |event: &TestEvent| match event.order.as_str().unwrap() {
        "order-004" | "order-011" => event.version == 3,
        "order-017" => true,
        _ => false,
    };
    let delivered = all.iter().filter(|event| !is_lost(event)).cloned().collect();
    (all, delivered)
}

#[tokio::test]
async fn lost_tails_and_lost_aggregates_are_healed() {
    let fixture = AuditFixture::start("audit_heal").await;
    let (all, delivered) = with_losses();
    fixture.write(&all).await;
    fixture.publish(&delivered).await;
    let consumer = fixture.consume();
    fixture.wait_until_applied(&delivered).await;
    let totals = fixture.audit(&consumer, false).await.unwrap();
    assert_eq!((totals.compared, totals.found, totals.healed, totals.healed_events), (20, 3, 3, 5), "{totals:?}");
    fixture.wait_until_applied(&all).await;
    // A late message of a healed event is a duplicate.
    fixture.publish(&[event("order-004", 3), event("order-017", 1)]).await;
    let again = fixture.audit(&consumer, false).await.unwrap();
    assert_eq!((again.compared, again.found), (20, 0), "{again:?}");
    fixture.wait_until_applied(&all).await;
    let record = fixture.record().await.unwrap();
    assert_eq!((record.found_total, record.missing, record.holder), (3, 0, None));
    assert_eq!(record.last.unwrap().number, 2);
    consumer.stop().await;
}

#[tokio::test]
async fn a_dry_run_reports_and_changes_nothing() {
    let fixture = AuditFixture::start("audit_dry").await;
    let (all, delivered) = with_losses();
    fixture.write(&all).await;
    fixture.publish(&delivered).await;
    let consumer = fixture.consume();
    fixture.wait_until_applied(&delivered).await;
    let before = fixture.everything_stored().await;
    let totals = fixture.audit(&consumer, true).await.unwrap();
    assert_eq!((totals.compared, totals.found, totals.healed), (20, 3, 0), "{totals:?}");
    assert_eq!(fixture.everything_stored().await, before);
    consumer.stop().await;
}

#[tokio::test]
async fn a_backlog_on_the_bus_is_waited_for() {
    let fixture = AuditFixture::start("audit_backlog").await;
    let all = events(3, 2);
    fixture.write(&all).await;
    // Published, and no consumer runs: nothing is lost.
    fixture.publish(&all).await;
    let applier_only = fixture.consume_nothing();
    let auditor = fixture.auditor(&applier_only, "pod-0");
    let handle = auditor.handle();
    let round = tokio::spawn(async move {
        auditor.run_round(RoundOptions { from_start: true, dry_run: false }, &mut |_, _| {}).await
    });
    wait_for("the audit to wait for the backlog", SOON, async || match handle.state() {
        AuditState::Waiting(WaitReason::Backlog) => Ok(()),
        other => Err(other),
    })
    .await;
    // Stored after the state is set.
    wait_for("the record to say so", SOON, async || {
        let record = fixture.record().await.unwrap();
        let stored = (record.waiting.clone(), record.suspects, record.missing);
        if stored == (Some("backlog".to_owned()), 3, 0) { Ok(()) } else { Err(stored) }
    })
    .await;
    let consumer = fixture.consume();
    let totals = tokio::time::timeout(SOON, round).await.expect("the round ends").unwrap().unwrap();
    assert_eq!((totals.compared, totals.found), (3, 0), "{totals:?}");
    fixture.wait_until_applied(&all).await;
    consumer.stop().await;
    applier_only.stop().await;
}

#[tokio::test]
async fn nothing_is_healed_before_the_checkpoint_has_passed() {
    let fixture = AuditFixture::with_checkpoint("audit_checkpoint", 1).await;
    let all = events(2, 2);
    fixture.write(&all).await;
    let consumer = fixture.consume();
    let auditor = fixture.auditor(&consumer, "pod-0");
    let handle = auditor.handle();
    let round = tokio::spawn(async move { auditor.run_round(RoundOptions::default(), &mut |_, _| {}).await });
    wait_for("the audit to wait for the checkpoint", SOON, async || match handle.state() {
        AuditState::Waiting(WaitReason::Checkpoint) => Ok(()),
        other => Err(other),
    })
    .await;
    assert!(fixture.applied().await.is_empty());
    fixture.pass_checkpoint().await;
    let totals = tokio::time::timeout(SOON, round).await.expect("the round ends").unwrap().unwrap();
    assert_eq!((totals.found, totals.healed_events), (2, 4), "{totals:?}");
    fixture.wait_until_applied(&all).await;
    consumer.stop().await;
}

#[tokio::test]
async fn a_poisoned_missing_event_parks_its_aggregate() {
    let fixture = AuditFixture::start("audit_poison").await;
    let mut all = events(2, 2);
    all[2].event_type = "Poison";
    let delivered = all[..2].to_vec();
    fixture.write(&all).await;
    fixture.publish(&delivered).await;
    let consumer = fixture.consume();
    fixture.wait_until_applied(&delivered).await;
    let totals = fixture.audit(&consumer, false).await.unwrap();
    assert_eq!((totals.found, totals.healed_events), (2, 2), "{totals:?}");
    // It is parked now: skipped, and not found again.
    let again = fixture.audit(&consumer, false).await.unwrap();
    assert_eq!((again.found, again.parked), (0, 1), "{again:?}");
    consumer.stop().await;
}

#[tokio::test]
async fn an_event_that_ends_pods_is_left_to_an_operator() {
    let fixture = AuditFixture::start("audit_interrupted").await;
    let all = events(2, 1);
    fixture.write(&all).await;
    let consumer = fixture.consume();
    // Two pods ended while they healed the first order.
    fixture.note_healing("order-000", 2).await;
    let stop = CancellationToken::new();
    let running = tokio::spawn(fixture.auditor(&consumer, "pod-0").run(Default::default(), stop.clone()));
    wait_for("the round to end", SOON, async || {
        let record = fixture.record().await.unwrap_or_default();
        if record.last.is_some() { Ok(()) } else { Err(format!("{record:?}")) }
    })
    .await;
    stop.cancel();
    running.await.unwrap();
    let record = fixture.record().await.unwrap();
    let totals = record.last.as_ref().unwrap().totals;
    assert_eq!((totals.found, totals.healed, record.known_missing()), (2, 1, 1), "{totals:?}");
    fixture.wait_until_applied(&all[1..]).await;
    // An operator can have it healed.
    let totals = fixture.audit(&consumer, false).await.unwrap();
    assert_eq!((totals.found, totals.healed), (1, 1), "{totals:?}");
    assert_eq!(fixture.record().await.unwrap().known_missing(), 0);
    fixture.wait_until_applied(&all).await;
    consumer.stop().await;
}
