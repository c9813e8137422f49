//! Folders for data that nobody wants to keep, even after a test process was killed.
//!
//! Each folder is locked by the process that uses it. Whoever makes a new one first removes those whose lock is free:
//! their owners are gone.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

const LOCK: &str = "lock";
const GUARD: &str = ".guard";

#[derive(Debug)]
pub(super) struct Scratch {
    folder: PathBuf,
    _lock: File,
}

impl Scratch {
    pub(super) fn new() -> io::Result<Self> {
        Self::below(&std::env::temp_dir().join(format!("headwater-test-{}", nix::unistd::getuid())))
    }

    fn below(root: &Path) -> io::Result<Self> {
        fs::create_dir_all(root)?;
        // Held until the new folder is locked, so that nobody sweeps it before.
        let guard = File::create(root.join(GUARD))?;
        guard.lock()?;
        sweep(root);
        let folder = tempfile::Builder::new().prefix("mongo-").tempdir_in(root)?.keep();
        let lock = File::create(folder.join(LOCK))?;
        lock.lock()?;
        Ok(Self { folder, _lock: lock })
    }

    pub(super) fn path(&self) -> &Path {
        &self.folder
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // What is left behind is swept by the next one.
        let _ = fs::remove_dir_all(&self.folder);
    }
}

fn sweep(root: &Path) {
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
    fn a_folder_in_use_is_kept_and_an_abandoned_one_is_swept() {
        let root = tempfile::tempdir().unwrap();
        let used = Scratch::below(root.path()).unwrap();
        let abandoned = root.path().join("mongo-abandoned");
        fs::create_dir(&abandoned).unwrap();
        fs::write(abandoned.join(LOCK), "").unwrap();
        let _next = Scratch::below(root.path()).unwrap();
        assert!(used.path().exists());
        assert!(!abandoned.exists());
    }

    #[test]
    fn a_folder_goes_with_its_owner() {
        let root = tempfile::tempdir().unwrap();
        let scratch = Scratch::below(root.path()).unwrap();
        let folder = scratch.path().to_owned();
        drop(scratch);
        assert!(!folder.exists());
    }
}
