//! Runs one target on many inputs and watches for panics on any thread, slow inputs and memory.

use std::panic::{self, AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use nix::time::{ClockId, clock_gettime};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use crate::mutation::mutate;
use crate::targets::FuzzTarget;

/// CPU time that one input may take. The slowest targets use sockets and take a few milliseconds.
const SLOW: Duration = Duration::from_secs(2);
/// Time that one input may take. A process of low priority waits for a core, so this is much longer than the CPU time.
const BLOCKED: Duration = Duration::from_secs(120);
/// Resident memory of the whole process. Most of it is the broker of one target.
const MAX_RESIDENT_BYTES: u64 = 1 << 30;
const MEMORY_CHECK_INTERVAL: u64 = 256;
/// One defect is usually found by many inputs.
const MAX_FINDINGS: usize = 5;

/// When a run ends; at the first of both.
#[derive(Clone, Copy, Debug)]
pub struct RunLimit {
    /// Of this process. Time alone would say little about a run beside other work.
    pub cpu_time: Duration,
    pub executions: u64,
}

/// An input that did harm.
#[derive(Clone, Debug)]
pub struct Finding {
    pub input: Vec<u8>,
    pub problem: String,
}

#[derive(Debug)]
pub struct FuzzSummary {
    pub executions: u64,
    pub findings: Vec<Finding>,
    pub slowest: Duration,
    pub resident_bytes: u64,
}

/// One run over one target.
pub struct FuzzRun<'a> {
    target: &'a FuzzTarget,
    inputs: Vec<Vec<u8>>,
    random: StdRng,
    /// Called with each input before it runs, so that it is known after an abort.
    before: InputObserver<'a>,
}

type InputObserver<'a> = Box<dyn FnMut(&[u8]) + 'a>;

/// The last panic of any thread: tasks of a server panic where nobody sees it.
static LAST_PANIC: Mutex<Option<String>> = Mutex::new(None);

fn record_panics() {
    panic::set_hook(Box::new(|panic| {
        let text = panic.to_string();
        LAST_PANIC.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(text);
    }));
}

fn take_panic() -> Option<String> {
    LAST_PANIC.lock().unwrap_or_else(PoisonError::into_inner).take()
}

impl<'a> FuzzRun<'a> {
    pub fn new(target: &'a FuzzTarget, corpus: Vec<Vec<u8>>, seed: u64) -> Self {
        let mut inputs = (target.seeds)();
        inputs.extend(corpus);
        Self { target, inputs, random: StdRng::seed_from_u64(seed), before: Box::new(|_| {}) }
    }

    #[must_use]
    pub fn with_observer(mut self, before: impl FnMut(&[u8]) + 'a) -> Self {
        self.before = Box::new(before);
        self
    }

    /// All seeds and the corpus as they are, then mutations of them.
    pub fn run(mut self, limit: RunLimit) -> FuzzSummary {
        record_panics();
        let started = cpu_time();
        let mut summary =
            FuzzSummary { executions: 0, findings: vec![], slowest: Duration::ZERO, resident_bytes: resident_bytes() };
        let inputs = self.inputs.clone();
        for input in &inputs {
            self.run_input(input, &mut summary);
        }
        while cpu_time().saturating_sub(started) < limit.cpu_time
            && summary.executions < limit.executions
            && summary.findings.len() < MAX_FINDINGS
        {
            let mut input = inputs.get(self.random.random_range(0..inputs.len().max(1))).cloned().unwrap_or_default();
            mutate(&mut input, &inputs, self.target.dictionary, &mut self.random);
            self.run_input(&input, &mut summary);
        }
        drop(panic::take_hook());
        summary
    }

    fn run_input(&mut self, input: &[u8], summary: &mut FuzzSummary) {
        (self.before)(input);
        let (started, cpu_before) = (Instant::now(), cpu_time());
        let ran = catch_unwind(AssertUnwindSafe(|| (self.target.run)(input)));
        let (took, used) = (started.elapsed(), cpu_time().saturating_sub(cpu_before));
        summary.executions += 1;
        summary.slowest = summary.slowest.max(took);
        let panicked = take_panic().or_else(|| ran.is_err().then(|| "panicked".to_owned()));
        let slow = (used > SLOW || took > BLOCKED).then(|| format!("took {took:?}, {used:?} of CPU time"));
        if summary.executions.is_multiple_of(MEMORY_CHECK_INTERVAL) {
            summary.resident_bytes = summary.resident_bytes.max(resident_bytes());
        }
        let large = (summary.resident_bytes > MAX_RESIDENT_BYTES)
            .then(|| format!("the process uses {} MiB", summary.resident_bytes >> 20));
        if let Some(problem) = panicked.or(slow).or(large) {
            summary.findings.push(Finding { input: input.to_vec(), problem });
        }
    }
}

/// CPU time of this process: targets also work on threads of servers.
fn cpu_time() -> Duration {
    clock_gettime(ClockId::CLOCK_PROCESS_CPUTIME_ID).map(Duration::from).unwrap_or_default()
}

/// 0 where the system does not tell.
fn resident_bytes() -> u64 {
    let pages = std::fs::read_to_string("/proc/self/statm").ok();
    let pages = pages.as_deref().and_then(|text| text.split(' ').nth(1)?.parse::<u64>().ok());
    // The page size of all Linux systems that we build for.
    pages.unwrap_or_default() * 4096
}
