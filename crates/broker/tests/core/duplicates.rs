use std::time::Duration;

use broker::core::*;

use crate::rig::*;

fn watchful(rig: &mut Rig) -> QueueId {
    rig.queue("q", |queue| {
        queue.inlet.requires_duplicate_detection = true;
        queue.inlet.duplicate_detection_window = Duration::from_secs(20);
    })
}

fn is_new(rig: &mut Rig, queue: QueueId, id: &str) -> bool {
    rig.try_send(queue.entity, &[with_id(id)]).expect("a duplicate is accepted")[0].is_some()
}

#[test]
fn a_duplicate_is_accepted_and_dropped_within_the_window() {
    let mut rig = Rig::new();
    let queue = watchful(&mut rig);
    assert!(is_new(&mut rig, queue, "a"));
    assert!(is_new(&mut rig, queue, "A"), "ids are compared as they are");
    rig.pass(20_000);
    assert!(!is_new(&mut rig, queue, "a"));
    rig.pass(200);
    assert!(is_new(&mut rig, queue, "a"));
    assert_eq!(rig.counts("q").active, 3);
}

#[test]
fn an_id_is_remembered_after_its_message_is_gone_and_across_a_restart() {
    let mut rig = Rig::new();
    let queue = watchful(&mut rig);
    assert!(is_new(&mut rig, queue, "a"));
    let link = rig.deleting_receiver(queue, 1);
    assert_eq!(rig.bodies(link), ["a"]);
    assert!(!is_new(&mut rig, queue, "a"));
    rig.restart();
    assert!(!is_new(&mut rig, queue, "a"));
    rig.pass(21_000);
    rig.restart();
    assert!(is_new(&mut rig, queue, "a"));
}

#[test]
fn duplicates_within_a_batch_are_dropped_too() {
    let mut rig = Rig::new();
    let queue = watchful(&mut rig);
    let numbers = rig.try_send(queue.entity, &[with_id("a"), with_id("b"), with_id("a")]).unwrap();
    assert_eq!(numbers, [Some(SequenceNumber(1)), Some(SequenceNumber(2)), None]);
}

#[test]
fn messages_without_an_id_are_never_duplicates() {
    let mut rig = Rig::new();
    let queue = watchful(&mut rig);
    rig.send_all(queue.entity, &["same", "same"]);
    assert_eq!(rig.counts("q").active, 2);
}

#[test]
fn without_detection_nothing_is_a_duplicate() {
    let mut rig = Rig::new();
    let queue = rig.queue("q", |_| {});
    assert!(is_new(&mut rig, queue, "a") && is_new(&mut rig, queue, "a"));
}

#[test]
fn a_topic_detects_for_all_its_subscriptions_even_with_none() {
    let mut rig = Rig::new();
    let topic = rig.topic("t", |topic| topic.inlet.requires_duplicate_detection = true);
    assert!(rig.try_send(topic, &[with_id("a")]).unwrap()[0].is_some());
    rig.subscription("t", "s", |_| {});
    assert!(rig.try_send(topic, &[with_id("a")]).unwrap()[0].is_none());
    rig.restart();
    assert!(rig.try_send(topic, &[with_id("a")]).unwrap()[0].is_none());
}

#[test]
fn on_a_partitioned_entity_the_key_is_part_of_the_id() {
    let mut rig = Rig::new();
    for partitioned in [true, false] {
        let queue = rig.queue(&format!("q-{partitioned}"), |queue| {
            queue.inlet.requires_duplicate_detection = true;
            queue.inlet.enable_partitioning = partitioned;
        });
        let keyed = |key: &str| Incoming { partition_key: Some(key.into()), ..with_id("a") };
        assert!(rig.try_send(queue.entity, &[keyed("k1")]).unwrap()[0].is_some());
        assert_eq!(rig.try_send(queue.entity, &[keyed("k2")]).unwrap()[0].is_some(), partitioned);
        assert!(rig.try_send(queue.entity, &[keyed("k1")]).unwrap()[0].is_none());
    }
}

#[test]
fn the_window_can_be_changed_and_keeps_what_is_within_it() {
    let mut rig = Rig::new();
    let queue = watchful(&mut rig);
    assert!(is_new(&mut rig, queue, "a"));
    let mut description = QueueDescription::default();
    description.inlet.requires_duplicate_detection = true;
    description.inlet.duplicate_detection_window = Duration::from_secs(100);
    rig.turn(|core, turn| core.update(turn, "q", Description::Queue(description))).unwrap();
    rig.pass(90_000);
    assert!(!is_new(&mut rig, queue, "a"));
    rig.restart();
    assert!(!is_new(&mut rig, queue, "a"));
}
