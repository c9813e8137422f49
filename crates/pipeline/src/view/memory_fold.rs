//! The documents that a transaction of a build folds in memory: one for each aggregate and model.
//!
//! Only of aggregates that the build has not begun, so that none of their documents exists yet. What cannot be folded exactly is reported as
//! [`FoldKey`]; the transaction is then planned again, with statements for it.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use mongodb::bson::RawDocumentBuf;

use super::identity::Identity;
use super::memory_update::FoldedDocument;
use super::plan::{PlannedStatement, StatementOrigin};
use super::projection::ProjectionEvent;
use super::read_model::ReadModel;
use super::statement::{StatementKind, WriteStatement};

/// A model by its index in the set, and an aggregate.
pub(super) type FoldKey = (usize, Identity);

/// Far below the limit of a document, and below that of a command.
const MAX_INPUT_BYTES: usize = 4 * 1024 * 1024;

/// Whether the transaction folds in memory, and what it must not.
pub(super) enum MemoryFolding {
    Off,
    Except(HashSet<FoldKey>),
}

#[derive(Default)]
pub(super) struct MemoryFolds {
    /// In the order of their first events.
    folds: Vec<MemoryFold>,
    index: HashMap<FoldKey, usize>,
    unfoldable: HashSet<FoldKey>,
}

struct MemoryFold {
    origin: StatementOrigin,
    collection: Arc<str>,
    aggregate: Identity,
    folded: FoldedDocument,
    input_bytes: usize,
}

impl MemoryFolds {
    /// Adds an event that the model handles.
    pub(super) fn add(
        &mut self,
        origin: StatementOrigin,
        aggregate: &Identity,
        model: &ReadModel,
        event: &ProjectionEvent<'_>,
    ) {
        let key = (origin.model.get(), aggregate.clone());
        let at = *self.index.entry(key).or_insert_with(|| {
            self.folds.push(MemoryFold {
                origin,
                collection: Arc::clone(model.shared_collection()),
                aggregate: aggregate.clone(),
                folded: FoldedDocument::default(),
                input_bytes: 0,
            });
            self.folds.len() - 1
        });
        let fold = &mut self.folds[at];
        fold.input_bytes += event.document.as_bytes().len();
        if fold.input_bytes > MAX_INPUT_BYTES || model.apply_in_memory(event, &mut fold.folded).is_err() {
            self.unfoldable.insert((origin.model.get(), aggregate.clone()));
        }
    }

    /// The inserts of the documents; an error names what the server must evaluate.
    pub(super) fn finish(mut self) -> Result<Vec<PlannedStatement>, HashSet<FoldKey>> {
        let mut inserts = Vec::with_capacity(self.folds.len());
        for fold in self.folds {
            let Some(document) = fold.folded.document else { continue };
            match RawDocumentBuf::try_from(&document) {
                Ok(raw) => inserts.push(PlannedStatement {
                    origin: fold.origin,
                    statement: WriteStatement {
                        collection: fold.collection,
                        kind: StatementKind::Insert,
                        document: Some(fold.aggregate),
                        raw,
                    },
                }),
                Err(_) => drop(self.unfoldable.insert((fold.origin.model.get(), fold.aggregate))),
            }
        }
        if self.unfoldable.is_empty() { Ok(inserts) } else { Err(self.unfoldable) }
    }
}
