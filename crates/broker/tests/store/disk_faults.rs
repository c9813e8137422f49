//! A disk that fails, reports false success, or is damaged.

use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use broker::journal::{AppendError, Journal, JournalEntry, ReadError};
use broker::store::{LogStore, OpenError, StoreHealth};

use crate::mini_core::{MiniCore, MiniMessage, StoreOp, workload};
use crate::power_loss::{recover, run, small_segments};
use crate::simulated_disk::{PowerLoss, SimulatedDisk};

fn failure() -> io::Error {
    io::Error::other("the disk fails")
}

fn send(sequence: u64) -> StoreOp {
    StoreOp::Send { messages: vec![MiniMessage { sequence, session: 0, body: vec![sequence as u8; 100] }] }
}

/// Runs the workload with one failure at the `at`-th operation of a kind; `false` if there are not that many.
fn run_with_one_failure(kind: &'static str, at: usize) -> bool {
    let ops = workload(at as u64, 150);
    let disk = SimulatedDisk::default();
    let (mut store, mut engine) = recover(disk.shared(), small_segments()).unwrap();
    let (seen, failed) = (AtomicUsize::new(0), Arc::new(AtomicUsize::new(0)));
    let counter = Arc::clone(&failed);
    disk.inject(move |operation| {
        let hit = operation.starts_with(kind) && seen.fetch_add(1, Ordering::Relaxed) == at;
        hit.then(|| {
            counter.store(1, Ordering::Relaxed);
            failure()
        })
    });
    // Appends are refused during the failure and accepted on retry.
    for op in &ops {
        while engine.core.apply(op, &mut store).is_err() {
            store.run_pending_io();
        }
        engine.run_maintenance(&mut store);
        store.run_pending_io();
    }
    while engine.run_maintenance(&mut store) || store.run_pending_io() || store.synced() < store.position() {}
    store.run_pending_io();
    assert!(store.health().is_good(), "{kind} {at}: {:?}", store.health());
    engine.assert_visible(&store, &ops);
    drop(store);
    let disk = disk.after(PowerLoss::Everything);
    let (store, engine) =
        recover(disk.shared(), small_segments()).unwrap_or_else(|error| panic!("{kind} {at}: {error}"));
    engine.assert_visible(&store, &ops);
    failed.load(Ordering::Relaxed) == 1
}

#[test]
fn one_failure_of_any_operation_loses_nothing() {
    for kind in ["write", "sync", "sync folder", "create", "rename", "allocate", "truncate", "remove"] {
        let failures = (0..).take_while(|&at| run_with_one_failure(kind, at)).count();
        assert!(failures > 5, "only {failures} times {kind}");
    }
}

#[test]
fn after_a_failed_sync_bytes_go_to_a_new_file_before_the_ack() {
    let disk = SimulatedDisk::default();
    let (mut store, mut engine) = recover(disk.shared(), small_segments()).unwrap();
    let ops: Vec<_> = (1..=3).map(send).collect();
    run(&disk, &mut store, &mut engine, &ops[..1], 1);
    let synced = store.synced();
    // GIVEN a failed sync; the next sync would succeed without the bytes
    disk.inject(|operation| operation.starts_with("sync").then(failure));
    engine.core.apply(&ops[1], &mut store).unwrap();
    store.run_pending_io();
    // THEN the append is not acknowledged, it is readable, and new messages are refused with the reason
    assert_eq!(store.synced(), synced);
    assert!(matches!(store.health(), StoreHealth::Failing(_)));
    engine.assert_visible(&store, &ops[..2]);
    assert!(matches!(engine.core.apply(&ops[2], &mut store), Err(AppendError::Io(_))));
    // WHEN the disk works again, writing continues in a new file
    disk.heal();
    store.run_pending_io();
    assert_eq!(store.synced(), store.position());
    assert!(
        disk.names().contains(&"00000000-0001.seg".to_owned())
            || disk.names().contains(&"00000000-0002.seg".to_owned())
    );
    engine.core.apply(&ops[2], &mut store).unwrap();
    store.run_pending_io();
    drop(store);
    let disk = disk.after(PowerLoss::Everything);
    let (store, engine) = recover(disk.shared(), small_segments()).unwrap();
    engine.assert_visible(&store, &ops);
}

#[test]
fn settlements_continue_while_messages_are_refused() {
    let disk = SimulatedDisk::default();
    let (mut store, mut engine) = recover(disk.shared(), small_segments()).unwrap();
    let ops = [send(1), send(2), StoreOp::Settle { sequence: 1 }];
    run(&disk, &mut store, &mut engine, &ops[..2], 1);
    disk.inject(|operation| operation.starts_with("sync").then(failure));
    engine.core.apply(&ops[2], &mut store).unwrap();
    store.run_pending_io();
    assert!(matches!(engine.core.apply(&send(3), &mut store), Err(AppendError::Io(_))));
    engine.core.apply(&StoreOp::ClearState { session: 1 }, &mut store).unwrap();
    disk.heal();
    store.run_pending_io();
    assert_eq!(store.synced(), store.position());
}

#[test]
fn page_cache_bytes_of_a_failed_sync_are_rewritten_at_start() {
    let disk = SimulatedDisk::default();
    let (mut store, mut engine) = recover(disk.shared(), small_segments()).unwrap();
    let ops: Vec<_> = (1..=4).map(send).collect();
    run(&disk, &mut store, &mut engine, &ops[..2], 1);
    // GIVEN a failed sync, and a process that ends before it writes the bytes elsewhere
    disk.inject(|operation| (operation.starts_with("sync") || operation.starts_with("create")).then(failure));
    engine.core.apply(&ops[2], &mut store).unwrap();
    store.run_pending_io();
    drop(store);
    let disk = disk.after(PowerLoss::Nothing);
    // WHEN the next process reads them, appends more, and then the power is cut
    let (mut store, mut engine) = recover(disk.shared(), small_segments()).unwrap();
    assert_eq!(engine.core.ops, 3, "the page cache shows them");
    run(&disk, &mut store, &mut engine, &ops, 1);
    drop(store);
    let disk = disk.after(PowerLoss::Everything);
    // THEN nothing is lost
    let (store, engine) = recover(disk.shared(), small_segments()).unwrap();
    engine.assert_visible(&store, &ops);
}

/// A folder with closed segments and an active one.
fn populated_disk() -> (SimulatedDisk, Vec<StoreOp>) {
    let disk = SimulatedDisk::default();
    let options = broker::store::StoreOptions { snapshot_every: 1 << 20, ..small_segments() };
    let (mut store, mut engine) = recover(disk.shared(), options).unwrap();
    let ops: Vec<_> = (1..=40).map(send).collect();
    run(&disk, &mut store, &mut engine, &ops, 1);
    drop(store);
    (disk, ops)
}

fn open_error(disk: &SimulatedDisk) -> OpenError {
    let replayed = LogStore::open(disk.shared(), small_segments())
        .and_then(|recovery| recovery.replay(|_, _| Ok::<_, Infallible>(())));
    replayed.err().expect("the folder is not sound")
}

#[test]
fn damage_in_the_open_segment_fails_the_start_with_its_place() {
    let (disk, _) = populated_disk();
    let last = disk.names().into_iter().rfind(|name| name.ends_with(".seg")).unwrap();
    disk.damage(&last, |bytes| bytes[64 + 40] ^= 1);
    let error = open_error(&disk);
    assert!(matches!(&error, OpenError::Damaged { file, at: 64, .. } if *file == last), "{error}");
}

#[test]
fn damage_in_a_closed_segment_without_index_fails_the_start() {
    let (disk, _) = populated_disk();
    let first = disk.names().into_iter().find(|name| name.ends_with(".seg")).unwrap();
    disk.damage(&first, |bytes| {
        let end = bytes.len();
        bytes[end - 1] ^= 1;
    });
    assert!(recover(disk.shared(), small_segments()).is_ok(), "the frames say the same as the index");
    disk.damage(&first, |bytes| bytes[64 + 40] ^= 1);
    let error = open_error(&disk);
    assert!(matches!(&error, OpenError::Damaged { file, at: 64, .. } if *file == first), "{error}");
}

#[test]
fn a_frame_at_the_wrong_position_is_damage() {
    let (disk, _) = populated_disk();
    let last = disk.names().into_iter().rfind(|name| name.ends_with(".seg")).unwrap();
    // The disk wrote the first frame again, over the second of the same length.
    disk.damage(&last, |bytes| {
        let length = u32::from_le_bytes(bytes[68..72].try_into().unwrap()) as usize;
        bytes.copy_within(64..64 + length, 64 + length);
    });
    assert!(matches!(open_error(&disk), OpenError::Damaged { .. }));
}

#[test]
fn a_torn_log_tail_is_not_damage() {
    let (disk, ops) = populated_disk();
    let last = disk.names().into_iter().rfind(|name| name.ends_with(".seg")).unwrap();
    let (store, engine) = recover(disk.after(PowerLoss::Nothing).shared(), small_segments()).unwrap();
    engine.assert_visible(&store, &ops);
    // In the body of the last frame; nothing was written after it.
    disk.damage(&last, |bytes| {
        let end = bytes.iter().rposition(|byte| *byte != 0).unwrap();
        bytes[end - 20] ^= 1;
    });
    let (store, engine) = recover(disk.shared(), small_segments()).unwrap();
    engine.assert_visible(&store, &ops[..ops.len() - 1]);
}

#[test]
fn after_a_clean_close_damage_to_the_last_frame_is_detected() {
    let disk = SimulatedDisk::default();
    let (mut store, mut engine) = recover(disk.shared(), small_segments()).unwrap();
    run(&disk, &mut store, &mut engine, &[send(1), send(2)], 1);
    assert!(store.close(std::time::Duration::from_secs(5)));
    disk.damage("00000000-0000.seg", |bytes| {
        let end = bytes.windows(100).position(|window| window == [2; 100]).unwrap();
        bytes[end] ^= 1;
    });
    assert!(matches!(open_error(&disk), OpenError::Damaged { .. }));
}

#[test]
fn a_missing_segment_fails_the_start() {
    let (disk, _) = populated_disk();
    let names = disk.names();
    let second = names.iter().filter(|name| name.ends_with(".seg")).nth(1).unwrap();
    broker::store::Disk::remove(&disk, second).unwrap();
    assert!(matches!(open_error(&disk), OpenError::Missing { .. }));
}

#[test]
fn only_the_damaged_body_fails_to_read() {
    let (disk, _) = populated_disk();
    let first = disk.names().into_iter().find(|name| name.ends_with(".seg")).unwrap();
    let mut core = MiniCore::default();
    let replayed =
        LogStore::open(disk.shared(), small_segments()).unwrap().replay(|meta, body| core.replay(meta, body)).unwrap();
    let mut locations = Vec::new();
    let store = replayed.finish(|visit| {
        core.visit_bodies(&mut |location| {
            locations.push(location);
            visit(location);
        })
    });
    let store = store.unwrap();
    disk.damage(&first, |bytes| {
        let body = bytes.windows(100).position(|window| window == [2; 100]).unwrap();
        bytes[body + 50] ^= 1;
    });
    let damaged: Vec<_> = locations.iter().filter(|location| store.read(**location).is_err()).collect();
    assert_eq!(damaged.len(), 1);
    assert!(matches!(store.read(*damaged[0]), Err(ReadError::Corrupt(_))));
}

#[test]
fn a_folder_of_another_format_or_program_is_refused() {
    let (disk, _) = populated_disk();
    disk.damage("format", |bytes| *bytes = b"headwater broker store\nformat 2\n".to_vec());
    assert!(matches!(open_error(&disk), OpenError::Format { found: 2, known: 1 }));
    broker::store::Disk::remove(&disk, "format").unwrap();
    assert!(matches!(open_error(&disk), OpenError::Foreign { .. }));
}

#[test]
fn two_brokers_cannot_share_a_folder() {
    let disk = SimulatedDisk::default();
    let (store, _) = recover(disk.shared(), small_segments()).unwrap();
    assert!(matches!(LogStore::open(disk.shared(), small_segments()).err(), Some(OpenError::Locked)));
    drop(store);
    assert!(LogStore::open(disk.shared(), small_segments()).is_ok());
}

#[test]
fn a_group_larger_than_a_segment_gets_its_own_segment() {
    let disk = SimulatedDisk::default();
    let (mut store, _) = recover(disk.shared(), small_segments()).unwrap();
    let large = vec![7; 10_000];
    let mut locations = Vec::new();
    for body in [&large[..100], &large, &large[..100]] {
        store.append(&[JournalEntry { meta: b"m", body: Some(body), references: 1 }], &mut locations).unwrap();
    }
    store.run_pending_io();
    let segments: Vec<_> = locations.iter().map(|location| location.segment).collect();
    assert_eq!(segments, [0, 1, 2]);
    assert_eq!(store.read(locations[1]).unwrap().body, large);
}
