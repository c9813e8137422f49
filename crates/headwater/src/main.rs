//! The binary; start reading here. Arguments, logging, runtime, the command, the exit code.

mod admin;
mod aggregate_argument;
mod applied;
mod apply_observer;
mod check;
mod cli;
mod command_applier;
mod config;
mod connect;
mod coordination_store;
mod dashboard_actions;
mod delivery_limit;
mod dev;
mod erase;
mod event_traces;
mod exit;
mod generations;
mod lease_balance;
mod mongo_oidc;
mod operator_log;
mod oplog;
mod output;
mod parked;
mod pauses;
mod pods;
mod run;
mod secret_files;
mod shop;
mod signal;
mod status;
mod step_down_requests;
mod topology;
mod verification;

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

/// The runtime is leaked on purpose. If it were dropped, operations of the MongoDB driver could panic because their pool's task is gone,
/// and a clean stop would sometimes end with a backtrace.
fn run(args: cli::Args) -> anyhow::Result<()> {
    let runtime = Box::leak(Box::new(tokio::runtime::Builder::new_multi_thread().enable_all().build()?));
    runtime.block_on(cli::run(args.command))
}

/// Logs to stderr: text on a terminal, otherwise one JSON object per line. `RUST_LOG` overrides the level.
fn start_telemetry(default: &str) {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(default));
    let logs = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    // By default a failed write to stderr panics in the task that logs. A pod must not lose a task because nobody reads its log.
    let logs = logs.log_internal_errors(false);
    // In a container there is no terminal, so log collectors get JSON.
    if std::io::stderr().is_terminal() { logs.init() } else { logs.json().flatten_event(true).init() }
}

/// Prints the error and its causes, one per line, the outermost first.
fn print_error(error: &anyhow::Error) {
    let mut text = format!("error: {error}\n");
    for cause in error.chain().skip(1) {
        text.push_str(&format!("caused by: {}\n", cli::advice::describe_cause(cause)));
    }
    if let Some(advice) = cli::advice::advice_for(error) {
        text.push_str(&format!("help: {advice}\n"));
    }
    // Stderr may be closed; the exit code still reports the failure.
    let _ = std::io::stderr().write_all(text.as_bytes());
}
