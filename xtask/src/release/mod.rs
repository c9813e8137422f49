//! What a release consists of: the stripped binary with its debug symbols apart, the software bill of materials, licences, an archive and an image.

pub(crate) mod dist;
pub(crate) mod image;
mod licences;
pub(crate) mod root_filesystem;
mod sbom;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context;
use cargo_metadata::Metadata;

use crate::dependency_policy;
use crate::process::{cargo, read, run};

/// The variable that names the commit to `headwater version`.
const COMMIT_VARIABLE: &str = "HEADWATER_BUILD_COMMIT";

#[derive(clap::Args)]
pub(crate) struct BinaryArgs {
    /// Use this release binary instead of building one
    #[arg(long, value_name = "FILE")]
    binary: Option<PathBuf>,
}

/// The workspace as a release sees it.
pub(crate) struct Release {
    pub(crate) version: String,
    /// `None` outside a Git checkout.
    pub(crate) commit: Option<String>,
    pub(crate) target: PathBuf,
    metadata: Metadata,
}

impl Release {
    pub(crate) fn read(root: &Path) -> anyhow::Result<Self> {
        let metadata = dependency_policy::graph(root)?;
        let packages = metadata.workspace_packages();
        let headwater = packages.iter().find(|package| *package.name == "headwater").context("no crate `headwater`")?;
        Ok(Self {
            version: headwater.version.to_string(),
            commit: read(Command::new("git").args(["rev-parse", "HEAD"]).current_dir(root)).ok(),
            target: metadata.target_directory.clone().into(),
            metadata,
        })
    }

    /// Builds the binary, or takes the given one.
    fn binary(&self, root: &Path, args: &BinaryArgs) -> anyhow::Result<PathBuf> {
        if let Some(given) = &args.binary {
            return Ok(given.clone());
        }
        let mut build = cargo(root, ["build", "--release", "--locked", "--package", "headwater"]);
        if let Some(commit) = &self.commit {
            build.env(COMMIT_VARIABLE, commit);
        }
        run(&mut build)?;
        Ok(self.target.join("release/headwater"))
    }
}

/// Copies the binary without symbols to `stripped`, and its symbols to `symbols`. A debugger finds the symbols by name and checksum.
fn split_symbols(binary: &Path, stripped: &Path, symbols: &Path) -> anyhow::Result<()> {
    run(Command::new("objcopy").arg("--only-keep-debug").args([binary, symbols]))?;
    let mut link = std::ffi::OsString::from("--add-gnu-debuglink=");
    link.push(symbols);
    run(Command::new("objcopy").arg("--strip-all").arg(link).args([binary, stripped]))
}

/// An empty folder; whatever was there is removed.
fn create_empty(folder: &Path) -> anyhow::Result<()> {
    if folder.exists() {
        fs::remove_dir_all(folder).with_context(|| format!("failed to remove `{}`", folder.display()))?;
    }
    fs::create_dir_all(folder).with_context(|| format!("failed to create `{}`", folder.display()))
}

/// Writes a file, and the folders above it.
fn write(file: &Path, content: impl AsRef<[u8]>) -> anyhow::Result<()> {
    create_parent(file)?;
    fs::write(file, content).with_context(|| format!("failed to write `{}`", file.display()))
}

fn copy(from: &Path, to: &Path) -> anyhow::Result<()> {
    create_parent(to)?;
    fs::copy(from, to).with_context(|| format!("failed to copy `{}` to `{}`", from.display(), to.display()))?;
    Ok(())
}

fn create_parent(file: &Path) -> anyhow::Result<()> {
    let parent = file.parent().context("a file has a folder")?;
    fs::create_dir_all(parent).with_context(|| format!("failed to create `{}`", parent.display()))
}
