//! Room: given back when messages are consumed, and gone without it when the disk is full.

use broker::journal::{AppendError, Journal};
use broker::store::{Chore, Health, Options, Store};

use crate::crash::{recover, small};
use crate::mini::{Engine, Message, Op, Visible};
use crate::sim::{Loss, SimDisk};

fn send(sequence: u64) -> Op {
    send_sized(sequence, 300)
}

fn send_sized(sequence: u64, size: usize) -> Op {
    Op::Send { messages: vec![Message { sequence, session: 0, body: vec![sequence as u8; size] }] }
}

#[test]
fn the_room_of_consumed_messages_is_given_back() {
    let disk = SimDisk::default();
    let (mut store, mut engine) = recover(disk.shared(), small()).unwrap();
    let mut most = 0;
    let mut history = 0;
    for sequence in 1..=2_000 {
        engine.mini.apply(&send(sequence), &mut store).unwrap();
        engine.mini.apply(&Op::Settle { sequence }, &mut store).unwrap();
        store.work();
        while engine.chore(&mut store) {}
        store.work();
        // The log may grow to twice the snapshot, which holds the duplicate history, and two snapshots may be there at once.
        let usage = store.usage();
        most = most.max(disk.used().saturating_sub(4 * usage.snapshot));
        history = usage.snapshot;
    }
    assert!(history > 10_000, "snapshots are taken");
    assert!(most < 40 << 10, "{most} bytes for nothing stored");
}

#[test]
fn one_stuck_message_in_each_segment_does_not_keep_the_segments() {
    let disk = SimDisk::default();
    let (mut store, mut engine) = recover(disk.shared(), small()).unwrap();
    let mut expected = Visible::default();
    for sequence in 1..=1_500 {
        let mut ops = vec![send(sequence)];
        // Every segment of 2 KiB holds at least one message that stays.
        if sequence % 5 != 0 {
            ops.push(Op::Settle { sequence });
        }
        for op in ops {
            engine.mini.apply(&op, &mut store).unwrap();
            expected.apply(&op);
        }
        store.work();
        for _ in 0..3 {
            engine.chore(&mut store);
            store.work();
        }
    }
    while engine.chore(&mut store) || store.work() {}
    // 300 messages of about 360 bytes live; at most about four times that may be kept, and what no snapshot covers yet.
    let usage = store.usage();
    assert!(usage.bytes < 4 * 300 * 360 + 2 * usage.snapshot + (64 << 10), "{usage:?}");
    assert_eq!(engine.mini.visible(&store).unwrap(), expected);
    drop(store);
    let (store, engine) = recover(disk.after(Loss::Everything).shared(), small()).unwrap();
    assert_eq!(engine.mini.visible(&store).unwrap(), expected);
}

#[test]
fn a_pass_of_cleaning_keeps_its_segments_and_the_next_waits_if_it_moved_nothing() {
    let disk = SimDisk::default();
    let (mut store, mut engine) = recover(disk.shared(), small()).unwrap();
    for sequence in 1..=400 {
        engine.mini.apply(&send(sequence), &mut store).unwrap();
        if sequence % 5 != 0 {
            engine.mini.apply(&Op::Settle { sequence }, &mut store).unwrap();
        }
        store.work();
    }
    let offered = next_but_snapshots(&mut store);
    assert!(matches!(offered, Some(Chore::Evacuate(_))));
    // Meanwhile some of them become empty.
    for sequence in (300..=350).filter(|sequence| sequence % 5 == 0) {
        engine.mini.apply(&Op::Settle { sequence }, &mut store).unwrap();
    }
    assert_eq!(next_but_snapshots(&mut store), offered);
    store.evacuation_done();
    assert_eq!(next_but_snapshots(&mut store), None);
    for sequence in 401..=410 {
        engine.mini.apply(&send(sequence), &mut store).unwrap();
    }
    assert!(matches!(next_but_snapshots(&mut store), Some(Chore::Evacuate(_))));
}

/// What the store wants done, when no snapshot is wanted any more; they are left empty.
fn next_but_snapshots(store: &mut Store) -> Option<Chore> {
    loop {
        store.work();
        match store.tend() {
            Some(Chore::Snapshot { .. }) => store.snapshot_done(),
            other if store.work() => drop(other),
            other => return other,
        }
    }
}

/// Sends until refused; returns what was accepted.
fn fill(disk: &SimDisk, capacity: u64, size: usize, options: Options) -> (Store, Engine, Vec<Op>) {
    disk.set_capacity(Some(capacity));
    let (mut store, mut engine) = recover(disk.shared(), options).unwrap();
    let mut ops = Vec::new();
    loop {
        let op = send_sized(ops.len() as u64 + 1, size);
        match engine.mini.apply(&op, &mut store) {
            Ok(()) => ops.push(op),
            Err(AppendError::Full) => return (store, engine, ops),
            Err(error) => panic!("{error}"),
        }
        store.work();
        while engine.chore(&mut store) {}
        store.work();
        assert!(ops.len() < 10_000, "the disk never gets full");
    }
}

#[test]
fn a_full_disk_refuses_messages_takes_settlements_and_goes_on_when_there_is_room() {
    let disk = SimDisk::default();
    let (mut store, mut engine, mut ops) = fill(&disk, 60 << 10, 300, small());
    // THEN nothing that was accepted is lost, and everything accepted is durable
    assert!(matches!(store.health(), Health::Full));
    assert_eq!(store.synced(), store.position(), "the reserve took what was under way");
    assert!(ops.len() > 50, "only {} messages fit", ops.len());
    // WHEN messages are settled, that alone makes room
    let count = ops.len() as u64;
    for sequence in 1..=count - 5 {
        let op = Op::Settle { sequence };
        engine.mini.apply(&op, &mut store).unwrap();
        ops.push(op);
        store.work();
        for _ in 0..5 {
            engine.chore(&mut store);
            store.work();
        }
    }
    while engine.chore(&mut store) || store.work() {}
    assert!(store.health().is_good(), "{:?} with {} bytes used", store.health(), disk.used());
    // THEN messages are accepted again
    let op = send(count + 1);
    engine.mini.apply(&op, &mut store).unwrap();
    ops.push(op);
    store.work();
    let mut expected = Visible::default();
    ops.iter().for_each(|op| expected.apply(op));
    assert_eq!(engine.mini.visible(&store).unwrap(), expected);
    drop(store);
    let (store, engine) = recover(disk.after(Loss::Everything).shared(), small()).unwrap();
    assert_eq!(engine.mini.visible(&store).unwrap(), expected);
}

#[test]
fn on_a_full_disk_a_snapshot_is_taken_early_when_it_gives_back_room() {
    let disk = SimDisk::default();
    let options = Options { segment_bytes: 16 << 10, snapshot_every: 1 << 30, ..small() };
    let (mut store, mut engine, ops) = fill(&disk, 150 << 10, 3_000, options);
    assert!(store.usage().segments > 6, "{:?}", store.usage());
    for sequence in 1..=ops.len() as u64 {
        engine.mini.apply(&Op::Settle { sequence }, &mut store).unwrap();
        store.work();
    }
    while engine.chore(&mut store) || store.work() {}
    assert!(store.health().is_good());
    assert!(store.usage().segments < 3, "{:?}", store.usage());
}

#[test]
fn a_full_disk_that_somebody_else_empties_is_used_again_without_any_doing() {
    let disk = SimDisk::default();
    let (mut store, mut engine, ops) = fill(&disk, 60 << 10, 300, small());
    disk.set_capacity(None);
    store.work();
    assert!(store.health().is_good());
    engine.mini.apply(&send(ops.len() as u64 + 1), &mut store).unwrap();
}

#[test]
fn a_store_can_start_and_settle_on_a_full_disk() {
    let disk = SimDisk::default();
    let (store, _, ops) = fill(&disk, 60 << 10, 300, small());
    drop(store);
    let disk = disk.after(Loss::Everything);
    disk.set_capacity(Some(disk.used()));
    let (mut store, mut engine) = recover(disk.shared(), small()).unwrap();
    assert!(matches!(engine.mini.apply(&send(ops.len() as u64 + 1), &mut store), Err(AppendError::Full)));
    for sequence in 1..=ops.len() as u64 {
        // Refused only while what makes room is under way.
        while engine.mini.apply(&Op::Settle { sequence }, &mut store).is_err() {
            assert!(engine.chore(&mut store) | store.work(), "stuck at {sequence}: {:?}", store.usage());
        }
        store.work();
        for _ in 0..5 {
            engine.chore(&mut store);
            store.work();
        }
    }
    while engine.chore(&mut store) || store.work() {}
    assert_eq!(store.synced(), store.position());
    assert!(store.health().is_good(), "{:?}, {:?}", store.health(), store.usage());
}

#[test]
fn a_stalled_disk_does_not_eat_the_memory() {
    let disk = SimDisk::default();
    let options = Options { backlog: 10_000, ..small() };
    let (mut store, mut engine) = recover(disk.shared(), options).unwrap();
    let mut sent = 0;
    while engine.mini.apply(&send(sent + 1), &mut store).is_ok() {
        sent += 1;
        assert!(store.usage().unsynced <= 40_000);
        assert_eq!(store.congested(), store.usage().unsynced > 10_000);
    }
    assert!(sent > 80);
    store.work();
    assert!(engine.mini.apply(&send(sent + 1), &mut store).is_ok());
}
