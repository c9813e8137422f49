//! Power cuts at every write boundary.

use broker::journal::Journal;
use broker::store::{Disk, Options, Store};
use std::sync::Arc;

use crate::mini::{Engine, Mini, Op, Visible, workload};
use crate::sim::{Boundary, Loss, SimDisk};

/// Small enough that a few hundred ops roll, snapshot, clean and remove many times.
pub(crate) fn small() -> Options {
    Options { segment_bytes: 2048, snapshot_every: 6 << 10, by_hand: true, ..Options::default() }
}

pub(crate) fn recover(disk: Arc<dyn Disk>, options: Options) -> Result<(Store, Engine), String> {
    let told = |error: broker::store::OpenError| format!("{error}: {:?}", std::error::Error::source(&error));
    let mut mini = Mini::default();
    let replayed =
        Store::open(disk, options).map_err(told)?.replay(|meta, body| mini.replay(meta, body)).map_err(told)?;
    let store = replayed.finish(|visit| mini.visit_bodies(visit)).map_err(told)?;
    Ok((store, Engine::new(mini)))
}

/// Runs the ops; after each sync the disk is told how many ops are acknowledged by then.
pub(crate) fn run(disk: &SimDisk, store: &mut Store, engine: &mut Engine, ops: &[Op], pace: usize) {
    let done = engine.mini.ops as usize;
    let mut ends = Vec::new();
    for op in &ops[done..] {
        engine.mini.apply(op, store).expect("a healthy disk takes every op");
        ends.push((engine.mini.ops, store.position()));
        engine.chore(store);
        // The janitor does not wait for the writer.
        store.work_aside();
        engine.chore(store);
        store.work_aside();
        if (engine.mini.ops as usize).is_multiple_of(pace) {
            acknowledge(disk, store, &ends);
        }
    }
    acknowledge(disk, store, &ends);
    while engine.chore(store) || store.work() {}
}

fn acknowledge(disk: &SimDisk, store: &mut Store, ends: &[(u64, broker::journal::Lsn)]) {
    store.flush();
    store.work();
    let synced = store.synced();
    if let Some((ops, _)) = ends.iter().rev().find(|(_, end)| *end <= synced) {
        disk.note(*ops);
    }
}

/// The recovered state is that after some number of ops, no fewer than were acknowledged.
fn check(engine: &Engine, store: &Store, ops: &[Op], acknowledged: u64) -> Result<(), String> {
    let recovered = engine.mini.ops;
    if recovered < acknowledged {
        return Err(format!("{acknowledged} ops were acknowledged, {recovered} are there"));
    }
    let mut expected = Visible::default();
    ops[..recovered as usize].iter().for_each(|op| expected.apply(op));
    let visible = engine.mini.visible(store)?;
    if visible == expected { Ok(()) } else { Err(format!("after {recovered} ops: {visible:?} is not {expected:?}")) }
}

/// Cuts the power there, recovers, checks, goes on for a few ops, cuts again, checks again.
pub(crate) fn survives(boundary: &Boundary, loss: Loss, ops: &[Op]) -> Result<(), String> {
    let disk = SimDisk::after_power_loss(boundary, loss);
    let (mut store, mut engine) = recover(disk.shared(), small())?;
    check(&engine, &store, ops, boundary.noted)?;
    tidy(&disk)?;
    disk.note(engine.mini.ops);
    let until = ops.len().min(engine.mini.ops as usize + 7);
    run(&disk, &mut store, &mut engine, &ops[..until], 3);
    drop(store);
    let disk = disk.after(Loss::Everything);
    let (store, engine) = recover(disk.shared(), small())?;
    check(&engine, &store, ops, until as u64)
}

/// A start leaves nothing behind that nothing needs.
fn tidy(disk: &SimDisk) -> Result<(), String> {
    let names = disk.names();
    let count = |suffix| names.iter().filter(|name| name.ends_with(suffix)).count();
    if count(".tmp") == 0 && count(".snapshot") <= 1 { Ok(()) } else { Err(format!("left behind: {names:?}")) }
}

pub(crate) const SEEDS: [u64; 2] = [1, 2];

/// The boundaries of a run, and its ops.
pub(crate) fn boundaries(disk: &SimDisk, seed: u64, count: usize) -> (Vec<Boundary>, Vec<Op>) {
    let ops = workload(seed, count);
    disk.record();
    let (mut store, mut engine) = recover(disk.shared(), small()).unwrap();
    run(disk, &mut store, &mut engine, &ops, 4);
    drop(store);
    (disk.boundaries(), ops)
}

pub(crate) fn losses(index: usize) -> [Loss; 4] {
    let seed = index as u64;
    [Loss::Nothing, Loss::Everything, Loss::Torn(2 * seed), Loss::Torn(2 * seed + 1)]
}

#[test]
fn a_power_cut_at_any_write_loses_nothing_acknowledged_and_brings_nothing_back() {
    for seed in SEEDS {
        let disk = SimDisk::default();
        let (boundaries, ops) = boundaries(&disk, seed, 400);
        let done = |what: &str| boundaries.iter().filter(|boundary| boundary.operation.starts_with(what)).count();
        let cleaned = (done("remove 0"), boundaries.iter().filter(|b| b.operation.ends_with(".snapshot")).count());
        assert!(cleaned.0 > 10 && cleaned.1 > 5, "the workload cleans too little: {cleaned:?}");
        for (index, boundary) in boundaries.iter().enumerate() {
            for loss in losses(index) {
                if let Err(error) = survives(boundary, loss, &ops) {
                    panic!("seed {seed}, {loss:?} at boundary {index} ({}): {error}", boundary.operation);
                }
            }
        }
    }
}

#[test]
fn a_cut_while_recovering_from_a_cut_loses_nothing() {
    let disk = SimDisk::default();
    let (boundaries, ops) = boundaries(&disk, 4, 120);
    for (index, boundary) in boundaries.iter().enumerate() {
        let disk = SimDisk::after_power_loss(boundary, losses(index)[index % 4]);
        disk.note(boundary.noted);
        disk.record();
        drop(recover(disk.shared(), small()).unwrap());
        for (again, second) in disk.boundaries().iter().enumerate() {
            for loss in losses(index + again) {
                if let Err(error) = survives(second, loss, &ops) {
                    panic!("{loss:?} at {} of the recovery at {}: {error}", second.operation, boundary.operation);
                }
            }
        }
    }
}
