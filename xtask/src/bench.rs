//! `bench`, `soak`, `chaos`, `fuzz` and `verify-lease`: separate programs, run with the forwarded arguments; all but `fuzz` are built in release mode. The
//! results of benches are stored, compared and drawn here.

use std::path::Path;
use std::process::Command;

use anyhow::bail;

use clap::Parser;

use crate::process::{cargo, run, run_and_store};
use crate::{bench_plots, bench_results, peers};

/// A program, and what it measures or shows.
pub(crate) struct BenchProgram {
    name: &'static str,
    binary: &'static str,
    measures: &'static str,
}

pub(crate) const BENCHES: &[BenchProgram] = &[
    BenchProgram {
        name: "failover",
        binary: "failover",
        measures: "time until the next pod holds the lease, after a release and after a crash",
    },
    BenchProgram {
        name: "broker",
        binary: "broker",
        measures: "throughput of the durable broker for sends, receives and session accepts, next to raw TCP in the same run; --flat: the same while it fills; --secured: what keys and TLS cost",
    },
    BenchProgram {
        name: "producer",
        binary: "producer",
        measures: "throughput of a pod that publishes a backlog, next to the raw change stream and to Debezium's capture in the same run; latency of a live event",
    },
    BenchProgram {
        name: "consumer",
        binary: "consumer",
        measures: "throughput of a pod that applies a backlog, next to raw cursor transactions in the same run; long sessions, short sessions, buckets, sequences committed out of order, signed messages",
    },
    BenchProgram {
        name: "end-to-end",
        binary: "end-to-end",
        measures: "insert to read model, 1 KiB, 10,000 aggregates, --minutes 5: rate, CPU per event of every process, latency, memory; beside the design of the notes in NestJS",
    },
    BenchProgram {
        name: "scaling",
        binary: "scaling",
        measures: "CPU per event as events, aggregates, event size, pods and read models grow; --cells chooses",
    },
    BenchProgram {
        name: "audit",
        binary: "audit",
        measures: "a round of the audit over 1,000,000 aggregates and 5,000,000 events: time, CPU, memory; live throughput with the audit off and on",
    },
    BenchProgram {
        name: "rebuild",
        binary: "rebuild",
        measures: "rate of a rebuild of 1,000,000 events next to a pod that applies a backlog, in the same run; memory of a pod that rebuilds 100,000 and 5,000,000 events",
    },
    BenchProgram {
        name: "read-your-writes",
        binary: "read-your-writes",
        measures: "how much later than the commit of the read model a request to wait for an event is answered",
    },
];

pub(crate) const SOAKS: &[BenchProgram] = &[
    BenchProgram {
        name: "lease-races",
        binary: "lease-races",
        measures: "eight candidates start on a new lease, 200 rounds: one leader each time, no warning or error logged",
    },
    BenchProgram {
        name: "broker-kills",
        binary: "broker-kills",
        measures: "kill -9 of the broker under load, 200 rounds: no accepted message lost, no completed message redelivered, order kept",
    },
    BenchProgram {
        name: "producer",
        binary: "soak-producer",
        measures: "200,000 events while leaders are killed, paused and deposed: all on the topic, in order, once",
    },
    BenchProgram {
        name: "consumer",
        binary: "soak-consumer",
        measures: "200,000 events while pods, primary and broker are killed, one pod is paused past its locks, messages are republished, one event rejected: read models equal a fold of the source",
    },
    BenchProgram {
        name: "audit",
        binary: "soak-audit",
        measures: "100,000 events while the bus loses messages for good, a topic is purged, a subscription deleted and made again, pods and primary killed: after the audit read models equal a fold of the source; --minutes 60: no false alarm",
    },
    BenchProgram {
        name: "deploys",
        binary: "soak-deploys",
        measures: "rolling deploys that add, change and remove read models under load, pods killed in the middle, rolled back: read models equal a fold of their definitions",
    },
    BenchProgram {
        name: "rebuild",
        binary: "soak-rebuild",
        measures: "a read model of 1,000,000 events is built anew while events flow and the leader is killed, then rolled back and built once more: equal to a fold, readers never without documents, short switches",
    },
    BenchProgram {
        name: "verify",
        binary: "soak-verify",
        measures: "an hour of `read-model verify` on every read model while events flow and pods are killed: no false alarm",
    },
    BenchProgram {
        name: "stops",
        binary: "soak-stops",
        measures: "SIGTERM to the leader under load, 100 rounds: in order, in time, nothing lost or duplicated; time until the next pod leads and publishes",
    },
    BenchProgram {
        name: "rollouts",
        binary: "soak-rollouts",
        measures: "three pods restarted one after the other under load, as the chart does it, 20 times: nothing lost or duplicated, at most 1 s without a new event; --previous BINARY: upgrades from an older binary and back",
    },
    BenchProgram {
        name: "pipelines",
        binary: "soak-pipelines",
        measures: "twenty pipelines on three pods, one poisoned and one halted: leaders within one of each other, nothing lost or applied twice; the speed of the others, takeovers, memory per pipeline",
    },
];

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Name of the program
    name: Option<String>,
    #[command(flatten)]
    forwarded: ForwardedArgs,
}

#[derive(clap::Args)]
pub(crate) struct ForwardedArgs {
    /// Arguments for the program
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<String>,
}

#[derive(Parser)]
struct Compare {
    #[command(flatten)]
    arguments: bench_results::CompareArgs,
}

#[derive(Parser)]
struct Plots {
    #[command(flatten)]
    arguments: bench_plots::PlotArgs,
}

pub(crate) fn run_bench(root: &Path, arguments: &Args) -> anyhow::Result<()> {
    let forwarded = &arguments.forwarded.arguments;
    match arguments.name.as_deref() {
        Some("compare") => bench_results::compare(&parse::<Compare>("compare", forwarded).arguments),
        Some("plots") => bench_plots::draw(root, &parse::<Plots>("plots", forwarded).arguments),
        None => {
            println!("cargo xtask bench NAME\n\n{}", listed(BENCHES));
            println!(
                "  {:<14} two results or folders of results: ratios, and exit code 1 beyond --tolerance",
                "compare A B"
            );
            println!("  {:<14} results as SVG in docs/figures", "plots");
            Ok(())
        }
        Some(name) => {
            let program = find(BENCHES, "bench", name)?;
            let without_peers = forwarded.iter().any(|argument| argument == "--without-peers" || argument == "--help");
            let peers = if without_peers { vec![] } else { peers::install(root, name)? };
            let mut command = release(root, "bench", program.binary, &arguments.forwarded)?;
            let output = run_and_store(command.envs(peers))?;
            bench_results::store(root, name, &output)
        }
    }
}

pub(crate) fn run_soak(root: &Path, arguments: &Args) -> anyhow::Result<()> {
    let Some(name) = &arguments.name else {
        println!("cargo xtask soak NAME\n\n{}", listed(SOAKS));
        return Ok(());
    };
    run(&mut release(root, "bench", find(SOAKS, "soak", name)?.binary, &arguments.forwarded)?)
}

fn parse<T: Parser>(name: &str, arguments: &[String]) -> T {
    T::parse_from(std::iter::once(&format!("cargo xtask bench {name}")).chain(arguments))
}

fn listed(programs: &[BenchProgram]) -> String {
    programs.iter().map(|p| format!("  {:<14} {}", p.name, p.measures)).collect::<Vec<_>>().join("\n")
}

fn find<'a>(programs: &'a [BenchProgram], kind: &str, name: &str) -> anyhow::Result<&'a BenchProgram> {
    let Some(program) = programs.iter().find(|program| program.name == name) else {
        bail!("unknown {kind} `{name}`; available:\n{}", listed(programs));
    };
    Ok(program)
}

pub(crate) fn verify_lease(root: &Path, forwarded: &ForwardedArgs) -> anyhow::Result<()> {
    run(&mut release(root, "lease-model", "verify_lease", forwarded)?)
}

pub(crate) fn chaos(root: &Path, forwarded: &ForwardedArgs) -> anyhow::Result<()> {
    run(&mut release(root, "bench", "chaos", forwarded)?)
}

/// In a debug build: overflow checks and assertions are part of the search.
pub(crate) fn fuzz(root: &Path, forwarded: &ForwardedArgs) -> anyhow::Result<()> {
    let mut command = cargo(root, ["run", "--locked", "--quiet", "--package", "fuzz"]);
    run(command.arg("--").args(&forwarded.arguments))
}

/// Builds the headwater binary, and returns the command that builds and runs the program.
fn release(root: &Path, package: &str, binary: &str, forwarded: &ForwardedArgs) -> anyhow::Result<Command> {
    // The bench starts the headwater binary that lies next to it.
    run(&mut cargo(root, ["build", "--release", "--locked", "--quiet", "--package", "headwater"]))?;
    let mut command = cargo(root, ["run", "--release", "--locked", "--quiet", "--package", package, "--bin", binary]);
    command.arg("--").args(&forwarded.arguments);
    Ok(command)
}
