//! Power cuts at every write boundary.

use broker::journal::Journal;
use broker::store::{Disk, LogStore, StoreOptions};
use std::sync::Arc;

use crate::mini_core::{MiniCore, MiniEngine, StoreOp, VisibleState, workload};
use crate::simulated_disk::{PowerLoss, SimulatedDisk, WriteBoundary};

/// Small enough that a few hundred operations close, snapshot, compact and remove segments many times.
pub(crate) fn small_segments() -> StoreOptions {
    StoreOptions { segment_bytes: 2048, snapshot_every: 6 << 10, manual_io: true, ..StoreOptions::default() }
}

pub(crate) fn recover(disk: Arc<dyn Disk>, options: StoreOptions) -> Result<(LogStore, MiniEngine), String> {
    let describe_open_error =
        |error: broker::store::OpenError| format!("{error}: {:?}", std::error::Error::source(&error));
    let mut core = MiniCore::default();
    let replayed = LogStore::open(disk, options)
        .map_err(describe_open_error)?
        .replay(|meta, body| core.replay(meta, body))
        .map_err(describe_open_error)?;
    let store = replayed.finish(|visit| core.visit_bodies(visit)).map_err(describe_open_error)?;
    Ok((store, MiniEngine::new(core)))
}

/// Runs the operations. After each sync the disk learns how many of them are acknowledged.
pub(crate) fn run(disk: &SimulatedDisk, store: &mut LogStore, engine: &mut MiniEngine, ops: &[StoreOp], pace: usize) {
    let done = engine.core.ops as usize;
    let mut ends = Vec::new();
    for op in &ops[done..] {
        engine.core.apply(op, store).expect("a healthy disk takes every op");
        ends.push((engine.core.ops, store.position()));
        engine.run_maintenance(store);
        // The background worker does not wait for the writer.
        store.run_background_io();
        engine.run_maintenance(store);
        store.run_background_io();
        if (engine.core.ops as usize).is_multiple_of(pace) {
            acknowledge(disk, store, &ends);
        }
    }
    acknowledge(disk, store, &ends);
    engine.run_to_idle(store);
}

fn acknowledge(disk: &SimulatedDisk, store: &mut LogStore, ends: &[(u64, broker::journal::Lsn)]) {
    store.flush();
    store.run_pending_io();
    let synced = store.synced();
    if let Some((ops, _)) = ends.iter().rev().find(|(_, end)| *end <= synced) {
        disk.set_acknowledged(*ops);
    }
}

/// The recovered state must match some number of operations, at least those acknowledged.
fn check(engine: &MiniEngine, store: &LogStore, ops: &[StoreOp], acknowledged: u64) -> Result<(), String> {
    let recovered = engine.core.ops;
    if recovered < acknowledged {
        return Err(format!("{acknowledged} ops were acknowledged, {recovered} are there"));
    }
    let expected = VisibleState::after(&ops[..recovered as usize]);
    let visible = engine.core.visible(store)?;
    if visible == expected { Ok(()) } else { Err(format!("after {recovered} ops: {visible:?} is not {expected:?}")) }
}

/// Cuts the power, recovers, checks, runs a few operations, cuts again and checks again.
pub(crate) fn check_power_loss(boundary: &WriteBoundary, loss: PowerLoss, ops: &[StoreOp]) -> Result<(), String> {
    let disk = SimulatedDisk::after_power_loss(boundary, loss);
    let (mut store, mut engine) = recover(disk.shared(), small_segments())?;
    check(&engine, &store, ops, boundary.acknowledged)?;
    check_no_leftovers(&disk)?;
    disk.set_acknowledged(engine.core.ops);
    let until = ops.len().min(engine.core.ops as usize + 7);
    run(&disk, &mut store, &mut engine, &ops[..until], 3);
    drop(store);
    let disk = disk.after(PowerLoss::Everything);
    let (store, engine) = recover(disk.shared(), small_segments())?;
    check(&engine, &store, ops, until as u64)
}

/// A start leaves no obsolete files.
fn check_no_leftovers(disk: &SimulatedDisk) -> Result<(), String> {
    let names = disk.names();
    let count = |suffix| names.iter().filter(|name| name.ends_with(suffix)).count();
    if count(".tmp") == 0 && count(".snapshot") <= 1 { Ok(()) } else { Err(format!("left behind: {names:?}")) }
}

pub(crate) const SEEDS: [u64; 2] = [1, 2];

/// The write boundaries of a run, and its operations.
pub(crate) fn boundaries(disk: &SimulatedDisk, seed: u64, count: usize) -> (Vec<WriteBoundary>, Vec<StoreOp>) {
    let ops = workload(seed, count);
    disk.record();
    let (mut store, mut engine) = recover(disk.shared(), small_segments()).unwrap();
    run(disk, &mut store, &mut engine, &ops, 4);
    drop(store);
    (disk.boundaries(), ops)
}

pub(crate) fn losses(index: usize) -> [PowerLoss; 4] {
    let seed = index as u64;
    [PowerLoss::Nothing, PowerLoss::Everything, PowerLoss::Torn(2 * seed), PowerLoss::Torn(2 * seed + 1)]
}

#[test]
fn a_power_cut_at_any_write_keeps_exactly_what_was_acknowledged() {
    for seed in SEEDS {
        let disk = SimulatedDisk::default();
        let (boundaries, ops) = boundaries(&disk, seed, 400);
        let done = |what: &str| boundaries.iter().filter(|boundary| boundary.operation.starts_with(what)).count();
        let cleaned = (done("remove 0"), boundaries.iter().filter(|b| b.operation.ends_with(".snapshot")).count());
        assert!(cleaned.0 > 10 && cleaned.1 > 5, "the workload cleans too little: {cleaned:?}");
        for (index, boundary) in boundaries.iter().enumerate() {
            for loss in losses(index) {
                if let Err(error) = check_power_loss(boundary, loss, &ops) {
                    panic!("seed {seed}, {loss:?} at boundary {index} ({}): {error}", boundary.operation);
                }
            }
        }
    }
}

#[test]
fn a_power_cut_during_recovery_loses_nothing() {
    let disk = SimulatedDisk::default();
    let (boundaries, ops) = boundaries(&disk, 4, 120);
    for (index, boundary) in boundaries.iter().enumerate() {
        let disk = SimulatedDisk::after_power_loss(boundary, losses(index)[index % 4]);
        disk.set_acknowledged(boundary.acknowledged);
        disk.record();
        drop(recover(disk.shared(), small_segments()).unwrap());
        for (again, second) in disk.boundaries().iter().enumerate() {
            for loss in losses(index + again) {
                if let Err(error) = check_power_loss(second, loss, &ops) {
                    panic!("{loss:?} at {} of the recovery at {}: {error}", second.operation, boundary.operation);
                }
            }
        }
    }
}
