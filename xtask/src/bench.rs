//! `bench`, `soak` and `verify-lease`: programs of their own, built in release and run with what follows.

use std::path::Path;

use anyhow::bail;

use crate::steps::{cargo, run};

/// A program, and what it answers.
pub(crate) struct Program {
    name: &'static str,
    binary: &'static str,
    answers: &'static str,
}

pub(crate) const BENCHES: &[Program] = &[
    Program {
        name: "failover",
        binary: "failover",
        answers: "how long until the next pod owns the lease, after a release and after a crash",
    },
    Program {
        name: "broker",
        binary: "broker",
        answers: "how fast the durable broker sends, receives and accepts, beside raw TCP in the same run; --flat: the same as it fills",
    },
    Program {
        name: "producer",
        binary: "producer",
        answers: "how fast a pod publishes a backlog, beside the raw change stream in the same run; how late a live event is",
    },
    Program {
        name: "consumer",
        binary: "consumer",
        answers: "how fast a pod applies a backlog, beside the raw cursor transactions in the same run; long sessions, short ones, buckets",
    },
];

pub(crate) const SOAKS: &[Program] = &[
    Program {
        name: "lease-races",
        binary: "lease-races",
        answers: "eight contenders race for a fresh lease, 200 rounds: one leader each time, nothing logged as an error",
    },
    Program {
        name: "broker-kills",
        binary: "broker-kills",
        answers: "the broker killed -9 under load, 200 rounds: nothing accepted lost, nothing completed back, order kept",
    },
    Program {
        name: "producer",
        binary: "soak-producer",
        answers: "200,000 events while leaders are killed, paused and deposed: all on the topic, in order, once",
    },
    Program {
        name: "consumer",
        binary: "soak-consumer",
        answers: "200,000 events while pods, primary and broker are killed, one pod sleeps past its locks, messages are said twice, one event refused: read models equal a fold",
    },
    Program {
        name: "stops",
        binary: "soak-stops",
        answers: "SIGTERM to the leader under load, 100 rounds: in order, in time, nothing lost or twice; how soon the next one leads and publishes",
    },
];

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Which one
    name: Option<String>,
    #[command(flatten)]
    passed: Passed,
}

#[derive(clap::Args)]
pub(crate) struct Passed {
    /// Handed to the program as they are
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<String>,
}

pub(crate) fn run_named(root: &Path, programs: &[Program], kind: &str, arguments: &Arguments) -> anyhow::Result<()> {
    let listed = || programs.iter().map(|p| format!("  {:<14} {}", p.name, p.answers)).collect::<Vec<_>>().join("\n");
    let Some(name) = &arguments.name else {
        println!("cargo xtask {kind} NAME\n\n{}", listed());
        return Ok(());
    };
    let Some(program) = programs.iter().find(|program| program.name == name) else {
        bail!("there is no {kind} `{name}`; there is\n{}", listed());
    };
    release(root, "bench", program.binary, &arguments.passed)
}

pub(crate) fn verify_lease(root: &Path, passed: &Passed) -> anyhow::Result<()> {
    release(root, "lease-model", "verify_lease", passed)
}

fn release(root: &Path, package: &str, binary: &str, passed: &Passed) -> anyhow::Result<()> {
    // What is measured as a process of its own lies beside the program that measures it.
    run(&mut cargo(root, ["build", "--release", "--locked", "--quiet", "--package", "headwater"]))?;
    let mut command = cargo(root, ["run", "--release", "--locked", "--quiet", "--package", package, "--bin", binary]);
    run(command.arg("--").args(&passed.arguments))
}
