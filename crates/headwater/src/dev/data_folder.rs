//! The data folder: used by one `headwater dev` at a time, and kept from one run to the next.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use mongod::ReservedPort;

use super::ports::{PortRange, last_port};

pub(super) struct DataFolder {
    path: PathBuf,
    _lock: File,
}

impl DataFolder {
    /// Refuses a folder in use. mongod would refuse it too, with a less clear message.
    pub(super) fn open(path: &Path) -> anyhow::Result<Self> {
        let shown = path.display();
        fs::create_dir_all(path.join("logs")).with_context(|| format!("failed to create the data folder `{shown}`"))?;
        let lock = File::create(path.join("lock")).with_context(|| format!("failed to write in `{shown}`"))?;
        if lock.try_lock().is_err() {
            bail!("another `headwater dev` uses the data folder `{shown}`; stop it, or pass --data-dir");
        }
        Ok(Self { path: path.to_owned(), _lock: lock })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn at(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// An empty log file for this run.
    pub(super) fn log(&self, name: &str) -> anyhow::Result<PathBuf> {
        let path = self.path.join("logs").join(format!("{name}.log"));
        File::create(&path).with_context(|| format!("failed to write `{}`", path.display()))?;
        Ok(path)
    }

    /// The port of the last run if it is free, else another.
    pub(super) fn reserve_port(&self, name: &str, range: PortRange) -> anyhow::Result<ReservedPort> {
        let file = self.at(&format!("{name}.port"));
        let port = range.reserve(last_port(&file)).with_context(|| format!("failed to find a port for {name}"))?;
        fs::write(&file, port.number().to_string()).with_context(|| format!("failed to write `{}`", file.display()))?;
        Ok(port)
    }

    /// The content of this file, created on first use.
    pub(super) fn read_or_create(&self, name: &str, first: impl FnOnce() -> String) -> anyhow::Result<String> {
        let file = self.at(name);
        if let Ok(text) = fs::read_to_string(&file) {
            return Ok(text.trim().to_owned());
        }
        let text = first();
        fs::write(&file, &text).with_context(|| format!("failed to write `{}`", file.display()))?;
        Ok(text)
    }

    /// The same, readable by its owner only.
    pub(super) fn read_or_create_secret(&self, name: &str, first: impl FnOnce() -> String) -> anyhow::Result<String> {
        match fs::read_to_string(self.at(name)) {
            Ok(text) => Ok(text),
            Err(_) => {
                let text = first();
                self.write(name, &text)?;
                Ok(text)
            }
        }
    }

    /// Writes a file that only its owner can read: a URI may hold a password.
    pub(super) fn write(&self, name: &str, text: &str) -> anyhow::Result<PathBuf> {
        let file = self.at(name);
        let written = fs::write(&file, "").and_then(|()| fs::set_permissions(&file, Permissions::from_mode(0o600)));
        written
            .and_then(|()| fs::write(&file, text))
            .with_context(|| format!("failed to write `{}`", file.display()))?;
        Ok(file)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_data_folder_in_use_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let first = DataFolder::open(folder.path()).unwrap();
        assert!(DataFolder::open(folder.path()).is_err());
        drop(first);
        assert!(DataFolder::open(folder.path()).is_ok());
    }

    #[test]
    fn a_port_and_a_name_are_the_same_in_the_next_run() {
        let folder = tempfile::tempdir().unwrap();
        let folder = DataFolder::open(folder.path()).unwrap();
        let reserve = || folder.reserve_port("broker", PortRange::Random).unwrap().number();
        assert_eq!(reserve(), reserve());
        let name = |text: &str| folder.read_or_create("database", || text.to_owned()).unwrap();
        assert_eq!((name("a"), name("b")), ("a".to_owned(), "a".to_owned()));
    }
}
