//! The store as in production: real files and its own threads.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use broker::journal::{Journal, JournalEntry};
use broker::store::{LogStore, OpenError, StoreFolder, StoreOptions};

use crate::mini_core::{MiniMessage, StoreOp, VisibleState, workload};
use crate::power_loss::recover;

const TIMEOUT: Duration = Duration::from_secs(30);

fn options() -> StoreOptions {
    StoreOptions { segment_bytes: 64 << 10, snapshot_every: 256 << 10, ..StoreOptions::default() }
}

#[test]
fn a_restart_on_real_files_recovers_everything() {
    let folder = tempfile::tempdir().unwrap();
    let disk = Arc::new(StoreFolder::new(folder.path()).unwrap());
    let ops = workload(9, 20_000);
    let (mut store, mut engine) = recover(disk.clone(), options()).unwrap();
    for op in &ops {
        engine.core.apply(op, &mut store).unwrap();
        store.flush();
        engine.run_maintenance(&mut store);
    }
    assert!(store.wait_synced(TIMEOUT));
    let expected = VisibleState::after(&ops);
    assert_eq!(engine.core.visible(&store).unwrap(), expected);
    drop(store);
    let (store, engine) = recover(disk.clone(), options()).unwrap();
    assert_eq!(engine.core.visible(&store).unwrap(), expected);
    assert!(store.close(TIMEOUT));
    let (store, engine) = recover(disk, options()).unwrap();
    assert_eq!(engine.core.visible(&store).unwrap(), expected);
}

#[test]
fn appends_during_a_sync_share_the_next_one() {
    let folder = tempfile::tempdir().unwrap();
    let wakes = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&wakes);
    let wake: broker::store::WakeFn = Arc::new(move || {
        counter.fetch_add(1, Ordering::Relaxed);
    });
    let disk = Arc::new(StoreFolder::new(folder.path()).unwrap());
    let (mut store, _) = recover(disk, StoreOptions { wake, ..StoreOptions::default() }).unwrap();
    let body = [1; 1024];
    for _ in 0..20_000 {
        store.append(&[JournalEntry { meta: b"m", body: Some(&body), references: 1 }], &mut Vec::new()).unwrap();
        store.flush();
        while store.is_congested() {
            std::thread::yield_now();
        }
    }
    assert!(store.wait_synced(TIMEOUT));
    assert!(wakes.load(Ordering::Relaxed) < 10_000, "{} syncs for 20,000 appends", wakes.load(Ordering::Relaxed));
}

#[test]
fn bodies_are_readable_before_during_and_after_the_sync() {
    let folder = tempfile::tempdir().unwrap();
    let disk = Arc::new(StoreFolder::new(folder.path()).unwrap());
    let (mut store, _) = recover(disk, options()).unwrap();
    let mut locations = Vec::new();
    for number in 0..5_000_u32 {
        let meta = vec![number as u8; (number % 400) as usize];
        let body = vec![number as u8; (number % 700) as usize];
        store.append(&[JournalEntry { meta: &meta, body: Some(&body), references: 1 }], &mut locations).unwrap();
        store.flush();
        let back = number - number % 97;
        for number in [number, back] {
            let stored = store.read(locations[number as usize]).unwrap();
            assert_eq!(stored.meta, vec![number as u8; (number % 400) as usize]);
            assert_eq!(stored.body, vec![number as u8; (number % 700) as usize]);
        }
    }
    assert!(store.wait_synced(TIMEOUT));
    for (number, location) in locations.iter().enumerate() {
        assert_eq!(store.read(*location).unwrap().body, vec![number as u8; number % 700]);
    }
}

#[test]
fn a_second_broker_on_a_real_folder_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let open = || LogStore::open(Arc::new(StoreFolder::new(folder.path()).unwrap()), options());
    let first = open().unwrap();
    assert!(matches!(open().err(), Some(OpenError::Locked)));
    drop(first);
    assert!(open().is_ok());
}

#[test]
fn removed_segments_free_their_space_on_real_files() {
    let folder = tempfile::tempdir().unwrap();
    let disk = Arc::new(StoreFolder::new(folder.path()).unwrap());
    let (mut store, mut engine) = recover(disk, options()).unwrap();
    for sequence in 1..=5_000 {
        let messages = vec![MiniMessage { sequence, session: 0, body: vec![1; 1024] }];
        engine.core.apply(&StoreOp::Send { messages }, &mut store).unwrap();
        engine.core.apply(&StoreOp::Settle { sequence }, &mut store).unwrap();
        store.flush();
        engine.run_maintenance(&mut store);
    }
    let deadline = std::time::Instant::now() + TIMEOUT;
    while store.usage().bytes > 2 << 20 {
        assert!(std::time::Instant::now() < deadline, "{:?}", store.usage());
        store.wait_synced(TIMEOUT);
        if !engine.run_maintenance(&mut store) {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}
