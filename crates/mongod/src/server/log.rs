//! The log of one server: whether it listens yet, and its last lines.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

/// mongod and mongos alike log this id when the listener is up ("Waiting for connections").
const LISTENING: &[u8] = b"\"id\":23016,";
const TAIL_LINES: usize = 20;

#[derive(Debug, Clone)]
pub(super) struct ServerLog {
    path: PathBuf,
    /// Where the log of the current start begins; earlier starts stay in the file.
    start: u64,
}

impl ServerLog {
    pub(super) fn at(path: PathBuf) -> Self {
        Self { path, start: 0 }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn begin_new_start(&mut self) -> io::Result<()> {
        self.start = File::options().create(true).append(true).open(&self.path)?.metadata()?.len();
        Ok(())
    }

    pub(super) fn writers(&self) -> io::Result<(File, File)> {
        let file = File::options().create(true).append(true).open(&self.path)?;
        Ok((file.try_clone()?, file))
    }

    pub(super) fn contains_listening(&self) -> bool {
        let text = self.since_start();
        text.windows(LISTENING.len()).any(|window| window == LISTENING)
    }

    pub(super) fn tail(&self) -> String {
        let text = self.since_start();
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<_> = text.lines().collect();
        lines[lines.len().saturating_sub(TAIL_LINES)..].join("\n")
    }

    /// Only read while a server starts or after it failed, so it is short.
    fn since_start(&self) -> Vec<u8> {
        let mut text = Vec::new();
        if let Ok(mut file) = fs::File::open(&self.path)
            && file.seek(SeekFrom::Start(self.start)).is_ok()
        {
            // The part before a read error is still useful.
            let _ = file.read_to_end(&mut text);
        }
        text
    }
}
