//! `fuzz`: runs each target in a process of its own, so that an abort or a hang ends only that target.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use clap::Parser;
use fuzz::{FuzzRun, FuzzTarget, RunLimit, TARGETS, find_target, load_corpus, save_finding};

/// Fuzz everything that reads bytes from outside.
#[derive(Parser)]
struct Args {
    /// Minutes for each target
    #[arg(long, default_value_t = 1.0)]
    minutes: f64,
    /// Seed of the mutations; by default a new one, which is printed
    #[arg(long)]
    seed: Option<u64>,
    /// Run only these targets
    #[arg(value_parser = parse_target)]
    targets: Vec<String>,
    /// Run one target in this process
    #[arg(long, hide = true)]
    in_process: bool,
}

fn parse_target(name: &str) -> Result<String, String> {
    let known = || TARGETS.iter().map(|target| target.name).collect::<Vec<_>>().join(", ");
    find_target(name).map(|target| target.name.to_owned()).ok_or_else(|| format!("known targets: {}", known()))
}

fn main() -> ExitCode {
    let arguments = Args::parse();
    let seed = arguments.seed.unwrap_or_else(rand::random);
    let result = match (&arguments.targets[..], arguments.in_process) {
        ([name], true) => {
            find_target(name).context("unknown target").and_then(|target| run_here(target, &arguments, seed))
        }
        _ => run_all(&arguments, seed),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run_all(arguments: &Args, seed: u64) -> anyhow::Result<()> {
    println!(
        "seed {seed}\n\n| target | executions | findings | slowest input | memory | time |\n| --- | --- | --- | --- | --- | --- |"
    );
    let is_wanted =
        |target: &&FuzzTarget| arguments.targets.is_empty() || arguments.targets.iter().any(|name| name == target.name);
    let mut failed = vec![];
    for target in TARGETS.iter().filter(is_wanted) {
        if let Err(error) = run_in_child(target, arguments, seed) {
            println!("| {} | | {error:#} | | | |", target.name);
            failed.push(target.name);
        }
    }
    if failed.is_empty() { Ok(()) } else { bail!("findings in: {}", failed.join(", ")) }
}

/// Twice the time that the target has, and a minute to start: more is a hang.
fn run_in_child(target: &FuzzTarget, arguments: &Args, seed: u64) -> anyhow::Result<()> {
    let program = std::env::current_exe().context("failed to find this program")?;
    let minutes = arguments.minutes.to_string();
    let mut child = Command::new(program)
        .args(["--in-process", "--minutes", &minutes, "--seed", &seed.to_string(), target.name])
        .stdin(Stdio::null())
        .spawn()
        .context("failed to start the target")?;
    let limit = Duration::from_secs_f64(arguments.minutes * 120.0) + Duration::from_secs(60);
    let started = Instant::now();
    loop {
        if let Some(status) = child.try_wait()? {
            match status.success() {
                true => return Ok(()),
                false => bail!("{status}; the last input is `{}`", last_input(target).display()),
            }
        }
        if started.elapsed() > limit {
            child.kill()?;
            child.wait()?;
            bail!("hangs; the last input is `{}`", last_input(target).display());
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn last_input(target: &FuzzTarget) -> PathBuf {
    std::env::temp_dir().join(format!("headwater-fuzz-{}", target.name))
}

fn run_here(target: &FuzzTarget, arguments: &Args, seed: u64) -> anyhow::Result<()> {
    let started = Instant::now();
    let path = last_input(target);
    let file = File::create(&path).with_context(|| format!("failed to create `{}`", path.display()))?;
    let limit = RunLimit { time: Duration::from_secs_f64(arguments.minutes * 60.0), executions: u64::MAX };
    let run = FuzzRun::new(target, load_corpus(target.name)?, seed).with_observer(|input| write_input(&file, input));
    let summary = run.run(limit);
    println!(
        "| {} | {} | {} | {:.1} ms | {} MiB | {:.0} s |",
        target.name,
        summary.executions,
        summary.findings.len(),
        summary.slowest.as_secs_f64() * 1e3,
        summary.resident_bytes >> 20,
        started.elapsed().as_secs_f64()
    );
    for finding in &summary.findings {
        let kept = save_finding(target.name, &finding.input)?;
        eprintln!("{}: {}\n  kept in `{}`", target.name, finding.problem, shown(&kept));
    }
    if summary.findings.is_empty() { Ok(()) } else { bail!("{} findings", summary.findings.len()) }
}

/// The last part of the path: enough to find it, and the same on each machine.
fn shown(path: &Path) -> String {
    let parts: Vec<_> = path.components().rev().take(3).map(|part| part.as_os_str().to_string_lossy()).collect();
    parts.into_iter().rev().collect::<Vec<_>>().join("/")
}

fn write_input(file: &File, input: &[u8]) {
    // Best effort: it only helps to find the input of an abort.
    let _ = file.write_all_at(input, 0).and_then(|()| file.set_len(input.len() as u64));
}
