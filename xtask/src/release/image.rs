//! `cargo xtask image`: builds the image without a registry, and runs it as a cluster would.
//!
//! Uses Debian's buildah, podman and runc with storage of their own below the target folder. The options are those that work inside a container or a
//! small virtual machine, too: no overlay file system, no systemd, and limits that are set explicitly.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::root_filesystem::{DATA, ImageFolders, USER};
use super::{BinaryArgs, Release, root_filesystem};
use crate::process::{read, run, step};
use crate::tools;

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    binary: BinaryArgs,
    /// Only build the image
    #[arg(long)]
    no_run: bool,
}

pub(crate) fn build(root: &Path, args: &Args) -> anyhow::Result<()> {
    step("tools: Debian packages", tools::install_image_tools)?;
    let release = Release::read(root)?;
    let folder = release.target.join("image");
    let folders = ImageFolders::in_folder(&folder);
    step("root file system", || root_filesystem::assemble(root, &release, &args.binary, &folders))?;
    let image = ImageStore::new(&folder);
    let name = format!("localhost/headwater:{}", release.version);
    let archive = folder.join(format!("headwater-{}.tar", release.version));
    step("image", || image.build(&release, &folders, &name, &archive))?;
    println!("{}: {:.1} MB", archive.display(), archive.metadata()?.len() as f64 / 1e6);
    if args.no_run { Ok(()) } else { step("run the image", || run_image(root, &image, &name)) }
}

/// The storage of buildah and podman.
struct ImageStore {
    options: Vec<String>,
}

impl ImageStore {
    fn new(folder: &Path) -> Self {
        let option = |name: &str, value: PathBuf| [name.to_owned(), value.display().to_string()];
        let folders = [option("--root", folder.join("storage")), option("--runroot", folder.join("run"))];
        let mut options: Vec<String> = folders.into_iter().flatten().collect();
        options.extend(["--storage-driver", "vfs"].map(str::to_owned));
        Self { options }
    }

    fn buildah<const N: usize>(&self, arguments: [&str; N]) -> Command {
        let mut command = Command::new("buildah");
        command.args(&self.options).args(arguments);
        command
    }

    /// podman with the options that every call needs.
    fn podman(&self) -> Vec<String> {
        let fixed = ["--cgroup-manager", "cgroupfs", "--runtime", "runc", "--events-backend", "file"];
        let program = std::iter::once("podman".to_owned());
        program.chain(self.options.iter().cloned()).chain(fixed.map(str::to_owned)).collect()
    }

    /// The same image as the last stage of `Dockerfile`.
    fn build(&self, release: &Release, folders: &ImageFolders, name: &str, archive: &Path) -> anyhow::Result<()> {
        let owner = format!("{USER}:{USER}");
        let container = read(&mut self.buildah(["from", "--pull=never", "scratch"]))?;
        run(self.buildah(["copy", "--quiet", &container]).arg(&folders.root).arg("/"))?;
        let data = format!("/{DATA}/");
        run(self.buildah(["copy", "--quiet", "--chown", &owner, &container]).arg(&folders.data).arg(&data))?;
        let mut config = self.buildah(["config", "--user", &owner, "--entrypoint", r#"["/usr/bin/headwater"]"#]);
        config.args(["--cmd", "run", "--workingdir", &format!("{data}headwater")]);
        let commit = release.commit.as_deref().unwrap_or_default();
        for (label, value) in [
            ("title", "headwater"),
            ("description", "Keeps MongoDB read models in step with a MongoDB event store, through Azure Service Bus"),
            ("version", &release.version),
            ("revision", commit),
            ("licenses", "Apache-2.0"),
        ] {
            config.arg("--label").arg(format!("org.opencontainers.image.{label}={value}"));
        }
        run(config.arg(&container))?;
        run(&mut self.buildah(["commit", "--quiet", "--rm", &container, name]))?;
        let _ = std::fs::remove_file(archive);
        run(&mut self.buildah(["push", "--quiet", name, &format!("oci-archive:{}:{name}", archive.display())]))
    }
}

/// The tests of the image: non-root, read-only, without capabilities, limited, and an end-to-end run.
fn run_image(root: &Path, image: &ImageStore, name: &str) -> anyhow::Result<()> {
    let python = tools::install_python(root)?;
    let runtime = tokio::runtime::Runtime::new()?;
    let (mongod, variables) = runtime.block_on(testkit::mongo::SharedMongoServer::start())?;
    let mut command = Command::new(python);
    command.args(["-m", "pytest", "--quiet", "-p", "no:cacheprovider"]).arg(root.join("tests/image"));
    command.envs(variables).env("PYTHONDONTWRITEBYTECODE", "1").env("HEADWATER_IMAGE", name);
    command.env("HEADWATER_PODMAN", image.podman().join("\n")).env("HEADWATER_BIN", "/usr/bin/headwater");
    let result = run(&mut command);
    drop(mongod);
    result
}
