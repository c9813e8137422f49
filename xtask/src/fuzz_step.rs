//! Fuzzing as a step of the gate: each target for a minute of CPU time, beside the suites, at a low priority.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, bail};

/// Targets at once: as many as the gate has cores.
const JOBS: &str = "2";
/// Low, but not the lowest: on a busy machine a process of the lowest priority hardly runs, which looks like an input that hangs.
const LOW_PRIORITY: &str = "10";

/// A run of the program `fuzz` in the background. It ends with this value.
pub(crate) struct FuzzStep {
    process: Child,
    output: PathBuf,
}

/// The last line of the program.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct FuzzTotals {
    pub(crate) targets: u32,
    pub(crate) executions: u64,
    pub(crate) with_findings: u32,
}

impl FuzzStep {
    /// Starts `program` and writes what it prints to `output`. More `arguments` choose targets and times.
    pub(crate) fn start(program: &Path, output: &Path, arguments: &[&str]) -> anyhow::Result<Self> {
        let file = File::create(output).with_context(|| format!("failed to create `{}`", output.display()))?;
        let mut command = Command::new("nice");
        command.args(["-n", LOW_PRIORITY]).arg(program).args(["--jobs", JOBS]).args(arguments);
        command.stdin(Stdio::null()).stderr(file.try_clone().context("failed to share the output file")?).stdout(file);
        let process = command.spawn().with_context(|| format!("failed to start `{}`", program.display()))?;
        Ok(Self { process, output: output.to_owned() })
    }

    /// Waits for the end and prints the table. A finding is an error with its text.
    pub(crate) fn finish(mut self) -> anyhow::Result<FuzzTotals> {
        let status = self.process.wait().context("failed to wait for fuzzing")?;
        let printed = std::fs::read_to_string(&self.output).context("failed to read the output of fuzzing")?;
        print!("{printed}");
        let totals = printed.lines().find_map(FuzzTotals::parse);
        match totals {
            Some(totals) if status.success() && totals.with_findings == 0 && totals.executions > 0 => Ok(totals),
            _ => bail!("fuzzing failed with {status}:\n{}", printed.trim_end()),
        }
    }
}

impl Drop for FuzzStep {
    /// Another step failed first: nobody waits for the result. The targets end with the program that started them.
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl FuzzTotals {
    /// `fuzz: 19 targets, 1000 executions, 0 with findings`.
    fn parse(line: &str) -> Option<Self> {
        let mut numbers = line.strip_prefix("fuzz: ")?.split(", ").map(|part| part.split(' ').next());
        let mut next = || numbers.next().flatten();
        Some(Self {
            targets: next()?.parse().ok()?,
            executions: next()?.parse().ok()?,
            with_findings: next()?.parse().ok()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The `fuzz` of this build, two folders above the tests of this crate.
    fn program() -> PathBuf {
        let test = std::env::current_exe().expect("a program");
        test.ancestors().nth(2).expect("a target folder").join("fuzz")
    }

    fn run(targets: &[&str]) -> anyhow::Result<FuzzTotals> {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let findings = folder.path().display().to_string();
        let arguments = [&["--minutes", "0.005", "--findings", &findings], targets].concat();
        FuzzStep::start(&program(), &folder.path().join("fuzz.txt"), &arguments)?.finish()
    }

    #[test]
    fn a_run_without_findings_is_counted() {
        let totals = run(&["connection-string", "rules"]).expect("no findings");
        assert_eq!((totals.targets, totals.with_findings), (2, 0));
        assert!(totals.executions > 2);
    }

    #[test]
    fn a_planted_panic_fails_the_step_with_its_text() {
        let text = run(&["rules", "planted-panic"]).expect_err("a finding").to_string();
        assert!(text.contains("planted-panic: panicked") && text.contains("planted panic"), "{text}");
        assert!(text.contains("fuzz: 2 targets") && text.contains("findings in: planted-panic"), "{text}");
    }

    #[test]
    fn a_planted_abort_fails_the_step_and_names_its_input() {
        let text = run(&["planted-abort", "rules"]).expect_err("an abort").to_string();
        assert!(text.contains("SIGABRT") && text.contains("the last input is"), "{text}");
        assert!(text.contains("| rules |"), "the other target ran: {text}");
    }
}
