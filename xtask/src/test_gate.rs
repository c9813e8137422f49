//! `cargo xtask test`: everything that must pass, in one command, on a new machine.
//!
//! Installs the tools, runs the static checks, then the test suites, and fuzzing beside them. Each suite writes a JUnit report; at the end the
//! executed tests are counted per suite, and a suite with fewer tests than before has failed.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, bail};
use cargo_metadata::{Metadata, MetadataCommand};

use crate::dependency_policy;
use crate::fuzz_step::FuzzStep;
use crate::other_bus::{self, Profile};
use crate::process::{cargo, run, run_and_read, step};
use crate::test_counts::TestCounts;
use crate::tools::Tools;

/// The scenarios of `verify-lease` that end within half a minute in a debug build; all of them take six minutes.
const LEASE_SCENARIOS: [&str; 3] = ["rollback", "crowded-network", "deletion"];

/// The build flags shared by tests and the processes they start.
const BUILD: [&str; 2] = ["--workspace", "--locked"];
/// How many tests each suite had.
const STORED_COUNTS: &str = "xtask/test-counts.toml";

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Run the suites this many times in a row, to find flaky tests
    #[arg(long, default_value_t = 1)]
    runs: u32,
    /// Run only the suites, without the static checks
    #[arg(long)]
    suites_only: bool,
    /// Store how many tests each suite has, for `xtask/test-counts.toml`
    #[arg(long)]
    accept_counts: bool,
    /// Run only the end-to-end suites, with a broker that requires TLS and keys
    #[arg(long, conflicts_with_all = ["runs", "suites_only"])]
    secured_bus: bool,
    /// Run only the end-to-end suites, with a broker that does to its clients what Azure Service Bus does
    #[arg(long, value_name = "PROFILE", conflicts_with_all = ["runs", "suites_only", "secured_bus"])]
    profile: Option<Profile>,
    /// The times of the profile are divided by this number
    #[arg(long, default_value_t = 60.0, requires = "profile")]
    profile_scale: f64,
}

pub(crate) fn check(root: &Path, arguments: &Args) -> anyhow::Result<()> {
    if arguments.secured_bus {
        return other_bus::check_secured(root);
    }
    if let Some(profile) = arguments.profile {
        return other_bus::check_profile(root, profile, arguments.profile_scale);
    }
    let tools = Tools::install_all(root)?;
    if !arguments.suites_only {
        run_static_checks(root, &tools)?;
    }
    for round in 1..=arguments.runs {
        if arguments.runs > 1 {
            println!("\n── round {round} of {}", arguments.runs);
        }
        run_suites(root, &tools, arguments.accept_counts)?;
    }
    Ok(())
}

fn run_static_checks(root: &Path, tools: &Tools) -> anyhow::Result<()> {
    step("format", || run(&mut cargo(root, ["fmt", "--all", "--check"])))?;
    step("spelling", || run(Command::new(&tools.typos).current_dir(root)))?;
    step("dependency policy", || dependency_policy::check(root).map(|report| println!("{report}")))?;
    step("clippy", || {
        run(cargo(root, ["clippy", "--all-targets", "--quiet"]).args(BUILD).args(["--", "--deny", "warnings"]))
    })?;
    step("rustdoc", || {
        let mut command = cargo(root, ["doc", "--no-deps", "--document-private-items", "--quiet"]);
        run(command.args(BUILD).env("RUSTDOCFLAGS", "--deny warnings"))
    })
}

fn run_suites(root: &Path, tools: &Tools, accept_counts: bool) -> anyhow::Result<()> {
    let workspace = workspace(root)?;
    let target = workspace.target_directory.as_std_path();
    // The tests use the binary of their own build.
    let (reports, binary) = (target.join("reports"), target.join("debug/headwater"));
    if reports.exists() {
        std::fs::remove_dir_all(&reports).context("failed to remove the reports of an earlier run")?;
    }
    std::fs::create_dir_all(&reports).context("failed to create the folder for reports")?;

    step("build", || run(cargo(root, ["build", "--all-targets", "--quiet"]).args(BUILD)))?;
    let mut counts = TestCounts::with_suites(rust_suites(&workspace));
    // Beside the suites, which mostly wait.
    let fuzzing = FuzzStep::start(&target.join("debug/fuzz"), &reports.join("fuzz.txt"), &[])?;
    let mut fuzzing = Some(fuzzing);
    let mut failed = Vec::new();
    // A failed suite does not stop the others: one run shows every failure.
    let mut suite = |name: &str, work: &mut dyn FnMut() -> anyhow::Result<()>| {
        if let Err(error) = step(name, work) {
            println!("{error:#}");
            failed.push(name.to_owned());
        }
    };

    let runtime = tokio::runtime::Runtime::new().context("failed to start a runtime")?;
    let (mongod, variables) =
        step("start a mongod for all tests", || Ok(runtime.block_on(testkit::mongo::SharedMongoServer::start())?))?;
    suite("suite: Rust", &mut || {
        // nextest keeps its store below the workspace, also where CARGO_TARGET_DIR is elsewhere.
        let junit = root.join("target/nextest/default/junit.xml");
        let mut command = cargo(root, ["nextest", "run", "--no-fail-fast"]);
        // Tests start and stop their own MongoDB; never use the user's.
        command.args(BUILD).envs(variables.clone()).env("PATH", tools.path()?).env_remove("HEADWATER_MONGODB_URI");
        let result = run(&mut command);
        counts.read_nextest(&junit)?;
        result
    });
    drop(mongod);
    suite("lease model", &mut || run(Command::new(target.join("debug/verify_lease")).args(LEASE_SCENARIOS)));
    suite("suite: doctests", &mut || {
        let printed = run_and_read(cargo(root, ["test", "--doc"]).args(BUILD))?;
        counts.read_doctests(&printed);
        Ok(())
    });
    suite("suite: Python", &mut || {
        let junit = reports.join("python.xml");
        let (mongod, variables) = runtime.block_on(testkit::mongo::SharedMongoServer::start())?;
        let result = run(python(root, tools, &junit, &binary).envs(variables));
        drop(mongod);
        counts.read_junit("python", &junit)?;
        result
    });
    suite("suite: JavaScript", &mut || {
        let junit = reports.join("javascript.xml");
        // A new mongod: after all other tests, the short oplog of the shared one would show up as a problem on the page.
        let (mongod, variables) = runtime.block_on(testkit::mongo::SharedMongoServer::start())?;
        let result = run(javascript(root, tools, &junit, &binary)?.envs(variables).env("SCREENSHOTS", &reports));
        drop(mongod);
        counts.read_junit("javascript", &junit)?;
        result
    });

    suite("fuzz, a minute of CPU time for each target", &mut || {
        let summary = fuzzing.take().context("fuzzing has ended")?.finish();
        counts.add_fuzz_targets(summary.as_ref().map_or(0, |summary| summary.targets));
        summary.map(drop)
    });

    println!("\n{counts}");
    // Failed suites first: one may be the reason why a count is missing.
    if !failed.is_empty() {
        bail!("failed: {}", failed.join(", "));
    }
    let stored = root.join(STORED_COUNTS);
    if accept_counts {
        counts.store(&stored)?;
    }
    counts.compare_with(&stored)?;
    counts.verify()
}

fn python(root: &Path, tools: &Tools, junit: &Path, binary: &Path) -> Command {
    let mut command = Command::new(&tools.python);
    command.args(["-m", "pytest", "--quiet", "--numprocesses=4", "-p", "no:cacheprovider"]);
    command.arg(format!("--junitxml={}", junit.display())).arg(root.join("tests/python"));
    command.env("HEADWATER_BIN", binary).env("PYTHONDONTWRITEBYTECODE", "1");
    command
}

fn javascript(root: &Path, tools: &Tools, junit: &Path, binary: &Path) -> anyhow::Result<Command> {
    let folder = root.join("tests/javascript");
    let link = folder.join("node_modules");
    // Node resolves modules next to the importing file, so the cached folder is linked there.
    let _ = std::fs::remove_file(&link);
    std::os::unix::fs::symlink(tools.node.join("node_modules"), &link).context("failed to link node_modules")?;
    let mut command = Command::new("node");
    command.args(["--test", "--test-reporter=spec", "--test-reporter-destination=stdout", "--test-reporter=junit"]);
    command.arg(format!("--test-reporter-destination={}", junit.display()));
    command.arg("--test-timeout=120000").current_dir(folder);
    command.env("HEADWATER_BIN", binary).env("CHROMIUM", &tools.chromium);
    Ok(command)
}

fn workspace(root: &Path) -> anyhow::Result<Metadata> {
    MetadataCommand::new().current_dir(root).no_deps().exec().context("failed to list the crates of the workspace")
}

/// Every crate of the workspace is a suite: a crate without an executed test is untested.
fn rust_suites(workspace: &Metadata) -> Vec<String> {
    workspace.workspace_packages().iter().map(|package| package.name.to_string()).collect()
}
