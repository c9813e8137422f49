//! The data folder: one `headwater dev` at a time, and what it remembers from one run to the next.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use mongod::Port;

pub(super) struct Folder {
    path: PathBuf,
    _lock: File,
}

impl Folder {
    /// Two of us on one folder would each see the other's half; mongod would say so too, but not as plainly.
    pub(super) fn open(path: &Path) -> anyhow::Result<Self> {
        let shown = path.display();
        fs::create_dir_all(path.join("logs")).with_context(|| format!("create the data folder `{shown}`"))?;
        let lock = File::create(path.join("lock")).with_context(|| format!("write in `{shown}`"))?;
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

    /// Of this run; what it says of the last one is gone.
    pub(super) fn log(&self, name: &str) -> anyhow::Result<PathBuf> {
        let path = self.path.join("logs").join(format!("{name}.log"));
        File::create(&path).with_context(|| format!("write `{}`", path.display()))?;
        Ok(path)
    }

    /// The port of the last run if it is free, else another.
    pub(super) fn port(&self, name: &str) -> anyhow::Result<Port> {
        let file = self.at(&format!("{name}.port"));
        let last = fs::read_to_string(&file).ok().and_then(|text| text.trim().parse().ok());
        let port = last.and_then(|last| Port::reserve(Some(last)).ok()).map_or_else(|| Port::reserve(None), Ok);
        let port = port.with_context(|| format!("find a port for {name}"))?;
        fs::write(&file, port.number().to_string()).with_context(|| format!("write `{}`", file.display()))?;
        Ok(port)
    }

    /// What was written here first, for good.
    pub(super) fn remember(&self, name: &str, first: impl FnOnce() -> String) -> anyhow::Result<String> {
        let file = self.at(name);
        if let Ok(text) = fs::read_to_string(&file) {
            return Ok(text.trim().to_owned());
        }
        let text = first();
        fs::write(&file, &text).with_context(|| format!("write `{}`", file.display()))?;
        Ok(text)
    }

    /// Likewise, for its owner's eyes.
    pub(super) fn secret(&self, name: &str, first: impl FnOnce() -> String) -> anyhow::Result<String> {
        match fs::read_to_string(self.at(name)) {
            Ok(text) => Ok(text),
            Err(_) => {
                let text = first();
                self.write(name, &text)?;
                Ok(text)
            }
        }
    }

    /// For its owner's eyes: a URI may hold a password.
    pub(super) fn write(&self, name: &str, text: &str) -> anyhow::Result<PathBuf> {
        let file = self.at(name);
        let written = fs::write(&file, "").and_then(|()| fs::set_permissions(&file, Permissions::from_mode(0o600)));
        written.and_then(|()| fs::write(&file, text)).with_context(|| format!("write `{}`", file.display()))?;
        Ok(file)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_data_folder_serves_one_at_a_time() {
        let folder = tempfile::tempdir().unwrap();
        let first = Folder::open(folder.path()).unwrap();
        assert!(Folder::open(folder.path()).is_err());
        drop(first);
        assert!(Folder::open(folder.path()).is_ok());
    }

    #[test]
    fn a_port_and_a_name_are_the_same_in_the_next_run() {
        let folder = tempfile::tempdir().unwrap();
        let folder = Folder::open(folder.path()).unwrap();
        let first = folder.port("broker").unwrap().number();
        assert_eq!(folder.port("broker").unwrap().number(), first);
        let name = |text: &str| folder.remember("database", || text.to_owned()).unwrap();
        assert_eq!((name("a"), name("b")), ("a".to_owned(), "a".to_owned()));
    }
}
