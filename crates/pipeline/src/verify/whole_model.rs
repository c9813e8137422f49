//! Verifies a read model whose documents several aggregates write, as a whole.
//!
//! Cursors and documents are copied from one snapshot of the read-model database; then all events up to those cursors are folded into another collection,
//! and the two are compared document by document. No order is promised across aggregates: lists are compared as multisets, numbers by value, and sums
//! of doubles with a tolerance. Only for read models whose clauses do not depend on the order ([`super::Comparability::AsWhole`]). Repairs nothing: one
//! document cannot be folded without the others.

use std::collections::HashMap;

use mongodb::bson::{Bson, Document, RawDocumentBuf};

use super::difference::{Difference, DifferenceKind, compare_unordered};
use super::error::Error;
use super::report::{Finding, SkipReason, VerifyTotals};
use super::verifier::{Verifier, VerifySink};
use crate::stored::Identity;
use crate::view::{Fold, FoldError, ModelCopy};

/// Documents that are compared together.
const CHUNK: i64 = 500;

/// Why a read model could not be compared as a whole.
#[derive(Debug, thiserror::Error)]
pub enum WholeModelError {
    #[error(transparent)]
    Verify(#[from] Error),
    /// Nobody knows which of their events a document shows.
    #[error("{0} aggregates are parked in it, or have no sequence; `headwater parked list` shows the parked ones")]
    Parked(u64),
    #[error("the source does not have all events of {0} aggregates")]
    SourceIncomplete(u64),
    #[error("an event cannot be applied, although its aggregate is not parked: {0}")]
    Unfoldable(String),
}

impl Verifier {
    /// Compares all documents. Keeps the cursors in memory, about 200 bytes each.
    pub async fn run_whole(&self, sink: &mut (dyn VerifySink + Send)) -> Result<VerifyTotals, WholeModelError> {
        let copy = self.reader.copy_whole(&self.scratch).await.map_err(Error::from)?;
        let compared = self.compare_whole(&copy, sink).await;
        self.scratch.drop_collection(&copy.documents).await;
        compared
    }

    async fn compare_whole(
        &self,
        copy: &ModelCopy,
        sink: &mut (dyn VerifySink + Send),
    ) -> Result<VerifyTotals, WholeModelError> {
        let mut fold = self.scratch.fold(&self.dependencies.model);
        let skipped = match self.fold_all(&mut fold, copy).await {
            Ok(skipped) => skipped,
            Err(error) => {
                fold.discard().await;
                return Err(error);
            }
        };
        let count = |reasons: &[SkipReason]| reasons.iter().filter_map(|reason| skipped.get(reason)).sum::<u64>();
        let unknown = count(&[SkipReason::Parked, SkipReason::NoSequence]);
        let incomplete = count(&[SkipReason::SourceIncomplete, SkipReason::Regressed]);
        if unknown + incomplete > 0 {
            fold.discard().await;
            return Err(match unknown {
                0 => WholeModelError::SourceIncomplete(incomplete),
                unknown => WholeModelError::Parked(unknown),
            });
        }
        let folded = fold.finish_in_collection().await.map_err(unfoldable)?;
        let totals = self.compare_collections(&folded, &copy.documents, sink).await;
        self.scratch.drop_collection(&folded).await;
        Ok(totals?)
    }

    async fn fold_all(
        &self,
        fold: &mut Fold<'_>,
        copy: &ModelCopy,
    ) -> Result<HashMap<SkipReason, u64>, WholeModelError> {
        let mut skipped = HashMap::new();
        for snapshot in &copy.aggregates {
            if let Some(reason) = self.add_events(fold, snapshot).await?.map_err(unfoldable)? {
                *skipped.entry(reason).or_default() += 1;
            }
        }
        Ok(skipped)
    }

    async fn compare_collections(
        &self,
        expected: &str,
        stored: &str,
        sink: &mut (dyn VerifySink + Send),
    ) -> Result<VerifyTotals, Error> {
        let mut totals = VerifyTotals::default();
        let mut after = None;
        loop {
            let chunk = self.scratch.read_chunk(expected, after.as_ref(), CHUNK).await?;
            let Some(last) = chunk.last() else { break };
            after = id_of(last);
            let found = self.scratch.read_by_ids(stored, chunk.iter().filter_map(id_of).collect()).await?;
            let found: HashMap<_, _> =
                found.iter().filter_map(|found| Some((Identity::of(&id_of(found)?), found))).collect();
            for document in &chunk {
                let Some(id) = id_of(document) else { continue };
                let differences = match found.get(&Identity::of(&id)) {
                    Some(found) => compare_unordered(&to_document(document), &to_document(found)),
                    None => vec![whole(DifferenceKind::MissingDocument)],
                };
                record(&mut totals, sink, id, differences);
            }
            sink.progress(&totals);
        }
        let mut after = None;
        loop {
            let chunk = self.scratch.read_chunk(stored, after.as_ref(), CHUNK).await?;
            let Some(last) = chunk.last() else { return Ok(totals) };
            after = id_of(last);
            let ids: Vec<Bson> = chunk.iter().filter_map(id_of).collect();
            let known = self.scratch.read_by_ids(expected, ids.clone()).await?;
            let known: Vec<_> = known.iter().filter_map(|known| Some(Identity::of(&id_of(known)?))).collect();
            for id in ids.into_iter().filter(|id| !known.contains(&Identity::of(id))) {
                record(&mut totals, sink, id, vec![whole(DifferenceKind::ExtraDocument)]);
            }
            sink.progress(&totals);
        }
    }
}

fn record(totals: &mut VerifyTotals, sink: &mut (dyn VerifySink + Send), id: Bson, differences: Vec<Difference>) {
    totals.compared += 1;
    if !differences.is_empty() {
        totals.different += 1;
        sink.finding(&Finding { id, sequence: None, differences, detail: None, repaired: false });
    }
}

fn whole(kind: DifferenceKind) -> Difference {
    Difference { path: String::new(), kind, expected: None, stored: None }
}

fn unfoldable(error: FoldError) -> WholeModelError {
    match error {
        FoldError::Refused(event) => WholeModelError::Unfoldable(event.detail),
        FoldError::Store(error) => WholeModelError::Verify(error.into()),
    }
}

fn id_of(document: &RawDocumentBuf) -> Option<Bson> {
    Bson::try_from(document.get("_id").ok().flatten()?).ok()
}

fn to_document(document: &RawDocumentBuf) -> Document {
    Document::try_from(&**document).unwrap_or_default()
}
