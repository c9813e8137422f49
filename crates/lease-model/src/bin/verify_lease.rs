//! `cargo xtask verify-lease`: searches every history of the lease protocol within stated bounds, for one that violates an invariant.

use std::process::ExitCode;
use std::thread;

use clap::Parser;
use lease_model::defect_scenario::DefectScenario;
use lease_model::protocol_defect::ProtocolDefect;
use lease_model::scenarios::{self, Scenario};
use lease_model::verify::{VerificationResult, shortest, verify};

#[derive(Parser)]
#[command(
    about = "Searches every history of the lease protocol, within stated bounds, for one that violates an invariant"
)]
struct Args {
    /// Run only these scenarios; `--list` shows them
    scenarios: Vec<String>,
    /// List the scenarios and what they cover
    #[arg(long)]
    list: bool,
    /// Search for each planted defect instead; the checker must find every one
    #[arg(long)]
    defects: bool,
    /// Defaults to the number of cores
    #[arg(long)]
    threads: Option<usize>,
}

fn main() -> ExitCode {
    let args = Args::parse();
    if args.list {
        all_cuts().iter().for_each(|scenario| println!("{:<16} {}", scenario.name, scenario.covers));
        return ExitCode::SUCCESS;
    }
    let held = if args.defects { search_for_defects() } else { search(&args) };
    if held { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn all_cuts() -> Vec<Scenario> {
    scenarios::all().into_iter().chain(scenarios::small()).collect()
}

fn search(args: &Args) -> bool {
    let threads = args.threads.unwrap_or_else(|| thread::available_parallelism().map_or(1, usize::from));
    let wanted = |scenario: &Scenario| args.scenarios.iter().any(|name| name == scenario.name);
    let chosen: Vec<Scenario> = match args.scenarios.as_slice() {
        [] => scenarios::all(),
        _ => all_cuts().into_iter().filter(wanted).collect(),
    };
    let mut total = VerificationTotal::default();
    for scenario in &chosen {
        println!("{}: {}", scenario.name, scenario.covers);
        let result = verify(&scenario.bounds, threads, None);
        print(&result);
        total.add(&result);
    }
    let result = if total.broken == 0 && !chosen.is_empty() { "holds" } else { "broken" };
    println!(
        r#"{{"verify_lease":"{result}","scenarios":{},"states":{},"steps":{},"seconds":{:.1}}}"#,
        chosen.len(),
        total.states,
        total.steps,
        total.seconds
    );
    result == "holds"
}

#[derive(Default)]
struct VerificationTotal {
    states: usize,
    steps: usize,
    seconds: f64,
    broken: usize,
}

impl VerificationTotal {
    fn add(&mut self, result: &VerificationResult) {
        self.states += result.states;
        self.steps += result.steps;
        self.seconds += result.took.as_secs_f64();
        self.broken += result.counterexamples.len();
    }
}

fn print(result: &VerificationResult) {
    let VerificationResult { states, steps, depth, took, .. } = result;
    println!("  {states} states, {steps} steps, depth {depth}, {:.1} s", took.as_secs_f64());
    println!("  steps: {}", result.counts);
    for invariant in &result.checked {
        let kept = result.counterexamples.iter().all(|broken| broken.invariant != *invariant);
        println!("  {} {invariant}", if kept { "holds:   " } else { "VIOLATED:" });
    }
    result.counterexamples.iter().for_each(|broken| println!("{broken}"));
}

fn search_for_defects() -> bool {
    let found = ProtocolDefect::ALL.map(|defect| {
        let scenario = DefectScenario::new(defect);
        let broken = shortest(&scenario.bounds, scenario.violates);
        match &broken {
            Some(broken) => println!("{defect:?}\n{broken}"),
            None => println!("{defect:?}\nNOT FOUND\n"),
        }
        broken.is_some()
    });
    found.into_iter().all(|found| found)
}
