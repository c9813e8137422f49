//! One pod as a process under measurement, and how far it has come, by what the broker holds.

use std::fs;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use tokio::process::{Child, Command};
use tokio::time::sleep;

use crate::broker_process::{BrokerProcess, binary};

pub struct PodProcess {
    child: Child,
    pid: u32,
}

impl PodProcess {
    /// Of a pipeline that is called as its topic; `more` is the rest of its configuration.
    pub fn start(folder: &Path, uri: &str, database: &str, topic: &str, broker: &BrokerProcess, more: &str) -> Self {
        let config = format!(
            "format: 1\npipeline: {topic}\nsource: {{ uri: \"{uri}\", database: \"{database}\", collection: events, sequence: version }}\n\
             coordination: {{ database: \"{database}-coordination\", lease: {{ ttl: 5s, renew_deadline: 3s, heartbeat: 1s }} }}\n\
             service_bus: {{ connection_string: \"Endpoint=sb://{};SharedAccessKeyName=any;SharedAccessKey=any;UseDevelopmentEmulator=true\", topic: {topic} }}\n\
             {more}",
            broker.address()
        );
        let file = folder.join(format!("{topic}.yaml"));
        fs::write(&file, config).expect("a file");
        let mut command = Command::new(binary());
        command.arg("run").arg("--config").arg(&file).stdout(Stdio::null()).stderr(Stdio::inherit());
        command.env("RUST_LOG", "warn").kill_on_drop(true);
        let child = command.spawn().expect("the headwater binary can be started");
        let pid = child.id().expect("it runs");
        Self { child, pid }
    }

    pub async fn stop(mut self) {
        nix::sys::signal::kill(
            nix::unistd::Pid::from_raw(i32::try_from(self.pid).expect("a pid")),
            nix::sys::signal::Signal::SIGTERM,
        )
        .expect("it runs");
        let ended = tokio::time::timeout(Duration::from_secs(30), self.child.wait()).await;
        assert!(ended.expect("it stops in time").expect("it is ours").success());
    }

    pub fn peak_rss_mb(&self) -> f64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid)).expect("a process has a status");
        let line = status.lines().find(|line| line.starts_with("VmHWM:")).expect("with its memory");
        line.split_whitespace().nth(1).and_then(|kib| kib.parse::<f64>().ok()).expect("in kibibytes") / 1024.0
    }

    pub fn cpu(&self) -> Duration {
        crate::broker_process::cpu_of(self.pid)
    }
}

/// Messages a second from the first look that finds some on the topic's subscription to the one that finds all.
pub async fn published(broker: &BrokerProcess, topic: &str, count: u64) -> f64 {
    let path = format!("{topic}/Subscriptions/read-models");
    let mut first = None;
    let began = Instant::now();
    loop {
        let (now, there) = (Instant::now(), broker.waiting(&path).await);
        let (since, had) = *first.get_or_insert((now, there));
        if had == 0 {
            first = None;
        }
        if there >= count {
            return (there - had) as f64 / now.duration_since(since).as_secs_f64();
        }
        assert!(began.elapsed() < Duration::from_secs(300), "{there} of {count} after five minutes");
        sleep(Duration::from_millis(20)).await;
    }
}

/// A backlog that does not get less for so long stands still.
const STALL: Duration = Duration::from_secs(10);

/// Messages a second from the first look that finds one of `count` settled to the one that finds no more than `left_over` waiting.
/// Panics when it stands still.
pub async fn consumed(broker: &BrokerProcess, topic: &str, count: u64, left_over: u64) -> f64 {
    let path = format!("{topic}/Subscriptions/read-models");
    let mut first = None;
    let (mut moved, mut least) = (Instant::now(), u64::MAX);
    loop {
        let (now, left) = (Instant::now(), broker.waiting(&path).await);
        if left < least {
            (moved, least) = (now, left);
        }
        if left < count {
            let (since, had) = *first.get_or_insert((now, left));
            if left <= left_over {
                return (had - left) as f64 / now.duration_since(since).as_secs_f64();
            }
        }
        assert!(moved.elapsed() < STALL, "{left} of {count} are left, and nothing moves");
        sleep(Duration::from_millis(20)).await;
    }
}
