//! Room kept aside: when the disk is full, settlements and cleaning must still go on, for they are what makes room.
//!
//! Two files of allocated zeros. One becomes the next segment of the log when none can be made; the other is removed before a
//! snapshot is written. Both are made again as soon as there is room, and until then bodies are refused.

use std::io;
use std::sync::Arc;

use super::disk::{Disk, DiskFile};
use super::layout::{LOG_RESERVE, SNAPSHOT_RESERVE, temporary};

/// Whether the error says that there is no room.
pub(super) fn is_disk_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// Makes what is missing of the reserve; an error means it is not whole.
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

/// What a file was made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SpaceStatus {
    Free,
    /// There was none free, or not as much as wanted.
    Scarce,
}

/// A file `name` with room for `wanted` bytes; when there is none, made from the reserve; when that is used up, with what is `needed` now.
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
            Err(_) => Ok((allocate(disk, name, needed)?, SpaceStatus::Scarce)),
        },
        Err(error) => Err(error),
    }
}

/// Lets a snapshot have its part of the reserve.
pub(super) fn release_for_snapshot(disk: &dyn Disk) {
    // Nothing to release is as good as released.
    let _ = disk.remove(SNAPSHOT_RESERVE);
}

fn allocate(disk: &dyn Disk, name: &str, size: u64) -> io::Result<Arc<dyn DiskFile>> {
    let file = disk.create(name)?;
    if let Err(error) = file.allocate(size) {
        // An unusable file must not keep room; the first error is the one to tell.
        let _ = disk.remove(name);
        return Err(error);
    }
    Ok(file)
}
