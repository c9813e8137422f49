//! `headwater man`: writes the manual pages.

use std::path::PathBuf;

use anyhow::Context;
use clap::CommandFactory;

/// Write the manual pages: one for each command.
///
///   headwater man ~/.local/share/man/man1
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Folder for the pages; it must exist
    #[arg(value_name = "FOLDER")]
    folder: PathBuf,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    clap_mangen::generate_to(super::Args::command(), &args.folder)
        .with_context(|| format!("failed to write manual pages to `{}`", args.folder.display()))
}
