//! Brings what the suites need on a machine that has Rust, gcc, Node/npm, Python 3 and apt, and nothing of ours.
//!
//! A tool that is there is used; a tool that is missing is fetched by name through its ordinary client; a tool that
//! cannot be had is an error. Nothing is ever skipped for want of a tool. What we fetch lies in the per-user cache, in
//! folders named after the digest of the list that filled them: a changed list fills a new folder.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};
use mongod::{Environment, ProgressStyle};
use sha2::{Digest, Sha256};

use crate::steps::{answers, cargo, run, step};

/// The version the gate was written with; any that answers is used.
const NEXTEST: &str = "0.9.143";

/// What the npm packages ask for.
const OLDEST_NODE: u32 = 20;

/// Debian packages, and how to tell that one is there.
const DEBIAN: &[(&str, Sign)] = &[
    ("chromium", Sign::Program("chromium")),
    ("python3-venv", Sign::PythonModule("ensurepip")),
    // An AMQP 1.0 server we did not write, for the Service Bus client.
    ("rabbitmq-server", Sign::File("/usr/lib/rabbitmq/bin/rabbitmq-server")),
];

enum Sign {
    Program(&'static str),
    /// Debian puts some programs where PATH does not lead.
    File(&'static str),
    /// Debian's Python comes in parts.
    PythonModule(&'static str),
}

impl Sign {
    fn is_there(&self, environment: &Environment) -> bool {
        match self {
            Self::Program(name) => environment.find_program(name).is_some(),
            Self::File(path) => Path::new(path).exists(),
            Self::PythonModule(name) => answers("python3", &["-c", &format!("import {name}")]),
        }
    }
}

pub(crate) struct Tools {
    /// A Python with the packages of `tests/python/requirements.txt`.
    pub(crate) python: PathBuf,
    /// A folder holding `node_modules` for `tests/javascript`.
    pub(crate) node: PathBuf,
    /// A browser for tests.
    pub(crate) chromium: PathBuf,
    /// Extra folder for PATH, where cargo's own plug-ins were installed.
    pub(crate) cargo_bin: PathBuf,
}

impl Tools {
    pub(crate) fn bring_all(root: &Path) -> anyhow::Result<Self> {
        let environment = Environment::from_process();
        let cache = environment.cache_folder().context("neither HEADWATER_CACHE nor HOME says where to keep tools")?;
        let cache = cache.join("tools");
        fs::create_dir_all(&cache).with_context(|| format!("create `{}`", cache.display()))?;
        let cargo_bin = step("tools: cargo-nextest", || nextest(root, &cache))?;
        step("tools: Debian packages", || debian(&environment))?;
        let python = step("tools: Python packages", || python(root, &cache))?;
        let node = step("tools: npm packages", || node(root, &cache))?;
        step("tools: mongod", || Ok(mongod::provide(None, &environment, ProgressStyle::to_stderr())?))?;
        let chromium = environment.find_program("chromium").context("find chromium")?;
        Ok(Self { python, node, chromium, cargo_bin })
    }

    /// PATH with our own plug-ins in front.
    pub(crate) fn path(&self) -> anyhow::Result<std::ffi::OsString> {
        let old = std::env::var_os("PATH").unwrap_or_default();
        let folders = std::iter::once(self.cargo_bin.clone()).chain(std::env::split_paths(&old));
        std::env::join_paths(folders).context("join PATH")
    }
}

fn nextest(root: &Path, cache: &Path) -> anyhow::Result<PathBuf> {
    let folder = cache.join(format!("nextest-{NEXTEST}"));
    let own = folder.join("bin/cargo-nextest");
    if !answers("cargo-nextest", &["nextest", "--version"]) && !own.exists() {
        println!("cargo-nextest is missing: building {NEXTEST}, some minutes");
        run(cargo(root, ["install", "--locked", "--version", NEXTEST, "cargo-nextest", "--root"]).arg(&folder))?;
    }
    Ok(folder.join("bin"))
}

fn debian(environment: &Environment) -> anyhow::Result<()> {
    let missing = || DEBIAN.iter().filter(|(_, sign)| !sign.is_there(environment)).map(|(package, _)| *package);
    let wanted: Vec<_> = missing().collect();
    if wanted.is_empty() {
        return Ok(());
    }
    let list = wanted.join(" ");
    if environment.find_program("apt-get").is_none() {
        bail!("missing, and there is no apt-get to install them: {list}");
    }
    println!("installing {list}");
    let advice = || format!("as root, or by hand: apt-get install {list}");
    run(Command::new("apt-get").args(["update", "-qq"])).with_context(advice)?;
    run(Command::new("apt-get")
        .args(["install", "-y", "-qq", "--no-install-recommends"])
        .args(&wanted)
        .env("DEBIAN_FRONTEND", "noninteractive"))
    .with_context(advice)?;
    match missing().next() {
        None => Ok(()),
        Some(package) => bail!("`{package}` was installed and still does not answer"),
    }
}

fn python(root: &Path, cache: &Path) -> anyhow::Result<PathBuf> {
    let list = root.join("tests/python/requirements.txt");
    let folder = cache.join(format!("python-{}", digest(&[&list])?));
    filled(&folder, |folder| {
        run(Command::new("python3").args(["-m", "venv"]).arg(folder))?;
        run(Command::new(folder.join("bin/pip"))
            .args(["install", "--quiet", "--disable-pip-version-check", "--requirement"])
            .arg(&list))
    })?;
    Ok(folder.join("bin/python"))
}

fn node(root: &Path, cache: &Path) -> anyhow::Result<PathBuf> {
    let newer = format!("process.exit(parseInt(process.versions.node) >= {OLDEST_NODE} ? 0 : 1)");
    if !answers("node", &["-e", &newer]) {
        bail!("Node {OLDEST_NODE} or newer is needed");
    }
    let source = root.join("tests/javascript");
    let lists = [source.join("package.json"), source.join("package-lock.json")];
    let folder = cache.join(format!("node-{}", digest(&[&lists[0], &lists[1]])?));
    filled(&folder, |folder| {
        fs::create_dir_all(folder)?;
        for list in &lists {
            let name = list.file_name().expect("a list has a name");
            fs::copy(list, folder.join(name)).with_context(|| format!("copy `{}`", list.display()))?;
        }
        run(Command::new("npm").args(["ci", "--no-audit", "--no-fund", "--loglevel=error"]).current_dir(folder))
    })?;
    Ok(folder)
}

/// Fills a folder once: a mark written last says that it is whole, so a run that was cut off starts it anew.
fn filled(folder: &Path, fill: impl FnOnce(&Path) -> anyhow::Result<()>) -> anyhow::Result<()> {
    let mark = folder.join(".whole");
    if mark.exists() {
        println!("found in the cache");
        return Ok(());
    }
    if folder.exists() {
        fs::remove_dir_all(folder).with_context(|| format!("remove the half-filled `{}`", folder.display()))?;
    }
    fill(folder)?;
    fs::write(&mark, "").with_context(|| format!("mark `{}` as whole", folder.display()))
}

fn digest(files: &[&Path]) -> anyhow::Result<String> {
    let mut hash = Sha256::new();
    for file in files {
        hash.update(fs::read(file).with_context(|| format!("read `{}`", file.display()))?);
    }
    Ok(hash.finalize().iter().take(8).map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
mod tests {
    use super::filled;

    #[test]
    fn a_folder_that_was_cut_off_half_way_is_filled_anew() {
        let place = tempfile::tempdir().expect("temporary folder");
        let folder = place.path().join("tool");
        let first = filled(&folder, |folder| {
            std::fs::create_dir(folder)?;
            std::fs::write(folder.join("half"), "")?;
            anyhow::bail!("cut off")
        });
        assert!(first.is_err());

        filled(&folder, |folder| Ok(std::fs::create_dir(folder)?)).expect("second try");
        assert!(!folder.join("half").exists(), "nothing of the first try is left");

        filled(&folder, |_| anyhow::bail!("a whole folder is not filled again")).expect("found in the cache");
    }
}
