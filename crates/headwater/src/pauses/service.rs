//! The loop of one pod: reads the pauses and switches its services. The leader applies what resumed read models have queued.

use std::future::IntoFuture;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt, stream};
use pipeline::view::is_version_of;
use pipeline::{consumer, producer};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::{PauseStore, PauseTarget, Pauses};
use crate::parked::ParkedCommands;

/// The longest delay of a pause, while MongoDB responds.
const POLL_INTERVAL: Duration = Duration::from_millis(500);
/// A read that takes longer is abandoned, and the next poll tries again.
const READ_TIMEOUT: Duration = Duration::from_secs(5);
/// How often the leader looks for queued events of read models that nobody resumes: a pod that slept through the end of a pause has queued them.
const SWEEP_INTERVAL: Duration = Duration::from_secs(5);
const CONCURRENT_AGGREGATES: usize = 16;
/// Aggregates of one page.
const MAX_RESUMED: i64 = 1_000;

pub(crate) struct PauseService {
    pub(crate) store: PauseStore,
    pub(crate) producer: producer::Handle,
    pub(crate) consumer: Option<consumer::Handle>,
    pub(crate) lease: lease::Handle,
    /// To replay what a pause has queued.
    pub(crate) parked: Option<Arc<ParkedCommands>>,
    loaded: watch::Sender<bool>,
}

/// Whether the pauses are known. Until then no service may start.
#[derive(Clone, Debug)]
pub(crate) struct PausesLoaded(watch::Receiver<bool>);

impl PausesLoaded {
    /// Cancel-safe.
    pub(crate) async fn wait(&mut self) {
        // If the service is gone, the pod is stopping.
        let _ = self.0.wait_for(|loaded| *loaded).await;
    }
}

impl PauseService {
    pub(crate) fn loaded_channel() -> (watch::Sender<bool>, PausesLoaded) {
        let (sender, receiver) = watch::channel(false);
        (sender, PausesLoaded(receiver))
    }

    pub(crate) fn new(
        store: PauseStore,
        producer: producer::Handle,
        consumer: Option<consumer::Handle>,
        lease: lease::Handle,
        parked: Option<ParkedCommands>,
        loaded: watch::Sender<bool>,
    ) -> Self {
        Self { store, producer, consumer, lease, parked: parked.map(Arc::new), loaded }
    }

    /// Runs until `stop`.
    pub(crate) async fn run(self, stop: CancellationToken) {
        let mut replay: Option<JoinHandle<()>> = None;
        let mut swept: Option<Instant> = None;
        let mut known = None;
        while !stop.is_cancelled() {
            if let Ok(Ok(pauses)) = timeout(READ_TIMEOUT, self.store.load()).await {
                if known.as_ref() != Some(&pauses) {
                    self.switch(&pauses);
                    known = Some(pauses.clone());
                }
                let is_due = swept.is_none_or(|swept| swept.elapsed() >= SWEEP_INTERVAL)
                    || pauses.0.iter().any(|pause| pause.is_resuming);
                let is_running = replay.as_ref().is_some_and(|replay| !replay.is_finished());
                if is_due && !is_running && self.lease.is_leader() && !pauses.is_paused(&PauseTarget::Consumer) {
                    swept = Some(Instant::now());
                    replay = self.start_replay(pauses, stop.clone());
                }
            }
            // cancel-safe: sleep
            stop.run_until_cancelled(sleep(POLL_INTERVAL).into_future()).await;
        }
    }

    fn switch(&self, pauses: &Pauses) {
        self.producer.pause_switch().set(pauses.is_paused(&PauseTarget::Producer));
        if let Some(consumer) = &self.consumer {
            consumer.applier().set_paused_models(pauses.paused_models());
            consumer.pause_switch().set(pauses.is_paused(&PauseTarget::Consumer));
        }
        self.loaded.send_replace(true);
    }

    fn start_replay(&self, pauses: Pauses, stop: CancellationToken) -> Option<JoinHandle<()>> {
        let (parked, store) = (Arc::clone(self.parked.as_ref()?), self.store.clone());
        Some(tokio::spawn(async move {
            // cancel-safe: every aggregate is replayed in transactions of its own
            let replayed = stop.run_until_cancelled(replay_resumed(&parked, &store, &pauses)).await;
            if let Some(Err(error)) = replayed {
                tracing::warn!(
                    error = format!("{error:#}"),
                    "failed to apply the queued events of resumed read models; retrying"
                );
            }
        }))
    }
}

/// Applies what read models have queued that are not paused any more.
async fn replay_resumed(parked: &ParkedCommands, store: &PauseStore, pauses: &Pauses) -> anyhow::Result<()> {
    let paused = pauses.paused_models();
    let is_paused = |model: &str| paused.iter().any(|name| is_version_of(model, name));
    // Page by page: aggregates that another pause holds must not hide the others.
    let (mut resumed, mut after, mut events) = (vec![], None, 0);
    loop {
        let page = parked.list_paused(after.as_ref(), MAX_RESUMED).await?;
        let Some(last) = page.last else { break };
        after = Some(last);
        let page: Vec<_> = page.aggregates.into_iter().filter(|waiting| !is_paused(&waiting.model)).collect();
        if page.is_empty() {
            continue;
        }
        let commands = parked.resuming_store().await?;
        let replays: Vec<_> = page.iter().map(|waiting| parked.resume(&commands, waiting)).collect();
        let mut replays = stream::iter(replays).buffer_unordered(CONCURRENT_AGGREGATES);
        while let Some(replayed) = replays.next().await {
            match replayed {
                Ok(applied) => events += applied,
                // The others go on; this one is tried again in the next sweep.
                Err(error) => tracing::warn!(%error, "failed to apply the queued events of an aggregate; retrying"),
            }
        }
        drop(replays);
        resumed.extend(page);
    }
    if !resumed.is_empty() {
        tracing::info!(aggregates = resumed.len(), events, "applied the queued events of resumed read models");
    }
    // None is left of this read model. A later one is found by the sweep.
    for pause in pauses.0.iter().filter(|pause| pause.is_resuming) {
        let name = pause.target.name().unwrap_or_default();
        if !resumed.iter().any(|waiting| is_version_of(&waiting.model, name)) {
            store.end_resuming(&pause.target).await?;
        }
    }
    Ok(())
}
