//! Every sync is needed: without any one of them, some power cut loses data. Each missing sync is a planted defect.

use crate::power_loss::{SEEDS, boundaries, check_power_loss, losses};
use crate::simulated_disk::{PowerLoss, SimulatedDisk, SyncKind};

/// Whether some power cut reveals that syncs of this kind are missing.
fn is_caught(kind: SyncKind) -> bool {
    SEEDS.iter().any(|&seed| {
        let disk = SimulatedDisk::default();
        disk.ignore(kind);
        let (boundaries, ops) = boundaries(&disk, seed, 300);
        boundaries.iter().enumerate().any(|(at, boundary)| {
            // The order of names matters only until the next folder sync, so more combinations are tried there.
            let names = boundary.operation == "sync folder";
            let more = (0..if names { 16 } else { 0 }).map(|seed| PowerLoss::Torn(1_000 + seed));
            losses(at).into_iter().chain(more).any(|loss| check_power_loss(boundary, loss, &ops).is_err())
        })
    })
}

#[test]
fn a_missing_sync_of_new_bytes_in_a_segment_is_caught() {
    assert!(is_caught(SyncKind::Piece));
}

#[test]
fn a_missing_sync_of_a_new_segment_is_caught() {
    assert!(is_caught(SyncKind::NewPiece));
}

#[test]
fn a_missing_sync_of_the_folder_after_a_new_segment_is_caught() {
    assert!(is_caught(SyncKind::PieceName));
}

#[test]
fn a_missing_sync_of_a_snapshot_is_caught() {
    assert!(is_caught(SyncKind::Snapshot));
}

#[test]
fn a_missing_sync_of_the_folder_after_a_snapshot_is_caught() {
    assert!(is_caught(SyncKind::SnapshotName));
}

#[test]
fn a_missing_sync_of_the_format_is_caught() {
    assert!(is_caught(SyncKind::Format));
}

#[test]
fn a_missing_sync_of_the_folder_after_the_format_is_caught() {
    assert!(is_caught(SyncKind::FormatName));
}

/// This sync only frees space earlier: a file that reappears is removed at the next start.
#[test]
fn a_missing_sync_of_a_removal_loses_nothing() {
    assert!(!is_caught(SyncKind::Removal));
}
