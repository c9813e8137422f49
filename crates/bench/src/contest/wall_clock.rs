//! Another time of day for one process, pod or mongod; see `wall_clock.c`.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::LazyLock;

const SOURCE: &str = include_str!("wall_clock.c");

/// What a process believes of the time of day.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WallClock {
    True,
    /// Off by so many seconds.
    Off(i64),
}

impl WallClock {
    /// The variables that make it so.
    ///
    /// # Panics
    /// When there is no C compiler, which Rust needs as well.
    pub fn variables(self) -> Vec<(String, String)> {
        let Self::Off(seconds) = self else { return vec![] };
        let library = LIBRARY.path.display().to_string();
        vec![("LD_PRELOAD".into(), library), ("WALL_CLOCK_OFFSET".into(), seconds.to_string())]
    }
}

/// Built once per process; a few kilobytes, gone with the folder of temporary files.
static LIBRARY: LazyLock<Library> = LazyLock::new(|| {
    let folder = tempfile::tempdir().expect("a folder can be made").keep();
    let path = folder.join("wall_clock.so");
    compile(&path);
    Library { path }
});

struct Library {
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
