//! `fuzz`: runs each target in a process of its own, so that an abort or a hang ends only that target.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, bail};
use clap::Parser;
use fuzz::{Finding, FuzzRun, FuzzTarget, RunLimit, TARGETS, corpus_folder, find_target, load_corpus, save_finding};

/// A target that starts no new input for this long hangs.
const HANG: Duration = Duration::from_secs(240);
/// Bytes of an input that are printed; the whole input is in its file.
const PRINTED_INPUT: usize = 200;

/// Fuzz everything that reads bytes from outside.
#[derive(Parser)]
struct Args {
    /// Minutes of CPU time for each target
    #[arg(long, default_value_t = 1.0)]
    minutes: f64,
    /// Seed of the mutations; by default a new one, which is printed
    #[arg(long)]
    seed: Option<u64>,
    /// Targets that run at once
    #[arg(long, default_value_t = 1)]
    jobs: usize,
    /// Folder for inputs that did harm; by default the corpus in the repository
    #[arg(long)]
    findings: Option<PathBuf>,
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
            end_with_parent();
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

/// Runs the targets, `jobs` at once. The last line of the output is the summary.
fn run_all(arguments: &Args, seed: u64) -> anyhow::Result<()> {
    println!(
        "seed {seed}\n\n| target | executions | findings | slowest input | memory | time |\n| --- | --- | --- | --- | --- | --- |"
    );
    let targets: Vec<_> = match &arguments.targets[..] {
        [] => TARGETS.iter().collect(),
        names => names.iter().filter_map(|name| find_target(name)).collect(),
    };
    let (next, executions, failed) = (AtomicUsize::new(0), AtomicU64::new(0), Mutex::new(vec![]));
    let run_next_targets = || {
        while let Some(target) = targets.get(next.fetch_add(1, Ordering::Relaxed)) {
            match run_in_child(target, arguments, seed) {
                Ok(count) => drop(executions.fetch_add(count, Ordering::Relaxed)),
                Err(error) => {
                    println!("| {} | | {error:#} | | | |", target.name);
                    failed.lock().expect("no thread panics").push(target.name);
                }
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..arguments.jobs.max(1) {
            scope.spawn(run_next_targets);
        }
    });
    let failed = failed.into_inner().expect("no thread panics");
    println!("fuzz: {} targets, {} executions, {} with findings", targets.len(), executions.into_inner(), failed.len());
    if failed.is_empty() { Ok(()) } else { bail!("findings in: {}", failed.join(", ")) }
}

/// Runs one target in a process, prints its row and returns how many inputs it ran.
fn run_in_child(target: &FuzzTarget, arguments: &Args, seed: u64) -> anyhow::Result<u64> {
    let program = std::env::current_exe().context("failed to find this program")?;
    let mut command = Command::new(program);
    command.args(["--in-process", "--minutes", &arguments.minutes.to_string(), "--seed", &seed.to_string()]);
    if let Some(folder) = &arguments.findings {
        command.arg("--findings").arg(folder);
    }
    // The child ends when its standard input is closed: also when this process is killed.
    let child = command.arg(target.name).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
    let mut child = child.context("failed to start the target")?;
    let input = last_input(target, child.id());
    let status = wait_for_exit(&mut child, &input);
    let mut row = String::new();
    child.stdout.take().context("the target has no output")?.read_to_string(&mut row)?;
    let status = status.with_context(|| format!("the last input is `{}`", input.display()))?;
    if !status.success() {
        bail!("{status}; the last input is `{}`", input.display());
    }
    print!("{row}");
    let _ = std::fs::remove_file(input);
    row.split('|').nth(2).and_then(|cell| cell.trim().parse().ok()).context("the target printed no executions")
}

/// Fails, and ends the child, if it starts no new input for [`HANG`].
fn wait_for_exit(child: &mut Child, input: &Path) -> anyhow::Result<std::process::ExitStatus> {
    let changed_at = || std::fs::metadata(input).and_then(|file| file.modified()).unwrap_or(SystemTime::UNIX_EPOCH);
    let (mut last_change, mut since) = (changed_at(), Instant::now());
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        let change = changed_at();
        if change != last_change {
            (last_change, since) = (change, Instant::now());
        }
        if since.elapsed() > HANG {
            child.kill()?;
            child.wait()?;
            bail!("hangs");
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// By process: several checkouts may fuzz on one machine.
fn last_input(target: &FuzzTarget, process: u32) -> PathBuf {
    std::env::temp_dir().join(format!("headwater-fuzz-{}-{process}", target.name))
}

/// Ends this process when the process that started it closes the pipe or ends.
fn end_with_parent() {
    std::thread::spawn(|| {
        let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
        std::process::exit(1);
    });
}

fn run_here(target: &FuzzTarget, arguments: &Args, seed: u64) -> anyhow::Result<()> {
    let started = Instant::now();
    let path = last_input(target, std::process::id());
    let file = File::create(&path).with_context(|| format!("failed to create `{}`", path.display()))?;
    let limit = RunLimit { cpu_time: Duration::from_secs_f64(arguments.minutes * 60.0), executions: u64::MAX };
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
    let folder = arguments.findings.clone().unwrap_or_else(corpus_folder);
    for Finding { input, problem } in &summary.findings {
        let kept = save_finding(&folder, target.name, input)?;
        let start = &input[..input.len().min(PRINTED_INPUT)];
        eprintln!("{}: {problem}\n  kept in `{}`, {} bytes: {start:02x?}", target.name, shown(&kept), input.len());
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
