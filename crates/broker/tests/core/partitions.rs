use broker::core::*;

use crate::fixture::*;

fn partitioned(fixture: &mut CoreFixture, sessions: bool) -> QueueId {
    fixture.queue("q", |queue| {
        queue.ingress.enable_partitioning = true;
        queue.egress.requires_session = sessions;
    })
}

#[test]
fn a_session_stays_in_one_partition_and_its_numbers_rise() {
    let mut fixture = CoreFixture::new();
    let queue = partitioned(&mut fixture, true);
    let mut partitions = std::collections::HashSet::new();
    for session in 0..40 {
        let session = format!("s{session}");
        let numbers: Vec<_> = (0..3).map(|_| fixture.send(queue.entity, in_session(&session, "x"))).collect();
        assert!(numbers.iter().all(|number| number.partition() == numbers[0].partition() && number.partition() < 16));
        assert!(numbers.is_sorted());
        partitions.insert(numbers[0].partition());
    }
    assert!(partitions.len() > 8);
}

#[test]
fn a_batch_of_mixed_sessions_is_refused() {
    let mut fixture = CoreFixture::new();
    let queue = partitioned(&mut fixture, true);
    let mixed = [in_session("a", "1"), in_session("b", "2")];
    assert_eq!(fixture.try_send(queue.entity, &mixed).unwrap_err().condition(), "amqp:not-allowed");
    let uniform = [in_session("a", "1"), in_session("a", "2")];
    assert_eq!(fixture.try_send(queue.entity, &uniform).unwrap().len(), 2);
    let plain = fixture.session_queue("plain");
    assert!(fixture.try_send(plain.entity, &mixed).is_ok(), "elsewhere it may be mixed");
}

#[test]
fn without_sessions_order_is_kept_across_partitions() {
    let mut fixture = CoreFixture::new();
    let queue = partitioned(&mut fixture, false);
    let bodies: Vec<_> = (0..40).map(|n| n.to_string()).collect();
    bodies.iter().for_each(|body| fixture.send_all(queue.entity, &[body]));
    fixture.restart();
    let link = fixture.receiver(queue, 100);
    let received = fixture.take_deliveries(link);
    let order: Vec<_> = received.iter().map(|delivery| fixture.body(delivery)).collect();
    assert_eq!(order, bodies);
    let partitions: std::collections::HashSet<_> =
        received.iter().map(|delivery| delivery.sequence.partition()).collect();
    assert_eq!(partitions.len(), 16);
}

#[test]
fn a_sequence_number_of_another_partition_is_not_found() {
    let mut fixture = CoreFixture::new();
    let queue = partitioned(&mut fixture, false);
    let number = fixture.send(queue.entity, IncomingMessage { partition_key: Some("k".into()), ..message("a") });
    let link = fixture.receiver(queue, 1);
    let delivery = fixture.receive_one(link);
    assert_eq!(delivery.sequence, number);
    assert!(fixture.settle(queue, &delivery, &defer()));
    let receive_deferred = |fixture: &mut CoreFixture, number| {
        fixture.call(|core, call| core.receive_deferred(call, queue, None, &[number], ReceiveMode::PeekLock))
    };
    assert!(receive_deferred(&mut fixture, SequenceNumber(number.0 ^ (1 << 48))).is_err());
    assert!(receive_deferred(&mut fixture, number).is_ok());
}

#[test]
fn a_partitioned_entity_is_sixteen_times_as_large() {
    let (mut fixture, queue) = CoreFixture::with_queue(|queue| {
        queue.ingress.enable_partitioning = true;
        queue.ingress.max_size_in_megabytes = 1;
    });
    // Almost a megabyte, as the quota counts.
    let megabyte: Vec<_> = (0..862).map(|_| message(&"x".repeat(1024))).collect();
    (0..16).for_each(|_| drop(fixture.try_send(queue.entity, &megabyte).unwrap()));
    assert!(fixture.try_send(queue.entity, &megabyte).is_err());
}

#[test]
fn dead_letters_keep_their_partition() {
    let mut fixture = CoreFixture::new();
    let queue = partitioned(&mut fixture, true);
    let number = fixture.send(queue.entity, in_session("some-session", "a"));
    let link = fixture.next_session(queue);
    fixture.credit(link, 1);
    let delivery = fixture.receive_one(link);
    assert!(fixture.settle(queue, &delivery, &dead_letter("x")));
    let dead_letter_link = fixture.receiver(dead_letters(queue), 1);
    assert_eq!(fixture.receive_one(dead_letter_link).sequence.partition(), number.partition());
}
