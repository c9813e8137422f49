//! The binary: reading starts here. Phases only: args, telemetry, runtime, the command, the exit code.

mod admin;
mod apply_observer;
mod check;
mod cli;
mod config;
mod connect;
mod dev;
mod event_traces;
mod exit;
mod operator;
mod oplog;
mod output;
mod parked;
mod pods;
mod run;
mod shop;
mod signal;
mod status;
mod step_down;
mod topology;

use std::io::{IsTerminal, Write};
use std::process::ExitCode;

use clap::Parser;
use tracing_subscriber::EnvFilter;

fn main() -> ExitCode {
    let args = cli::Args::parse();
    start_telemetry(args.command.log_filter());
    match run(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            print_error(&error);
            exit::ExitReason::from_error(&error).into()
        }
    }
}

/// The runtime is never taken down: an operation of the MongoDB driver whose pool's task was dropped before it panics,
/// and a clean stop would now and then end with a backtrace.
fn run(args: cli::Args) -> anyhow::Result<()> {
    let runtime = Box::leak(Box::new(tokio::runtime::Builder::new_multi_thread().enable_all().build()?));
    runtime.block_on(cli::run(args.command))
}

/// To stderr: for people on a terminal, else one JSON object per line. `RUST_LOG` overrides how much.
fn start_telemetry(default: &str) {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(default));
    let logs = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    // Where would it say that stderr cannot be written? It panics instead, in whatever task has something to log.
    let logs = logs.log_internal_errors(false);
    if std::io::stderr().is_terminal() { logs.init() } else { logs.json().flatten_event(true).init() }
}

/// One line per cause, the outermost first.
fn print_error(error: &anyhow::Error) {
    let mut text = format!("error: {error}\n");
    for cause in error.chain().skip(1) {
        text.push_str(&format!("caused by: {}\n", cli::advice::describe_cause(cause)));
    }
    if let Some(advice) = cli::advice::advice_for(error) {
        text.push_str(&format!("what to do: {advice}\n"));
    }
    // The exit code tells those who do not read.
    let _ = std::io::stderr().write_all(text.as_bytes());
}
