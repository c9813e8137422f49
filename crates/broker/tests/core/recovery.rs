use broker::core::*;
use broker::journal::{Journal, Location};

use crate::rig::*;

/// A broker with a little of everything: what must survive a restart.
fn furnished() -> (Rig, QueueId, QueueId, EntityId) {
    let mut rig = Rig::new();
    rig.journal.groups_per_segment = 4;
    let sessions = rig.queue("sessions", |queue| {
        queue.outlet.requires_session = true;
        queue.inlet.requires_duplicate_detection = true;
        queue.inlet.enable_partitioning = true;
    });
    let topic = rig.topic("topic", |_| {});
    let one = rig.subscription("topic", "one", |_| {});
    rig.subscription("topic", "two", |_| {});
    for n in 0..20 {
        let session = format!("s{}", n % 3);
        rig.send(
            sessions.entity,
            Incoming { message_id: Some(format!("m{n}").into()), ..in_session(&session, &format!("{n}")) },
        );
        rig.send(topic, if n % 5 == 0 { lasting(90_000, &format!("t{n}")) } else { message(&format!("t{n}")) });
    }
    rig.send(topic, Incoming { scheduled_for: Some(Timestamp(START.0 + 60_000)), ..message("later") });
    let link = rig.named_session(sessions, "s0").unwrap();
    rig.turn(|core, turn| core.set_session_state(turn, sessions, "s0", Some("state".into()))).unwrap();
    rig.credit(link, 4);
    let received = rig.received(link);
    rig.complete(sessions, &received[0]);
    assert!(rig.settle(sessions, &received[1], &defer()));
    rig.abandon(sessions, &received[2]);
    assert!(rig.settle(sessions, &received[3], &dead_letter("bad")));
    let link = rig.receiver(one, 3);
    let received = rig.received(link);
    rig.complete(one, &received[1]);
    rig.abandon(one, &received[0]);
    (rig, sessions, one, topic)
}

/// Everything a client could find out, by looking.
fn contents(rig: &mut Rig) -> Vec<String> {
    let paths: Vec<String> = rig.core.entities().map(|view| view.path.to_owned()).collect();
    let mut seen = Vec::new();
    for path in paths {
        let view = rig.core.entity(&path).unwrap();
        seen.push(format!("{path} {:?} {:?}", view.description, (view.created_at, view.updated_at)));
        let counts = Counts { receivers: 0, ..view.counts };
        seen.push(format!("{counts:?}"));
        for address in [path.clone(), format!("{path}/$DeadLetterQueue")] {
            let Ok(queue) = rig.core.resolve_outlet(&address) else { continue };
            let peeked = rig.turn(|core, turn| core.peek(turn, queue, None, SequenceNumber(0), 1_000)).unwrap();
            for message in peeked {
                let stored = rig.journal.read(message.location).unwrap();
                let (number, state, count) = (message.sequence, message.state, message.delivery_count);
                let envelope = Envelope::decode(&stored.meta).unwrap();
                seen.push(format!(
                    "{address} {number} {state:?} {count} {:?} {:?} {envelope:?}",
                    stored.body, message.alterations
                ));
            }
        }
    }
    seen
}

fn snapshot(rig: &Rig, budget: usize) -> Vec<Vec<u8>> {
    let (mut snapshot, mut records) = (Snapshot::begin(rig.now), Vec::new());
    while rig.core.snapshot(&mut snapshot, budget, |record| records.push(record.to_vec())) {}
    records
}

#[test]
fn a_restart_finds_everything_as_it_was() {
    let (mut rig, sessions, ..) = furnished();
    let before = contents(&mut rig);
    rig.restart();
    assert_eq!(contents(&mut rig), before);
    rig.named_session(sessions, "s0").unwrap();
    let state = rig.turn(|core, turn| core.session_state(turn, sessions, "s0")).unwrap();
    assert_eq!(state.as_deref(), Some(&b"state"[..]));
    let duplicate = Incoming { message_id: Some("m0".into()), ..in_session("s0", "0") };
    assert_eq!(rig.try_send(sessions.entity, &[duplicate]).unwrap(), [None]);
    let next = rig.send(sessions.entity, in_session("s0", "new"));
    assert_eq!(next.counter(), 21, "no number is used twice");
}

#[test]
fn a_snapshot_alone_is_the_whole_state() {
    let (mut rig, sessions, ..) = furnished();
    let before = contents(&mut rig);
    for budget in [1, 100, usize::MAX] {
        let records = snapshot(&rig, budget);
        let end = rig.journal.groups().len();
        rig.recover(&records, end);
        assert_eq!(contents(&mut rig), before, "budget {budget}");
    }
    let duplicate = Incoming { message_id: Some("m7".into()), ..in_session("s1", "7") };
    assert_eq!(rig.try_send(sessions.entity, &[duplicate]).unwrap(), [None]);
    assert_eq!(rig.send(sessions.entity, in_session("s0", "new")).counter(), 21);
    let link = rig.next_session(sessions);
    assert!(rig.inbox(link).attached.is_some());
}

#[test]
fn a_snapshot_taken_while_everything_changes_is_mended_by_what_was_appended_since() {
    // The snapshot starts, then between its steps messages come, go, die and move.
    for step_budget in [1, 60, 400] {
        let (mut rig, sessions, one, topic) = furnished();
        let from = rig.journal.groups().len();
        let (mut cursor, mut records) = (Snapshot::begin(rig.now), Vec::new());
        let (link, mut n) = (rig.receiver(one, 0), 0);
        while rig.core.snapshot(&mut cursor, step_budget, |record| records.push(record.to_vec())) {
            n += 1;
            rig.credit(link, 1);
            for delivery in rig.received(link) {
                let outcome = [Outcome::Complete, abandon(), dead_letter("x"), defer()][n % 4].clone();
                assert!(rig.settle(one, &delivery, &outcome));
            }
            rig.send(topic, message(&format!("new {n}")));
            let holder = rig.next_session(sessions);
            rig.credit(holder, 2);
            for delivery in rig.received(holder) {
                rig.settle(sessions, &delivery, if n % 3 == 0 { &Outcome::Complete } else { &Outcome::Release });
            }
            rig.send(sessions.entity, in_session(&format!("s{}", n % 5), &format!("new {n}")));
            rig.detach(holder);
            rig.pass(700);
            if n > 500 {
                break;
            }
        }
        while rig.core.snapshot(&mut cursor, usize::MAX, |record| records.push(record.to_vec())) {}
        rig.detach(link);
        rig.pass(60_000);
        let before = contents(&mut rig);
        rig.recover(&records, from);
        assert_eq!(contents(&mut rig), before, "budget {step_budget}");
    }
}

#[test]
fn an_entity_deleted_and_created_again_during_a_snapshot_is_found_by_its_name() {
    let mut rig = Rig::new();
    let old = rig.queue("q", |_| {});
    let from = rig.journal.groups().len();
    let (mut cursor, mut records) = (Snapshot::begin(rig.now), Vec::new());
    rig.core.snapshot(&mut cursor, 1, |record| records.push(record.to_vec()));
    rig.turn(|core, turn| core.delete(turn, "q")).unwrap();
    let new = rig.queue("q", |_| {});
    while rig.core.snapshot(&mut cursor, 1, |record| records.push(record.to_vec())) {}
    rig.recover(&records, from);
    assert_eq!(rig.core.resolve_outlet("q").unwrap(), new);
    assert!(new != old && rig.queue("other", |_| {}).entity > new.entity);
}

#[test]
fn evacuated_segments_are_empty_and_nothing_else_has_changed() {
    let (mut rig, sessions, ..) = furnished();
    let before = contents(&mut rig);
    let records = snapshot(&rig, usize::MAX);
    let from = rig.journal.groups().len();
    let mut evacuation = Evacuation::of([0, 1, 2, 3]);
    while rig.turn(|core, turn| core.evacuate(turn, &mut evacuation, 3)).unwrap() {}
    let mut held: Vec<Location> = Vec::new();
    rig.core.visit_bodies(|location| held.push(location));
    assert!(held.iter().all(|location| location.segment > 3), "{held:?}");
    assert_eq!(contents(&mut rig), before);
    assert_eq!(counted(&rig), rig.journal.references().collect::<Vec<_>>(), "the journal was told of every move");
    rig.recover(&records, from);
    assert_eq!(contents(&mut rig), before, "a snapshot from before is mended");
    rig.restart();
    assert_eq!(contents(&mut rig), before);
    rig.named_session(sessions, "s0").unwrap();
    let state = rig.turn(|core, turn| core.session_state(turn, sessions, "s0")).unwrap();
    assert_eq!(state.as_deref(), Some(&b"state"[..]));
}

#[test]
fn a_body_of_several_subscriptions_is_moved_once() {
    let mut rig = Rig::new();
    rig.journal.groups_per_segment = 1;
    let topic = rig.topic("t", |_| {});
    for (name, sessions) in [("a", false), ("b", true), ("c", false)] {
        rig.subscription("t", name, |subscription| subscription.outlet.requires_session = sessions);
    }
    rig.send(topic, in_session("s", "body"));
    let segment = rig.journal.groups().len() as u32 - 1;
    let before = rig.journal.groups().len();
    let mut evacuation = Evacuation::of([segment]);
    while rig.turn(|core, turn| core.evacuate(turn, &mut evacuation, 100)).unwrap() {}
    assert_eq!(rig.journal.groups().len(), before + 1);
    assert_eq!(rig.journal.references().collect::<Vec<_>>(), [0, 3]);
}

#[test]
fn the_journal_knows_how_many_refer_to_each_body() {
    let (rig, ..) = furnished();
    assert_eq!(counted(&rig), rig.journal.references().collect::<Vec<_>>());
}

/// References to each body as the core has them.
fn counted(rig: &Rig) -> Vec<i64> {
    let mut counted = vec![0; rig.journal.references().count()];
    rig.core.visit_bodies(|location| counted[location.offset as usize] += 1);
    counted
}

#[test]
fn evacuation_stops_when_the_journal_is_full_and_can_go_on() {
    let (mut rig, ..) = furnished();
    let before = contents(&mut rig);
    let mut evacuation = Evacuation::of([0, 1, 2, 3]);
    rig.journal.full = true;
    assert!(rig.turn(|core, turn| core.evacuate(turn, &mut evacuation, 1_000)).is_err());
    assert_eq!(contents(&mut rig), before);
    rig.journal.full = false;
    while rig.turn(|core, turn| core.evacuate(turn, &mut evacuation, 1_000)).unwrap() {}
    rig.core.visit_bodies(|location| assert!(location.segment > 3));
}
