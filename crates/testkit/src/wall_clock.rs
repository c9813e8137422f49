//! Shifts the wall clock of one process, pod, broker or mongod; see `wall_clock.c`.

use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use crate::preload;

/// Built once per process.
static CLOCK_SHIM: LazyLock<PathBuf> =
    LazyLock::new(|| preload::compile("wall_clock.so", include_str!("wall_clock.c")));

/// The wall clock of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WallClock {
    Accurate,
    /// Wrong by this many seconds.
    Offset(i64),
}

impl WallClock {
    /// The environment variables that shift the clock.
    ///
    /// # Panics
    /// When there is no C compiler; Rust needs one as well.
    pub fn variables(self) -> Vec<(String, String)> {
        let Self::Offset(seconds) = self else { return vec![] };
        vec![("LD_PRELOAD".into(), shim()), ("WALL_CLOCK_OFFSET".into(), seconds.to_string())]
    }
}

fn shim() -> String {
    CLOCK_SHIM.display().to_string()
}

/// A wall clock that can jump while its process runs.
#[derive(Debug)]
pub struct AdjustableClock {
    file: std::fs::File,
    path: PathBuf,
}

impl AdjustableClock {
    /// An accurate clock, controlled by this file.
    pub fn new(path: &Path) -> io::Result<Self> {
        let file = std::fs::File::create(path)?;
        let clock = Self { file, path: path.to_owned() };
        clock.set_offset(0)?;
        Ok(clock)
    }

    /// The library to preload, and the variable that names the file.
    pub(crate) fn preload(&self) -> (String, (String, String)) {
        (shim(), ("WALL_CLOCK_FILE".into(), self.path.display().to_string()))
    }

    /// Seconds by which the clock is wrong from now on.
    pub fn set_offset(&self, seconds: i64) -> io::Result<()> {
        self.file.write_all_at(&seconds.to_ne_bytes(), 0)
    }
}
