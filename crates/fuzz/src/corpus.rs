//! Inputs that are kept in the repository: past findings and good examples, one file each, by target.

use std::path::{Path, PathBuf};
use std::{fs, io};

/// The folder of this repository's inputs.
pub fn corpus_folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus")
}

/// In the order of their names. A target without a folder has none.
pub fn load_corpus(target: &str) -> io::Result<Vec<Vec<u8>>> {
    let entries = match fs::read_dir(corpus_folder().join(target)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(vec![]),
        entries => entries?,
    };
    let mut paths = entries.map(|entry| entry.map(|entry| entry.path())).collect::<Result<Vec<_>, _>>()?;
    paths.sort();
    paths.iter().map(fs::read).collect()
}

/// Adds an input to a folder of inputs by target, such as [`corpus_folder`], and returns its file. The name is a digest of the content: the same input is kept once.
pub fn save_finding(folder: &Path, target: &str, input: &[u8]) -> io::Result<PathBuf> {
    let folder = folder.join(target);
    fs::create_dir_all(&folder)?;
    // FNV-1a: a name for a file, not a protection.
    let digest = input
        .iter()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3));
    let path = folder.join(format!("{digest:016x}"));
    fs::write(&path, input)?;
    Ok(path)
}
