//! The other side of a contender: starting it, listening to it, and doing to it what machines do to processes.

use std::collections::BTreeMap;
use std::time::Duration;

use lease::Config;
use testkit::process::{OutputLine, OutputStream, Process, Program};
use testkit::wait::wait_for;

use super::contender::{Engine, Task, VARIABLE};
use super::judge::{Judgement, judge};
use super::report::{Millis, Report, now};
use super::wall_clock::WallClock;

/// The contenders for one lease.
pub struct Contest {
    task: Task,
    arguments: Vec<String>,
    contestants: BTreeMap<String, Contestant>,
    retired: Vec<Contestant>,
}

/// One contender's process.
pub struct Contestant {
    name: String,
    process: Process,
    killed: Option<Millis>,
}

impl Contest {
    /// `arguments` make this program call [`super::serve_if_asked`].
    pub fn new(uri: &str, database: &str, config: Config, arguments: &[&str]) -> Self {
        let task = Task {
            engine: Engine::Lease,
            uri: uri.into(),
            database: database.into(),
            key: "contest".into(),
            pod_id: String::new(),
            config,
            checkpoint: false,
        };
        let arguments = arguments.iter().map(|argument| (*argument).to_owned()).collect();
        Self { task, arguments, contestants: BTreeMap::new(), retired: vec![] }
    }

    #[must_use]
    pub fn by(mut self, engine: Engine) -> Self {
        self.task.engine = engine;
        self
    }

    #[must_use]
    pub fn with_checkpoint(mut self) -> Self {
        self.task.checkpoint = true;
        self
    }

    /// Starts a contender; `name` is also its pod id.
    ///
    /// # Panics
    /// When one of that name is still running: it would go on, unseen.
    pub fn contender(&mut self, name: &str) -> &Contestant {
        self.contender_with(name, name, WallClock::True)
    }

    pub fn contender_with(&mut self, name: &str, pod_id: &str, clock: WallClock) -> &Contestant {
        let task = Task { pod_id: pod_id.into(), ..self.task.clone() };
        let task = serde_json::to_string(&task).expect("a task is plain data");
        let program = std::env::current_exe().expect("this program has a path");
        let program = Program::new(program).named(name).args(&self.arguments).env(VARIABLE, task);
        let program = clock.variables().into_iter().fold(program, |program, (key, value)| program.env(key, value));
        let process = program.start().expect("this program can be started again");
        let contestant = Contestant { name: name.into(), process, killed: None };
        if let Some(before) = self.contestants.insert(name.into(), contestant) {
            assert!(!before.is_running(), "{name} is still running");
            self.retired.push(before);
        }
        &self.contestants[name]
    }

    pub fn get(&self, name: &str) -> &Contestant {
        &self.contestants[name]
    }

    pub fn names(&self) -> Vec<String> {
        self.contestants.keys().cloned().collect()
    }

    /// Waits until some contender other than `not` has begun a term after `after`, and says who, when and which.
    pub async fn next_leader(&self, after: u64, not: Option<&str>, within: Duration) -> (String, u64, Millis) {
        wait_for(format_args!("a leader after term {after}"), within, async || {
            let gained = self.contestants.values().filter(|contestant| Some(contestant.name.as_str()) != not);
            let gained = gained.filter_map(|contestant| Some((contestant, contestant.first_term_after(after)?)));
            let first = gained.min_by(|left, right| left.1.1.total_cmp(&right.1.1));
            first.map(|(contestant, (term, at))| (contestant.name.clone(), term, at)).ok_or_else(|| self.last_words())
        })
        .await
    }

    /// Who began the latest term so far, and which.
    ///
    /// # Panics
    /// When there was none.
    pub fn last_leader(&self) -> (String, u64) {
        let all = self.contestants.values();
        let last = all.filter_map(|contestant| Some((contestant.name.clone(), contestant.last_term()?)));
        last.max_by_key(|(_, term)| *term).expect("somebody led")
    }

    /// As [`Self::next_leader`], where there are no terms.
    pub async fn first_leader(&self, within: Duration) -> String {
        let gained = |report: &Report| matches!(report, Report::Gained { .. });
        wait_for("a leader", within, async || {
            let leader = self.contestants.values().find(|contestant| contestant.reports().iter().any(gained));
            leader.map(|leader| leader.name.clone()).ok_or_else(|| self.last_words())
        })
        .await
    }

    /// `kill -9`; returns when.
    pub async fn kill(&mut self, name: &str) -> Millis {
        let contestant = self.contestants.get_mut(name).expect("a contender of that name was started");
        let at = now();
        contestant.process.kill().await;
        // What it did between `at` and its end is not to be judged as done after its death.
        contestant.killed = Some(now());
        at
    }

    pub fn judge(&self) -> Judgement {
        let all: Vec<_> =
            self.all().map(|contestant| (contestant.who(), contestant.reports(), contestant.killed)).collect();
        judge(all.iter().map(|(who, reports, killed)| (who.as_str(), reports.as_slice(), *killed)))
    }

    /// Log lines of these levels or worse, from all contenders.
    pub fn logged(&self, levels: &[&str]) -> Vec<String> {
        let lines = self.all().flat_map(|contestant| contestant.process.lines());
        let log = lines.filter(|line| line.stream == OutputStream::Stderr).map(|line| line.text);
        let wanted = |text: &String| levels.iter().any(|level| text.contains(&format!("\"level\":\"{level}\"")));
        log.filter(wanted).collect()
    }

    fn all(&self) -> impl Iterator<Item = &Contestant> {
        self.contestants.values().chain(&self.retired)
    }

    fn last_words(&self) -> String {
        let last = self
            .contestants
            .values()
            .map(|contestant| format!("{}: {:?}", contestant.name, contestant.reports().last()));
        last.collect::<Vec<_>>().join("; ")
    }
}

impl Contestant {
    pub fn reports(&self) -> Vec<Report> {
        let said = |line: OutputLine| (line.stream == OutputStream::Stdout).then(|| Report::read(&line.text)).flatten();
        self.process.lines().into_iter().filter_map(said).collect()
    }

    /// Waits until it has said something of this kind.
    pub async fn says<T>(&self, what: &str, within: Duration, found: impl Fn(&Report) -> Option<T>) -> T {
        wait_for(format_args!("{} to say that it {what}", self.name), within, async || {
            let reports = self.reports();
            reports.iter().find_map(&found).ok_or_else(|| format!("{:?}", reports.last()))
        })
        .await
    }

    pub async fn starts(&self) {
        let started = |report: &Report| matches!(report, Report::Started { .. }).then_some(());
        self.says("started", Duration::from_secs(30), started).await;
    }

    /// SIGTERM: drains, gives the lease back and ends.
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

    pub async fn ends(&self) {
        let status = self.process.wait_for_exit(Duration::from_secs(30)).await;
        assert!(status.success(), "{}: {status}", self.name);
        let panics = self.logged(&["panicked at"]);
        assert!(panics.is_empty(), "{}: {panics:?}", self.name);
    }

    /// Waits for a line of its log that contains all of these, and returns how many there are.
    pub async fn logs(&self, texts: &[&str], within: Duration) -> usize {
        wait_for(format_args!("{} to log {texts:?}", self.name), within, async || {
            let lines = self.logged(texts).len();
            if lines > 0 { Ok(lines) } else { Err(self.process.tail().to_string()) }
        })
        .await
    }

    /// Lines of its log so far that contain all of these.
    pub fn logged(&self, texts: &[&str]) -> Vec<String> {
        let lines = self.process.lines().into_iter().map(|line| line.text);
        lines.filter(|line| texts.iter().all(|text| line.contains(text))).collect()
    }

    fn first_term_after(&self, after: u64) -> Option<(u64, Millis)> {
        self.reports().iter().find_map(|report| match report {
            Report::Gained { term, at, .. } if *term > after => Some((*term, *at)),
            _ => None,
        })
    }

    fn last_term(&self) -> Option<u64> {
        let gained = |report: &Report| match report {
            Report::Gained { term, .. } => Some(*term),
            _ => None,
        };
        self.reports().iter().filter_map(gained).max()
    }

    /// Two processes of one name are two contenders.
    fn who(&self) -> String {
        format!("{} ({})", self.name, self.process.pid())
    }
}
