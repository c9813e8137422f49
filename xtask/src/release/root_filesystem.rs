//! The files of the image: the stripped binary, the shared libraries it loads, a user, licences and the software bill of materials. No shell.
//!
//! `Dockerfile` and `cargo xtask image` both use this, so both images have the same layout.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::bail;

use super::{BinaryArgs, Release, copy, create_empty, licences, sbom, split_symbols, write};
use crate::process::read;

/// The user of the image, the same number as in the chart.
pub(super) const USER: &str = "65532";
/// Its folder `headwater` belongs to the user, and so does a new named volume that is mounted there.
pub(super) const DATA: &str = "var/lib";
const DOCUMENTS: &str = "usr/share/doc/headwater";

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Folder to fill; what is in it is removed
    folder: PathBuf,
    #[command(flatten)]
    binary: BinaryArgs,
}

/// Three folders, which the image gets in this order, or not at all.
pub(super) struct ImageFolders {
    /// Belongs to root.
    pub(super) root: PathBuf,
    /// Goes to [`DATA`] and belongs to the user. Apart, because an image tool sets the owner of what it copies and not of a folder that exists.
    pub(super) data: PathBuf,
    /// The debug symbols stay outside the image.
    pub(super) symbols: PathBuf,
}

impl ImageFolders {
    pub(super) fn in_folder(folder: &Path) -> Self {
        let [root, data, symbols] = ["root", "data", "symbols"].map(|name| folder.join(name));
        Self { root, data, symbols }
    }
}

pub(crate) fn write_folders(root: &Path, args: &Args) -> anyhow::Result<()> {
    assemble(root, &Release::read(root)?, &args.binary, &ImageFolders::in_folder(&args.folder))
}

pub(super) fn assemble(
    root: &Path,
    release: &Release,
    binary: &BinaryArgs,
    folders: &ImageFolders,
) -> anyhow::Result<()> {
    let binary = release.binary(root, binary)?;
    let files = &folders.root;
    for empty in [files, &folders.symbols, &folders.data.join("headwater")] {
        create_empty(empty)?;
    }
    for empty in ["usr/bin", "tmp", DATA] {
        create_empty(&files.join(empty))?;
    }
    split_symbols(&binary, &files.join("usr/bin/headwater"), &folders.symbols.join("headwater.debug"))?;
    let libraries = shared_libraries(&binary)?;
    for library in &libraries {
        copy(library, &files.join(library.strip_prefix("/")?))?;
    }
    write(&files.join("etc/passwd"), format!("headwater:x:{USER}:{USER}::/{DATA}/headwater:/sbin/nologin\n"))?;
    write(&files.join("etc/group"), format!("headwater:x:{USER}:\n"))?;
    copy(&root.join("LICENSE"), &files.join(DOCUMENTS).join("LICENSE"))?;
    write(&files.join(DOCUMENTS).join("THIRD-PARTY-LICENSES.txt"), licences::collect(release)?)?;
    let libraries: Vec<_> = libraries.iter().map(PathBuf::as_path).collect();
    let sbom = sbom::describe(root, release, &libraries)?;
    write(&files.join(DOCUMENTS).join("sbom.cdx.json"), format!("{sbom:#}\n"))
}

/// What the dynamic loader loads, and the loader itself.
fn shared_libraries(binary: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let libraries = parse_ldd(&read(Command::new("ldd").arg(binary))?);
    if libraries.is_empty() {
        bail!("`{}` loads no shared library; the image is made for a binary that does", binary.display());
    }
    Ok(libraries)
}

/// Lines such as `libc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x…)` and `/lib64/ld-linux-x86-64.so.2 (0x…)`.
fn parse_ldd(printed: &str) -> Vec<PathBuf> {
    let path = |line: &str| {
        let found = line.split_once("=>").map_or(line, |(_, found)| found).trim();
        found.starts_with('/').then(|| PathBuf::from(found.split(" (").next().unwrap_or(found)))
    };
    printed.lines().filter_map(path).collect()
}

#[cfg(test)]
mod tests {
    use super::parse_ldd;

    #[test]
    fn libraries_and_the_loader_are_read_from_ldd() {
        let printed = "\tlinux-vdso.so.1 (0x00007f49)\n\tlibm.so.6 => /lib/x86_64-linux-gnu/libm.so.6 (0x00007f49)\n\
                       \t/lib64/ld-linux-x86-64.so.2 (0x00007f49)\n";
        let found: Vec<_> = parse_ldd(printed).into_iter().map(|path| path.display().to_string()).collect();
        assert_eq!(found, ["/lib/x86_64-linux-gnu/libm.so.6", "/lib64/ld-linux-x86-64.so.2"]);
    }
}
