//! Reserved disk space: when the disk is full, settlements and compaction must still work, because they free space.
//!
//! Two files of allocated zeros. One becomes the next segment of the log when no other can be created; the other is
//! removed before a snapshot is written. Both are restored as soon as there is space; until then bodies are refused.

use std::io;
use std::sync::Arc;

use super::disk::{Disk, DiskFile};
use super::layout::{LOG_RESERVE, SNAPSHOT_RESERVE, temporary};

/// Whether the error means that the disk is full.
pub(super) fn is_disk_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// Restores missing reserve files; an error means that the reserve is incomplete.
pub(super) fn restore(disk: &dyn Disk, segment_bytes: u64) -> io::Result<()> {
    let names = disk.list()?;
    let mut made = false;
    for (name, size) in [(LOG_RESERVE, segment_bytes), (SNAPSHOT_RESERVE, segment_bytes / 4)] {
        if !names.iter().any(|present| present == name) {
            allocate(disk, &temporary(name), size)?;
            disk.rename(&temporary(name), name)?;
            made = true;
        }
    }
    if made { disk.sync_folder() } else { Ok(()) }
}

/// Whether a file got the space it asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SpaceStatus {
    Free,
    /// No free space, or less than wanted.
    Scarce,
}

/// Creates `name` with `wanted` bytes. If the disk is full, uses the reserve; without a reserve, allocates only what is
/// `needed` now.
pub(super) fn create_with_space(
    disk: &dyn Disk,
    name: &str,
    wanted: u64,
    needed: u64,
) -> io::Result<(Arc<dyn DiskFile>, SpaceStatus)> {
    match allocate(disk, name, wanted) {
        Ok(file) => Ok((file, SpaceStatus::Free)),
        Err(error) if is_disk_full(&error) => match disk.rename(LOG_RESERVE, name) {
            Ok(()) => Ok((disk.open(name)?, SpaceStatus::Scarce)),
            // The reserve is used up already.
            Err(_) => Ok((allocate(disk, name, needed)?, SpaceStatus::Scarce)),
        },
        Err(error) => Err(error),
    }
}

/// Frees the part of the reserve that is meant for snapshots.
pub(super) fn release_for_snapshot(disk: &dyn Disk) {
    // The file may be missing already.
    let _ = disk.remove(SNAPSHOT_RESERVE);
}

fn allocate(disk: &dyn Disk, name: &str, size: u64) -> io::Result<Arc<dyn DiskFile>> {
    let file = disk.create(name)?;
    if let Err(error) = file.allocate(size) {
        // A file without its space is useless; return the first error.
        let _ = disk.remove(name);
        return Err(error);
    }
    Ok(file)
}
