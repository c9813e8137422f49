use broker::core::*;
use broker::journal::{Journal, JournalLocation};

use crate::fixture::*;

/// A broker with entities and messages in every state that must survive a restart.
fn populated() -> (CoreFixture, QueueId, QueueId, EntityId) {
    let mut fixture = CoreFixture::new();
    fixture.journal.groups_per_segment = 4;
    let sessions = fixture.queue("sessions", |queue| {
        queue.egress.requires_session = true;
        queue.ingress.requires_duplicate_detection = true;
        queue.ingress.enable_partitioning = true;
    });
    let topic = fixture.topic("topic", |_| {});
    let one = fixture.subscription("topic", "one", |_| {});
    fixture.subscription("topic", "two", |_| {});
    for n in 0..20 {
        let session = format!("s{}", n % 3);
        fixture.send(
            sessions.entity,
            IncomingMessage { message_id: Some(format!("m{n}").into()), ..in_session(&session, &format!("{n}")) },
        );
        fixture.send(
            topic,
            if n % 5 == 0 { with_time_to_live(90_000, &format!("t{n}")) } else { message(&format!("t{n}")) },
        );
    }
    fixture.send(topic, IncomingMessage { scheduled_for: Some(Timestamp(START.0 + 60_000)), ..message("later") });
    let link = fixture.named_session(sessions, "s0").unwrap();
    fixture.call(|core, call| core.set_session_state(call, sessions, "s0", Some("state".into()))).unwrap();
    fixture.credit(link, 4);
    let received = fixture.take_deliveries(link);
    fixture.complete(sessions, &received[0]);
    assert!(fixture.settle(sessions, &received[1], &defer()));
    fixture.abandon(sessions, &received[2]);
    assert!(fixture.settle(sessions, &received[3], &dead_letter("bad")));
    let link = fixture.receiver(one, 3);
    let received = fixture.take_deliveries(link);
    fixture.complete(one, &received[1]);
    fixture.abandon(one, &received[0]);
    (fixture, sessions, one, topic)
}

/// Everything a client can observe.
fn contents(fixture: &mut CoreFixture) -> Vec<String> {
    let paths: Vec<String> = fixture.core.entities().map(|view| view.path.to_owned()).collect();
    let mut seen = Vec::new();
    for path in paths {
        let view = fixture.core.entity(&path).unwrap();
        seen.push(format!("{path} {:?} {:?}", view.description, (view.created_at, view.updated_at)));
        let counts = EntityCounts { receivers: 0, ..view.counts };
        seen.push(format!("{counts:?}"));
        for address in [path.clone(), format!("{path}/$DeadLetterQueue")] {
            let Ok(queue) = fixture.core.resolve_receive_address(&address) else { continue };
            let peeked = fixture.call(|core, call| core.peek(call, queue, None, SequenceNumber(0), 1_000)).unwrap();
            for message in peeked {
                let stored = fixture.journal.read(message.location).unwrap();
                let (number, state, count) = (message.sequence, message.state, message.delivery_count);
                let envelope = StoredEnvelope::decode(&stored.meta).unwrap();
                seen.push(format!(
                    "{address} {number} {state:?} {count} {:?} {:?} {envelope:?}",
                    stored.body, message.overrides
                ));
            }
        }
    }
    seen
}

fn snapshot(fixture: &CoreFixture, budget: usize) -> Vec<Vec<u8>> {
    let (mut snapshot, mut records) = (SnapshotCursor::new(fixture.now), Vec::new());
    while fixture.core.write_snapshot(&mut snapshot, budget, |record| records.push(record.to_vec())) {}
    records
}

#[test]
fn a_restart_recovers_everything() {
    let (mut fixture, sessions, ..) = populated();
    let before = contents(&mut fixture);
    fixture.restart();
    assert_eq!(contents(&mut fixture), before);
    fixture.named_session(sessions, "s0").unwrap();
    let state = fixture.call(|core, call| core.session_state(call, sessions, "s0")).unwrap();
    assert_eq!(state.as_deref(), Some(&b"state"[..]));
    let duplicate = IncomingMessage { message_id: Some("m0".into()), ..in_session("s0", "0") };
    assert_eq!(fixture.try_send(sessions.entity, &[duplicate]).unwrap(), [None]);
    let next = fixture.send(sessions.entity, in_session("s0", "new"));
    assert_eq!(next.counter(), 21, "no number is used twice");
}

#[test]
fn a_snapshot_alone_recovers_everything() {
    let (mut fixture, sessions, ..) = populated();
    let before = contents(&mut fixture);
    for budget in [1, 100, usize::MAX] {
        let records = snapshot(&fixture, budget);
        let end = fixture.journal.groups().len();
        fixture.recover(&records, end);
        assert_eq!(contents(&mut fixture), before, "budget {budget}");
    }
    let duplicate = IncomingMessage { message_id: Some("m7".into()), ..in_session("s1", "7") };
    assert_eq!(fixture.try_send(sessions.entity, &[duplicate]).unwrap(), [None]);
    assert_eq!(fixture.send(sessions.entity, in_session("s0", "new")).counter(), 21);
    let link = fixture.next_session(sessions);
    assert!(fixture.events(link).attached.is_some());
}

#[test]
fn a_snapshot_during_changes_is_corrected_by_replay() {
    // Between the steps of the snapshot, messages are sent, completed, dead-lettered and moved.
    for step_budget in [1, 60, 400] {
        let (mut fixture, sessions, one, topic) = populated();
        let from = fixture.journal.groups().len();
        let (mut cursor, mut records) = (SnapshotCursor::new(fixture.now), Vec::new());
        let (link, mut n) = (fixture.receiver(one, 0), 0);
        while fixture.core.write_snapshot(&mut cursor, step_budget, |record| records.push(record.to_vec())) {
            n += 1;
            fixture.credit(link, 1);
            for delivery in fixture.take_deliveries(link) {
                let outcome = [SettlementOutcome::Complete, abandon(), dead_letter("x"), defer()][n % 4].clone();
                assert!(fixture.settle(one, &delivery, &outcome));
            }
            fixture.send(topic, message(&format!("new {n}")));
            let holder = fixture.next_session(sessions);
            fixture.credit(holder, 2);
            for delivery in fixture.take_deliveries(holder) {
                fixture.settle(
                    sessions,
                    &delivery,
                    if n % 3 == 0 { &SettlementOutcome::Complete } else { &SettlementOutcome::Release },
                );
            }
            fixture.send(sessions.entity, in_session(&format!("s{}", n % 5), &format!("new {n}")));
            fixture.detach(holder);
            fixture.advance(700);
            if n > 500 {
                break;
            }
        }
        while fixture.core.write_snapshot(&mut cursor, usize::MAX, |record| records.push(record.to_vec())) {}
        fixture.detach(link);
        fixture.advance(60_000);
        let before = contents(&mut fixture);
        fixture.recover(&records, from);
        assert_eq!(contents(&mut fixture), before, "budget {step_budget}");
    }
}

#[test]
fn an_entity_recreated_during_a_snapshot_is_found_by_path() {
    let mut fixture = CoreFixture::new();
    let old = fixture.queue("q", |_| {});
    let from = fixture.journal.groups().len();
    let (mut cursor, mut records) = (SnapshotCursor::new(fixture.now), Vec::new());
    fixture.core.write_snapshot(&mut cursor, 1, |record| records.push(record.to_vec()));
    fixture.call(|core, call| core.delete(call, "q")).unwrap();
    let new = fixture.queue("q", |_| {});
    while fixture.core.write_snapshot(&mut cursor, 1, |record| records.push(record.to_vec())) {}
    fixture.recover(&records, from);
    assert_eq!(fixture.core.resolve_receive_address("q").unwrap(), new);
    assert!(new != old && fixture.queue("other", |_| {}).entity > new.entity);
}

#[test]
fn compacted_segments_are_empty_and_contents_unchanged() {
    let (mut fixture, sessions, ..) = populated();
    let before = contents(&mut fixture);
    let records = snapshot(&fixture, usize::MAX);
    let from = fixture.journal.groups().len();
    let mut compaction = Compaction::of([0, 1, 2, 3]);
    while fixture.call(|core, call| core.compact(call, &mut compaction, 3)).unwrap() {}
    let mut held: Vec<JournalLocation> = Vec::new();
    fixture.core.visit_bodies(|location| held.push(location));
    assert!(held.iter().all(|location| location.segment > 3), "{held:?}");
    assert_eq!(contents(&mut fixture), before);
    assert_eq!(
        count_references(&fixture.core, &fixture.journal),
        fixture.journal.references().collect::<Vec<_>>(),
        "the journal has a record of every move"
    );
    fixture.recover(&records, from);
    assert_eq!(contents(&mut fixture), before, "an older snapshot is corrected");
    fixture.restart();
    assert_eq!(contents(&mut fixture), before);
    fixture.named_session(sessions, "s0").unwrap();
    let state = fixture.call(|core, call| core.session_state(call, sessions, "s0")).unwrap();
    assert_eq!(state.as_deref(), Some(&b"state"[..]));
}

#[test]
fn a_body_of_several_subscriptions_is_moved_once() {
    let mut fixture = CoreFixture::new();
    fixture.journal.groups_per_segment = 1;
    let topic = fixture.topic("t", |_| {});
    for (name, sessions) in [("a", false), ("b", true), ("c", false)] {
        fixture.subscription("t", name, |subscription| subscription.egress.requires_session = sessions);
    }
    fixture.send(topic, in_session("s", "body"));
    let segment = fixture.journal.groups().len() as u32 - 1;
    let before = fixture.journal.groups().len();
    let mut compaction = Compaction::of([segment]);
    while fixture.call(|core, call| core.compact(call, &mut compaction, 100)).unwrap() {}
    assert_eq!(fixture.journal.groups().len(), before + 1);
    assert_eq!(fixture.journal.references().collect::<Vec<_>>(), [0, 3]);
}

#[test]
fn the_journal_counts_references_to_each_body() {
    let (fixture, ..) = populated();
    assert_eq!(count_references(&fixture.core, &fixture.journal), fixture.journal.references().collect::<Vec<_>>());
}

#[test]
fn compaction_stops_on_a_full_journal_and_continues_later() {
    let (mut fixture, ..) = populated();
    let before = contents(&mut fixture);
    let mut compaction = Compaction::of([0, 1, 2, 3]);
    fixture.journal.full = true;
    assert!(fixture.call(|core, call| core.compact(call, &mut compaction, 1_000)).is_err());
    assert_eq!(contents(&mut fixture), before);
    fixture.journal.full = false;
    while fixture.call(|core, call| core.compact(call, &mut compaction, 1_000)).unwrap() {}
    fixture.core.visit_bodies(|location| assert!(location.segment > 3));
}
