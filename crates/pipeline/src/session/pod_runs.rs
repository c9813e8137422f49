//! Which runs of the pods ended without a stop: each may have been ended by the event that it handled.
//!
//! The delivery count does not tell. A pod that dies closes its connection, Service Bus then releases the session and counts nothing; the next
//! pod gets the event as if for the first time. So every run keeps a document in `pod_runs`. A pod whose last run has not ended by a stop marks
//! its attempts for a while ([`super::attempt_marks`]), and a mark that is left over counts only if the run that made it is over.
//!
//! A beat that stands still is compared on the clock of the reader; the server's clock only decides how long attempts are marked.

use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use mongo_error::DriverError;
use mongodb::bson::{Document, doc};
use mongodb::options::{Acknowledgment, CollectionOptions, WriteConcern};
use mongodb::{Collection, Database};
use tokio::sync::RwLock;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use crate::error_chain::error_chain;

/// Collection of the runs of all pipelines, in the coordination database.
pub const COLLECTION: &str = "pod_runs";
const FORMAT: i32 = 1;

/// How often a run shows that it lives.
const BEAT_INTERVAL: Duration = Duration::from_secs(2);
/// A run whose beat stands still for this long is over; some beats may be lost or late.
const OVER_AFTER: Duration = Duration::from_secs(10);
/// Attempts are marked for twice the time that the last run lived: the event may come as late again.
pub(super) const MIN_CAUTION: Duration = Duration::from_secs(60);
/// After a first crash. A pod may be killed for many reasons, and marks cost time; a second crash proves more.
const MAX_FIRST_CAUTION: Duration = Duration::from_secs(600);
/// A read that took longer says little about the beats in between: an election, for example.
const SLOW_READ: Duration = Duration::from_secs(1);
/// A run about which nothing can be found out for this long counts as crashed.
const MAX_WAIT: Duration = Duration::from_secs(60);
/// Long after the last session that may have a mark of the run.
const KEPT_FOR: Duration = Duration::from_secs(24 * 3_600);
/// A consumer does not wait longer for the store at its start, and at its stop.
const BEGIN_TIMEOUT: Duration = Duration::from_secs(5);
const END_TIMEOUT: Duration = Duration::from_secs(1);

/// One run of a pod: from the start of the process to its end.
#[derive(Clone, Debug)]
pub struct PodRun {
    /// The same after a restart, where the pod has a fixed name.
    pod: String,
    state: Arc<RunState>,
}

/// What the pipelines of one run share: a crash ends the attempts of all of them.
#[derive(Debug)]
pub(super) struct RunState {
    run: String,
    /// Attempts are marked until then.
    caution_until: Mutex<Option<Instant>>,
    /// Shared by first marks; exclusive for a mark of one message.
    pub(super) attempts: Arc<RwLock<()>>,
}

impl PodRun {
    pub fn new(pod: impl Into<String>) -> Self {
        Self { pod: pod.into(), state: Arc::new(RunState::new()) }
    }

    /// The run of this process. Services that start again are part of it.
    pub fn of_process(pod: impl Into<String>) -> Self {
        static STATE: OnceLock<Arc<RunState>> = OnceLock::new();
        Self { pod: pod.into(), state: Arc::clone(STATE.get_or_init(|| Arc::new(RunState::new()))) }
    }
}

impl RunState {
    fn new() -> Self {
        let run = format!("{:032x}", rand::random::<u128>());
        Self { run, caution_until: Mutex::default(), attempts: Arc::default() }
    }

    /// Never ends caution earlier.
    pub(super) fn mark_attempts_for(&self, caution: Duration) {
        let until = Instant::now() + caution;
        let mut current = self.caution_until.lock().expect("no code panics with it");
        *current = Some(current.map_or(until, |current| current.max(until)));
    }

    pub(super) fn is_cautious(&self) -> bool {
        self.caution_until.lock().expect("no code panics with it").is_some_and(|until| Instant::now() < until)
    }
}

/// The runs of one pipeline, as one of them sees them.
#[derive(Debug)]
pub(super) struct PodRuns {
    runs: Collection<Document>,
    pipeline: String,
    own: PodRun,
}

impl PodRuns {
    pub(super) fn new(coordination: &Database, pipeline: &str, own: PodRun) -> Self {
        // A lost document costs a mark, never an event.
        let one = WriteConcern::builder().w(Acknowledgment::Nodes(1)).build();
        let options = CollectionOptions::builder().write_concern(one).build();
        Self { runs: coordination.collection_with_options(COLLECTION, options), pipeline: pipeline.to_owned(), own }
    }

    pub(super) fn run(&self) -> &str {
        &self.own.state.run
    }

    pub(super) fn state(&self) -> &RunState {
        &self.own.state
    }

    /// Begins the run. Returns how long attempts are marked: `None` if the last run ended by a stop.
    pub(super) async fn begin(&self) -> Option<Duration> {
        match timeout(BEGIN_TIMEOUT, self.try_begin()).await {
            Ok(Ok(caution)) => caution,
            Ok(Err(error)) => {
                warn!(
                    error = error_chain(&error),
                    "failed to read earlier runs of this pod; events that end the pod are found later"
                );
                None
            }
            Err(_) => {
                warn!("failed to read earlier runs of this pod: timed out; events that end the pod are found later");
                None
            }
        }
    }

    async fn try_begin(&self) -> Result<Option<Duration>, DriverError> {
        let age = doc! { "$subtract": ["$$NOW", "$seenAt"] };
        let pipeline = doc! { "_id.pipeline": &self.pipeline };
        let mut old = pipeline.clone();
        old.insert("$expr", doc! { "$gt": [&age, millis(KEPT_FOR)] });
        self.runs.delete_many(old).await?;
        // Another pod that is silent counts, too: where names are random, it is the one that this pod replaces.
        let is_recent_silence =
            doc! { "$and": [{ "$gt": [&age, millis(OVER_AFTER)] }, { "$lt": [&age, millis(MAX_FIRST_CAUTION)] }] };
        let stages = [
            doc! { "$match": { "_id.pipeline": &self.pipeline, "_id.run": { "$ne": self.run() }, "state": "running" } },
            doc! { "$match": { "$or": [{ "pod": &self.own.pod }, { "$expr": is_recent_silence }] } },
            doc! { "$group": { "_id": null, "lived": { "$max": { "$subtract": ["$seenAt", "$startedAt"] } }, "again": { "$max": "$cautious" } } },
        ];
        let mut found = self.runs.aggregate(stages).await?;
        let caution = match found.advance().await? {
            true => Some(caution_after(&found.deserialize_current()?)),
            false => None,
        };
        if let Some(caution) = caution {
            self.own.state.mark_attempts_for(caution);
        }
        let mut own_earlier = pipeline;
        own_earlier.extend(doc! { "pod": &self.own.pod, "_id.run": { "$ne": self.run() }, "state": "running" });
        self.runs.update_many(own_earlier, doc! { "$set": { "state": "crashed" } }).await?;
        self.record("running").await?;
        Ok(caution)
    }

    /// Shows that the run lives, until `stop`.
    pub(super) async fn beat(&self, stop: &CancellationToken) {
        let mut ticks = interval(BEAT_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                // cancel-safe: tick
                _ = ticks.tick() => {}
            }
            let recorded = stop.run_until_cancelled(timeout(OVER_AFTER, self.record("running"))).await;
            if let Some(Ok(Err(error))) = recorded {
                debug!(error = error_chain(&error), "failed to record that this run lives");
            }
        }
    }

    /// The run has ended by a stop, and no attempt was cut off.
    pub(super) async fn end(&self) {
        if let Ok(Err(error)) = timeout(END_TIMEOUT, self.record("stopped")).await {
            debug!(error = error_chain(&error), "failed to record the stop of this run");
        }
    }

    async fn record(&self, state: &str) -> Result<(), DriverError> {
        let update = vec![doc! { "$replaceWith": {
            "_id": { "$literal": self.id(self.run()) },
            "format": FORMAT,
            "pod": { "$literal": &self.own.pod },
            "state": state,
            "cautious": self.own.state.is_cautious(),
            "beats": { "$add": [{ "$ifNull": ["$beats", 0_i64] }, 1_i64] },
            "startedAt": { "$ifNull": ["$startedAt", "$$NOW"] },
            "seenAt": "$$NOW",
        } }];
        self.runs.update_one(doc! { "_id": self.id(self.run()) }, update).upsert(true).await?;
        Ok(())
    }

    /// Whether a run is over without a stop. Waits for its next beat if that is not known.
    pub(super) async fn has_crashed(&self, run: &str) -> Result<bool, DriverError> {
        if run == self.run() {
            return Ok(false);
        }
        let asked_at = Instant::now();
        let (mut watched_since, mut first_beat) = (asked_at, None);
        loop {
            let read_at = Instant::now();
            let Some(found) = self.runs.find_one(doc! { "_id": self.id(run) }).await? else { return Ok(true) };
            match found.get_str("state") {
                Ok("running") => {}
                state => return Ok(!matches!(state, Ok("stopped"))),
            }
            let beat = found.get_i64("beats").unwrap_or_default();
            if beat != *first_beat.get_or_insert(beat) {
                return Ok(false);
            }
            if read_at.elapsed() > SLOW_READ {
                watched_since = Instant::now();
            }
            if watched_since.elapsed() >= OVER_AFTER || asked_at.elapsed() >= MAX_WAIT {
                return Ok(true);
            }
            sleep(BEAT_INTERVAL / 4).await;
        }
    }

    fn id(&self, run: &str) -> Document {
        doc! { "pipeline": &self.pipeline, "run": run }
    }
}

/// `crashed`: how long the run before lived, and whether it followed a crash itself.
fn caution_after(crashed: &Document) -> Duration {
    let lived = crashed.get_i64("lived").ok().and_then(|millis| u64::try_from(millis).ok()).unwrap_or_default();
    let caution = Duration::from_millis(lived).saturating_mul(2).max(MIN_CAUTION);
    if crashed.get_bool("again").unwrap_or(false) { caution } else { caution.min(MAX_FIRST_CAUTION) }
}

fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pipelines_of_one_process_share_their_attempts() {
        // A crash ends the attempts of all of them: an attempt alone must be the only one of the process.
        let (shop, stock) = (PodRun::of_process("pod-0"), PodRun::of_process("pod-0"));
        assert!(Arc::ptr_eq(&shop.state.attempts, &stock.state.attempts));
        shop.state.mark_attempts_for(MIN_CAUTION);
        assert!(stock.state.is_cautious());
        assert!(!PodRun::new("pod-0").state.is_cautious());
    }

    #[test]
    fn a_longer_run_is_followed_by_longer_caution() {
        let after =
            |seconds: i64, again: bool| caution_after(&doc! { "lived": seconds * 1_000, "again": again }).as_secs();
        let first = |seconds| after(seconds, false);
        assert_eq!((first(0), first(30), first(31), first(200), first(86_400)), (60, 60, 62, 400, 600));
        assert_eq!((after(31, true), after(86_400, true)), (62, 2 * 86_400));
        assert_eq!(caution_after(&doc! {}), MIN_CAUTION);
    }
}
