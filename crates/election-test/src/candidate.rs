//! The candidate process: a pod reduced to its lease and its checkpoint.

use std::convert::Infallible;
use std::pin::pin;
use std::time::Duration;

use lease::mongo::LeaseName;
use lease::{Candidate, Config, Handle, Leadership, LeaseStatus, StopSignal, TermOutcome};
use mongodb::bson::doc;
use mongodb::options::ClientOptions;
use pipeline::checkpoint::{CheckpointClaim, CheckpointPhase, CheckpointStore, Error, MongoCheckpointStore};
use pipeline::event::{Epoch, ResumeToken};
use serde::{Deserialize, Serialize};
use tokio::signal::unix::{SignalKind, signal};

use super::client_clock_election;
use super::report::{CandidateReport, LateSave, Millis, millis, now, term_number};

pub(super) const VARIABLE: &str = "HEADWATER_CANDIDATE";

/// How often the gate is checked.
const GATE_CHECK_INTERVAL: Duration = Duration::from_millis(2);
/// The longest interval in one report: a killed process loses at most this much of its last report.
const REPORT_INTERVAL: Millis = 25.0;
/// A gap between two checks that a busy machine does not explain: the process was paused.
const PAUSE_THRESHOLD: Millis = 800.0;

/// What a candidate is to do; travels in the environment.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CandidateConfig {
    pub protocol: ElectionProtocol,
    pub uri: String,
    pub database: String,
    pub key: String,
    pub pod_id: String,
    pub config: Config,
    /// Whether it claims the checkpoint and saves positions while it leads.
    pub checkpoint: bool,
}

/// The protocol of the candidate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ElectionProtocol {
    /// The protocol of the `lease` crate.
    Lease,
    /// One update that compares `expiresAt` with the client's clock. It is unsafe; it shows that the evaluation finds two leaders.
    ClientClock,
}

/// Becomes a candidate, and returns true when that is over, if this process was started to be one.
///
/// # Panics
/// When the configuration cannot be used; then the test is broken.
pub fn run_if_candidate() -> bool {
    let Ok(text) = std::env::var(VARIABLE) else { return false };
    let config: CandidateConfig = serde_json::from_str(&text).expect("an election test wrote the configuration");
    // The test runner may have left a line incomplete.
    println!();
    tracing_subscriber::fmt().json().with_writer(std::io::stderr).with_max_level(tracing::Level::INFO).init();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    // Never shut down, like the runtime of the binary: the driver's operations panic when its pool is dropped before them.
    Box::leak(Box::new(runtime.expect("a runtime can be built"))).block_on(async {
        match config.protocol {
            ElectionProtocol::Lease => run_candidate(config).await,
            ElectionProtocol::ClientClock => client_clock_election::run(config).await,
        }
    });
    true
}

async fn run_candidate(config: CandidateConfig) {
    let client = ClientOptions::parse(&config.uri).await.expect("the election's URI is valid");
    let checkpoints = config.checkpoint.then(|| open_checkpoints(&config, client.clone()));
    let name = LeaseName {
        database: config.database.clone(),
        key: config.key.clone(),
        pod_id: config.pod_id.clone(),
        fingerprint: "election".into(),
    };
    let candidate = Candidate { name, config: config.config.clone(), client };
    let work = CandidateWork { pod_id: config.pod_id, checkpoints };
    CandidateReport::Started { at: now() }.print();
    let work = move |leadership| work.clone().lead(leadership);
    let running = candidate.start(work, wait_for_sigterm()).expect("the election's configuration is valid");
    tokio::spawn(report_renewals(running.handle()));
    running.join().await.expect("the election's store is fit for leases");
    CandidateReport::Ended { at: now() }.print();
}

pub(super) async fn wait_for_sigterm() {
    signal(SignalKind::terminate()).expect("SIGTERM can be listened for").recv().await;
}

fn open_checkpoints(config: &CandidateConfig, options: ClientOptions) -> MongoCheckpointStore {
    let client = mongodb::Client::with_options(options).expect("the election's URI is valid");
    MongoCheckpointStore::new(&client.database(&config.database), &config.key, "election")
}

async fn report_renewals(handle: Handle) {
    let mut changes = handle.subscribe();
    while changes.changed().await.is_ok() {
        if let LeaseStatus::Leading { gate } = changes.borrow_and_update().clone() {
            CandidateReport::Renewed { term: term_number(gate.term()), valid_until: millis(gate.valid_until()) }
                .print();
        }
    }
}

/// The work of the leader.
#[derive(Clone)]
struct CandidateWork {
    pod_id: String,
    checkpoints: Option<MongoCheckpointStore>,
}

impl CandidateWork {
    async fn lead(self, leadership: Leadership) -> TermOutcome {
        let gate = leadership.gate();
        let term = term_number(gate.term());
        CandidateReport::Gained { term, at: now(), valid_until: millis(gate.valid_until()) }.print();
        let claim = CheckpointClaim::from_leadership(&leadership, &self.pod_id);
        let mut position = String::new();
        if let Some(store) = &self.checkpoints {
            match store.claim(&claim).await {
                Ok(checkpoint) => position = position_of(&checkpoint.phase),
                Err(Error::TermBehind { stored, .. }) => return TermOutcome::TermBehind { seen: stored },
                Err(error) => return TermOutcome::StepDown(error.to_string()),
            }
            CandidateReport::Claimed { term, at: now(), position: position.clone() }.print();
        }
        // Its own config, like the one that writes the socket: it checks the gate once more after any pause.
        let observer = tokio::spawn(GateObserver::new(leadership.clone()).watch());
        let stop = tokio::select! {
            stop = leadership.wait_for_stop() => stop,
            never = self.save_repeatedly(&claim, &mut position) => match never {},
        };
        observer.await.expect("checking a gate does not panic");
        CandidateReport::Lost { term, at: now(), drain: stop == StopSignal::Drain }.print();
        if let (Some(store), StopSignal::Lost) = (&self.checkpoints, stop) {
            save_late(store, &claim, &position).await;
        }
        TermOutcome::Done
    }

    async fn save_repeatedly(&self, claim: &CheckpointClaim, position: &mut String) -> Infallible {
        let Some(store) = &self.checkpoints else { return std::future::pending().await };
        loop {
            *position = advance(position, 1);
            match store.save(claim, Epoch::FIRST, &stream_phase(position), None).await {
                Ok(_) => CandidateReport::Saved { term: term_number(claim.term), position: position.clone() }.print(),
                // The evaluation decides whether a save was refused in time; for the candidate it is no error.
                Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
}

/// Saves far ahead, so that only the fence can refuse it.
async fn save_late(store: &MongoCheckpointStore, claim: &CheckpointClaim, position: &str) {
    let (at, phase) = (now(), stream_phase(&advance(position, 1_000_000)));
    let outcome = match store.save(claim, Epoch::FIRST, &phase, None).await {
        Ok(_) => LateSave::Moved,
        Err(Error::Deposed { .. }) => LateSave::Refused,
        Err(_) => LateSave::Failed,
    };
    CandidateReport::SavedLate { term: term_number(claim.term), at, outcome }.print();
}

/// Positions are numbers, written so that they sort as text.
fn advance(position: &str, by: u64) -> String {
    let number = u64::from_str_radix(position, 16).unwrap_or(0) + by;
    format!("{number:016x}")
}

fn stream_phase(position: &str) -> CheckpointPhase {
    let token = ResumeToken::try_from(doc! { "_data": position });
    CheckpointPhase::Stream { token: token.expect("it has a text `_data`") }
}

fn position_of(phase: &CheckpointPhase) -> String {
    match phase {
        CheckpointPhase::Stream { token } => token.key().to_owned(),
        CheckpointPhase::Unstarted | CheckpointPhase::Snapshot { .. } => String::new(),
    }
}

/// Checks the gate like the task that writes the socket, until the work receives its stop signal.
struct GateObserver {
    leadership: Leadership,
    from: Option<Millis>,
    to: Millis,
}

impl GateObserver {
    fn new(leadership: Leadership) -> Self {
        Self { leadership, from: None, to: now() }
    }

    async fn watch(mut self) {
        let leadership = self.leadership.clone();
        let mut stopping = pin!(leadership.wait_for_stop());
        let mut stopped = false;
        while !stopped {
            stopped = tokio::time::timeout(GATE_CHECK_INTERVAL, &mut stopping).await.is_ok();
            let (gate_open, at) = (leadership.gate().is_open(), now());
            if at - self.to > PAUSE_THRESHOLD {
                CandidateReport::Woke { term: term_number(leadership.term()), at, slept: at - self.to, gate_open }
                    .print();
            }
            self.record_check(gate_open, at);
        }
        self.report();
    }

    /// Two checks with a pause between them are two intervals: nothing is known about the pause.
    fn record_check(&mut self, gate_open: bool, at: Millis) {
        let paused = at - self.to > PAUSE_THRESHOLD;
        if paused || !gate_open || self.from.is_some_and(|from| self.to - from > REPORT_INTERVAL) {
            self.report();
        }
        self.to = at;
        if gate_open && self.from.is_none() {
            self.from = Some(at);
        }
    }

    fn report(&mut self) {
        if let Some(from) = self.from.take() {
            CandidateReport::Acted { term: term_number(self.leadership.term()), from, to: self.to }.print();
        }
    }
}
