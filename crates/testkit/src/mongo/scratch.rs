//! Temporary data folders that are removed even after a test process was killed.
//!
//! The process that uses a folder locks it. The next process removes every folder whose lock is free, because its owner has
//! ended.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

const LOCK: &str = "lock";
const GUARD: &str = ".guard";

#[derive(Debug)]
pub(super) struct ScratchFolder {
    folder: PathBuf,
    _lock: File,
}

impl ScratchFolder {
    pub(super) fn new() -> io::Result<Self> {
        Self::below(&std::env::temp_dir().join(format!("headwater-test-{}", nix::unistd::getuid())))
    }

    fn below(root: &Path) -> io::Result<Self> {
        fs::create_dir_all(root)?;
        // Held until the new folder is locked, so that no other process removes it before.
        let guard = File::create(root.join(GUARD))?;
        guard.lock()?;
        remove_abandoned(root);
        let folder = tempfile::Builder::new().prefix("mongo-").tempdir_in(root)?.keep();
        let lock = File::create(folder.join(LOCK))?;
        lock.lock()?;
        Ok(Self { folder, _lock: lock })
    }

    pub(super) fn path(&self) -> &Path {
        &self.folder
    }
}

impl Drop for ScratchFolder {
    fn drop(&mut self) {
        // The next process removes what is left.
        let _ = fs::remove_dir_all(&self.folder);
    }
}

fn remove_abandoned(root: &Path) {
    for entry in fs::read_dir(root).into_iter().flatten().flatten() {
        let abandoned = File::open(entry.path().join(LOCK)).is_ok_and(|lock| lock.try_lock().is_ok());
        if abandoned {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_locked_folder_is_kept_and_an_abandoned_one_removed() {
        let root = tempfile::tempdir().unwrap();
        let used = ScratchFolder::below(root.path()).unwrap();
        let abandoned = root.path().join("mongo-abandoned");
        fs::create_dir(&abandoned).unwrap();
        fs::write(abandoned.join(LOCK), "").unwrap();
        let _next = ScratchFolder::below(root.path()).unwrap();
        assert!(used.path().exists());
        assert!(!abandoned.exists());
    }

    #[test]
    fn a_folder_is_removed_with_its_owner() {
        let root = tempfile::tempdir().unwrap();
        let scratch = ScratchFolder::below(root.path()).unwrap();
        let folder = scratch.path().to_owned();
        drop(scratch);
        assert!(!folder.exists());
    }
}
