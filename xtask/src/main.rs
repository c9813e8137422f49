//! The commands of this repository. `cargo xtask test` is what the gate runs; everything else is for people.

mod bench;
mod gate;
mod policy;
mod steps;
mod tally;
mod tools;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Headwater's own commands: test, measure, soak.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Everything that must pass, from formatting to the SDK suites; sets up what it needs by itself
    Test(gate::Arguments),
    /// Brings the tools that `test` needs (mongod, Python and npm packages, Debian packages) and stops
    Setup,
    /// Checks licences, bans and duplicates of the dependency graph against deny.toml
    Policy,
    /// Measures, in release builds; the last line is JSON. Without a name: lists what can be measured
    Bench(bench::Arguments),
    /// The long runs: many rounds of faults, by seed. Without a name: lists what there is
    Soak(bench::Arguments),
    /// Explores the lease protocol's model exhaustively and prints states and result
    VerifyLease(bench::Passed),
}

fn main() -> ExitCode {
    match obey(Arguments::parse().command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("\nerror: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn obey(command: Command) -> anyhow::Result<()> {
    let root = steps::workspace_root();
    match command {
        Command::Test(arguments) => gate::check(&root, &arguments),
        Command::Setup => tools::Tools::bring_all(&root).map(drop),
        Command::Policy => policy::check(&root).map(|report| println!("{report}")),
        Command::Bench(arguments) => bench::run_named(&root, bench::BENCHES, "bench", &arguments),
        Command::Soak(arguments) => bench::run_named(&root, bench::SOAKS, "soak", &arguments),
        Command::VerifyLease(passed) => bench::verify_lease(&root, &passed),
    }
}
