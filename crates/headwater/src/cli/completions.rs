//! `headwater completions`: what lets a shell complete commands and flags.

use std::io::{self, Write};

use anyhow::Context;
use clap::{Args, CommandFactory};
use clap_complete::Shell;

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
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Which shell.
    shell: Shell,
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(arguments.shell, &mut super::Arguments::command(), "headwater", &mut script);
    match io::stdout().write_all(&script).and_then(|()| io::stdout().flush()) {
        // A reader that has gone, as `head` does, is no error of ours.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        written => written.context("print the script"),
    }
}
