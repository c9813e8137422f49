//! Memory and CPU time of a process, from `/proc`.

use std::fs;
use std::time::Duration;

/// CPU time of all threads so far.
///
/// # Panics
/// When there is no such process.
pub fn cpu_time(pid: u32) -> Duration {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).expect("a process has threads");
    let taken = threads.filter_map(|thread| {
        let stat = fs::read_to_string(thread.ok()?.path().join("schedstat")).ok()?;
        stat.split_whitespace().next()?.parse::<u64>().ok()
    });
    Duration::from_nanos(taken.sum())
}

/// Resident memory in megabytes.
///
/// # Panics
/// When there is no such process.
pub fn resident_mb(pid: u32) -> f64 {
    status_mb(pid, "VmRSS:")
}

/// The peak of its resident memory in megabytes.
///
/// # Panics
/// When there is no such process.
pub fn peak_resident_mb(pid: u32) -> f64 {
    status_mb(pid, "VmHWM:")
}

fn status_mb(pid: u32, field: &str) -> f64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("a process has a status");
    let line = status.lines().find(|line| line.starts_with(field)).expect("the status has memory fields");
    line.split_whitespace().nth(1).and_then(|kib| kib.parse::<f64>().ok()).expect("a number of kibibytes") / 1024.0
}
