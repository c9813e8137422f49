//! `cargo xtask verify-lease`: searches every history of the lease protocol within stated bounds for one that breaks a promise.

use std::process::ExitCode;
use std::thread;

use clap::Parser;
use lease_model::defect_scenario::DefectScenario;
use lease_model::protocol_defect::ProtocolDefect;
use lease_model::scenarios::{self, Scenario};
use lease_model::verify::{VerificationResult, shortest, verify};

#[derive(Parser)]
#[command(about = "Searches every history of the lease protocol, within stated bounds, for one that breaks a promise")]
struct Args {
    /// Only these scenarios; `--list` names them
    scenarios: Vec<String>,
    /// Name the scenarios and what they cover
    #[arg(long)]
    list: bool,
    /// Search with each planted defect instead; every one must be found
    #[arg(long)]
    planted: bool,
    /// Defaults to the number of cores
    #[arg(long)]
    threads: Option<usize>,
}

fn main() -> ExitCode {
    let arguments = Args::parse();
    if arguments.list {
        all_cuts().iter().for_each(|scenario| println!("{:<16} {}", scenario.name, scenario.covers));
        return ExitCode::SUCCESS;
    }
    let held = if arguments.planted { search_for_defects() } else { search(&arguments) };
    if held { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn all_cuts() -> Vec<Scenario> {
    scenarios::all().into_iter().chain(scenarios::small()).collect()
}

fn search(arguments: &Args) -> bool {
    let threads = arguments.threads.unwrap_or_else(|| thread::available_parallelism().map_or(1, usize::from));
    let wanted = |scenario: &Scenario| arguments.scenarios.iter().any(|name| name == scenario.name);
    let chosen: Vec<Scenario> = match arguments.scenarios.as_slice() {
        [] => scenarios::all(),
        _ => all_cuts().into_iter().filter(wanted).collect(),
    };
    let mut total = Total::default();
    for scenario in &chosen {
        println!("{}: {}", scenario.name, scenario.covers);
        let outcome = verify(&scenario.bounds, threads, None);
        print(&outcome);
        total.add(&outcome);
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
struct Total {
    states: usize,
    steps: usize,
    seconds: f64,
    broken: usize,
}

impl Total {
    fn add(&mut self, outcome: &VerificationResult) {
        self.states += outcome.states;
        self.steps += outcome.steps;
        self.seconds += outcome.took.as_secs_f64();
        self.broken += outcome.broken.len();
    }
}

fn print(outcome: &VerificationResult) {
    let VerificationResult { states, steps, depth, took, .. } = outcome;
    println!("  {states} states, {steps} steps, depth {depth}, {:.1} s", took.as_secs_f64());
    println!("  met: {}", outcome.counts);
    for promise in &outcome.checked {
        let kept = outcome.broken.iter().all(|broken| broken.promise != *promise);
        println!("  {} {promise}", if kept { "holds: " } else { "BROKEN:" });
    }
    outcome.broken.iter().for_each(|broken| println!("{broken}"));
}

fn search_for_defects() -> bool {
    let found = ProtocolDefect::ALL.map(|defect| {
        let planted = DefectScenario::new(defect);
        let broken = shortest(&planted.bounds, planted.breaks);
        match &broken {
            Some(broken) => println!("{defect:?}\n{broken}"),
            None => println!("{defect:?}\nNOT FOUND\n"),
        }
        broken.is_some()
    });
    found.into_iter().all(|found| found)
}
