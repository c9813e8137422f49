//! Fetches libssl 1.1 of Debian 11, for hosts without it.
//!
//! Works as any user: apt's lists and archives are private to the fetch, and nothing is installed. The mirror is the one that apt
//! already uses.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::{Path, PathBuf};

use super::tool::ExternalTool;
use super::{Error, at};
use crate::environment::Environment;
use crate::package::{LIBRARY_FOLDER, Package};

const SUITE: &str = "bullseye";
const DEB: &str = "libssl1.1";
const INSIDE_DEB: &str = "usr/lib/x86_64-linux-gnu";

pub(super) fn fetch_libraries(
    package: &Package,
    environment: &Environment,
    work: &Path,
    into: &Path,
) -> Result<(), Error> {
    let apt = PrivateApt::new(environment, work)?;
    let deb = apt.download(&apt.debian_mirror()?)?;
    let unpacked = work.join("deb");
    ExternalTool::find("dpkg-deb", environment, work)?.run(&[
        OsStr::new("-x"),
        deb.as_os_str(),
        unpacked.as_os_str(),
    ])?;
    let folder = into.join(LIBRARY_FOLDER);
    fs::create_dir(&folder).map_err(at(&folder))?;
    for library in &package.libraries {
        let name = Path::new(&library.path).file_name().expect("a pinned library is a file");
        let from = unpacked.join(INSIDE_DEB).join(name);
        fs::copy(&from, into.join(&library.path)).map_err(at(&from))?;
    }
    Ok(())
}

/// apt-get with its own state.
struct PrivateApt<'a> {
    tool: ExternalTool<'a>,
    work: &'a Path,
}

impl<'a> PrivateApt<'a> {
    fn new(environment: &'a Environment, work: &'a Path) -> Result<Self, Error> {
        for folder in ["apt/lists/partial", "apt/cache/archives/partial"] {
            fs::create_dir_all(work.join(folder)).map_err(at(work))?;
        }
        Ok(Self { tool: ExternalTool::find("apt-get", environment, work)?, work })
    }

    /// The machine's main Debian mirror. A new container has empty lists and returns nothing: then its sources are first read into
    /// our private lists.
    fn debian_mirror(&self) -> Result<String, Error> {
        const QUERY: [&str; 5] = ["indextargets", "--format", "$(REPO_URI)", "Created-By: Packages", "Label: Debian"];
        let query: Vec<&OsStr> = QUERY.iter().map(OsStr::new).collect();
        let output = self.tool.run(&query)?;
        if let Some(mirror) = first_line(&output) {
            return Ok(mirror);
        }
        self.run_private(&["update"], &[])?;
        first_line(&self.run_private(&QUERY, &[])?).ok_or(Error::NoDebianMirror)
    }

    fn download(&self, mirror: &str) -> Result<PathBuf, Error> {
        let sources = self.work.join("apt/sources.list");
        fs::write(&sources, format!("deb {mirror} {SUITE} main\n")).map_err(at(&sources))?;
        let only_ours = [option("Dir::Etc::sourcelist", &sources), "Dir::Etc::sourceparts=-".into()];
        self.run_private(&["update"], &only_ours)?;
        self.run_private(&["download", DEB], &only_ours)?;
        let mut files = fs::read_dir(self.work).map_err(at(self.work))?.flatten().map(|entry| entry.path());
        files
            .find(|path| path.extension() == Some(OsStr::new("deb")))
            .ok_or(Error::Incomplete { tool: "apt-get", what: "package" })
    }

    fn run_private(&self, command: &[&str], options: &[OsString]) -> Result<String, Error> {
        let ours = [
            option("Dir::State::lists", &self.work.join("apt/lists")),
            option("Dir::Cache", &self.work.join("apt/cache")),
            // As root, apt downloads as a user who cannot write into our folder, and warns.
            "APT::Sandbox::User=".into(),
            // Otherwise an unreachable mirror is only a warning, and the download fails with a misleading reason.
            "APT::Update::Error-Mode=any".into(),
        ];
        let mut arguments: Vec<&OsStr> = vec![OsStr::new("-qq")];
        for option in ours.iter().chain(options) {
            arguments.extend([OsStr::new("-o"), option]);
        }
        arguments.extend(command.iter().map(OsStr::new));
        self.tool.run(&arguments)
    }
}

fn option(name: &str, value: &Path) -> OsString {
    let mut option = OsString::from(name);
    option.push("=");
    option.push(value);
    option
}

fn first_line(text: &str) -> Option<String> {
    text.lines().map(str::trim).find(|line| !line.is_empty()).map(str::to_owned)
}
