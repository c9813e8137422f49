//! `cargo xtask dist`: the archive of a release.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context;

use super::{BinaryArgs, Release, copy, create_empty, licences, sbom, split_symbols, write};
use crate::process::{read, run};
use crate::tools::hex_digest;

/// Shell, and the name by which the shell finds its completions.
const COMPLETIONS: [(&str, &str); 3] = [("bash", "headwater"), ("zsh", "_headwater"), ("fish", "headwater.fish")];

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    binary: BinaryArgs,
}

pub(crate) fn make_archive(root: &Path, args: &Args) -> anyhow::Result<()> {
    let release = Release::read(root)?;
    let (os, arch) = (std::env::consts::OS, std::env::consts::ARCH);
    let name = format!("headwater-{}-{arch}-{os}", release.version);
    let target = release.target.join("dist");
    let folder = target.join(&name);
    create_empty(&target)?;
    fs::create_dir(&folder).context("failed to create the folder of the archive")?;
    fill(root, &release, &args.binary, &folder, &target)?;
    write(&folder.join("SHA256SUMS"), checksums(&folder, &list_files(&folder)?)?)?;
    // Sorted, and without the owner and the time of this machine: the same input makes the same archive.
    let archive = format!("{name}.tar.gz");
    let mut tar = Command::new("tar");
    tar.args([
        "--sort=name",
        "--owner=0",
        "--group=0",
        "--numeric-owner",
        "--mtime=@0",
        "--use-compress-program=gzip -n",
    ]);
    run(tar.arg("--create").arg("--file").arg(target.join(&archive)).arg("--directory").arg(&target).arg(&name))?;
    let published = [archive.clone(), format!("{name}.debug")];
    write(&target.join("SHA256SUMS"), checksums(&target, &published.map(PathBuf::from))?)?;
    println!("{}", target.join(archive).display());
    Ok(())
}

fn fill(root: &Path, release: &Release, args: &BinaryArgs, folder: &Path, target: &Path) -> anyhow::Result<()> {
    let built = release.binary(root, args)?;
    let binary = folder.join("bin/headwater");
    create_empty(&folder.join("bin"))?;
    let symbols =
        target.join(format!("{}.debug", folder.file_name().context("a folder has a name")?.to_string_lossy()));
    split_symbols(&built, &binary, &symbols)?;
    let print = |arguments: &[&str]| read(Command::new(&binary).args(arguments));
    for (shell, file) in COMPLETIONS {
        write(&folder.join("completions").join(shell).join(file), print(&["completions", shell])? + "\n")?;
    }
    let manual = folder.join("man/man1");
    create_empty(&manual)?;
    run(Command::new(&binary).arg("man").arg(&manual))?;
    write(&folder.join("headwater.yaml"), print(&["config", "reference"])? + "\n")?;
    write(&folder.join("headwater.schema.json"), print(&["config", "schema"])? + "\n")?;
    write(&folder.join("THIRD-PARTY-LICENSES.txt"), licences::collect(release)?)?;
    write(&folder.join("sbom.cdx.json"), format!("{:#}\n", sbom::describe(root, release, &[])?))?;
    for file in ["LICENSE", "README.md", "CHANGELOG.md"] {
        copy(&root.join(file), &folder.join(file))?;
    }
    for tree in ["charts/headwater", "docs"] {
        copy_tree(&root.join(tree), &folder.join(tree))?;
    }
    Ok(())
}

fn copy_tree(from: &Path, to: &Path) -> anyhow::Result<()> {
    for file in list_files(from)? {
        copy(&from.join(&file), &to.join(&file))?;
    }
    Ok(())
}

/// Every file below the folder, relative to it, sorted.
fn list_files(folder: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let (mut files, mut pending) = (Vec::new(), vec![folder.to_owned()]);
    while let Some(next) = pending.pop() {
        for entry in fs::read_dir(&next).with_context(|| format!("failed to list `{}`", next.display()))? {
            let path = entry?.path();
            if path.is_dir() {
                pending.push(path);
            } else {
                files.push(path.strip_prefix(folder)?.to_owned());
            }
        }
    }
    files.sort();
    Ok(files)
}

/// In the format of `sha256sum --check`.
fn checksums(folder: &Path, files: &[PathBuf]) -> anyhow::Result<String> {
    let line = |file: &PathBuf| {
        let content = fs::read(folder.join(file)).with_context(|| format!("failed to read `{}`", file.display()))?;
        Ok(format!("{}  {}\n", hex_digest(&content), file.display()))
    };
    files.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::{checksums, list_files};

    #[test]
    fn checksums_are_accepted_by_sha256sum() {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::create_dir(folder.path().join("sub")).expect("a folder");
        std::fs::write(folder.path().join("sub/one"), "1").expect("a file");
        std::fs::write(folder.path().join("two"), "2").expect("a file");
        let files = list_files(folder.path()).expect("a list");
        std::fs::write(folder.path().join("sums"), checksums(folder.path(), &files).expect("sums")).expect("a file");
        let mut check = std::process::Command::new("sha256sum");
        check.args(["--check", "--strict", "sums"]).current_dir(&folder);
        assert!(check.output().expect("sha256sum runs").status.success());
    }
}
