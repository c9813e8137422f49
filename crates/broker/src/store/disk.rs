//! The file-system operations that the store needs, as a trait: tests inject loss, torn writes and errors.
//!
//! [`StoreFolder`] is the real implementation. Names are plain file names in one folder. Nothing here retries or
//! interprets an error; the [writer](super::writer) decides what a failed sync means.

use std::any::Any;
use std::fs::{DirBuilder, File, OpenOptions, Permissions, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt, PermissionsExt};
use std::path::PathBuf;
use std::sync::Arc;

use tracing::warn;

/// A flat folder of files.
pub trait Disk: Send + Sync + 'static {
    fn list(&self) -> io::Result<Vec<String>>;

    /// Creates `name` empty, or truncates it.
    fn create(&self, name: &str) -> io::Result<Arc<dyn DiskFile>>;

    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>>;

    /// Atomic: after a crash the file has one name or the other. Durable only after [`sync_folder`](Self::sync_folder).
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;

    fn remove(&self, name: &str) -> io::Result<()>;

    /// Makes created, renamed and removed names durable.
    fn sync_folder(&self) -> io::Result<()>;

    /// Locks the folder for this process until the guard is dropped; `None` if another process has the lock.
    fn lock(&self, name: &str) -> io::Result<Option<Box<dyn Any + Send>>>;
}

/// One open file. All access is positioned, so several threads can share a handle.
pub trait DiskFile: Send + Sync {
    fn size(&self) -> io::Result<u64>;

    /// Reads until `buf` is full or the file ends; returns the number of bytes read.
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize>;

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()>;

    /// Allocates `size` bytes, which read as zeros until written.
    fn allocate(&self, size: u64) -> io::Result<()>;

    fn truncate(&self, size: u64) -> io::Result<()>;

    /// Returns when everything written is on stable storage. After an error nothing is known about those bytes.
    fn sync(&self) -> io::Result<()>;
}

const PRIVATE_FOLDER: u32 = 0o700;
const PRIVATE_FILE: u32 = 0o600;
/// Rights of the group and of everybody else.
const RIGHTS_OF_OTHERS: u32 = 0o077;

/// A folder in the file system.
#[derive(Debug)]
pub struct StoreFolder {
    path: PathBuf,
}

impl StoreFolder {
    /// Creates the folder durably if it does not exist. Only its owner may read it: messages can be confidential.
    pub fn new(path: impl Into<PathBuf>) -> io::Result<Self> {
        let path = std::path::absolute(path.into())?;
        let missing: Vec<_> = path.ancestors().take_while(|folder| !folder.exists()).collect();
        DirBuilder::new().recursive(true).mode(PRIVATE_FOLDER).create(&path)?;
        for parent in missing.iter().filter_map(|folder| folder.parent()) {
            File::open(parent)?.sync_all()?;
        }
        Ok(Self { path })
    }
}

impl Disk for StoreFolder {
    fn list(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in std::fs::read_dir(&self.path)? {
            // All our names are ASCII: a name that is not UTF-8 is not ours.
            if let Ok(name) = entry?.file_name().into_string() {
                names.push(name);
            }
        }
        Ok(names)
    }

    fn create(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(true).mode(PRIVATE_FILE);
        Ok(Arc::new(options.open(self.path.join(name))?))
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        let file = OpenOptions::new().read(true).write(true).open(self.path.join(name))?;
        make_private(&file, name, PRIVATE_FILE);
        Ok(Arc::new(file))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        std::fs::rename(self.path.join(from), self.path.join(to))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        std::fs::remove_file(self.path.join(name))
    }

    fn sync_folder(&self) -> io::Result<()> {
        File::open(&self.path)?.sync_all()
    }

    fn lock(&self, name: &str) -> io::Result<Option<Box<dyn Any + Send>>> {
        let mut options = OpenOptions::new();
        let file = options.write(true).create(true).truncate(false).mode(PRIVATE_FILE).open(self.path.join(name))?;
        make_private(&file, name, PRIVATE_FILE);
        make_private(&File::open(&self.path)?, &self.path.to_string_lossy(), PRIVATE_FOLDER);
        match file.try_lock() {
            Ok(()) => Ok(Some(Box::new(file))),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(error),
        }
    }
}

impl DiskFile for File {
    fn size(&self) -> io::Result<u64> {
        Ok(self.metadata()?.len())
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let mut filled = 0;
        while filled < buf.len() {
            match FileExt::read_at(self, &mut buf[filled..], offset + filled as u64) {
                Ok(0) => break,
                Ok(read) => filled += read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(filled)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.write_all_at(bytes, offset)
    }

    fn allocate(&self, size: u64) -> io::Result<()> {
        #[cfg(target_os = "linux")]
        {
            use nix::errno::Errno;
            use nix::fcntl::{FallocateFlags, fallocate};
            let length = i64::try_from(size).map_err(io::Error::other)?;
            match fallocate(self, FallocateFlags::empty(), 0, length) {
                Err(Errno::EOPNOTSUPP) => {}
                outcome => return outcome.map_err(io::Error::from),
            }
        }
        write_zeros(self, size)
    }

    fn truncate(&self, size: u64) -> io::Result<()> {
        self.set_len(size)
    }

    fn sync(&self) -> io::Result<()> {
        self.sync_data()
    }
}

/// Takes the rights of others from a folder or file, whoever gave them: messages can be confidential. Only the owner of a file can do so. A volume can belong
/// to another account: then the folder stays as it is, and its files are private.
fn make_private(file: &File, name: &str, private: u32) {
    let Ok(mode) = file.metadata().map(|data| data.permissions().mode()) else { return };
    if mode & RIGHTS_OF_OTHERS == 0 {
        return;
    }
    if let Err(error) = file.set_permissions(Permissions::from_mode(private)) {
        let mode = format!("{:o}", mode & 0o7777);
        warn!(name, mode, %error, "other accounts have rights in the data folder: remove them, or use a folder that belongs to this account");
    }
}

/// Fallback for file systems without `fallocate`.
fn write_zeros(file: &File, size: u64) -> io::Result<()> {
    let zeros = vec![0; 1 << 20];
    let mut offset = 0;
    while offset < size {
        let length = (size - offset).min(zeros.len() as u64);
        file.write_all_at(&zeros[..length as usize], offset)?;
        offset += length;
    }
    Ok(())
}
