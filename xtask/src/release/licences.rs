//! The licence texts of everything that is built into the binary.

use std::fmt::Write;
use std::fs;

use anyhow::Context;

use super::Release;
use crate::dependency_policy;

/// Files whose text must go with a binary.
const NAMES: [&str; 4] = ["LICENSE", "LICENCE", "COPYING", "NOTICE"];

/// One text: each crate with its licence and the files that it brings.
pub(super) fn collect(release: &Release) -> anyhow::Result<String> {
    let mut text = String::from("Headwater contains these crates, under these licences.\n");
    for package in dependency_policy::reachable_packages(&release.metadata, false) {
        if package.source.is_none() {
            continue;
        }
        let license = package.license.as_deref().unwrap_or("see the text");
        write!(text, "\n{0}\n{1} {2}: {license}\n", "=".repeat(80), package.name, package.version)?;
        let folder = package.manifest_path.parent().context("a manifest has a folder")?;
        let mut files: Vec<_> = fs::read_dir(folder)
            .with_context(|| format!("failed to list `{folder}`"))?
            .filter_map(Result::ok)
            .collect();
        files.sort_by_key(fs::DirEntry::file_name);
        for file in files {
            let name = file.file_name().to_string_lossy().to_uppercase();
            if NAMES.iter().any(|known| name.starts_with(known)) && file.path().is_file() {
                let content =
                    fs::read(file.path()).with_context(|| format!("failed to read `{name}` of {}", package.name))?;
                write!(text, "\n{}\n", String::from_utf8_lossy(&content).trim_end())?;
            }
        }
    }
    Ok(text)
}
