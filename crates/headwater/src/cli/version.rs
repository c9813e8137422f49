//! `headwater version`: shows which build this is.

use serde_json::json;

use crate::output;

/// Set by `cargo xtask dist`, `cargo xtask image` and `Dockerfile`.
const COMMIT: Option<&str> = option_env!("HEADWATER_BUILD_COMMIT");

/// Print the version, and how this binary was built.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let version = env!("CARGO_PKG_VERSION");
    let commit = COMMIT.filter(|commit| !commit.is_empty());
    let (os, arch) = (std::env::consts::OS, std::env::consts::ARCH);
    if args.json {
        let formats = json!({ "status": admin::status::FORMAT, "message": pipeline::envelope::FORMAT });
        let build = json!({ "version": version, "commit": commit, "os": os, "arch": arch, "formats": formats });
        output::print_json(&build)?;
    } else {
        output::print_line(format_args!("headwater {version} ({}, {os} {arch})", commit.unwrap_or("unknown commit")))?;
    }
    Ok(())
}
