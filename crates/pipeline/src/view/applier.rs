//! One per pod: gathers the events of all sessions into transactions.
//!
//! What is handed in waits in a [queue](super::queue) until a transaction takes it. As many as there are connections run side by side,
//! and each session is told when all it handed in is resolved.

use std::sync::atomic::AtomicU32;
use std::sync::{Arc, OnceLock};

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use mongodb::Database;
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::config::{Config, OnPoison};
use super::counts::{Counters, Counts, ModelCounts};
use super::cursor::Mode;
use super::error::Error;
use super::feed::Feed;
use super::gap::History;
use super::group::{Answers, Groups, Told, by_aggregate};
use super::orphans::Orphans;
use super::plan::{Candidate, Rules};
use super::projection::Projection;
use super::queue::{Group, Limits, Queue, Submission};
use super::stored::Naming;
use super::stuck::Stuck;
use super::transaction::Store;
use super::witness::Witness;

/// Applies what its [`Feed`]s hand in, while it runs.
pub struct Applier {
    shared: Arc<Shared>,
}

/// For sessions, and for who asks how it goes.
#[derive(Clone)]
pub struct Handle {
    pub(super) shared: Arc<Shared>,
}

/// What is applied where, and in what order.
pub struct Setup {
    pub config: Config,
    /// The database of the read models.
    pub database: Database,
    /// The pipeline's name; keys its cursors.
    pub pipeline: String,
    pub mode: Mode,
    /// In a source of documents, the same key in two collections is two aggregates.
    pub by_collection: bool,
    pub models: Vec<Arc<dyn Projection>>,
    /// Where missing events are read; needed where events have a sequence.
    pub history: Option<History>,
}

pub(super) struct Shared {
    pub(super) config: Config,
    pub(super) groups: Groups,
    pub(super) history: Option<History>,
    pub(super) counters: Arc<Counters>,
    pub(super) queue: Queue,
}

impl Applier {
    /// Two models of one name are refused: an aggregate is parked under it.
    pub fn new(setup: Setup) -> Result<Self, Error> {
        let Setup { config, database, pipeline, mode, by_collection, models, history } = setup;
        let mut names: Vec<&str> = models.iter().map(|model| model.name()).collect();
        names.sort_unstable();
        if let Some(twice) = names.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(Error::NameTaken(twice[0].to_owned()));
        }
        let counters = Arc::new(Counters::of(models.iter().map(|model| model.name())));
        let orphans = Orphans::of(&pipeline);
        let rules = Rules {
            naming: Naming { pipeline, by_collection },
            mode,
            models,
            dead_letter_poison: config.on_poison == OnPoison::DeadLetter,
            park_at_delivery: config.park_at_delivery.get(),
        };
        let groups = Groups {
            store: Store { database, within: config.transaction_within },
            rules,
            counters: counters.clone(),
            retry_for: config.retry_for,
            alone_at_delivery: config.alone_at_delivery,
            orphans,
            again: tokio::sync::Mutex::new(()),
            stuck: Stuck::default(),
            doubt: AtomicU32::new(0),
            leaving: CancellationToken::new(),
            witness: OnceLock::new(),
        };
        let limits = Limits {
            statements: config.group_statements,
            bytes: config.group_bytes,
            within: config.group_within,
            groups: config.connections,
        };
        let shared = Shared { config, groups, history, counters, queue: Queue::new(limits) };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// One is told, and the first stays.
    #[must_use]
    pub fn witnessed_by(self, witness: Arc<dyn Witness>) -> Self {
        let _ = self.shared.groups.witness.set(witness);
        self
    }

    pub fn handle(&self) -> Handle {
        Handle { shared: self.shared.clone() }
    }

    /// Returns after `stop`, when all that was handed in before is resolved. What comes later is told that it failed.
    pub async fn run(self, stop: CancellationToken) {
        let mut workers = JoinSet::new();
        for _ in 0..self.shared.config.connections.get() {
            workers.spawn(self.shared.clone().work());
        }
        let stopped = async {
            stop.cancelled().await;
            self.shared.queue.close();
        };
        tokio::pin!(stopped);
        let mut is_open = true;
        loop {
            tokio::select! {
                () = &mut stopped, if is_open => is_open = false,
                // cancel-safe: join_next. While it is open, a worker only ends by a panic, and those who wait need another.
                ended = workers.join_next() => match ended {
                    Some(Err(error)) => {
                        tracing::error!(error = %error, "a transaction's task ended before its time; another takes its place");
                        workers.spawn(self.shared.clone().work());
                    }
                    Some(Ok(())) => {}
                    None => break,
                },
            }
        }
    }
}

impl Drop for Applier {
    fn drop(&mut self) {
        self.shared.queue.close();
    }
}

impl Handle {
    /// A session's way in.
    pub fn feed(&self) -> Feed {
        Feed::new(self.shared.clone())
    }

    /// Whether somebody traces what is applied.
    pub fn is_traced(&self) -> bool {
        self.shared.groups.witness.get().is_some_and(|witness| witness.traces())
    }

    pub fn counts(&self) -> Counts {
        self.shared.counters.look()
    }

    /// One for each read model.
    pub fn models(&self) -> Vec<ModelCounts> {
        self.shared.counters.models()
    }

    /// The pod is about to stop: what has not begun is given back untried, now and from now on, and what fails is not tried again. What is
    /// under way is resolved.
    pub(crate) fn give_back(&self) {
        self.shared.groups.leaving.cancel();
        self.shared.queue.give_back();
    }

    /// Returns while there is less in hand than the next transactions take: whoever would bring more sessions need not hurry before. A
    /// few with much to say are served better than many that have said little. Cancel-safe.
    pub(crate) async fn room(&self) {
        self.shared.queue.wants_more().await;
    }
}

impl Shared {
    async fn work(self: Arc<Self>) {
        // Who conflicts with somebody that holds on waits beside the work, not in it.
        let mut waiting = JoinSet::new();
        while let Some(Group { submissions, running }) = self.queue.next().await {
            let mut open = Open::gather(submissions);
            self.groups.resolve(&open.candidates, &mut open.told).await;
            drop(running);
            if let Some(rest) = open.answer() {
                waiting.spawn(self.clone().wait(rest));
            }
            while waiting.try_join_next().is_some() {}
        }
        while waiting.join_next().await.is_some() {}
    }

    /// Side by side: nobody waits for another's document.
    async fn wait(self: Arc<Self>, mut open: Open) {
        let untold: Vec<usize> = (0..open.told.len()).filter(|at| open.told[*at].is_none()).collect();
        let candidates = std::mem::take(&mut open.candidates);
        let aggregates = by_aggregate(&candidates, &untold).into_iter();
        let mut waits: FuturesUnordered<_> =
            aggregates.map(|places| self.groups.wait_for(&candidates, places)).collect();
        while let Some(told) = waits.next().await {
            for (at, told) in told {
                open.told[at] = Some(told);
            }
            open.send();
        }
    }
}

/// A group of which not every submission has its answer yet.
struct Open {
    candidates: Vec<Candidate>,
    /// How many events each submission has; in their order.
    lengths: Vec<usize>,
    answers: Vec<Option<oneshot::Sender<Vec<Told>>>>,
    told: Answers,
}

impl Open {
    fn gather(group: Vec<Submission>) -> Self {
        let lengths: Vec<usize> = group.iter().map(|submission| submission.candidates.len()).collect();
        let mut candidates = Vec::with_capacity(lengths.iter().sum());
        let mut answers = Vec::with_capacity(group.len());
        for submission in group {
            candidates.extend(submission.candidates);
            answers.push(Some(submission.answer));
        }
        let told = vec![None; candidates.len()];
        Self { candidates, lengths, answers, told }
    }

    /// Answers every submission of which all is known.
    fn send(&mut self) {
        let mut at = 0;
        for (length, answer) in self.lengths.iter().zip(&mut self.answers) {
            let told = &mut self.told[at..at + length];
            at += length;
            if told.iter().all(Option::is_some)
                && let Some(answer) = answer.take()
            {
                // A session that has gone meanwhile needs no answer.
                let _ = answer.send(told.iter().flatten().cloned().collect());
            }
        }
    }

    /// Answers what can be answered; what is left holds on to no more than it must.
    fn answer(mut self) -> Option<Self> {
        self.send();
        let (mut candidates, mut told) = (self.candidates.into_iter(), self.told.into_iter());
        let mut rest = Self { candidates: vec![], lengths: vec![], answers: vec![], told: vec![] };
        for (length, answer) in self.lengths.into_iter().zip(self.answers) {
            let (candidates, told) = (candidates.by_ref().take(length), told.by_ref().take(length));
            if answer.is_some() {
                rest.candidates.extend(candidates);
                rest.told.extend(told);
                rest.lengths.push(length);
                rest.answers.push(answer);
            } else {
                candidates.zip(told).for_each(drop);
            }
        }
        (!rest.answers.is_empty()).then_some(rest)
    }
}
