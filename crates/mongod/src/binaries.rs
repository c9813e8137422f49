//! The programs of one MongoDB build on this machine.

use std::path::{Path, PathBuf};

use crate::package::{LIBRARY_FOLDER, Package};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Binaries {
    pub mongod: PathBuf,
    /// Absent where only `mongod` is on the PATH; needed for sharded clusters alone.
    pub mongos: Option<PathBuf>,
    /// Libraries the host lacks: goes in front of `LD_LIBRARY_PATH`.
    pub library_path: Option<PathBuf>,
}

impl Binaries {
    /// A folder laid out as the cache is: `mongod`, `mongos`, and `lib` where libraries are needed. Nothing is checked:
    /// this is for handing a folder that has been verified on to other processes of the same run.
    pub fn in_folder(folder: &Path) -> Self {
        let present = |name: &str| Some(folder.join(name)).filter(|path| path.exists());
        Self { mongod: folder.join("mongod"), mongos: present("mongos"), library_path: present(LIBRARY_FOLDER) }
    }

    /// The folder that [`Self::in_folder`] understands.
    pub fn folder(&self) -> &Path {
        self.mongod.parent().expect("mongod was found inside a folder")
    }

    pub(crate) fn of_package(folder: &Path, package: &Package) -> Self {
        Self {
            mongod: folder.join("mongod"),
            mongos: Some(folder.join("mongos")),
            library_path: (!package.libraries.is_empty()).then(|| folder.join(LIBRARY_FOLDER)),
        }
    }
}
