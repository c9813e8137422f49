//! `cargo xtask chaos`: every fault there is, at random, by seed; and at the end every acknowledged write is in every read model, in order, once.
//!
//! Exits with 1 if a run broke a guarantee or did not cover what it was to cover. The last line is JSON.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use bench::processes::headwater_binary;
use bench::soak::Failpoint;
use bench::soak::chaos::shrink::shrink;
use bench::soak::chaos::{ChaosOptions, ChaosResult, run, write_report};
use clap::{Parser, ValueEnum};
use testkit::cluster::MongoTopology;
use testkit::nemesis::FaultPlan;

const ABOUT_RESULTS: &str = "\
A run writes `seed-N.html` (a timeline) and `seed-N.json` (its plan) to the folder of results.
A run that broke a guarantee is repeated with fewer and fewer faults; the smallest plan that still fails is
`seed-N-shrunk.json`. Repeat a run by its --seed, or a plan by --plan with the same --seed.";

/// Kill, pause, cut, fill, throttle and restart everything at random while events flow, and compare the read models with the source
#[derive(Parser)]
#[command(name = "chaos", after_help = ABOUT_RESULTS)]
struct Args {
    /// Minutes of faults in each run
    #[arg(long, default_value_t = 3.0)]
    minutes: f64,
    /// Seed of the first run [default: a new one, which is printed]
    #[arg(long)]
    seed: Option<u64>,
    /// Runs, each with the next seed and a new cluster
    #[arg(long, default_value_t = 1)]
    runs: u64,
    /// MongoDB [default: drawn by the seed]
    #[arg(long, value_enum)]
    mongodb: Option<Topology>,
    /// Pods [default: three to five, drawn by the seed]
    #[arg(long)]
    pods: Option<usize>,
    /// Events per second
    #[arg(long, default_value_t = 400.0)]
    rate: f64,
    /// Inject the faults of this file
    #[arg(long, value_name = "FILE")]
    plan: Option<PathBuf>,
    /// Runs that a failing plan may take to shrink
    #[arg(long, value_name = "RUNS", default_value_t = 10)]
    shrink: usize,
    /// Folder of results
    #[arg(long, value_name = "FOLDER", default_value = "target/chaos")]
    results: PathBuf,
    /// Activate a failpoint in every pod. Only in a dev build, which has failpoints
    #[arg(long, value_parser = parse_failpoint)]
    failpoint: Option<Failpoint>,
}

#[derive(Clone, Copy, ValueEnum)]
enum Topology {
    SingleNode,
    ThreeNodes,
    Sharded,
}

fn parse_failpoint(name: &str) -> Result<Failpoint, String> {
    let known = || Failpoint::ALL.map(|failpoint| format!("{failpoint:?}")).join(", ");
    let found = Failpoint::ALL.into_iter().find(|failpoint| format!("{failpoint:?}") == name);
    found.ok_or_else(|| format!("known failpoints: {}", known()))
}

impl Args {
    fn options(&self, seed: u64) -> Result<ChaosOptions, String> {
        let length = Duration::from_secs_f64(self.minutes * 60.0);
        let drawn = ChaosOptions::for_seed(seed, length);
        let mongo = self.mongodb.map_or(drawn.base.mongo, |topology| match topology {
            Topology::SingleNode => MongoTopology::SingleNode,
            Topology::ThreeNodes => MongoTopology::ThreeNodes,
            Topology::Sharded => MongoTopology::Sharded,
        });
        let mut options = ChaosOptions::with_topology(seed, length, mongo, self.pods.unwrap_or(drawn.base.pods));
        options.base.load.rate = Some(self.rate);
        options.base.failpoint = self.failpoint;
        if let Some(path) = &self.plan {
            let text = std::fs::read_to_string(path).map_err(|error| format!("failed to read the plan: {error}"))?;
            options.plan = serde_json::from_str(&text).map_err(|error| format!("failed to read the plan: {error}"))?;
        }
        Ok(options)
    }
}

#[tokio::main]
async fn main() -> ExitCode {
    let args = Args::parse();
    if args.failpoint.is_some() && !cfg!(debug_assertions) {
        eprintln!("a release build has no failpoints; use `cargo run --package bench --bin chaos -- --failpoint NAME`");
        return ExitCode::from(2);
    }
    match run_all(&args).await {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Whether every run was clean.
async fn run_all(args: &Args) -> Result<bool, String> {
    if args.runs == 0 {
        return Err("no runs: nothing was tested".to_owned());
    }
    let first = args.seed.unwrap_or_else(|| u64::from(rand::random::<u32>()));
    let (mut failed, mut faults, mut in_flight, mut acknowledged) = (vec![], 0, 0, 0);
    for seed in first..first + args.runs {
        let options = args.options(seed)?;
        println!("seed {seed}: {:.1} minutes on {:?}, {} pods", args.minutes, options.base.mongo, options.base.pods);
        let result = run(&headwater_binary(), &options).await;
        let is_clean = match &result {
            Ok(result) => {
                (faults, in_flight) = (faults + result.faults.injected(), in_flight + result.faults.in_flight());
                acknowledged += result.report.counts.acknowledged;
                report(args, result, &options.plan)?
            }
            Err(error) => {
                println!("seed {seed}: the test cluster failed: {error}");
                false
            }
        };
        if !is_clean {
            failed.push(seed);
            println!("repeat it with: cargo xtask chaos --seed {seed} --minutes {}", args.minutes);
            if result.is_ok_and(|result| !result.is_clean()) && args.shrink > 0 {
                shrink_plan(args, &options).await?;
            }
        }
    }
    let summary = serde_json::json!({
        "chaos": args.runs, "failed_seeds": failed, "faults": faults, "faults_in_flight": in_flight,
        "acknowledged": acknowledged,
    });
    println!("{summary}");
    Ok(failed.is_empty())
}

/// Prints and stores a result; returns whether it is clean and covered everything.
fn report(args: &Args, result: &ChaosResult, plan: &FaultPlan) -> Result<bool, String> {
    println!("{result}\n{}", result.json());
    let missing = result.missing();
    missing.iter().for_each(|what| println!("the run had no {what}"));
    let page = args.results.join(format!("seed-{}.html", result.seed));
    write_report(result, &page).map_err(|error| format!("failed to write the report: {error}"))?;
    store_plan(&args.results.join(format!("seed-{}.json", result.seed)), plan)?;
    println!("timeline: {}", page.display());
    Ok(result.is_clean() && missing.is_empty())
}

fn store_plan(path: &Path, plan: &FaultPlan) -> Result<(), String> {
    let text = serde_json::to_string_pretty(plan).expect("a plan is plain data");
    std::fs::write(path, text).map_err(|error| format!("failed to write the plan: {error}"))
}

async fn shrink_plan(args: &Args, options: &ChaosOptions) -> Result<(), String> {
    println!("shrinking {} faults, at most {} runs", options.plan.faults.len(), args.shrink);
    let fails = async |plan: &FaultPlan| {
        let options = ChaosOptions { plan: plan.clone(), ..options.clone() };
        let result = run(&headwater_binary(), &options).await;
        let violations = result.map(|result| result.violations()).unwrap_or_default();
        println!("{} faults: {violations:?}", plan.faults.len());
        !violations.is_empty()
    };
    let shrunken = shrink(&options.plan, args.shrink, fails).await;
    let path = args.results.join(format!("seed-{}-shrunk.json", options.base.seed));
    store_plan(&path, &shrunken.plan)?;
    let state = if shrunken.is_minimal { "no fault can be left out" } else { "more runs may shrink it further" };
    println!("{} faults remain ({state}), in {}:\n{}", shrunken.plan.faults.len(), path.display(), shrunken.plan);
    Ok(())
}
