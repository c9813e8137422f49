use std::time::Duration;

use broker::core::*;

use crate::fixture::*;

fn with_duplicate_detection(fixture: &mut CoreFixture) -> QueueId {
    fixture.queue("q", |queue| {
        queue.ingress.requires_duplicate_detection = true;
        queue.ingress.duplicate_detection_window = Duration::from_secs(20);
    })
}

fn is_new(fixture: &mut CoreFixture, queue: QueueId, id: &str) -> bool {
    fixture.try_send(queue.entity, &[with_id(id)]).expect("a duplicate is accepted")[0].is_some()
}

#[test]
fn a_duplicate_is_accepted_and_dropped_within_the_window() {
    let mut fixture = CoreFixture::new();
    let queue = with_duplicate_detection(&mut fixture);
    assert!(is_new(&mut fixture, queue, "a"));
    assert!(is_new(&mut fixture, queue, "A"), "ids are compared as they are");
    fixture.advance(20_000);
    assert!(!is_new(&mut fixture, queue, "a"));
    fixture.advance(200);
    assert!(is_new(&mut fixture, queue, "a"));
    assert_eq!(fixture.counts("q").active, 3);
}

#[test]
fn an_id_is_known_after_its_message_is_gone_and_a_restart() {
    let mut fixture = CoreFixture::new();
    let queue = with_duplicate_detection(&mut fixture);
    assert!(is_new(&mut fixture, queue, "a"));
    let link = fixture.receive_and_delete_link(queue, 1);
    assert_eq!(fixture.take_bodies(link), ["a"]);
    assert!(!is_new(&mut fixture, queue, "a"));
    fixture.restart();
    assert!(!is_new(&mut fixture, queue, "a"));
    fixture.advance(21_000);
    fixture.restart();
    assert!(is_new(&mut fixture, queue, "a"));
}

#[test]
fn duplicates_within_a_batch_are_dropped_too() {
    let mut fixture = CoreFixture::new();
    let queue = with_duplicate_detection(&mut fixture);
    let numbers = fixture.try_send(queue.entity, &[with_id("a"), with_id("b"), with_id("a")]).unwrap();
    assert_eq!(numbers, [Some(SequenceNumber(1)), Some(SequenceNumber(2)), None]);
}

#[test]
fn messages_without_an_id_are_never_duplicates() {
    let mut fixture = CoreFixture::new();
    let queue = with_duplicate_detection(&mut fixture);
    fixture.send_all(queue.entity, &["same", "same"]);
    assert_eq!(fixture.counts("q").active, 2);
}

#[test]
fn without_detection_nothing_is_a_duplicate() {
    let (mut fixture, queue) = CoreFixture::with_queue(|_| {});
    assert!(is_new(&mut fixture, queue, "a") && is_new(&mut fixture, queue, "a"));
}

#[test]
fn a_topic_detects_for_all_its_subscriptions_even_with_none() {
    let mut fixture = CoreFixture::new();
    let topic = fixture.topic("t", |topic| topic.ingress.requires_duplicate_detection = true);
    assert!(fixture.try_send(topic, &[with_id("a")]).unwrap()[0].is_some());
    fixture.subscription("t", "s", |_| {});
    assert!(fixture.try_send(topic, &[with_id("a")]).unwrap()[0].is_none());
    fixture.restart();
    assert!(fixture.try_send(topic, &[with_id("a")]).unwrap()[0].is_none());
}

#[test]
fn on_a_partitioned_entity_the_key_is_part_of_the_id() {
    let mut fixture = CoreFixture::new();
    for partitioned in [true, false] {
        let queue = fixture.queue(&format!("q-{partitioned}"), |queue| {
            queue.ingress.requires_duplicate_detection = true;
            queue.ingress.enable_partitioning = partitioned;
        });
        let keyed = |key: &str| IncomingMessage { partition_key: Some(key.into()), ..with_id("a") };
        assert!(fixture.try_send(queue.entity, &[keyed("k1")]).unwrap()[0].is_some());
        assert_eq!(fixture.try_send(queue.entity, &[keyed("k2")]).unwrap()[0].is_some(), partitioned);
        assert!(fixture.try_send(queue.entity, &[keyed("k1")]).unwrap()[0].is_none());
    }
}

#[test]
fn the_window_can_be_changed_and_keeps_what_is_within_it() {
    let mut fixture = CoreFixture::new();
    let queue = with_duplicate_detection(&mut fixture);
    assert!(is_new(&mut fixture, queue, "a"));
    let mut description = QueueDescription::default();
    description.ingress.requires_duplicate_detection = true;
    description.ingress.duplicate_detection_window = Duration::from_secs(100);
    fixture.call(|core, call| core.update(call, "q", EntityDefinition::Queue(description))).unwrap();
    fixture.advance(90_000);
    assert!(!is_new(&mut fixture, queue, "a"));
    fixture.restart();
    assert!(!is_new(&mut fixture, queue, "a"));
}
