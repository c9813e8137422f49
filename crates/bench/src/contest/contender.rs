//! The process that contends: a pod reduced to its lease and its checkpoint.

use std::convert::Infallible;
use std::pin::pin;
use std::time::Duration;

use lease::mongo::LeaseName;
use lease::{Candidate, Config, Handle, Leadership, LeaseStatus, StopSignal, TermOutcome};
use mongodb::bson::doc;
use mongodb::options::ClientOptions;
use pipeline::checkpoint::{CheckpointPhase, CheckpointStore, Claim, Error, MongoCheckpointStore};
use pipeline::event::{Epoch, ResumeToken};
use serde::{Deserialize, Serialize};
use tokio::signal::unix::{SignalKind, signal};

use super::report::{LateSave, Millis, Report, millis, now, number};
use super::seeds;

pub(super) const VARIABLE: &str = "HEADWATER_CONTENDER";

/// How often the gate is looked at.
const TICK: Duration = Duration::from_millis(2);
/// How much acting is told in one report: what a killed process has not told yet is not more than this.
const TOLD_EVERY: Millis = 25.0;
/// A gap between two looks that no busy machine explains.
const ASLEEP: Millis = 800.0;

/// What a contender is to do; travels in the environment.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Task {
    pub engine: Engine,
    pub uri: String,
    pub database: String,
    pub key: String,
    pub pod_id: String,
    pub config: Config,
    /// Whether it claims the checkpoint and saves as it goes.
    pub checkpoint: bool,
}

/// By whose rules it contends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Engine {
    /// The lease of this house.
    Lease,
    /// The statement in the notes this project began with, to show that the judge catches what it lets happen.
    Seeds,
}

/// Becomes a contender, and returns true when that is over, if this process was started to be one.
///
/// # Panics
/// When the task cannot be done: a broken test, then.
pub fn serve_if_asked() -> bool {
    let Ok(task) = std::env::var(VARIABLE) else { return false };
    let task: Task = serde_json::from_str(&task).expect("the task was written by a contest");
    // The test runner may have left a line half written.
    println!();
    tracing_subscriber::fmt().json().with_writer(std::io::stderr).with_max_level(tracing::Level::INFO).init();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    // Never taken down, as the binary's is not: the driver's operations panic when its pool is dropped before them.
    Box::leak(Box::new(runtime.expect("a runtime can be built"))).block_on(async {
        match task.engine {
            Engine::Lease => contend(task).await,
            Engine::Seeds => seeds::contend(task).await,
        }
    });
    true
}

async fn contend(task: Task) {
    let client = ClientOptions::parse(&task.uri).await.expect("the contest's URI is valid");
    let checkpoints = task.checkpoint.then(|| open_checkpoints(&task, client.clone()));
    let name = LeaseName {
        database: task.database.clone(),
        key: task.key.clone(),
        pod_id: task.pod_id.clone(),
        fingerprint: "contest".into(),
    };
    let candidate = Candidate { name, config: task.config.clone(), client };
    let worker = Worker { pod_id: task.pod_id, checkpoints };
    Report::Started { at: now() }.say();
    let work = move |leadership| worker.clone().lead(leadership);
    let running = candidate.start(work, terminated()).expect("the contest's configuration is valid");
    tokio::spawn(tell_renewals(running.handle()));
    running.ended().await.expect("the contest's store is fit for leases");
    Report::Ended { at: now() }.say();
}

pub(super) async fn terminated() {
    signal(SignalKind::terminate()).expect("SIGTERM can be listened for").recv().await;
}

fn open_checkpoints(task: &Task, options: ClientOptions) -> MongoCheckpointStore {
    let client = mongodb::Client::with_options(options).expect("the contest's URI is valid");
    MongoCheckpointStore::new(&client.database(&task.database), &task.key, "contest")
}

async fn tell_renewals(handle: Handle) {
    let mut changes = handle.subscribe();
    while changes.changed().await.is_ok() {
        if let LeaseStatus::Leading { gate } = changes.borrow_and_update().clone() {
            Report::Renewed { term: number(gate.term()), valid_until: millis(gate.valid_until()) }.say();
        }
    }
}

/// What is led.
#[derive(Clone)]
struct Worker {
    pod_id: String,
    checkpoints: Option<MongoCheckpointStore>,
}

impl Worker {
    async fn lead(self, leadership: Leadership) -> TermOutcome {
        let gate = leadership.gate();
        let term = number(gate.term());
        Report::Gained { term, at: now(), valid_until: millis(gate.valid_until()) }.say();
        let claim = Claim::from_leadership(&leadership, &self.pod_id);
        let mut position = String::new();
        if let Some(store) = &self.checkpoints {
            match store.claim(&claim).await {
                Ok(checkpoint) => position = position_of(&checkpoint.phase),
                Err(Error::TermBehind { stored, .. }) => return TermOutcome::TermBehind { seen: stored },
                Err(error) => return TermOutcome::StepDown(error.to_string()),
            }
            Report::Claimed { term, at: now(), position: position.clone() }.say();
        }
        // A task of its own, as the one that writes the socket would be: it looks once more after any pause.
        let acting = tokio::spawn(Acting::new(leadership.clone()).watch());
        let stop = tokio::select! {
            stop = leadership.wait_for_stop() => stop,
            never = self.save_on_and_on(&claim, &mut position) => match never {},
        };
        acting.await.expect("looking at a gate does not panic");
        Report::Lost { term, at: now(), drain: stop == StopSignal::Drain }.say();
        if let (Some(store), StopSignal::Lost) = (&self.checkpoints, stop) {
            save_late(store, &claim, &position).await;
        }
        TermOutcome::Done
    }

    async fn save_on_and_on(&self, claim: &Claim, position: &mut String) -> Infallible {
        let Some(store) = &self.checkpoints else { return std::future::pending().await };
        loop {
            *position = further(position, 1);
            match store.save(claim, Epoch::FIRST, &stream(position), None).await {
                Ok(_) => Report::Saved { term: number(claim.term), position: position.clone() }.say(),
                // whether a save is refused in time is the judge's question, not an error of the contender
                Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
}

/// Far enough ahead that only the fence can refuse it.
async fn save_late(store: &MongoCheckpointStore, claim: &Claim, position: &str) {
    let (at, phase) = (now(), stream(&further(position, 1_000_000)));
    let outcome = match store.save(claim, Epoch::FIRST, &phase, None).await {
        Ok(_) => LateSave::Moved,
        Err(Error::Deposed { .. }) => LateSave::Refused,
        Err(_) => LateSave::Failed,
    };
    Report::SavedLate { term: number(claim.term), at, outcome }.say();
}

/// Positions are numbers here, written so that they sort as text.
fn further(position: &str, by: u64) -> String {
    let number = u64::from_str_radix(position, 16).unwrap_or(0) + by;
    format!("{number:016x}")
}

fn stream(position: &str) -> CheckpointPhase {
    let token = ResumeToken::try_from(doc! { "_data": position });
    CheckpointPhase::Stream { token: token.expect("it has a text `_data`") }
}

fn position_of(phase: &CheckpointPhase) -> String {
    match phase {
        CheckpointPhase::Stream { token } => token.key().to_owned(),
        CheckpointPhase::Unstarted | CheckpointPhase::Snapshot { .. } => String::new(),
    }
}

/// Looks at the gate as the task would that writes the socket, until the work is told to stop.
struct Acting {
    leadership: Leadership,
    from: Option<Millis>,
    to: Millis,
}

impl Acting {
    fn new(leadership: Leadership) -> Self {
        Self { leadership, from: None, to: now() }
    }

    async fn watch(mut self) {
        let leadership = self.leadership.clone();
        let mut stopping = pin!(leadership.wait_for_stop());
        let mut told = false;
        while !told {
            told = tokio::time::timeout(TICK, &mut stopping).await.is_ok();
            let (gate_open, at) = (leadership.gate().is_open(), now());
            if at - self.to > ASLEEP {
                Report::Woke { term: number(leadership.term()), at, slept: at - self.to, gate_open }.say();
            }
            self.look(gate_open, at);
        }
        self.tell();
    }

    /// Two looks with a pause between them are two intervals: nothing is known about the pause.
    fn look(&mut self, gate_open: bool, at: Millis) {
        let paused = at - self.to > ASLEEP;
        if paused || !gate_open || self.from.is_some_and(|from| self.to - from > TOLD_EVERY) {
            self.tell();
        }
        self.to = at;
        if gate_open && self.from.is_none() {
            self.from = Some(at);
        }
    }

    fn tell(&mut self) {
        if let Some(from) = self.from.take() {
            Report::Acted { term: number(self.leadership.term()), from, to: self.to }.say();
        }
    }
}
