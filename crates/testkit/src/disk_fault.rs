//! Makes the disk of one process full, small or slow while it runs; see `disk_fault.c`.

use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::time::Duration;

use crate::preload;

/// Built once per process.
static DISK_SHIM: LazyLock<PathBuf> = LazyLock::new(|| preload::compile("disk_fault.so", include_str!("disk_fault.c")));

/// The disk of a process.
#[derive(Debug)]
pub struct FaultyDisk {
    file: std::fs::File,
    path: PathBuf,
}

/// What is wrong with it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskFault {
    pub is_full: bool,
    pub sync_delay: Duration,
    /// The free space that a process sees; `None`: as much as there is.
    pub max_free_mebibytes: Option<u32>,
}

impl FaultyDisk {
    /// A disk without faults, controlled by this file.
    pub fn new(path: &Path) -> io::Result<Self> {
        let disk = Self { file: std::fs::File::create(path)?, path: path.to_owned() };
        disk.set(DiskFault::default())?;
        Ok(disk)
    }

    /// The library to preload, and the variable that names the file.
    pub(crate) fn preload(&self) -> (String, (String, String)) {
        (DISK_SHIM.display().to_string(), ("DISK_FAULT_FILE".into(), self.path.display().to_string()))
    }

    /// The environment variables of a process that has nothing else preloaded.
    pub fn variables(&self) -> [(String, String); 2] {
        let (library, file) = self.preload();
        [("LD_PRELOAD".to_owned(), library), file]
    }

    /// From now on.
    pub fn set(&self, fault: DiskFault) -> io::Result<()> {
        let is_full = i32::from(fault.is_full);
        let delay = i32::try_from(fault.sync_delay.as_millis()).unwrap_or(i32::MAX);
        // On a disk that has just become full, the write that needs space fails.
        let most = fault.max_free_mebibytes.map_or(0, |most| i32::try_from(most).unwrap_or(i32::MAX));
        let words = [is_full, is_full, delay, most].map(i32::to_ne_bytes);
        self.file.write_all_at(&words.concat(), 0)
    }
}
