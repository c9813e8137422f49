//! Shifts the wall clock of one process, pod or mongod; see `wall_clock.c`.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::LazyLock;

const SOURCE: &str = include_str!("wall_clock.c");

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
        let library = CLOCK_SHIM.path.display().to_string();
        vec![("LD_PRELOAD".into(), library), ("WALL_CLOCK_OFFSET".into(), seconds.to_string())]
    }
}

/// Built once per process: a few kilobytes in the folder of temporary files.
static CLOCK_SHIM: LazyLock<ClockShim> = LazyLock::new(|| {
    let folder = tempfile::tempdir().expect("a temporary folder can be created").keep();
    let path = folder.join("wall_clock.so");
    compile(&path);
    ClockShim { path }
});

/// The compiled LD_PRELOAD library.
struct ClockShim {
    path: PathBuf,
}

fn compile(to: &Path) {
    let mut cc = Command::new("cc");
    cc.args(["-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-x", "c", "-", "-o"]).arg(to).stdin(Stdio::piped());
    let mut cc = cc.spawn().expect("`cc` can be started");
    let mut source = cc.stdin.take().expect("its input is piped");
    source.write_all(SOURCE.as_bytes()).expect("`cc` reads its input");
    drop(source);
    assert!(cc.wait().expect("`cc` ends").success(), "`cc` compiles wall_clock.c");
}
