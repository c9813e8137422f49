//! The programs of one MongoDB build on this machine.

use std::path::{Path, PathBuf};

use crate::package::{LIBRARY_FOLDER, Package};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProgramPaths {
    pub mongod: PathBuf,
    /// `None` if only `mongod` is on the PATH. Only sharded clusters need it.
    pub mongos: Option<PathBuf>,
    /// Libraries that the host lacks; added to `LD_LIBRARY_PATH`.
    pub library_path: Option<PathBuf>,
}

impl ProgramPaths {
    /// The programs in a folder with the layout of the cache: `mongod`, `mongos`, and `lib` if libraries are needed. Checks
    /// nothing: this passes a verified folder on to other processes of the same run.
    pub fn in_folder(folder: &Path) -> Self {
        let present = |name: &str| Some(folder.join(name)).filter(|path| path.exists());
        Self { mongod: folder.join("mongod"), mongos: present("mongos"), library_path: present(LIBRARY_FOLDER) }
    }

    /// The folder for [`Self::in_folder`].
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
