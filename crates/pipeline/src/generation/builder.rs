//! Builds the new versions of a generation from the source: every aggregate up to its cursor, while live events go on.
//!
//! The cursors are both the list of work and the proof of it: an aggregate is built when its cursor holds for the generation. So a build needs no
//! progress of its own, and whichever pod continues it finds what is left. The transaction that builds an aggregate writes its cursor, and conflicts with
//! a live event of that aggregate instead of racing it.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::TryStreamExt;
use mongodb::bson::{Bson, Document, RawDocumentBuf, doc};
use mongodb::options::{ReadConcern, ReadPreference, SelectionCriteria};
use mongodb::{Client, Database};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use super::cursor_walk::{CursorWalk, UnbuiltCursor};
use super::document::Generation;
use super::error::{Error, store_error};
use crate::capture::{self, SourceFilter};
use crate::checkpoint::{CheckpointPhase, CheckpointStore, MongoCheckpointStore};
use crate::event::{AggregateId, Namespace, Operation, ResumeToken, Term};
use crate::source::{SourceConfig, SourceKind};
use crate::source_walk::EventPages;
use crate::stored::Identity;
use crate::view::{
    self, BuildApplier, BuildApplierSetup, BuiltEvents, DeliveredEvent, DiscardedEvents, EventBody, PipelineStart,
    SourceEventReader,
};

/// Cursors per page.
const PAGE_CURSORS: i64 = 5_000;
/// Events per transaction, about, if each has a statement.
const GROUP_EVENTS: i64 = 1_000;
/// If they are folded into one document for each aggregate: then a transaction writes few documents.
const FOLDED_GROUP_EVENTS: i64 = 5_000;
/// An aggregate with more events is built page by page: the server may have to apply each of them.
const LONG_AGGREGATE_EVENTS: i64 = 5_000;
/// Aggregates per transaction; of a source of documents fewer, as each is a whole document.
const GROUP_AGGREGATES: usize = 1_000;
const GROUP_DOCUMENTS: usize = 200;
/// Groups at a time: while one waits for its commit, others read. The server has cores for live events as well.
const CONCURRENT_GROUPS: usize = 6;
const PROGRESS_INTERVAL: Duration = Duration::from_secs(1);
/// Writes of the source wait for a majority, so a small lag is usual.
const MAX_REPLICATION_LAG: Duration = Duration::from_secs(10);
const CHECKPOINT_POLL: Duration = Duration::from_millis(250);
/// Between two passes that built nothing because live events were faster.
const PASS_PAUSE: Duration = Duration::from_millis(50);
const MAX_IDLE_PASSES: u32 = 100;
/// Aggregates named in the report.
const MAX_NAMED: usize = 20;

/// What a build reads and writes.
#[derive(Clone)]
pub struct BuildDependencies {
    pub pipeline: String,
    pub source: SourceConfig,
    /// The server of the source.
    pub server: Client,
    /// For its filter.
    pub capture: capture::Config,
    pub start: PipelineStart,
    pub views: Database,
    pub coordination: Database,
    pub view: view::Config,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BuildOptions {
    /// Events per second; `None`: as fast as possible.
    pub rate: Option<u32>,
    /// The build pauses while the majority of the source's members is further behind.
    pub max_replication_lag: Duration,
}

impl Default for BuildOptions {
    fn default() -> Self {
        Self { rate: None, max_replication_lag: MAX_REPLICATION_LAG }
    }
}

/// Counts of a build; but for the first three, since this pod took it up.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct BuildTotals {
    /// Aggregates that the pipeline has, about.
    pub total: u64,
    /// Aggregates that are built, and those among them that were when this pod took it up.
    pub aggregates: u64,
    pub built_before: u64,
    pub events: u64,
    pub parked: u64,
    /// Aggregates whose earlier events the source does not have, or not all of them.
    pub missing: Vec<AggregateId>,
    pub missing_count: u64,
    /// Why the build waits, if it does.
    pub pause: Option<BuildPause>,
}

/// Why a build waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BuildPause {
    /// An operator has paused it.
    Operator,
    /// The majority of the source's members is so far behind its primary.
    ReplicationLag(Duration),
}

/// Receives the totals about once a second. An error ends the build.
pub trait BuildProgressReport: Send + Sync {
    fn report(&self, totals: &BuildTotals) -> impl Future<Output = Result<(), Error>> + Send;

    /// Whether an operator has paused builds.
    fn is_paused(&self) -> impl Future<Output = Result<bool, Error>> + Send {
        std::future::ready(Ok(false))
    }
}

/// Builds one generation.
pub struct Builder {
    parts: Arc<BuildParts>,
}

struct BuildParts {
    dependencies: BuildDependencies,
    walk: CursorWalk,
    applier: BuildApplier,
    /// `None` for a source of documents.
    history: Option<SourceEventReader>,
    filter: Option<SourceFilter>,
    checkpoints: MongoCheckpointStore,
}

impl Builder {
    /// Whether the versions of this source can be built at all: an event without a sequence has no place before or after a cursor.
    pub fn can_build(source: &SourceConfig) -> bool {
        source.kind == SourceKind::Documents || source.sequence.is_some()
    }

    pub async fn new(dependencies: BuildDependencies, generation: &Generation) -> Result<Self, Error> {
        let BuildDependencies { pipeline, source, server, capture, views, coordination, view, start } = &dependencies;
        let filter = SourceFilter::new(server, source, capture);
        let names: Vec<String> = generation.to_build().map(|(name, version)| version.parked_name(name)).collect();
        let applier = BuildApplier::new(BuildApplierSetup {
            config: view.clone(),
            database: views.clone(),
            pipeline: pipeline.clone(),
            mode: view.mode(source, *start, filter.is_some()),
            by_collection: source.kind == SourceKind::Documents,
            models: generation.build_set(source)?,
            discarded: match source.kind {
                SourceKind::Events => DiscardedEvents::load(views, pipeline, &names).await?,
                // The build reads the present document, not the change that was discarded.
                SourceKind::Documents => DiscardedEvents::default(),
            },
        });
        let parts = BuildParts {
            walk: CursorWalk::new(views, pipeline, generation.number),
            history: SourceEventReader::new(&server.database(&source.database), source),
            checkpoints: MongoCheckpointStore::new(coordination, pipeline, source.fingerprint()),
            applier,
            filter,
            dependencies,
        };
        Ok(Self { parts: Arc::new(parts) })
    }

    /// Runs until every cursor holds for the generation, except those of aggregates with missing events.
    pub async fn run(&self, options: BuildOptions, report: &impl BuildProgressReport) -> Result<BuildTotals, Error> {
        let (total, unbuilt) = (self.parts.walk.count().await?, self.parts.walk.count_unbuilt().await?);
        let built_before = total.saturating_sub(unbuilt);
        let totals = BuildTotals { total, built_before, aggregates: built_before, ..BuildTotals::default() };
        let build = Arc::new(BuildRun {
            builder: Arc::clone(&self.parts),
            options,
            token: self.parts.stream_token().await?,
            started: Instant::now(),
            paused_for: Mutex::default(),
            totals: Mutex::new(totals),
        });
        let (mut idle_passes, mut events) = (0, 0);
        loop {
            let (seen, missing) = build.pass(report).await?;
            let totals = build.totals();
            report.report(&totals).await?;
            idle_passes = if totals.events == events { idle_passes + 1 } else { 0 };
            events = totals.events;
            // The cursors that are left move on without events that the source has: another filter captured them.
            if seen == missing || idle_passes > MAX_IDLE_PASSES {
                return Ok(BuildTotals { missing_count: seen, ..totals });
            }
            sleep(PASS_PAUSE).await;
        }
    }

    /// Marks aggregates that could not be built as if they were: the new versions begin with their next event.
    pub async fn accept_missing(&self, generation: u64) -> Result<(), Error> {
        let number = i64::try_from(generation).unwrap_or(i64::MAX);
        loop {
            let cursors = self.parts.walk.next(None, PAGE_CURSORS).await?;
            if cursors.is_empty() {
                return Ok(());
            }
            let ids: Vec<Bson> = cursors.into_iter().map(|cursor| cursor.id).collect();
            let marked = doc! { "$set": { "generation": number, "holds": number, "format": 2_i64 } };
            let cursors = self.parts.dependencies.views.collection::<Document>(view::CURSORS);
            let unbuilt = doc! { "_id": { "$in": ids }, "holds": { "$not": { "$gte": number } } };
            cursors.update_many(unbuilt, marked).await.map_err(store_error("accept missing events"))?;
        }
    }
}

impl BuildParts {
    /// The filter wants a token. While a snapshot runs there is none yet.
    async fn stream_token(&self) -> Result<Option<ResumeToken>, Error> {
        if self.filter.is_none() {
            return Ok(None);
        }
        loop {
            let checkpoint = self.checkpoints.load().await?;
            if let Some(CheckpointPhase::Stream { token }) = checkpoint.map(|checkpoint| checkpoint.phase) {
                return Ok(Some(token));
            }
            sleep(CHECKPOINT_POLL).await;
        }
    }
}

/// A build in progress.
struct BuildRun {
    builder: Arc<BuildParts>,
    options: BuildOptions,
    token: Option<ResumeToken>,
    started: Instant,
    /// A build does not catch up what it missed in a pause.
    paused_for: Mutex<Duration>,
    totals: Mutex<BuildTotals>,
}

/// What a task of a build has done.
enum BuildStep {
    Page(Vec<UnbuiltCursor>),
    Group(BuiltGroup),
}

/// The result of one group: aggregates without all their events, and what was applied.
#[derive(Default)]
struct BuiltGroup {
    events: BuiltEvents,
    missing: Vec<AggregateId>,
    aggregates: u64,
}

impl BuildRun {
    fn totals(&self) -> BuildTotals {
        self.totals.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone()
    }

    /// Goes through the unbuilt cursors once. Returns how many there were, and how many of them miss events.
    async fn pass(self: &Arc<Self>, report: &impl BuildProgressReport) -> Result<(u64, u64), Error> {
        {
            let mut totals = self.totals.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            (totals.missing, totals.missing_count) = (vec![], 0);
        }
        let most = if self.builder.history.is_some() { GROUP_AGGREGATES } else { GROUP_DOCUMENTS };
        let mut steps = JoinSet::new();
        steps.spawn(Arc::clone(self).read_page(None));
        let (mut waiting, mut running, mut seen, mut next_page) = (VecDeque::new(), 0, 0, None);
        let mut reported = Instant::now();
        self.wait_while_paused(report).await?;
        while let Some(step) = steps.join_next().await {
            match step.unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic()))? {
                BuildStep::Page(page) => {
                    seen += page.len() as u64;
                    next_page = page.last().map(|last| last.id.clone());
                    waiting.extend(group_cursors(page, most, self.group_events()));
                }
                BuildStep::Group(group) => {
                    running -= 1;
                    self.add(group);
                    self.throttle().await;
                }
            }
            if reported.elapsed() >= PROGRESS_INTERVAL {
                report.report(&self.totals()).await?;
                self.wait_while_paused(report).await?;
                reported = Instant::now();
            }
            while running < CONCURRENT_GROUPS
                && let Some(group) = waiting.pop_front()
            {
                running += 1;
                steps.spawn(Arc::clone(self).run_group(group));
            }
            // The next page is read while the last groups of this one are built.
            if waiting.len() < CONCURRENT_GROUPS
                && let Some(after) = next_page.take()
            {
                steps.spawn(Arc::clone(self).read_page(Some(after)));
            }
        }
        Ok((seen, self.totals().missing_count))
    }

    async fn read_page(self: Arc<Self>, after: Option<Bson>) -> Result<BuildStep, Error> {
        self.builder.walk.next(after.as_ref(), PAGE_CURSORS).await.map(BuildStep::Page)
    }

    async fn run_group(self: Arc<Self>, group: Vec<UnbuiltCursor>) -> Result<BuildStep, Error> {
        self.build_group(group).await.map(BuildStep::Group)
    }

    fn add(&self, group: BuiltGroup) {
        let mut totals = self.totals.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        totals.events += group.events.applied + group.events.parked;
        totals.parked += group.events.parked;
        totals.aggregates += group.aggregates;
        totals.missing_count += group.missing.len() as u64;
        let room = MAX_NAMED.saturating_sub(totals.missing.len());
        totals.missing.extend(group.missing.into_iter().take(room));
    }

    /// Waits while an operator has paused builds, and while secondaries of the source cannot follow the primary: a build reads much.
    async fn wait_while_paused(&self, report: &impl BuildProgressReport) -> Result<(), Error> {
        let (mut paused, since) = (None, Instant::now());
        loop {
            let pause = match report.is_paused().await? {
                true => Some(BuildPause::Operator),
                false => self.excessive_lag().await.map(BuildPause::ReplicationLag),
            };
            if pause.is_some() || paused.is_some() {
                report.report(&BuildTotals { pause, ..self.totals() }).await?;
            }
            if let Some(pause) = pause.filter(|_| paused.is_none()) {
                tracing::warn!(reason = ?pause, "build paused");
            }
            if pause.is_none() {
                if paused.is_some() {
                    *self.paused_for.lock().unwrap_or_else(std::sync::PoisonError::into_inner) += since.elapsed();
                }
                return Ok(());
            }
            paused = pause;
            sleep(PROGRESS_INTERVAL).await;
        }
    }

    /// `None` if the majority of the members is close enough, or nobody says: a mongos does not.
    async fn excessive_lag(&self) -> Option<Duration> {
        let admin = self.builder.dependencies.server.database("admin");
        let hello = admin.run_command(doc! { "hello": 1 }).await.ok()?;
        replication_lag(&hello).filter(|lag| *lag > self.options.max_replication_lag)
    }

    /// Small groups make an even rate.
    fn group_events(&self) -> i64 {
        let most = if self.builder.applier.folds_in_memory() { FOLDED_GROUP_EVENTS } else { GROUP_EVENTS };
        self.options.rate.map_or(most, |rate| i64::from(rate).clamp(1, most))
    }

    async fn throttle(&self) {
        let Some(rate) = self.options.rate.filter(|rate| *rate > 0) else { return };
        let due = Duration::from_secs_f64(self.totals().events as f64 / f64::from(rate));
        let paused = *self.paused_for.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        sleep((due + paused).saturating_sub(self.started.elapsed())).await;
    }

    async fn build_group(&self, cursors: Vec<UnbuiltCursor>) -> Result<BuiltGroup, Error> {
        match &self.builder.history {
            None => self.build_documents(cursors).await,
            Some(history) if cursors.len() == 1 => self.build_long(history, &cursors[0]).await,
            Some(history) => self.build_events(history, cursors).await,
        }
    }

    /// Aggregates of few events, all in one transaction.
    async fn build_events(
        &self,
        history: &SourceEventReader,
        cursors: Vec<UnbuiltCursor>,
    ) -> Result<BuiltGroup, Error> {
        let mut group = BuiltGroup { aggregates: cursors.len() as u64, ..BuiltGroup::default() };
        let upto = cursors.iter().filter_map(|cursor| cursor.sequence).max().unwrap_or(i64::MIN);
        let aggregates: Vec<AggregateId> = cursors.iter().map(|cursor| cursor.aggregate.clone()).collect();
        let Some(events) = history.read_aggregates(&aggregates, upto).await? else {
            return self.build_halves(cursors).await;
        };
        let mut submitted = Vec::with_capacity(events.iter().map(Vec::len).sum());
        for (cursor, mut events) in cursors.into_iter().zip(events) {
            events.retain(|event| event.sequence <= cursor.sequence && event.sequence >= cursor.first_sequence);
            if self.is_whole(&cursor, None, &events) && events.last().is_some_and(|it| it.sequence == cursor.sequence) {
                submitted.extend(events);
            } else {
                group.missing.push(cursor.aggregate);
            }
        }
        group.events = self.submit(history, submitted).await?;
        Ok(group)
    }

    /// Aggregates whose events are too large to be held together.
    async fn build_halves(&self, mut cursors: Vec<UnbuiltCursor>) -> Result<BuiltGroup, Error> {
        let mut group = BuiltGroup::default();
        let second = cursors.split_off(cursors.len() / 2);
        for half in [cursors, second] {
            let built = Box::pin(self.build_group(half)).await?;
            group.events.applied += built.events.applied;
            group.events.parked += built.events.parked;
            group.aggregates += built.aggregates;
            group.missing.extend(built.missing);
        }
        Ok(group)
    }

    /// An aggregate of many events, page by page.
    async fn build_long(&self, history: &SourceEventReader, cursor: &UnbuiltCursor) -> Result<BuiltGroup, Error> {
        let mut group = BuiltGroup { aggregates: 1, ..BuiltGroup::default() };
        let missing = |group: BuiltGroup| BuiltGroup { missing: vec![cursor.aggregate.clone()], ..group };
        let Some(upto) = cursor.sequence else { return Ok(missing(group)) };
        let mut built = cursor.built;
        loop {
            let from = built.map_or_else(|| cursor.first_sequence.unwrap_or(i64::MIN), |built| built.saturating_add(1));
            let page = history.read_range(&cursor.aggregate, from, upto).await?;
            let last = page.last().and_then(|event| event.sequence);
            let Some(last) = last.filter(|_| self.is_whole(cursor, built, &page)) else { return Ok(missing(group)) };
            let applied = self.submit(history, page).await?;
            group.events.applied += applied.applied;
            group.events.parked += applied.parked;
            if last >= upto {
                return Ok(group);
            }
            built = Some(last);
        }
    }

    /// Whether the source has the events without a hole, from the first one on. With a filter, holes are usual.
    fn is_whole(&self, cursor: &UnbuiltCursor, built: Option<i64>, events: &[DeliveredEvent]) -> bool {
        if self.builder.filter.is_some() {
            return true;
        }
        let first = cursor.first_sequence.unwrap_or(self.builder.dependencies.view.first_sequence);
        let mut at = built.map_or(first, |built| built.saturating_add(1));
        events.iter().enumerate().all(|(number, event)| {
            let Some(sequence) = event.sequence else { return false };
            // An aggregate may begin lower. Two events of one sequence are two histories; such an aggregate is parked.
            let fits = sequence == at
                || (number == 0 && built.is_none() && sequence < at)
                || sequence.checked_add(1) == Some(at);
            at = sequence.saturating_add(1);
            fits
        })
    }

    async fn submit(&self, history: &SourceEventReader, events: Vec<DeliveredEvent>) -> Result<BuiltEvents, Error> {
        let pages = EventPages::new(history.clone(), self.builder.filter.clone());
        let events = pages.filter(events, self.token.as_ref()).await?;
        if events.is_empty() {
            return Ok(BuiltEvents::default());
        }
        self.builder.applier.apply(events).await.map_err(Error::Apply)
    }

    /// The documents as the source has them now, each later than its cursor. Later changes follow as live events.
    async fn build_documents(&self, cursors: Vec<UnbuiltCursor>) -> Result<BuiltGroup, Error> {
        let source = &self.builder.dependencies.source;
        let database = self.builder.dependencies.server.database(&source.database);
        let mut by_collection: HashMap<String, Vec<UnbuiltCursor>> = HashMap::new();
        let aggregates = cursors.len() as u64;
        for cursor in cursors {
            by_collection.entry(cursor.collection.clone().unwrap_or_default()).or_default().push(cursor);
        }
        let mut events = vec![];
        for (collection, cursors) in by_collection {
            let namespace = Arc::new(Namespace::new(&source.database, &collection));
            let keys: Vec<Bson> = cursors.iter().map(|cursor| cursor.aggregate.value().clone()).collect();
            let documents = database.collection::<RawDocumentBuf>(&collection);
            let found = documents.find(doc! { "_id": { "$in": keys } });
            let found = found.read_concern(ReadConcern::majority());
            let found = found.selection_criteria(SelectionCriteria::ReadPreference(ReadPreference::Primary)).await;
            let found = match found {
                Ok(found) => found.try_collect::<Vec<_>>().await,
                Err(error) => Err(error),
            };
            let mut documents = HashMap::new();
            for document in found.map_err(store_error("read documents of the source"))? {
                if let Some(id) = document.get("_id").ok().flatten().and_then(|id| Bson::try_from(id).ok()) {
                    documents.insert(Identity::of(&id), document);
                }
            }
            for cursor in cursors {
                let document = documents.remove(&Identity::of(cursor.aggregate.value()));
                events.push(document_event(&namespace, cursor, document));
            }
        }
        let events = self.builder.applier.apply(events).await.map_err(Error::Apply)?;
        Ok(BuiltGroup { events, aggregates, ..BuiltGroup::default() })
    }
}

/// How far the majority of the members is behind the primary.
fn replication_lag(hello: &Document) -> Option<Duration> {
    let last = hello.get_document("lastWrite").ok()?;
    let millis = |field: &str| last.get_datetime(field).ok().map(|time| time.timestamp_millis());
    let lag = millis("lastWriteDate")? - millis("majorityWriteDate")?;
    Some(Duration::from_millis(lag.max(0).unsigned_abs()))
}

/// Groups of at most `most` aggregates and about so many events. Long aggregates are groups of their own.
fn group_cursors(cursors: Vec<UnbuiltCursor>, most: usize, most_events: i64) -> Vec<Vec<UnbuiltCursor>> {
    let mut groups: Vec<Vec<UnbuiltCursor>> = vec![];
    let (mut group, mut events) = (vec![], 0);
    for cursor in cursors {
        let expected = cursor.sequence.unwrap_or(1).saturating_sub(cursor.first_sequence.unwrap_or(0)).max(1);
        // Half-built ones continue where they are.
        if expected > LONG_AGGREGATE_EVENTS.min(most_events.max(GROUP_EVENTS)) || cursor.built.is_some() {
            groups.push(vec![cursor]);
            continue;
        }
        if (events + expected > most_events && !group.is_empty()) || group.len() >= most {
            groups.push(std::mem::take(&mut group));
            events = 0;
        }
        events += expected;
        group.push(cursor);
    }
    if !group.is_empty() {
        groups.push(group);
    }
    groups
}

fn document_event(
    namespace: &Arc<Namespace>,
    cursor: UnbuiltCursor,
    document: Option<RawDocumentBuf>,
) -> DeliveredEvent {
    let operation = if document.is_some() { Operation::Snapshot } else { Operation::Delete };
    let event_type = document.is_none().then(|| "delete".to_owned());
    let mut only_id = RawDocumentBuf::new();
    if document.is_none()
        && let Ok(id) = mongodb::bson::RawBson::try_from(cursor.aggregate.value().clone())
    {
        only_id.append(mongodb::bson::raw::cstr!("_id"), id);
    }
    DeliveredEvent {
        message_id: String::new(),
        operation,
        namespace: namespace.clone(),
        key: cursor.aggregate.value().clone(),
        aggregate: cursor.aggregate,
        event_type,
        sequence: None,
        position: cursor.position,
        term: Term::new(0),
        body: EventBody::Document(document.unwrap_or(only_id)),
        committed: None,
        delivery_count: 0,
        dead_lettered: false,
        trace: None,
    }
}
