//! Disk space: freed when messages are consumed, and scarce when the disk is full.

use broker::journal::{AppendError, Journal};
use broker::store::{LogStore, MaintenanceTask, StoreHealth, StoreOptions};

use crate::mini_core::{MiniEngine, MiniMessage, StoreOp, VisibleState};
use crate::power_loss::{recover, small_segments};
use crate::simulated_disk::{PowerLoss, SimulatedDisk};

fn send(sequence: u64) -> StoreOp {
    send_sized(sequence, 300)
}

fn send_sized(sequence: u64, size: usize) -> StoreOp {
    StoreOp::Send { messages: vec![MiniMessage { sequence, session: 0, body: vec![sequence as u8; size] }] }
}

#[test]
fn the_space_of_consumed_messages_is_freed() {
    let disk = SimulatedDisk::default();
    let (mut store, mut engine) = recover(disk.shared(), small_segments()).unwrap();
    let mut most = 0;
    let mut history = 0;
    for sequence in 1..=2_000 {
        engine.core.apply(&send(sequence), &mut store).unwrap();
        engine.core.apply(&StoreOp::Settle { sequence }, &mut store).unwrap();
        store.run_pending_io();
        while engine.run_maintenance(&mut store) {}
        store.run_pending_io();
        // The log may grow to twice the snapshot, which contains the duplicate history, and two snapshots may exist at
        // once.
        let usage = store.usage();
        most = most.max(disk.used().saturating_sub(4 * usage.snapshot));
        history = usage.snapshot;
    }
    assert!(history > 10_000, "snapshots are taken");
    assert!(most < 40 << 10, "{most} bytes for nothing stored");
}

#[test]
fn one_old_message_per_segment_does_not_keep_the_segments() {
    let disk = SimulatedDisk::default();
    let (mut store, mut engine) = recover(disk.shared(), small_segments()).unwrap();
    let mut expected = VisibleState::default();
    for sequence in 1..=1_500 {
        let mut ops = vec![send(sequence)];
        // Every segment of 2 KiB has at least one message that stays.
        if sequence % 5 != 0 {
            ops.push(StoreOp::Settle { sequence });
        }
        for op in ops {
            engine.core.apply(&op, &mut store).unwrap();
            expected.apply(&op);
        }
        store.run_pending_io();
        engine.run_steps(&mut store, 3);
    }
    engine.run_to_idle(&mut store);
    // 300 live messages of about 360 bytes: the store may use about four times that, plus what no snapshot covers yet.
    let usage = store.usage();
    assert!(usage.bytes < 4 * 300 * 360 + 2 * usage.snapshot + (64 << 10), "{usage:?}");
    assert_eq!(engine.core.visible(&store).unwrap(), expected);
    drop(store);
    let (store, engine) = recover(disk.after(PowerLoss::Everything).shared(), small_segments()).unwrap();
    assert_eq!(engine.core.visible(&store).unwrap(), expected);
}

#[test]
fn compaction_keeps_its_segments_and_waits_if_nothing_moved() {
    let disk = SimulatedDisk::default();
    let (mut store, mut engine) = recover(disk.shared(), small_segments()).unwrap();
    for sequence in 1..=400 {
        engine.core.apply(&send(sequence), &mut store).unwrap();
        if sequence % 5 != 0 {
            engine.core.apply(&StoreOp::Settle { sequence }, &mut store).unwrap();
        }
        store.run_pending_io();
    }
    let offered = next_but_snapshots(&mut store);
    assert!(matches!(offered, Some(MaintenanceTask::Compact(_))));
    // Meanwhile some segments become empty.
    for sequence in (300..=350).filter(|sequence| sequence % 5 == 0) {
        engine.core.apply(&StoreOp::Settle { sequence }, &mut store).unwrap();
    }
    assert_eq!(next_but_snapshots(&mut store), offered);
    store.finish_compaction();
    assert_eq!(next_but_snapshots(&mut store), None);
    for sequence in 401..=410 {
        engine.core.apply(&send(sequence), &mut store).unwrap();
    }
    assert!(matches!(next_but_snapshots(&mut store), Some(MaintenanceTask::Compact(_))));
}

/// The next task that is not a snapshot; snapshots are finished without records.
fn next_but_snapshots(store: &mut LogStore) -> Option<MaintenanceTask> {
    loop {
        store.run_pending_io();
        match store.next_maintenance() {
            Some(MaintenanceTask::Snapshot { .. }) => store.finish_snapshot(),
            other if store.run_pending_io() => drop(other),
            other => return other,
        }
    }
}

/// Sends until refused; returns the accepted operations.
fn fill(
    disk: &SimulatedDisk,
    capacity: u64,
    size: usize,
    options: StoreOptions,
) -> (LogStore, MiniEngine, Vec<StoreOp>) {
    disk.set_capacity(Some(capacity));
    let (mut store, mut engine) = recover(disk.shared(), options).unwrap();
    let mut ops = Vec::new();
    loop {
        let op = send_sized(ops.len() as u64 + 1, size);
        match engine.core.apply(&op, &mut store) {
            Ok(()) => ops.push(op),
            Err(AppendError::Full) => return (store, engine, ops),
            Err(error) => panic!("{error}"),
        }
        store.run_pending_io();
        while engine.run_maintenance(&mut store) {}
        store.run_pending_io();
        assert!(ops.len() < 10_000, "the disk never gets full");
    }
}

#[test]
fn a_full_disk_refuses_messages_and_accepts_settlements() {
    let disk = SimulatedDisk::default();
    let (mut store, mut engine, mut ops) = fill(&disk, 60 << 10, 300, small_segments());
    // THEN no accepted message is lost, and all are durable
    assert!(matches!(store.health(), StoreHealth::Full));
    assert_eq!(store.synced(), store.position(), "the reserve took what was in flight");
    assert!(ops.len() > 50, "only {} messages fit", ops.len());
    // WHEN messages are settled, that alone frees space
    let count = ops.len() as u64;
    for sequence in 1..=count - 5 {
        let op = StoreOp::Settle { sequence };
        engine.core.apply(&op, &mut store).unwrap();
        ops.push(op);
        store.run_pending_io();
        engine.run_steps(&mut store, 5);
    }
    engine.run_to_idle(&mut store);
    assert!(store.health().is_good(), "{:?} with {} bytes used", store.health(), disk.used());
    // THEN messages are accepted again
    let op = send(count + 1);
    engine.core.apply(&op, &mut store).unwrap();
    ops.push(op);
    store.run_pending_io();
    let expected = VisibleState::after(&ops);
    assert_eq!(engine.core.visible(&store).unwrap(), expected);
    drop(store);
    let (store, engine) = recover(disk.after(PowerLoss::Everything).shared(), small_segments()).unwrap();
    assert_eq!(engine.core.visible(&store).unwrap(), expected);
}

#[test]
fn a_full_disk_triggers_an_early_snapshot_that_frees_space() {
    let disk = SimulatedDisk::default();
    let options = StoreOptions { segment_bytes: 16 << 10, snapshot_every: 1 << 30, ..small_segments() };
    let (mut store, mut engine, ops) = fill(&disk, 150 << 10, 3_000, options);
    assert!(store.usage().segments > 6, "{:?}", store.usage());
    for sequence in 1..=ops.len() as u64 {
        engine.core.apply(&StoreOp::Settle { sequence }, &mut store).unwrap();
        store.run_pending_io();
    }
    engine.run_to_idle(&mut store);
    assert!(store.health().is_good());
    assert!(store.usage().segments < 3, "{:?}", store.usage());
}

#[test]
fn space_freed_by_others_is_used_without_operator_action() {
    let disk = SimulatedDisk::default();
    let (mut store, mut engine, ops) = fill(&disk, 60 << 10, 300, small_segments());
    disk.set_capacity(None);
    store.run_pending_io();
    assert!(store.health().is_good());
    engine.core.apply(&send(ops.len() as u64 + 1), &mut store).unwrap();
}

#[test]
fn a_store_can_start_and_settle_on_a_full_disk() {
    let disk = SimulatedDisk::default();
    let (store, _, ops) = fill(&disk, 60 << 10, 300, small_segments());
    drop(store);
    let disk = disk.after(PowerLoss::Everything);
    disk.set_capacity(Some(disk.used()));
    let (mut store, mut engine) = recover(disk.shared(), small_segments()).unwrap();
    assert!(matches!(engine.core.apply(&send(ops.len() as u64 + 1), &mut store), Err(AppendError::Full)));
    for sequence in 1..=ops.len() as u64 {
        // Refused only while space is being freed.
        while engine.core.apply(&StoreOp::Settle { sequence }, &mut store).is_err() {
            assert!(
                engine.run_maintenance(&mut store) | store.run_pending_io(),
                "stuck at {sequence}: {:?}",
                store.usage()
            );
        }
        store.run_pending_io();
        engine.run_steps(&mut store, 5);
    }
    engine.run_to_idle(&mut store);
    assert_eq!(store.synced(), store.position());
    assert!(store.health().is_good(), "{:?}, {:?}", store.health(), store.usage());
}

#[test]
fn a_stalled_disk_does_not_exhaust_memory() {
    let disk = SimulatedDisk::default();
    let options = StoreOptions { max_unsynced: 10_000, ..small_segments() };
    let (mut store, mut engine) = recover(disk.shared(), options).unwrap();
    let mut sent = 0;
    while engine.core.apply(&send(sent + 1), &mut store).is_ok() {
        sent += 1;
        assert!(store.usage().unsynced <= 40_000);
        assert_eq!(store.is_congested(), store.usage().unsynced > 10_000);
    }
    assert!(sent > 80);
    store.run_pending_io();
    assert!(engine.core.apply(&send(sent + 1), &mut store).is_ok());
}
