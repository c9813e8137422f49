//! `headwater completions`: what lets a shell complete commands and flags.

use anyhow::Context;
use clap::CommandFactory;
use clap_complete::Shell;

use crate::output;

/// Print a script that lets your shell complete commands and flags.
///
/// Write it where the shell looks, once, and again after an update; then open a new shell:
///
///   bash: headwater completions bash > ~/.local/share/bash-completion/completions/headwater
///
///   zsh: headwater completions zsh > a folder of your `$fpath`, as `_headwater`
///
///   fish: headwater completions fish > ~/.config/fish/completions/headwater.fish
///
///   elvish, powershell: append it to the file the shell reads at its start
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Which shell.
    shell: Shell,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut super::Args::command(), "headwater", &mut script);
    output::print(String::from_utf8(script).context("a script is text")?)?;
    Ok(())
}
