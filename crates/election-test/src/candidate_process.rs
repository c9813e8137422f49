//! The test's side of a candidate: start it, read its reports, signal it, kill it.

use std::collections::BTreeMap;
use std::time::Duration;

use lease::Config;
use testkit::process::{OutputLine, OutputStream, Process, Program};
use testkit::wait::wait_for;
use testkit::wall_clock::WallClock;

use super::candidate::{CandidateConfig, ElectionProtocol, VARIABLE};
use super::evaluation::{ElectionEvaluation, evaluate};
use super::report::{CandidateReport, Millis, now};

/// The candidates for one lease, and all that they reported.
pub struct ElectionTest {
    config: CandidateConfig,
    arguments: Vec<String>,
    candidates: BTreeMap<String, CandidateProcess>,
    stopped_candidates: Vec<CandidateProcess>,
}

/// One candidate's process.
pub struct CandidateProcess {
    name: String,
    process: Process,
    killed: Option<Millis>,
}

impl ElectionTest {
    /// `arguments` make this program call [`super::run_if_candidate`].
    pub fn new(uri: &str, database: &str, config: Config, arguments: &[&str]) -> Self {
        let config = CandidateConfig {
            protocol: ElectionProtocol::Lease,
            uri: uri.into(),
            database: database.into(),
            key: "election".into(),
            pod_id: String::new(),
            config,
            checkpoint: false,
        };
        let arguments = arguments.iter().map(|argument| (*argument).to_owned()).collect();
        Self { config, arguments, candidates: BTreeMap::new(), stopped_candidates: vec![] }
    }

    #[must_use]
    pub fn with_protocol(mut self, protocol: ElectionProtocol) -> Self {
        self.config.protocol = protocol;
        self
    }

    #[must_use]
    pub fn with_checkpoint(mut self) -> Self {
        self.config.checkpoint = true;
        self
    }

    /// Starts a candidate; `name` is also its pod id.
    ///
    /// # Panics
    /// When a candidate of that name is still running: the test would lose its reports.
    pub fn start_candidate(&mut self, name: &str) -> &CandidateProcess {
        self.start_candidate_with(name, name, WallClock::Accurate)
    }

    pub fn start_candidate_with(&mut self, name: &str, pod_id: &str, clock: WallClock) -> &CandidateProcess {
        let config = CandidateConfig { pod_id: pod_id.into(), ..self.config.clone() };
        let text = serde_json::to_string(&config).expect("the configuration is plain data");
        // The same binary again, so that test and candidate are always the same build.
        let program = std::env::current_exe().expect("this program has a path");
        let program = Program::new(program).named(name).args(&self.arguments).env(VARIABLE, text);
        let program = clock.variables().into_iter().fold(program, |program, (key, value)| program.env(key, value));
        let process = program.start().expect("this program can be started again");
        let candidate = CandidateProcess { name: name.into(), process, killed: None };
        if let Some(before) = self.candidates.insert(name.into(), candidate) {
            assert!(!before.is_running(), "{name} is still running");
            self.stopped_candidates.push(before);
        }
        &self.candidates[name]
    }

    pub fn get(&self, name: &str) -> &CandidateProcess {
        &self.candidates[name]
    }

    pub fn names(&self) -> Vec<String> {
        self.candidates.keys().cloned().collect()
    }

    /// Waits until a candidate other than `not` gains a term above `after`. Returns its name, the term and the time.
    pub async fn next_leader(&self, after: u64, not: Option<&str>, within: Duration) -> (String, u64, Millis) {
        wait_for(format_args!("a leader after term {after}"), within, async || {
            let gained = self.candidates.values().filter(|candidate| Some(candidate.name.as_str()) != not);
            let gained = gained.filter_map(|candidate| Some((candidate, candidate.first_term_after(after)?)));
            let first = gained.min_by(|left, right| left.1.1.total_cmp(&right.1.1));
            first.map(|(candidate, (term, at))| (candidate.name.clone(), term, at)).ok_or_else(|| self.last_reports())
        })
        .await
    }

    /// The candidate with the latest term so far, and the term.
    ///
    /// # Panics
    /// When no candidate has led yet.
    pub fn last_leader(&self) -> (String, u64) {
        let all = self.candidates.values();
        let last = all.filter_map(|candidate| Some((candidate.name.clone(), candidate.last_term()?)));
        last.max_by_key(|(_, term)| *term).expect("a candidate has led")
    }

    /// Like [`Self::next_leader`], for the protocol without terms.
    pub async fn first_leader(&self, within: Duration) -> String {
        let gained = |report: &CandidateReport| matches!(report, CandidateReport::Gained { .. });
        wait_for("a leader", within, async || {
            let leader = self.candidates.values().find(|candidate| candidate.reports().iter().any(gained));
            leader.map(|leader| leader.name.clone()).ok_or_else(|| self.last_reports())
        })
        .await
    }

    /// Sends SIGKILL; returns the time.
    pub async fn kill(&mut self, name: &str) -> Millis {
        let candidate = self.candidates.get_mut(name).expect("a candidate of that name was started");
        let at = now();
        candidate.process.kill().await;
        // The candidate may still act between `at` and its end.
        candidate.killed = Some(now());
        at
    }

    pub fn evaluate(&self) -> ElectionEvaluation {
        let all: Vec<_> =
            self.all().map(|candidate| (candidate.unique_name(), candidate.reports(), candidate.killed)).collect();
        evaluate(all.iter().map(|(name, reports, killed)| (name.as_str(), reports.as_slice(), *killed)))
    }

    /// Log lines of these levels, from all candidates.
    pub fn log_lines(&self, levels: &[&str]) -> Vec<String> {
        let lines = self.all().flat_map(|candidate| candidate.process.lines());
        let log = lines.filter(|line| line.stream == OutputStream::Stderr).map(|line| line.text);
        let wanted = |text: &String| levels.iter().any(|level| text.contains(&format!("\"level\":\"{level}\"")));
        log.filter(wanted).collect()
    }

    fn all(&self) -> impl Iterator<Item = &CandidateProcess> {
        self.candidates.values().chain(&self.stopped_candidates)
    }

    fn last_reports(&self) -> String {
        let last =
            self.candidates.values().map(|candidate| format!("{}: {:?}", candidate.name, candidate.reports().last()));
        last.collect::<Vec<_>>().join("; ")
    }
}

impl CandidateProcess {
    pub fn reports(&self) -> Vec<CandidateReport> {
        let parse = |line: OutputLine| {
            (line.stream == OutputStream::Stdout).then(|| CandidateReport::parse(&line.text)).flatten()
        };
        self.process.lines().into_iter().filter_map(parse).collect()
    }

    /// Waits for a report that `found` accepts.
    pub async fn wait_for_report<T>(
        &self,
        what: &str,
        within: Duration,
        found: impl Fn(&CandidateReport) -> Option<T>,
    ) -> T {
        wait_for(format_args!("{} to report that it {what}", self.name), within, async || {
            let reports = self.reports();
            reports.iter().find_map(&found).ok_or_else(|| format!("{:?}", reports.last()))
        })
        .await
    }

    pub async fn wait_until_started(&self) {
        let started = |report: &CandidateReport| matches!(report, CandidateReport::Started { .. }).then_some(());
        self.wait_for_report("started", Duration::from_secs(30), started).await;
    }

    /// SIGTERM: the candidate drains, releases the lease and ends.
    pub fn terminate(&self) {
        self.process.terminate();
    }

    /// SIGSTOP.
    pub async fn pause(&self) {
        self.process.pause().await;
    }

    /// SIGCONT.
    pub fn resume(&self) {
        self.process.resume();
    }

    pub fn is_running(&self) -> bool {
        self.process.exit_status().is_none()
    }

    pub async fn wait_until_ended(&self) {
        let status = self.process.wait_for_exit(Duration::from_secs(30)).await;
        assert!(status.success(), "{}: {status}", self.name);
        let panics = self.log_lines(&["panicked at"]);
        assert!(panics.is_empty(), "{}: {panics:?}", self.name);
    }

    /// Waits for a log line that contains all of these texts, and returns the number of such lines.
    pub async fn wait_for_log(&self, texts: &[&str], within: Duration) -> usize {
        wait_for(format_args!("{} to log {texts:?}", self.name), within, async || {
            let lines = self.log_lines(texts).len();
            if lines > 0 { Ok(lines) } else { Err(self.process.tail().to_string()) }
        })
        .await
    }

    /// The log lines so far that contain all of these texts.
    pub fn log_lines(&self, texts: &[&str]) -> Vec<String> {
        let lines = self.process.lines().into_iter().map(|line| line.text);
        lines.filter(|line| texts.iter().all(|text| line.contains(text))).collect()
    }

    fn first_term_after(&self, after: u64) -> Option<(u64, Millis)> {
        self.reports().iter().find_map(|report| match report {
            CandidateReport::Gained { term, at, .. } if *term > after => Some((*term, *at)),
            _ => None,
        })
    }

    fn last_term(&self) -> Option<u64> {
        let gained = |report: &CandidateReport| match report {
            CandidateReport::Gained { term, .. } => Some(*term),
            _ => None,
        };
        self.reports().iter().filter_map(gained).max()
    }

    /// Two processes of one name are two candidates.
    fn unique_name(&self) -> String {
        format!("{} ({})", self.name, self.process.pid())
    }
}
