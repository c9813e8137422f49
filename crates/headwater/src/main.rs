//! The binary: reading starts here. Phases only: arguments, telemetry, runtime, the command, the exit code.

mod cli;
mod signal;

use std::process::ExitCode;

use clap::Parser;
use tracing_subscriber::EnvFilter;

fn main() -> ExitCode {
    let arguments = cli::Arguments::parse();
    start_telemetry();
    match run(arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tell(&error);
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: cli::Arguments) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(cli::run(arguments.command))
}

/// Warnings by default; `RUST_LOG` says otherwise.
fn start_telemetry() {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("warn"));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
}

/// One line per cause, the outermost first.
fn tell(error: &anyhow::Error) {
    eprintln!("error: {error}");
    for cause in error.chain().skip(1) {
        eprintln!("caused by: {cause}");
    }
}
