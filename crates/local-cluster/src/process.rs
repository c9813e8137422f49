//! Real child processes, with their output and all signals.
//!
//! A child is killed when its [`Process`] is dropped, and by the kernel when the test process itself is killed. A failed
//! wait and a failed test print the last lines of the child's output.
//!
//! ```no_run
//! # use std::time::Duration;
//! # use local_cluster::process::Program;
//! # async fn example() -> Result<(), local_cluster::process::Error> {
//! let pod = Program::new("headwater").named("pod-1").args(["run"]).env("HOSTNAME", "pod-1").start()?;
//! pod.wait_for_line("leading", Duration::from_secs(10)).await;
//! pod.pause().await; // it keeps its lease and its connections, and does nothing
//! pod.resume();
//! pod.terminate();
//! assert!(pod.wait_for_exit(Duration::from_secs(10)).await.success());
//! # Ok(()) }
//! ```

mod output;

use std::{
    ffi::{OsStr, OsString},
    fmt::{self, Display},
    fs::File,
    io,
    path::{Path, PathBuf},
    process::{Child, ExitStatus, Stdio},
    sync::{
        Mutex, MutexGuard,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use mongod::{ParentDeathSignal, child};
use nix::{
    sys::{
        signal::{self, Signal},
        wait::{Id, WaitPidFlag, WaitStatus, waitid},
    },
    unistd::Pid,
};

pub use output::{OutputLine, OutputStream};

use crate::wait::{TimedOut, try_wait_for};
use output::CapturedOutput;

/// How many lines a failure shows.
const TAIL: usize = 40;
/// Limit for what only the kernel does: stop a process, or end a killed one. Long, because the machine may be busy.
const KERNEL_LIMIT: Duration = Duration::from_secs(30);

/// A program with arguments and environment; can be started any number of times.
#[derive(Clone, Debug)]
pub struct Program {
    name: String,
    path: PathBuf,
    args: Vec<OsString>,
    env: Vec<(OsString, OsString)>,
    removed_env: Vec<&'static str>,
    output: OutputMode,
}

/// Where the output of a process goes.
#[derive(Clone, Debug)]
enum OutputMode {
    /// Into memory, for [`Process::lines`] and the waits.
    Captured,
    /// To the end of a file.
    Appended(PathBuf),
    /// Only stderr, to the stderr of this process.
    InheritedStderr,
}

#[derive(Debug, thiserror::Error)]
#[error("failed to start `{name}` from `{path}`")]
pub struct Error {
    name: String,
    path: PathBuf,
    #[source]
    source: io::Error,
}

impl Program {
    pub fn new(path: impl Into<PathBuf>) -> Self {
        let path = path.into();
        let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
        Self { name, path, args: vec![], env: vec![], removed_env: vec![], output: OutputMode::Captured }
    }

    /// Another executable, with the same arguments, environment and name.
    pub fn with_executable(mut self, path: impl Into<PathBuf>) -> Self {
        self.path = path.into();
        self
    }

    /// Its name in failure messages; by default the file name.
    pub fn named(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    pub fn args(mut self, args: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Self {
        self.args.extend(args.into_iter().map(|arg| arg.as_ref().to_owned()));
        self
    }

    /// Adds an environment variable.
    pub fn env(mut self, key: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> Self {
        self.env.push((key.as_ref().to_owned(), value.as_ref().to_owned()));
        self
    }

    /// Removes every inherited environment variable with this prefix.
    pub fn without_env_prefix(mut self, prefix: &'static str) -> Self {
        self.removed_env.push(prefix);
        self
    }

    /// Appends its output to a file instead of capturing it.
    pub fn append_output_to(mut self, log: impl Into<PathBuf>) -> Self {
        self.output = OutputMode::Appended(log.into());
        self
    }

    /// Discards its stdout, and shows its stderr in place of capturing it.
    pub fn inherit_stderr(mut self) -> Self {
        self.output = OutputMode::InheritedStderr;
        self
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// The file that its output is appended to.
    pub fn log(&self) -> Option<&Path> {
        match &self.output {
            OutputMode::Appended(log) => Some(log),
            OutputMode::Captured | OutputMode::InheritedStderr => None,
        }
    }

    pub fn start(&self) -> Result<Process, Error> {
        let failed = |source| Error { name: self.name.clone(), path: self.path.clone(), source };
        // Checked here, because the wrapper starts even if the program is missing. The wrapper looks up a bare name on the PATH.
        if self.path.components().count() > 1 {
            self.path.metadata().map_err(failed)?;
        }
        let mut command = child::command(&self.path, ParentDeathSignal::Kill);
        let is_removed = |name: &OsString| {
            self.removed_env.iter().any(|prefix| name.as_encoded_bytes().starts_with(prefix.as_bytes()))
        };
        for name in std::env::vars_os().map(|(name, _)| name).filter(is_removed) {
            command.env_remove(name);
        }
        command.args(&self.args).envs(self.env.iter().map(|(key, value)| (key, value)));
        let (stdout, stderr) = self.output.streams().map_err(failed)?;
        command.stdin(Stdio::null()).stdout(stdout).stderr(stderr);
        let mut child = child::spawn(command).map_err(failed)?;
        let output = CapturedOutput::default();
        if let (Some(stdout), Some(stderr)) = (child.stdout.take(), child.stderr.take()) {
            output.capture(OutputStream::Stdout, stdout);
            output.capture(OutputStream::Stderr, stderr);
        }
        Ok(Process {
            name: self.name.clone(),
            pid: child.id(),
            child: Mutex::new(child),
            output,
            tail_shown: AtomicBool::new(false),
        })
    }
}

impl OutputMode {
    fn streams(&self) -> io::Result<(Stdio, Stdio)> {
        Ok(match self {
            Self::Captured => (Stdio::piped(), Stdio::piped()),
            Self::Appended(log) => {
                let log = File::options().create(true).append(true).open(log)?;
                (log.try_clone()?.into(), log.into())
            }
            Self::InheritedStderr => (Stdio::null(), Stdio::inherit()),
        })
    }
}

/// A child process, running or ended.
#[derive(Debug)]
pub struct Process {
    name: String,
    pid: u32,
    child: Mutex<Child>,
    output: CapturedOutput,
    /// A failed wait has printed the tail; the drop need not repeat it.
    tail_shown: AtomicBool,
}

impl Process {
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// How it ended; `None` while it exists. A paused process still exists.
    pub fn exit_status(&self) -> Option<ExitStatus> {
        self.child().try_wait().expect("a child of ours can be waited for")
    }

    /// SIGTERM: requests an orderly shutdown.
    pub fn terminate(&self) {
        self.signal(Signal::SIGTERM);
    }

    /// SIGTERM, unless it has already ended.
    pub fn terminate_if_running(&self) {
        self.try_signal(Signal::SIGTERM);
    }

    /// SIGKILL. Returns when the process has ended.
    pub async fn kill(&self) -> ExitStatus {
        self.signal(Signal::SIGKILL);
        self.wait_for_exit(KERNEL_LIMIT).await
    }

    /// SIGSTOP. Returns when every thread has stopped; its connections stay open.
    pub async fn pause(&self) {
        self.signal(Signal::SIGSTOP);
        let stopped = try_wait_for("the process to stop", KERNEL_LIMIT, async || match self.stop_status() {
            Ok(WaitStatus::Stopped(..)) => Ok(()),
            other => Err(other),
        });
        stopped.await.unwrap_or_else(|timed_out| self.fail(timed_out));
    }

    /// SIGCONT.
    pub fn resume(&self) {
        self.signal(Signal::SIGCONT);
    }

    /// Waits until the process has ended and its output is complete.
    ///
    /// # Panics
    /// With the end of its output, when it does not end in time.
    pub async fn wait_for_exit(&self, within: Duration) -> ExitStatus {
        let ended =
            try_wait_for("the process to end", within, async || self.exit_status().ok_or("still running")).await;
        let status = ended.unwrap_or_else(|timed_out| self.fail(timed_out));
        // Not a failure: a grandchild may hold the streams open for longer.
        let rest = Duration::from_secs(1);
        let _: Result<(), TimedOut> =
            try_wait_for(
                "the end of its output",
                rest,
                async || {
                    if self.output.has_ended() { Ok(()) } else { Err("open") }
                },
            )
            .await;
        status
    }

    /// Waits for a line that contains `text`; earlier lines count too.
    ///
    /// # Panics
    /// With the end of its output, when the line does not come in time or the process has ended without it.
    pub async fn wait_for_line(&self, text: &str, within: Duration) -> OutputLine {
        self.wait_for_line_from(OutputMark(0), text, within).await
    }

    /// Like [`Self::wait_for_line`], for lines since the mark.
    pub async fn wait_for_line_from(&self, mark: OutputMark, text: &str, within: Duration) -> OutputLine {
        let what = format_args!("a line with `{text}`");
        let found = try_wait_for(what, within, async || {
            // Checked before the search: checked after it, an end could hide a last line that came in between.
            let ended = self.output.has_ended();
            match self.output.find(mark.0, |line| line.contains(text)) {
                Some(line) => Ok(Some(line)),
                None if ended => Ok(None),
                None => Err(format!("{} lines", self.output.line_count())),
            }
        });
        match found.await {
            Ok(Some(line)) => line,
            Ok(None) => self.fail(format_args!("its output ended without {what}")),
            Err(timed_out) => self.fail(timed_out),
        }
    }

    /// The first of the lines so far that contains `text`.
    pub fn find_line(&self, text: &str) -> Option<OutputLine> {
        self.output.find(0, |line| line.contains(text))
    }

    /// The current position in its output. Take it before the action whose line is awaited.
    pub fn mark(&self) -> OutputMark {
        OutputMark(self.output.line_count())
    }

    /// The last ten thousand lines so far.
    pub fn lines(&self) -> Vec<OutputLine> {
        self.output.lines()
    }

    /// The last lines, as a failure prints them.
    pub fn tail(&self) -> impl Display {
        OutputTail(self.output.tail(TAIL))
    }

    /// # Panics
    /// When the process has ended: a test that signals a dead process is not testing what it thinks.
    fn signal(&self, signal: Signal) {
        if let Some(status) = self.try_signal(signal) {
            self.fail(format_args!("cannot send {signal}: the process has ended ({status})"));
        }
    }

    /// Sends the signal; returns how the process ended if it has.
    fn try_signal(&self, signal: Signal) -> Option<ExitStatus> {
        // Under the lock, because only a child that has not been waited for is sure to own its pid.
        let mut child = self.child();
        let ended = child.try_wait().expect("a child of ours can be waited for");
        if ended.is_none() {
            signal::kill(self.os_pid(), signal).expect("a child of ours can be signalled");
        }
        ended
    }

    /// Peeks, so that a second call gives the same result.
    fn stop_status(&self) -> nix::Result<WaitStatus> {
        waitid(Id::Pid(self.os_pid()), WaitPidFlag::WSTOPPED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT)
    }

    fn os_pid(&self) -> Pid {
        Pid::from_raw(self.pid.try_into().expect("a pid fits in an i32"))
    }

    fn child(&self) -> MutexGuard<'_, Child> {
        self.child.lock().expect("no one panics while holding the child")
    }

    fn fail(&self, why: impl Display) -> ! {
        self.tail_shown.store(true, Relaxed);
        panic!("{} (pid {}): {why}; its last lines:\n{}", self.name, self.pid, self.tail())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if std::thread::panicking() && !self.tail_shown.load(Relaxed) {
            eprintln!("last lines of {} (pid {}):\n{}", self.name, self.pid, self.tail());
        }
        let child = self.child.get_mut().unwrap_or_else(std::sync::PoisonError::into_inner);
        // Both fail only if it has already ended.
        let _ = child.kill();
        let _ = child.wait();
    }
}

/// A point in a process's output.
#[derive(Clone, Copy, Debug)]
pub struct OutputMark(u64);

struct OutputTail(Vec<OutputLine>);

impl Display for OutputTail {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return write!(f, "  (no output)");
        }
        self.0.iter().try_for_each(|line| writeln!(f, "  {line}"))
    }
}
