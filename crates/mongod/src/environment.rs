//! The environment variables and host facts that this crate uses, as plain values.
//!
//! Tests build one by hand; only `main` functions and the testkit call [`Environment::from_process`].

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

#[derive(Debug, Clone)]
pub struct Environment {
    variables: BTreeMap<OsString, OsString>,
    host: Host,
}

/// The facts that decide which build of mongod can run here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Host {
    pub os: String,
    pub arch: String,
    /// `None` if the C library is not glibc (musl), or its version is unknown.
    pub glibc: Option<(u32, u32)>,
    pub libssl_3: bool,
    pub libssl_1_1: bool,
}

impl Environment {
    pub fn new(variables: impl IntoIterator<Item = (impl Into<OsString>, impl Into<OsString>)>, host: Host) -> Self {
        Self { variables: variables.into_iter().map(|(name, value)| (name.into(), value.into())).collect(), host }
    }

    pub fn from_process() -> Self {
        Self::new(std::env::vars_os(), Host::detect())
    }

    pub fn host(&self) -> &Host {
        &self.host
    }

    /// A variable's value; one that is set but empty counts as absent.
    pub fn variable(&self, name: &str) -> Option<&OsStr> {
        self.variables.get(OsStr::new(name)).map(OsString::as_os_str).filter(|value| !value.is_empty())
    }

    pub(crate) fn variables(&self) -> impl Iterator<Item = (&OsString, &OsString)> {
        self.variables.iter()
    }

    /// The first executable file of that name on the PATH.
    pub fn find_program(&self, name: &str) -> Option<PathBuf> {
        let path = self.variable("PATH")?;
        std::env::split_paths(path).map(|folder| folder.join(name)).find(|file| is_executable(file))
    }

    /// The per-user cache folder: `HEADWATER_CACHE`, else `$XDG_CACHE_HOME/headwater`, else `~/.cache/headwater`.
    pub fn cache_folder(&self) -> Option<PathBuf> {
        let given = self.variable("HEADWATER_CACHE").map(PathBuf::from);
        let xdg = || self.variable("XDG_CACHE_HOME").map(|folder| Path::new(folder).join("headwater"));
        let home = || self.variable("HOME").map(|folder| Path::new(folder).join(".cache/headwater"));
        given.or_else(xdg).or_else(home)
    }
}

impl Host {
    pub fn detect() -> Self {
        Self {
            os: std::env::consts::OS.to_owned(),
            arch: std::env::consts::ARCH.to_owned(),
            glibc: glibc_version(),
            libssl_3: has_library("libssl.so.3"),
            libssl_1_1: has_library("libssl.so.1.1"),
        }
    }
}

pub(crate) fn is_executable(file: &Path) -> bool {
    std::fs::metadata(file).is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
}

fn glibc_version() -> Option<(u32, u32)> {
    let output = Command::new("getconf").arg("GNU_LIBC_VERSION").output().ok()?;
    parse_glibc(&String::from_utf8_lossy(&output.stdout))
}

fn parse_glibc(output: &str) -> Option<(u32, u32)> {
    let (major, minor) = output.trim().strip_prefix("glibc ")?.split_once('.')?;
    Some((major.parse().ok()?, minor.split('.').next()?.parse().ok()?))
}

/// Searches the folders of the dynamic loader in common distributions; `ldconfig` is often not on a user's PATH.
fn has_library(name: &str) -> bool {
    ["/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu", "/lib64", "/usr/lib64", "/usr/lib", "/usr/local/lib"]
        .iter()
        .any(|folder| Path::new(folder).join(name).exists())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(variables: &[(&str, &str)]) -> Environment {
        Environment::new(variables.iter().copied(), Host::detect())
    }

    #[test]
    fn the_cache_folder_is_configured_or_xdg_or_in_the_home() {
        let all = [("HEADWATER_CACHE", "/given"), ("XDG_CACHE_HOME", "/xdg"), ("HOME", "/home/me")];
        assert_eq!(with(&all).cache_folder(), Some("/given".into()));
        assert_eq!(with(&all[1..]).cache_folder(), Some("/xdg/headwater".into()));
        assert_eq!(with(&all[2..]).cache_folder(), Some("/home/me/.cache/headwater".into()));
        assert_eq!(with(&[]).cache_folder(), None);
    }

    #[test]
    fn an_empty_variable_counts_as_absent() {
        assert_eq!(with(&[("HEADWATER_CACHE", ""), ("HOME", "/h")]).cache_folder(), Some("/h/.cache/headwater".into()));
    }

    #[test]
    fn the_glibc_version_is_parsed_from_getconf() {
        assert_eq!(parse_glibc("glibc 2.36\n"), Some((2, 36)));
        assert_eq!(parse_glibc("glibc 2.38.1"), Some((2, 38)));
        assert_eq!(parse_glibc(""), None);
        assert_eq!(parse_glibc("undefined"), None);
    }
}
