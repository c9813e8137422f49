//! A round survives the pod that walks it.

use pipeline::audit::AuditState;
use testkit::wait::wait_for;
use tokio_util::sync::CancellationToken;

use crate::fixture::{AuditFixture, SOON, events};

#[tokio::test]
async fn another_pod_continues_the_round_of_a_dead_one() {
    let fixture = AuditFixture::start("audit_resume").await;
    let all = events(40, 2);
    fixture.write(&all).await;
    // Everything but the last order is applied; the messages of that one stay on the bus, so the round waits there.
    let consumer = fixture.consume();
    let (last, but_last): (Vec<_>, Vec<_>) =
        all.into_iter().partition(|event| event.order.as_str() == Some("order-039"));
    fixture.publish(&but_last).await;
    fixture.wait_until_applied(&but_last).await;
    consumer.stop().await;
    fixture.publish(&last).await;
    let applier_only = fixture.consume_nothing();
    let first = fixture.auditor(&applier_only, "pod-0").with_slice_keys(8);
    let dead = tokio::spawn(first.run(Default::default(), CancellationToken::new()));
    wait_for("the first auditor to wait", SOON, async || {
        let record = fixture.record().await.unwrap_or_default();
        if record.waiting.is_some() { Ok(()) } else { Err(format!("{record:?}")) }
    })
    .await;
    let before = fixture.record().await.unwrap();
    let round = before.round.unwrap();
    assert!(round.totals.compared >= 32 && round.totals.compared < 40, "{:?}", round.totals);
    assert_eq!(before.holder.unwrap().pod, "pod-0");
    // Killed: it releases nothing.
    dead.abort();
    let _ = dead.await;
    let consumer = fixture.consume();
    let second = fixture.auditor(&consumer, "pod-1").with_slice_keys(8);
    let (handle, stop) = (second.handle(), CancellationToken::new());
    let running = tokio::spawn(second.run(Default::default(), stop.clone()));
    wait_for("the second auditor to end the round", SOON, async || {
        let record = fixture.record().await.unwrap();
        if record.last.is_some() { Ok(()) } else { Err(format!("{record:?}")) }
    })
    .await;
    let record = fixture.record().await.unwrap();
    let last = record.last.unwrap();
    assert_eq!((last.number, last.totals.compared, last.totals.found), (1, 40, 0), "{last:?}");
    assert_eq!(record.holder.unwrap().pod, "pod-1");
    assert_eq!(handle.counts().current + handle.counts().late, 40 - round.totals.compared, "it did not start again");
    wait_for("the second auditor to rest", SOON, async || match handle.state() {
        AuditState::Resting => Ok(()),
        other => Err(other),
    })
    .await;
    stop.cancel();
    running.await.unwrap();
    assert_eq!(fixture.record().await.unwrap().holder, None, "a pod that stops releases the audit");
    consumer.stop().await;
    applier_only.stop().await;
}

#[tokio::test]
async fn only_one_pod_audits_at_a_time() {
    let fixture = AuditFixture::start("audit_claim").await;
    fixture.write(&events(4, 1)).await;
    let consumer = fixture.consume();
    let stop = CancellationToken::new();
    let auditors = ["pod-0", "pod-1", "pod-2"].map(|pod| fixture.auditor(&consumer, pod));
    let handles = auditors.each_ref().map(|auditor| auditor.handle());
    let running = auditors.map(|auditor| tokio::spawn(auditor.run(Default::default(), stop.clone())));
    wait_for("the round to end", SOON, async || {
        let record = fixture.record().await.unwrap_or_default();
        if record.last.is_some() { Ok(()) } else { Err(format!("{record:?}")) }
    })
    .await;
    let states = handles.each_ref().map(|handle| handle.state());
    let standby = states.iter().filter(|state| **state == AuditState::Standby).count();
    assert_eq!(standby, 2, "{states:?}");
    assert_eq!(fixture.record().await.unwrap().found_total, 4, "found once, not by every pod");
    stop.cancel();
    for task in running {
        task.await.unwrap();
    }
    consumer.stop().await;
}
