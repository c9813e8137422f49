//! Pure: statements in as few commands as their order allows.
//!
//! MongoDB has one command for updates and another for deletes. Statements on one document keep their order; between documents no
//! order is promised, so a delete may wait for later updates of others. In strict order nothing passes anything.

use std::collections::HashMap;
use std::sync::Arc;

use mongodb::bson::raw::cstr;
use mongodb::bson::{RawArrayBuf, RawDocumentBuf};

use super::plan::Planned;
use super::statement::Kind;

/// What a command's document may hold, with room to spare below the server's 16 MB. One statement alone may be larger.
const LARGEST: usize = 12 * 1024 * 1024;

/// Statements of one collection and one kind, by their numbers.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Run {
    pub(super) collection: Arc<str>,
    pub(super) kind: Kind,
    pub(super) statements: Vec<usize>,
}

/// In strict order: one run for each statement, so that an error says which it was.
pub(super) fn strict(statements: &[Planned]) -> Vec<Run> {
    let run = |(number, planned): (usize, &Planned)| Run {
        collection: planned.statement.collection.clone(),
        kind: planned.statement.kind,
        statements: vec![number],
    };
    statements.iter().enumerate().map(run).collect()
}

pub(super) fn grouped(statements: &[Planned]) -> Vec<Run> {
    let mut collections: Vec<Phases> = vec![];
    for (number, planned) in statements.iter().enumerate() {
        let collection = &planned.statement.collection;
        let found = collections.iter_mut().position(|phases| phases.collection == *collection);
        let at = found.unwrap_or_else(|| {
            collections.push(Phases { collection: collection.clone(), runs: vec![], latest: HashMap::new(), floor: 0 });
            collections.len() - 1
        });
        collections[at].add(number, planned);
    }
    let runs: Vec<Run> = collections.into_iter().flat_map(|phases| phases.runs).collect();
    runs.into_iter().flat_map(|run| by_size(run, statements)).collect()
}

/// Runs of one collection, alternating in kind.
struct Phases<'a> {
    collection: Arc<str>,
    runs: Vec<Run>,
    /// By document: the run of its latest statement.
    latest: HashMap<&'a super::identity::Identity, usize>,
    /// Nothing may go before this run.
    floor: usize,
}

impl<'a> Phases<'a> {
    fn add(&mut self, number: usize, planned: &'a Planned) {
        let Planned { statement, .. } = planned;
        let earliest = match &statement.document {
            Some(document) => self.latest.get(document).copied().unwrap_or(0).max(self.floor),
            None => self.runs.len().saturating_sub(1),
        };
        let fits = self.runs.iter().skip(earliest).position(|run| run.kind == statement.kind);
        let at = fits.map_or(self.runs.len(), |offset| earliest + offset);
        if at == self.runs.len() {
            let collection = self.collection.clone();
            self.runs.push(Run { collection, kind: statement.kind, statements: vec![] });
        }
        self.runs[at].statements.push(number);
        match &statement.document {
            Some(document) => drop(self.latest.insert(document, at)),
            None => self.floor = at,
        }
    }
}

fn by_size(run: Run, statements: &[Planned]) -> Vec<Run> {
    let mut runs = vec![];
    let (mut bytes, mut taken) = (0, vec![]);
    for number in run.statements {
        let size = statements[number].statement.raw.as_bytes().len();
        if bytes + size > LARGEST && !taken.is_empty() {
            let statements = std::mem::take(&mut taken);
            runs.push(Run { collection: run.collection.clone(), kind: run.kind, statements });
            bytes = 0;
        }
        bytes += size;
        taken.push(number);
    }
    runs.push(Run { collection: run.collection, kind: run.kind, statements: taken });
    runs
}

impl Run {
    pub(super) fn command(&self, statements: &[Planned]) -> RawDocumentBuf {
        let entries = self.statements.iter().map(|number| &statements[*number].statement.raw);
        match self.kind {
            Kind::Update => update_command(&self.collection, entries),
            Kind::Delete => {
                let mut command = RawDocumentBuf::new();
                command.append(cstr!("delete"), &*self.collection);
                command.append(cstr!("deletes"), array(entries));
                command.append(cstr!("ordered"), true);
                command
            }
        }
    }
}

/// The documents with these ids, in one answer as far as its size allows.
pub(super) fn find_command<'a>(
    collection: &str,
    ids: impl ExactSizeIterator<Item = &'a RawDocumentBuf>,
) -> RawDocumentBuf {
    let count = i64::try_from(ids.len()).unwrap_or(i64::MAX);
    let (mut among, mut filter, mut command) = (RawDocumentBuf::new(), RawDocumentBuf::new(), RawDocumentBuf::new());
    among.append(cstr!("$in"), array(ids));
    filter.append(cstr!("_id"), among);
    command.append(cstr!("find"), collection);
    command.append(cstr!("filter"), filter);
    command.append(cstr!("batchSize"), count);
    command
}

pub(super) fn update_command<'a>(
    collection: &str,
    entries: impl Iterator<Item = &'a RawDocumentBuf>,
) -> RawDocumentBuf {
    let mut command = RawDocumentBuf::new();
    command.append(cstr!("update"), collection);
    command.append(cstr!("updates"), array(entries));
    command.append(cstr!("ordered"), true);
    command
}

pub(super) fn insert_command<'a>(
    collection: &str,
    documents: impl Iterator<Item = &'a RawDocumentBuf>,
) -> RawDocumentBuf {
    let mut command = RawDocumentBuf::new();
    command.append(cstr!("insert"), collection);
    command.append(cstr!("documents"), array(documents));
    command.append(cstr!("ordered"), true);
    command
}

fn array<'a>(entries: impl Iterator<Item = &'a RawDocumentBuf>) -> RawArrayBuf {
    let mut array = RawArrayBuf::new();
    for entry in entries {
        array.push(entry);
    }
    array
}

/// Documents in lists that each fit into a command.
pub(super) fn sized(documents: &[RawDocumentBuf]) -> Vec<&[RawDocumentBuf]> {
    let (mut lists, mut from, mut bytes) = (vec![], 0, 0);
    for (at, document) in documents.iter().enumerate() {
        let size = document.as_bytes().len();
        if bytes + size > LARGEST && at > from {
            lists.push(&documents[from..at]);
            (from, bytes) = (at, 0);
        }
        bytes += size;
    }
    if from < documents.len() {
        lists.push(&documents[from..]);
    }
    lists
}

#[cfg(test)]
mod tests {
    use mongodb::bson::Bson;

    use super::*;
    use crate::view::statement::Statements;

    /// `u1` updates document 1, `d1` deletes it.
    fn planned(words: &str) -> Vec<Planned> {
        let mut statements = Statements::default();
        for word in words.split_whitespace() {
            let id = Bson::from(word[1..].parse::<i32>().unwrap());
            if word.starts_with('d') {
                statements.delete("orders", id).unwrap();
            } else {
                statements.update("orders", id, mongodb::bson::doc! { "$set": { "a": 1 } }).unwrap();
            }
        }
        let planned = |statement| Planned { at: 0, model: 0, statement };
        statements.written.into_iter().map(planned).collect()
    }

    fn shown(words: &str) -> Vec<Vec<usize>> {
        grouped(&planned(words)).into_iter().map(|run| run.statements).collect()
    }

    #[test]
    fn one_kind_is_one_command() {
        assert_eq!(shown("u1 u2 u1 u3"), [vec![0, 1, 2, 3]]);
        assert_eq!(shown("d1 d2"), [vec![0, 1]]);
        assert!(shown("").is_empty());
    }

    #[test]
    fn statements_on_one_document_keep_their_order() {
        assert_eq!(shown("u1 d1 u1 d1"), [vec![0], vec![1], vec![2], vec![3]]);
        assert_eq!(shown("u1 d1 u2 d2 u3 u1"), [vec![0, 2, 4], vec![1, 3], vec![5]]);
        assert_eq!(shown("d1 u2 d2 u1"), [vec![0], vec![1, 3], vec![2]]);
    }

    #[test]
    fn in_strict_order_nothing_passes() {
        let planned = planned("u1 d1 u2");
        assert_eq!(strict(&planned).into_iter().flat_map(|run| run.statements).collect::<Vec<_>>(), [0, 1, 2]);
    }
}
