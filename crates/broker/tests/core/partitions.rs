use broker::core::*;

use crate::rig::*;

fn partitioned(rig: &mut Rig, sessions: bool) -> QueueId {
    rig.queue("q", |queue| {
        queue.inlet.enable_partitioning = true;
        queue.outlet.requires_session = sessions;
    })
}

#[test]
fn a_session_stays_in_one_partition_and_its_numbers_rise() {
    let mut rig = Rig::new();
    let queue = partitioned(&mut rig, true);
    let mut partitions = std::collections::HashSet::new();
    for session in 0..40 {
        let session = format!("s{session}");
        let numbers: Vec<_> = (0..3).map(|_| rig.send(queue.entity, in_session(&session, "x"))).collect();
        assert!(numbers.iter().all(|number| number.partition() == numbers[0].partition() && number.partition() < 16));
        assert!(numbers.is_sorted());
        partitions.insert(numbers[0].partition());
    }
    assert!(partitions.len() > 8);
}

#[test]
fn a_batch_of_mixed_sessions_is_refused() {
    let mut rig = Rig::new();
    let queue = partitioned(&mut rig, true);
    let mixed = [in_session("a", "1"), in_session("b", "2")];
    assert_eq!(rig.try_send(queue.entity, &mixed).unwrap_err().condition(), "amqp:not-allowed");
    let uniform = [in_session("a", "1"), in_session("a", "2")];
    assert_eq!(rig.try_send(queue.entity, &uniform).unwrap().len(), 2);
    let plain = rig.session_queue("plain");
    assert!(rig.try_send(plain.entity, &mixed).is_ok(), "elsewhere it may be mixed");
}

#[test]
fn without_sessions_messages_come_in_the_order_they_were_sent_whatever_their_partition() {
    let mut rig = Rig::new();
    let queue = partitioned(&mut rig, false);
    let bodies: Vec<_> = (0..40).map(|n| n.to_string()).collect();
    bodies.iter().for_each(|body| rig.send_all(queue.entity, &[body]));
    rig.restart();
    let link = rig.receiver(queue, 100);
    let received = rig.received(link);
    let order: Vec<_> = received.iter().map(|delivery| rig.body(delivery)).collect();
    assert_eq!(order, bodies);
    let partitions: std::collections::HashSet<_> =
        received.iter().map(|delivery| delivery.sequence.partition()).collect();
    assert_eq!(partitions.len(), 16);
}

#[test]
fn a_number_with_another_partition_names_no_message() {
    let mut rig = Rig::new();
    let queue = partitioned(&mut rig, false);
    let number = rig.send(queue.entity, Incoming { partition_key: Some("k".into()), ..message("a") });
    let link = rig.receiver(queue, 1);
    let delivery = rig.one(link);
    assert_eq!(delivery.sequence, number);
    assert!(rig.settle(queue, &delivery, &defer()));
    let fetch = |rig: &mut Rig, number| {
        rig.turn(|core, turn| core.receive_deferred(turn, queue, None, &[number], Mode::PeekLock))
    };
    assert!(fetch(&mut rig, SequenceNumber(number.0 ^ (1 << 48))).is_err());
    assert!(fetch(&mut rig, number).is_ok());
}

#[test]
fn a_partitioned_entity_is_sixteen_times_as_large() {
    let mut rig = Rig::new();
    let queue = rig.queue("q", |queue| {
        queue.inlet.enable_partitioning = true;
        queue.inlet.max_size_in_megabytes = 1;
    });
    let megabyte: Vec<_> = (0..1024).map(|_| message(&"x".repeat(1024))).collect();
    (0..16).for_each(|_| drop(rig.try_send(queue.entity, &megabyte).unwrap()));
    assert!(rig.try_send(queue.entity, &[message("x")]).is_err());
}

#[test]
fn dead_letters_keep_their_partition() {
    let mut rig = Rig::new();
    let queue = partitioned(&mut rig, true);
    let number = rig.send(queue.entity, in_session("some-session", "a"));
    let link = rig.next_session(queue);
    rig.credit(link, 1);
    let delivery = rig.one(link);
    assert!(rig.settle(queue, &delivery, &dead_letter("x")));
    let buried = rig.receiver(dead_letters(queue), 1);
    assert_eq!(rig.one(buried).sequence.partition(), number.partition());
}
