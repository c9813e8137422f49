//! Installs the tools of the suites on a machine with Rust, gcc, Node/npm, Python 3 and apt.
//!
//! An installed tool is used; a missing tool is installed by name through its package manager; a tool that cannot be installed is
//! an error. No test is ever skipped because of a missing tool. Downloads go to the per-user cache, in folders named after the
//! digest of their package list: a changed list fills a new folder.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};
use mongod::{Environment, ProgressStyle};
use sha2::{Digest, Sha256};

use crate::process::{cargo, read, run, step, succeeds};

/// The version of the gate. Another version may report results in another way.
const NEXTEST: &str = "0.9.143";

/// The oldest Node that the npm packages support.
const OLDEST_NODE: u32 = 20;

/// Debian packages, and how to detect that one is installed.
const DEBIAN: &[(&str, InstallCheck)] = &[
    ("chromium", InstallCheck::Program("chromium")),
    // Makes certificates in tests.
    ("openssl", InstallCheck::Program("openssl")),
    // Tests and runs the alert rules of the chart; promtool comes with it.
    ("prometheus", InstallCheck::Program("promtool")),
    ("python3-venv", InstallCheck::PythonModule("ensurepip")),
    // A third-party AMQP 1.0 server, for tests of the Service Bus client.
    ("rabbitmq-server", InstallCheck::File("/usr/lib/rabbitmq/bin/rabbitmq-server")),
];

/// Debian packages that build and run the image.
const IMAGE_TOOLS: &[(&str, InstallCheck)] = &[
    ("binutils", InstallCheck::Program("objcopy")),
    ("buildah", InstallCheck::Program("buildah")),
    ("podman", InstallCheck::Program("podman")),
    ("runc", InstallCheck::File("/usr/sbin/runc")),
    ("python3-venv", InstallCheck::PythonModule("ensurepip")),
];

/// Debian packages of Debezium's engine, a peer of the producer bench.
const JAVA: &[(&str, InstallCheck)] = &[("openjdk-17-jdk-headless", InstallCheck::Program("javac"))];

enum InstallCheck {
    Program(&'static str),
    /// Debian installs some programs outside the PATH.
    File(&'static str),
    /// Debian splits Python into packages.
    PythonModule(&'static str),
}

impl InstallCheck {
    fn is_installed(&self, environment: &Environment) -> bool {
        match self {
            Self::Program(name) => environment.find_program(name).is_some(),
            Self::File(path) => Path::new(path).exists(),
            Self::PythonModule(name) => succeeds("python3", &["-c", &format!("import {name}")]),
        }
    }
}

pub(crate) struct Tools {
    /// A Python with the packages of `tests/python/requirements.txt`.
    pub(crate) python: PathBuf,
    /// The spelling checker, from the same list.
    pub(crate) typos: PathBuf,
    /// A folder holding `node_modules` for `tests/javascript`.
    pub(crate) node: PathBuf,
    /// A browser for tests.
    pub(crate) chromium: PathBuf,
    /// Extra folder for PATH with installed cargo plug-ins.
    pub(crate) cargo_bin: PathBuf,
}

impl Tools {
    pub(crate) fn install_all(root: &Path) -> anyhow::Result<Self> {
        let environment = Environment::from_process();
        let cache = cache_folder(&environment)?;
        let cargo_bin = step("tools: cargo-nextest", || nextest(root, &cache))?;
        step("tools: Debian packages", || debian(&environment, DEBIAN))?;
        let python = step("tools: Python packages", || python(root, &cache))?;
        let node = step("tools: npm packages", || node(root, &cache))?;
        step("tools: mongod", || Ok(mongod::provide(None, &environment, ProgressStyle::to_stderr())?))?;
        let chromium = environment.find_program("chromium").context("chromium is not on the PATH")?;
        let typos = python.with_file_name("typos");
        Ok(Self { python, typos, node, chromium, cargo_bin })
    }

    /// PATH with the installed plug-ins first.
    pub(crate) fn path(&self) -> anyhow::Result<std::ffi::OsString> {
        let old = std::env::var_os("PATH").unwrap_or_default();
        let folders = std::iter::once(self.cargo_bin.clone()).chain(std::env::split_paths(&old));
        std::env::join_paths(folders).context("failed to join PATH")
    }
}

/// The tools of `cargo xtask image`.
pub(crate) fn install_image_tools() -> anyhow::Result<()> {
    debian(&Environment::from_process(), IMAGE_TOOLS)
}

/// A Java compiler and runtime.
pub(crate) fn install_java() -> anyhow::Result<()> {
    debian(&Environment::from_process(), JAVA)
}

/// A Python with the packages of `tests/python/requirements.txt`.
pub(crate) fn install_python(root: &Path) -> anyhow::Result<PathBuf> {
    python(root, &cache_folder(&Environment::from_process())?)
}

pub(crate) fn cache_folder(environment: &Environment) -> anyhow::Result<PathBuf> {
    let cache = environment
        .cache_folder()
        .context("neither HEADWATER_CACHE nor HOME is set, so there is no folder for tools")?
        .join("tools");
    fs::create_dir_all(&cache).with_context(|| format!("failed to create `{}`", cache.display()))?;
    Ok(cache)
}

fn nextest(root: &Path, cache: &Path) -> anyhow::Result<PathBuf> {
    let folder = cache.join(format!("nextest-{NEXTEST}"));
    let own = folder.join("bin/cargo-nextest");
    if installed_nextest().as_deref() != Some(NEXTEST) && !own.exists() {
        println!("cargo-nextest {NEXTEST} is missing; building it takes some minutes");
        run(cargo(root, ["install", "--locked", "--version", NEXTEST, "cargo-nextest", "--root"]).arg(&folder))?;
    }
    Ok(folder.join("bin"))
}

/// The version of the installed nextest: `cargo-nextest 0.9.143 (…)`.
fn installed_nextest() -> Option<String> {
    let printed = read(Command::new("cargo-nextest").args(["nextest", "--version"])).ok()?;
    printed.lines().next()?.split_whitespace().nth(1).map(str::to_owned)
}

fn debian(environment: &Environment, packages: &[(&'static str, InstallCheck)]) -> anyhow::Result<()> {
    let missing = || packages.iter().filter(|(_, sign)| !sign.is_installed(environment)).map(|(package, _)| *package);
    let wanted: Vec<_> = missing().collect();
    if wanted.is_empty() {
        return Ok(());
    }
    let list = wanted.join(" ");
    if environment.find_program("apt-get").is_none() {
        bail!("these packages are missing, and there is no apt-get to install them: {list}");
    }
    println!("installing {list}");
    let advice = || format!("run as root, or install by hand: apt-get install {list}");
    run(Command::new("apt-get").args(["update", "-qq"])).with_context(advice)?;
    run(Command::new("apt-get")
        .args(["install", "-y", "-qq", "--no-install-recommends"])
        .args(&wanted)
        .env("DEBIAN_FRONTEND", "noninteractive"))
    .with_context(advice)?;
    match missing().next() {
        None => Ok(()),
        Some(package) => bail!("`{package}` was installed but is still not found"),
    }
}

fn python(root: &Path, cache: &Path) -> anyhow::Result<PathBuf> {
    let list = root.join("tests/python/requirements.txt");
    let folder = cache.join(format!("python-{}", digest(&[&list])?));
    fill_once(&folder, |folder| {
        run(Command::new("python3").args(["-m", "venv"]).arg(folder))?;
        run(Command::new(folder.join("bin/pip"))
            .args(["install", "--quiet", "--disable-pip-version-check", "--requirement"])
            .arg(&list))?;
        let requirements = std::fs::read_to_string(&list).context("failed to read the list of Python packages")?;
        let celery = requirements.lines().find(|line| line.starts_with("celery=="));
        // Only the source package has the example that a test runs.
        run(Command::new(folder.join("bin/pip"))
            .args(["download", "--quiet", "--disable-pip-version-check", "--no-deps", "--no-binary", "celery"])
            .arg(celery.context("celery is not in the list of Python packages")?)
            .arg("--dest")
            .arg(folder.join("sources")))
    })?;
    Ok(folder.join("bin/python"))
}

fn node(root: &Path, cache: &Path) -> anyhow::Result<PathBuf> {
    let newer = format!("process.exit(parseInt(process.versions.node) >= {OLDEST_NODE} ? 0 : 1)");
    if !succeeds("node", &["-e", &newer]) {
        bail!("Node {OLDEST_NODE} or newer is required");
    }
    let source = root.join("tests/javascript");
    let lists = [source.join("package.json"), source.join("package-lock.json")];
    let folder = cache.join(format!("node-{}", digest(&[&lists[0], &lists[1]])?));
    fill_once(&folder, |folder| {
        fs::create_dir_all(folder)?;
        for list in &lists {
            let name = list.file_name().expect("a list has a name");
            fs::copy(list, folder.join(name)).with_context(|| format!("failed to copy `{}`", list.display()))?;
        }
        run(Command::new("npm").args(["ci", "--no-audit", "--no-fund", "--loglevel=error"]).current_dir(folder))
    })?;
    Ok(folder)
}

/// Fills a folder once. A marker file, written last, shows that it is complete; an interrupted run starts again.
pub(crate) fn fill_once(folder: &Path, fill: impl FnOnce(&Path) -> anyhow::Result<()>) -> anyhow::Result<()> {
    let marker = folder.join(".whole");
    if marker.exists() {
        println!("found in the cache");
        return Ok(());
    }
    if folder.exists() {
        fs::remove_dir_all(folder)
            .with_context(|| format!("failed to remove the incomplete `{}`", folder.display()))?;
    }
    fill(folder)?;
    fs::write(&marker, "").with_context(|| format!("failed to mark `{}` as complete", folder.display()))
}

pub(crate) fn digest(files: &[&Path]) -> anyhow::Result<String> {
    let mut content = Vec::new();
    for file in files {
        content.extend(fs::read(file).with_context(|| format!("failed to read `{}`", file.display()))?);
    }
    Ok(hex_digest(&content)[..16].to_owned())
}

/// SHA-256 in hexadecimal digits.
pub(crate) fn hex_digest(content: &[u8]) -> String {
    Sha256::digest(content).iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::fill_once;

    #[test]
    fn an_interrupted_folder_is_filled_again() {
        let place = tempfile::tempdir().expect("temporary folder");
        let folder = place.path().join("tool");
        let first = fill_once(&folder, |folder| {
            std::fs::create_dir(folder)?;
            std::fs::write(folder.join("half"), "")?;
            anyhow::bail!("interrupted")
        });
        assert!(first.is_err());

        fill_once(&folder, |folder| Ok(std::fs::create_dir(folder)?)).expect("second attempt");
        assert!(!folder.join("half").exists(), "nothing of the first attempt is left");

        fill_once(&folder, |_| anyhow::bail!("a complete folder is not filled again")).expect("found in the cache");
    }
}
