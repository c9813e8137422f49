//! `cargo xtask test`: everything that must pass, in one command, on a machine that has nothing of ours.
//!
//! First the tools, then the checks that read the code, then the suites that run it. Each suite leaves a JUnit report;
//! at the end the tests executed are counted per suite, and a suite that executed none has failed.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, bail};
use cargo_metadata::{Metadata, MetadataCommand};

use crate::policy;
use crate::steps::{cargo, run, run_and_read, step};
use crate::tally::Tally;
use crate::tools::Tools;

/// The build that tests and the processes they start share.
const BUILD: [&str; 2] = ["--workspace", "--locked"];

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Run the suites this many times in a row: a test that passes only sometimes has failed
    #[arg(long, default_value_t = 1)]
    runs: u32,
    /// Only the suites, without the checks that read the code
    #[arg(long)]
    suites_only: bool,
}

pub(crate) fn check(root: &Path, arguments: &Arguments) -> anyhow::Result<()> {
    let tools = Tools::bring_all(root)?;
    if !arguments.suites_only {
        read_the_code(root)?;
    }
    for round in 1..=arguments.runs {
        if arguments.runs > 1 {
            println!("\n── round {round} of {}", arguments.runs);
        }
        run_the_suites(root, &tools)?;
    }
    Ok(())
}

fn read_the_code(root: &Path) -> anyhow::Result<()> {
    step("format", || run(&mut cargo(root, ["fmt", "--all", "--check"])))?;
    step("dependency policy", || policy::check(root).map(|report| println!("{report}")))?;
    step("clippy", || {
        run(cargo(root, ["clippy", "--all-targets", "--quiet"]).args(BUILD).args(["--", "--deny", "warnings"]))
    })?;
    step("rustdoc", || {
        let mut command = cargo(root, ["doc", "--no-deps", "--document-private-items", "--quiet"]);
        run(command.args(BUILD).env("RUSTDOCFLAGS", "--deny warnings"))
    })
}

fn run_the_suites(root: &Path, tools: &Tools) -> anyhow::Result<()> {
    let workspace = workspace(root)?;
    let target = workspace.target_directory.as_std_path();
    // The binary under test is the one the tests' own build makes.
    let (reports, binary) = (target.join("reports"), target.join("debug/headwater"));
    if reports.exists() {
        std::fs::remove_dir_all(&reports).context("remove the reports of an earlier run")?;
    }
    std::fs::create_dir_all(&reports).context("create the folder for reports")?;

    step("build", || run(cargo(root, ["build", "--all-targets", "--quiet"]).args(BUILD)))?;
    let mut tally = Tally::expecting(rust_suites(&workspace));
    let mut failed = Vec::new();
    let mut suite = |name: &str, work: &mut dyn FnMut() -> anyhow::Result<()>| {
        if let Err(error) = step(name, work) {
            println!("{error:#}");
            failed.push(name.to_owned());
        }
    };

    let runtime = tokio::runtime::Runtime::new().context("start a runtime")?;
    let (mongod, variables) =
        step("a mongod for all tests", || Ok(runtime.block_on(testkit::mongo::SharedMongoServer::start())?))?;
    suite("suite: Rust", &mut || {
        let junit = target.join("nextest/default/junit.xml");
        let mut command = cargo(root, ["nextest", "run", "--no-fail-fast"]);
        // A MongoDB of the user's own is not for tests that start and stop theirs.
        command.args(BUILD).envs(variables.clone()).env("PATH", tools.path()?).env_remove("HEADWATER_MONGODB_URI");
        let outcome = run(&mut command);
        tally.read_nextest(&junit)?;
        outcome
    });
    drop(mongod);
    suite("suite: doctests", &mut || {
        let printed = run_and_read(cargo(root, ["test", "--doc"]).args(BUILD))?;
        tally.read_doctests(&printed);
        Ok(())
    });
    suite("suite: Python", &mut || {
        let junit = reports.join("python.xml");
        let outcome = run(&mut python(root, tools, &junit, &binary));
        tally.read_junit("python", &junit)?;
        outcome
    });
    suite("suite: JavaScript", &mut || {
        let junit = reports.join("javascript.xml");
        // A fresh one: a page says, rightly, that the oplog which all tests have written to does not reach back far.
        let (mongod, variables) = runtime.block_on(testkit::mongo::SharedMongoServer::start())?;
        let outcome = run(javascript(root, tools, &junit, &binary)?.envs(variables).env("SCREENSHOTS", &reports));
        drop(mongod);
        tally.read_junit("javascript", &junit)?;
        outcome
    });

    println!("\n{tally}");
    // A suite that failed is named first: it may be why another count is missing.
    if !failed.is_empty() {
        bail!("failed: {}", failed.join(", "));
    }
    tally.judge()
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
    // Modules are looked up beside the file that imports them, so the cache is linked there.
    let _ = std::fs::remove_file(&link);
    std::os::unix::fs::symlink(tools.node.join("node_modules"), &link).context("link node_modules")?;
    let mut command = Command::new("node");
    command.args(["--test", "--test-reporter=spec", "--test-reporter-destination=stdout", "--test-reporter=junit"]);
    command.arg(format!("--test-reporter-destination={}", junit.display()));
    command.arg("--test-timeout=120000").current_dir(folder);
    command.env("HEADWATER_BIN", binary).env("CHROMIUM", &tools.chromium);
    Ok(command)
}

fn workspace(root: &Path) -> anyhow::Result<Metadata> {
    MetadataCommand::new().current_dir(root).no_deps().exec().context("list the workspace's crates")
}

/// Every crate of the workspace is a suite: a crate without a test that ran is a crate nobody tested.
fn rust_suites(workspace: &Metadata) -> Vec<String> {
    workspace.workspace_packages().iter().map(|package| package.name.to_string()).collect()
}
