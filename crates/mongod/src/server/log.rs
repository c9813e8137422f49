//! The log of one server, read only for two questions: does it listen yet, and what did it say last.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

/// mongod and mongos alike log this id when the listener is up ("Waiting for connections").
const LISTENING: &[u8] = b"\"id\":23016,";
const TAIL_LINES: usize = 20;

#[derive(Debug, Clone)]
pub(super) struct Log {
    path: PathBuf,
    /// Where the present start begins; earlier starts stay in the file.
    start: u64,
}

impl Log {
    pub(super) fn at(path: PathBuf) -> Self {
        Self { path, start: 0 }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn start_anew(&mut self) -> io::Result<()> {
        self.start = File::options().create(true).append(true).open(&self.path)?.metadata()?.len();
        Ok(())
    }

    pub(super) fn writers(&self) -> io::Result<(File, File)> {
        let file = File::options().create(true).append(true).open(&self.path)?;
        Ok((file.try_clone()?, file))
    }

    pub(super) fn says_listening(&self) -> bool {
        let said = self.since_start();
        said.windows(LISTENING.len()).any(|window| window == LISTENING)
    }

    pub(super) fn tail(&self) -> String {
        let said = self.since_start();
        let said = String::from_utf8_lossy(&said);
        let lines: Vec<_> = said.lines().collect();
        lines[lines.len().saturating_sub(TAIL_LINES)..].join("\n")
    }

    /// Only read while a server starts or when it has failed, so the whole of it is little.
    fn since_start(&self) -> Vec<u8> {
        let mut said = Vec::new();
        if let Ok(mut file) = fs::File::open(&self.path)
            && file.seek(SeekFrom::Start(self.start)).is_ok()
        {
            // What could be read before an error is still worth showing.
            let _ = file.read_to_end(&mut said);
        }
        said
    }
}
