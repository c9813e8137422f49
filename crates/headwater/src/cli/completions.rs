//! `headwater completions`: prints completion scripts for shells.

use anyhow::Context;
use clap::CommandFactory;
use clap_complete::Shell;

use crate::output;

/// Print a completion script for your shell.
///
/// Save it where the shell finds it, and again after each update; then open a new shell:
///
///   bash: headwater completions bash > ~/.local/share/bash-completion/completions/headwater
///
///   zsh: headwater completions zsh > a folder of your `$fpath`, as `_headwater`
///
///   fish: headwater completions fish > ~/.config/fish/completions/headwater.fish
///
///   elvish, powershell: append it to the startup file of the shell
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Shell
    shell: Shell,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut super::Args::command(), "headwater", &mut script);
    output::print(String::from_utf8(script).context("the completion script is not UTF-8")?)?;
    Ok(())
}
