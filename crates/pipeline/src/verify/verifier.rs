//! Verifies a read model whose documents have the ids of aggregates.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use mongodb::Database;
use mongodb::bson::{Bson, RawDocumentBuf};

use super::difference::{Difference, DifferenceKind, compare};
use super::error::Error;
use super::report::{Finding, SkipReason, VerifyTotals};
use crate::event::{AggregateId, ResumeToken};
use crate::source_walk::EventPages;
use crate::stored::Identity;
use crate::view::{
    AggregateSnapshot, DocumentRepair, Fold, FoldError, FoldScratch, Projection, ReadModel, RefusedEvent,
    RepairOutcome, SnapshotReader,
};

/// Aggregates per snapshot. A snapshot is read in one go and released before the source is asked.
const CHUNK: i64 = 200;
/// Documents whose cursors are looked up together.
const ID_CHUNK: i64 = 1_000;
/// Events per fold: as many as fit into one transaction, if each has one statement.
const EVENTS_PER_FOLD: i64 = 900;
const MAX_REPAIR_ATTEMPTS: u32 = 50;
const MAX_READ_ATTEMPTS: u32 = 6;

/// What a verification reads, and what it compares with.
pub struct VerifyDependencies {
    /// Of the stored read models.
    pub generation: u64,
    pub pipeline: String,
    /// The read-model database.
    pub views: Database,
    pub model: Arc<ReadModel>,
    /// The events of the source.
    pub pages: EventPages,
    /// The sequence of the first event of an aggregate.
    pub first_sequence: i64,
    /// Any token of the stream; only a capture filter needs it.
    pub token: Option<ResumeToken>,
}

/// Which documents are compared.
#[derive(Clone, Debug)]
pub enum VerifyScope {
    All,
    /// So many aggregates and so many documents at random.
    Sample(u32),
    Aggregates(Vec<AggregateId>),
}

/// Compares the documents of one read model with folds of the source.
pub struct Verifier {
    pub(super) dependencies: VerifyDependencies,
    pub(super) reader: SnapshotReader,
    repair: DocumentRepair,
    pub(super) scratch: FoldScratch,
}

/// Gets findings as they are made, and the totals now and then.
pub trait VerifySink {
    fn finding(&mut self, finding: &Finding);
    fn progress(&mut self, totals: &VerifyTotals);
}

/// What comparing one aggregate gave.
enum Comparison {
    Skipped(SkipReason),
    Unfoldable(RefusedEvent),
    Folded(Option<RawDocumentBuf>),
}

/// One run: its options, its counts, its sink.
struct VerifyRun<'a> {
    repairs: bool,
    totals: VerifyTotals,
    sink: &'a mut (dyn VerifySink + Send),
}

impl VerifyRun<'_> {
    fn record(&mut self, finding: &Finding) {
        self.totals.different += 1;
        self.totals.repaired += u64::from(finding.repaired);
        self.sink.finding(finding);
    }
}

impl Verifier {
    /// Creates the scratch collection of the folds; [`Self::close`] drops it.
    pub async fn open(dependencies: VerifyDependencies) -> Result<Self, Error> {
        let VerifyDependencies { pipeline, views, model, generation, .. } = &dependencies;
        let reader = SnapshotReader::new(views, pipeline, model.collection()).with_parked_name(model.name());
        let repair = DocumentRepair::new(views, pipeline, model, *generation);
        let scratch = FoldScratch::create(views).await?;
        Ok(Self { dependencies, reader, repair, scratch })
    }

    pub async fn close(self) {
        self.scratch.close().await;
    }

    /// Compares. With `repairs`, replaces what differs by what the fold gives.
    pub async fn run(
        &self,
        scope: &VerifyScope,
        repairs: bool,
        sink: &mut (dyn VerifySink + Send),
    ) -> Result<VerifyTotals, Error> {
        let mut run = VerifyRun { repairs, totals: VerifyTotals::default(), sink };
        match scope {
            VerifyScope::All => {
                self.verify_all_aggregates(&mut run).await?;
                self.verify_all_documents(&mut run).await?;
            }
            VerifyScope::Sample(count) => {
                let count = i64::from(*count);
                let aggregates = retry(async || Ok(self.reader.sample_aggregates(count).await?)).await?;
                self.verify_aggregates(&aggregates, &mut run).await?;
                let ids = retry(async || Ok(self.reader.sample_document_ids(count).await?)).await?;
                for ids in ids.chunks(ID_CHUNK as usize) {
                    self.verify_documents(ids, &mut run).await?;
                }
            }
            VerifyScope::Aggregates(aggregates) => {
                self.verify_aggregates(aggregates, &mut run).await?;
                let ids: Vec<Bson> = aggregates.iter().map(|aggregate| aggregate.value().clone()).collect();
                self.verify_documents(&ids, &mut run).await?;
            }
        }
        Ok(run.totals)
    }

    async fn verify_all_aggregates(&self, run: &mut VerifyRun<'_>) -> Result<(), Error> {
        let mut after = None;
        loop {
            let chunk = retry(async || Ok(self.reader.next_aggregates(after.as_ref(), CHUNK).await?)).await?;
            let Some(last) = chunk.last() else { return Ok(()) };
            after = Some(last.aggregate.clone());
            self.verify_chunk(chunk, run).await?;
        }
    }

    async fn verify_aggregates(&self, aggregates: &[AggregateId], run: &mut VerifyRun<'_>) -> Result<(), Error> {
        for aggregates in aggregates.chunks(CHUNK as usize) {
            let chunk = retry(async || Ok(self.reader.read(aggregates).await?)).await?;
            self.verify_chunk(chunk, run).await?;
        }
        Ok(())
    }

    async fn verify_all_documents(&self, run: &mut VerifyRun<'_>) -> Result<(), Error> {
        let mut after: Option<Bson> = None;
        loop {
            let ids = retry(async || Ok(self.reader.next_document_ids(after.as_ref(), ID_CHUNK).await?)).await?;
            let Some(last) = ids.last() else { return Ok(()) };
            after = Some(last.clone());
            self.verify_documents(&ids, run).await?;
        }
    }

    /// Finds documents whose aggregates have no cursor. The others were compared with their cursors.
    async fn verify_documents(&self, ids: &[Bson], run: &mut VerifyRun<'_>) -> Result<(), Error> {
        for id in retry(async || Ok(self.reader.without_cursor(ids).await?)).await? {
            run.totals.compared += 1;
            let kind = DifferenceKind::ExtraDocument;
            let difference = Difference { path: String::new(), kind, expected: None, stored: None };
            let repaired = match AggregateId::new(id.clone()) {
                Some(aggregate) if run.repairs => {
                    let deleted = retry(async || Ok(self.repair.delete_without_cursor(&aggregate).await?)).await?;
                    deleted == RepairOutcome::Repaired
                }
                _ => false,
            };
            let detail = Some("no event was ever applied to it".to_owned());
            run.record(&Finding { id, sequence: None, differences: vec![difference], detail, repaired });
        }
        run.sink.progress(&run.totals);
        Ok(())
    }

    async fn verify_chunk(&self, chunk: Vec<AggregateSnapshot>, run: &mut VerifyRun<'_>) -> Result<(), Error> {
        for group in group_by_events(&chunk) {
            let comparisons = retry(async || self.compare_group(group).await).await?;
            for (snapshot, comparison) in group.iter().zip(comparisons) {
                self.record(snapshot, comparison, run).await?;
            }
            run.sink.progress(&run.totals);
        }
        Ok(())
    }

    async fn record(
        &self,
        snapshot: &AggregateSnapshot,
        comparison: Comparison,
        run: &mut VerifyRun<'_>,
    ) -> Result<(), Error> {
        let (id, sequence) = (snapshot.aggregate.value().clone(), snapshot.cursor.sequence);
        match comparison {
            Comparison::Skipped(reason) => *run.totals.skipped.entry(reason).or_default() += 1,
            Comparison::Unfoldable(event) => {
                run.totals.compared += 1;
                let (kind, path) = (DifferenceKind::Unfoldable, String::new());
                let differences = vec![Difference { path, kind, expected: None, stored: None }];
                let at = event.sequence.map_or_else(String::new, |sequence| format!(" {sequence}"));
                let detail = Some(format!("event{at}: {}", event.detail));
                run.record(&Finding { id, sequence, differences, detail, repaired: false });
            }
            Comparison::Folded(expected) => {
                run.totals.compared += 1;
                let differences = compare(expected.as_deref(), snapshot.document.as_deref());
                if !differences.is_empty() {
                    let repaired = run.repairs && self.repair(snapshot, expected).await?;
                    run.record(&Finding { id, sequence, differences, detail: None, repaired });
                }
            }
        }
        Ok(())
    }

    /// Replaces the document; if an event comes first, folds and compares once more. `false`: it still differs.
    async fn repair(&self, snapshot: &AggregateSnapshot, expected: Option<RawDocumentBuf>) -> Result<bool, Error> {
        let (mut sequence, mut expected) = (snapshot.cursor.sequence, expected);
        for _ in 0..MAX_REPAIR_ATTEMPTS {
            let Some(at) = sequence else { return Ok(false) };
            let document = expected.as_deref();
            let outcome = retry(async || Ok(self.repair.repair(&snapshot.aggregate, at, document).await?)).await?;
            if outcome == RepairOutcome::Repaired {
                return Ok(true);
            }
            let aggregates = std::slice::from_ref(&snapshot.aggregate);
            let current = retry(async || Ok(self.reader.read(aggregates).await?)).await?;
            let Some(current) = current.first() else { return Ok(false) };
            let comparisons = retry(async || self.compare_group(std::slice::from_ref(current)).await).await?;
            let Some(Comparison::Folded(folded)) = comparisons.into_iter().next() else { return Ok(false) };
            if compare(folded.as_deref(), current.document.as_deref()).is_empty() {
                return Ok(true);
            }
            (sequence, expected) = (current.cursor.sequence, folded);
        }
        Ok(false)
    }

    /// Folds these aggregates together. An event that the server refuses ends its own aggregate only.
    async fn compare_group(&self, group: &[AggregateSnapshot]) -> Result<Vec<Comparison>, Error> {
        let mut unfoldable: HashMap<Identity, RefusedEvent> = HashMap::new();
        loop {
            match self.fold_group(group, &unfoldable).await? {
                Ok(comparisons) => return Ok(comparisons),
                Err(event) => drop(unfoldable.insert(Identity::of(event.aggregate.value()), event)),
            }
        }
    }

    async fn fold_group(
        &self,
        group: &[AggregateSnapshot],
        unfoldable: &HashMap<Identity, RefusedEvent>,
    ) -> Result<Result<Vec<Comparison>, RefusedEvent>, Error> {
        let mut fold = self.scratch.fold(&self.dependencies.model);
        let mut comparisons = Vec::with_capacity(group.len());
        for snapshot in group {
            if let Some(event) = unfoldable.get(&Identity::of(snapshot.aggregate.value())) {
                comparisons.push(Comparison::Unfoldable(event.clone()));
                continue;
            }
            match self.add_events(&mut fold, snapshot).await {
                Ok(Ok(None)) => comparisons.push(Comparison::Folded(None)),
                Ok(Ok(Some(reason))) => comparisons.push(Comparison::Skipped(reason)),
                Ok(Err(FoldError::Refused(event))) => {
                    fold.discard().await;
                    return Ok(Err(event));
                }
                Ok(Err(FoldError::Store(error))) => {
                    fold.discard().await;
                    return Err(error.into());
                }
                Err(error) => {
                    fold.discard().await;
                    return Err(error);
                }
            }
        }
        let documents = match fold.finish().await {
            Ok(documents) => documents,
            Err(FoldError::Refused(event)) => return Ok(Err(event)),
            Err(FoldError::Store(error)) => return Err(error.into()),
        };
        let id = |document: &RawDocumentBuf| Bson::try_from(document.get("_id").ok().flatten()?).ok();
        let by_id = |document: RawDocumentBuf| Some((Identity::of(&id(&document)?), document));
        let mut documents: HashMap<_, _> = documents.into_iter().filter_map(by_id).collect();
        for (snapshot, comparison) in group.iter().zip(&mut comparisons) {
            if let Comparison::Folded(document) = comparison {
                *document = documents.remove(&Identity::of(snapshot.aggregate.value()));
            }
        }
        Ok(Ok(comparisons))
    }

    /// Adds the events up to the cursor, or says why the aggregate cannot be compared.
    pub(super) async fn add_events(
        &self,
        fold: &mut Fold<'_>,
        snapshot: &AggregateSnapshot,
    ) -> Result<Result<Option<SkipReason>, FoldError>, Error> {
        let VerifyDependencies { model, pages, first_sequence, token, .. } = &self.dependencies;
        let AggregateSnapshot { aggregate, cursor, discarded, .. } = snapshot;
        if cursor.parked.contains_key(model.name()) {
            return Ok(Ok(Some(SkipReason::Parked)));
        }
        let Some(upto) = cursor.sequence else { return Ok(Ok(Some(SkipReason::NoSequence))) };
        let mut history = HistoryCheck { first: cursor.first_sequence.unwrap_or(*first_sequence), last: None };
        let mut from = cursor.first_sequence.unwrap_or(i64::MIN);
        let mut last_event_id = None;
        while from <= upto {
            let page = pages.read(aggregate, from, upto, token.as_ref()).await?;
            let Some(next) = page.next() else { break };
            if !history.accept(&page.sequences, pages.is_filtered()) {
                return Ok(Ok(Some(SkipReason::SourceIncomplete)));
            }
            for event in page.events.iter().filter(|event| !discarded.contains(&Identity::of(&event.key))) {
                if let Err(error) = fold.add(event).await {
                    return Ok(Err(error));
                }
            }
            (from, last_event_id) = (next, page.last_event_id);
        }
        let is_applied_event =
            |id: &Bson| cursor.event_id.as_ref().is_none_or(|applied| Identity::of(applied) == Identity::of(id));
        Ok(Ok(match (history.last, last_event_id) {
            (None, _) => Some(SkipReason::SourceIncomplete),
            (Some(last), Some(id)) if last == upto && is_applied_event(&id) => None,
            (Some(_), _) => Some(SkipReason::Regressed),
        }))
    }
}

/// Whether the source still has every event of an aggregate.
struct HistoryCheck {
    first: i64,
    last: Option<i64>,
}

impl HistoryCheck {
    /// `filtered`: sequences may have gaps.
    fn accept(&mut self, sequences: &[i64], filtered: bool) -> bool {
        sequences.iter().all(|sequence| {
            let expected = self.last.map_or(*sequence <= self.first, |last| filtered || *sequence == last + 1);
            self.last = Some(*sequence);
            expected
        })
    }
}

/// Neighbours whose events fit into one fold together; a longer aggregate is alone.
fn group_by_events(chunk: &[AggregateSnapshot]) -> Vec<&[AggregateSnapshot]> {
    let events = |snapshot: &AggregateSnapshot| {
        let first = snapshot.cursor.first_sequence.unwrap_or(0);
        snapshot.cursor.sequence.map_or(0, |last| last.saturating_sub(first)).clamp(1, EVENTS_PER_FOLD)
    };
    let (mut groups, mut start, mut sum) = (vec![], 0, 0);
    for (at, snapshot) in chunk.iter().enumerate() {
        let events = events(snapshot);
        if at > start && sum + events > EVENTS_PER_FOLD {
            groups.push(&chunk[start..at]);
            (start, sum) = (at, 0);
        }
        sum += events;
    }
    groups.push(&chunk[start..]);
    groups
}

/// Repeats a read after a failover or the like.
async fn retry<T>(read: impl AsyncFn() -> Result<T, Error>) -> Result<T, Error> {
    let mut attempts = 0;
    loop {
        attempts += 1;
        match read().await {
            Err(error) if error.is_transient() && attempts < MAX_READ_ATTEMPTS => {
                tokio::time::sleep(Duration::from_millis(200) * attempts).await;
            }
            done => return done,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::Cursor;

    #[test]
    fn only_a_complete_history_is_compared() {
        let accepts = |pages: &[&[i64]], filtered| {
            let mut check = HistoryCheck { first: 1, last: None };
            pages.iter().all(|page| check.accept(page, filtered))
        };
        assert!(accepts(&[&[1, 2], &[3]], false));
        assert!(accepts(&[&[0, 1, 2]], false));
        assert!(!accepts(&[&[2, 3]], false), "the first event was archived");
        assert!(!accepts(&[&[1, 2], &[4]], false));
        assert!(!accepts(&[&[1, 2, 2]], false));
        assert!(accepts(&[&[1, 2], &[4]], true));
    }

    #[test]
    fn a_long_aggregate_is_folded_alone() {
        let snapshot = |sequence: i64| AggregateSnapshot {
            aggregate: AggregateId::new(sequence.into()).unwrap(),
            cursor: Cursor { sequence: Some(sequence), ..Cursor::default() },
            document: None,
            discarded: Default::default(),
        };
        let chunk: Vec<_> = [1, 2, 5_000, 3, 500, 500].map(snapshot).into();
        let sizes: Vec<_> = group_by_events(&chunk).into_iter().map(<[_]>::len).collect();
        assert_eq!(sizes, [2, 1, 2, 1]);
    }
}
