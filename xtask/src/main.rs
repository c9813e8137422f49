//! The commands of this repository. The gate runs `cargo xtask test`; developers use the rest.

mod bench;
mod bench_plots;
mod bench_results;
mod dependency_policy;
mod fuzz_step;
mod hostile;
mod other_bus;
mod peers;
mod process;
mod release;
mod test_counts;
mod test_gate;
mod tools;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Headwater's developer commands: test, bench, soak, release.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Args {
    #[command(subcommand)]
    command: XtaskCommand,
}

#[derive(Subcommand)]
enum XtaskCommand {
    /// Run everything that must pass, from formatting to the SDK suites; installs the tools it needs
    Test(test_gate::Args),
    /// Install the tools that `test` needs (mongod, Python, npm and Debian packages)
    Setup,
    /// Check licences, banned crates and duplicate versions against deny.toml
    Policy,
    /// Run a benchmark in a release build; the last line of output is JSON, stored in target/bench. `compare A B` compares results, `plots` draws
    /// them. Without a name: list the benchmarks
    Bench(bench::Args),
    /// Run a soak test: many rounds of faults, by seed. Without a name: list the soak tests
    Soak(bench::Args),
    /// Break everything at random while events flow, and compare the read models with the source; `--minutes M --seed S`, `-- --help` for the rest
    Chaos(bench::ForwardedArgs),
    /// Build the container image without a registry, and run it: non-root, read-only, limited
    Image(release::image::Args),
    /// Make the archive of a release: binary, completions, manual pages, licences, configuration reference, chart, checksums
    Dist(release::dist::Args),
    /// Write the files of the image to a folder, for `Dockerfile`
    #[command(hide = true)]
    RootFilesystem(release::root_filesystem::Args),
    /// Fuzz everything that reads bytes from outside, a minute of CPU time for each target; `-- --minutes M` for longer, `-- --help` for the rest
    Fuzz(bench::ForwardedArgs),
    /// Give hostile inputs to real processes and print the expected and the observed result of each, with a summary
    Hostile(hostile::Args),
    /// Explore the model of the lease protocol exhaustively and print the states and the result
    VerifyLease(bench::ForwardedArgs),
}

fn main() -> ExitCode {
    match run_command(Args::parse().command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("\nerror: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run_command(command: XtaskCommand) -> anyhow::Result<()> {
    let root = process::workspace_root()?;
    match command {
        XtaskCommand::Test(arguments) => test_gate::check(&root, &arguments),
        XtaskCommand::Setup => tools::Tools::install_all(&root).map(drop),
        XtaskCommand::Policy => dependency_policy::check(&root).map(|report| println!("{report}")),
        XtaskCommand::Bench(arguments) => bench::run_bench(&root, &arguments),
        XtaskCommand::Soak(arguments) => bench::run_soak(&root, &arguments),
        XtaskCommand::Chaos(passed) => bench::chaos(&root, &passed),
        XtaskCommand::Image(arguments) => release::image::build(&root, &arguments),
        XtaskCommand::Dist(arguments) => release::dist::make_archive(&root, &arguments),
        XtaskCommand::RootFilesystem(arguments) => release::root_filesystem::write_folders(&root, &arguments),
        XtaskCommand::Fuzz(passed) => bench::fuzz(&root, &passed),
        XtaskCommand::Hostile(arguments) => hostile::check(&root, &arguments),
        XtaskCommand::VerifyLease(passed) => bench::verify_lease(&root, &passed),
    }
}
