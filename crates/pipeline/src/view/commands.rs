//! Pure: combines statements into as few commands as their order allows.
//!
//! MongoDB has one command for updates and one for deletes. Statements on one document keep their order; between documents there is no
//! order, so a delete may run after later updates of other documents. With one command per statement the whole order is kept.

use std::collections::HashMap;
use std::sync::Arc;

use mongodb::bson::raw::cstr;
use mongodb::bson::{RawArrayBuf, RawDocumentBuf};

use super::identity::Identity;
use super::statement::{StatementKind, WriteStatement};

/// Limit of a command document, below the server's 16 MB. A single statement may be larger.
const MAX_COMMAND_BYTES: usize = 12 * 1024 * 1024;

/// Statements of one collection and one kind, by index.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct WriteCommand {
    pub(super) collection: Arc<str>,
    pub(super) kind: StatementKind,
    pub(super) statements: Vec<usize>,
}

/// One command per statement, so that an error identifies the statement.
pub(super) fn one_per_statement<S: AsRef<WriteStatement>>(statements: &[S]) -> Vec<WriteCommand> {
    let command = |(index, statement): (usize, &WriteStatement)| WriteCommand {
        collection: statement.collection.clone(),
        kind: statement.kind,
        statements: vec![index],
    };
    statements.iter().map(AsRef::as_ref).enumerate().map(command).collect()
}

/// As few commands as possible.
pub(super) fn batched<S: AsRef<WriteStatement>>(statements: &[S]) -> Vec<WriteCommand> {
    let mut collections: Vec<CollectionCommands> = vec![];
    for (index, statement) in statements.iter().map(AsRef::as_ref).enumerate() {
        let collection = &statement.collection;
        let found = collections.iter().position(|known| known.collection == *collection);
        let at = found.unwrap_or_else(|| {
            collections.push(CollectionCommands {
                collection: collection.clone(),
                commands: vec![],
                last_command: HashMap::new(),
                earliest_allowed: 0,
            });
            collections.len() - 1
        });
        collections[at].add(index, statement);
    }
    let commands = collections.into_iter().flat_map(|collection| collection.commands);
    commands.flat_map(|command| split_by_size(command, statements)).collect()
}

/// The commands of one collection, in order.
struct CollectionCommands<'a> {
    collection: Arc<str>,
    commands: Vec<WriteCommand>,
    /// By document: the command of its last statement.
    last_command: HashMap<&'a Identity, usize>,
    /// No statement may go before this command.
    earliest_allowed: usize,
}

impl<'a> CollectionCommands<'a> {
    fn add(&mut self, index: usize, statement: &'a WriteStatement) {
        let earliest = match &statement.document {
            Some(document) => self.last_command.get(document).copied().unwrap_or(0).max(self.earliest_allowed),
            // An unknown document may be any of them, so it goes after everything before it.
            None => self.commands.len().saturating_sub(1),
        };
        // A later command of the same kind is fine: no statement on this document is in between.
        let fits = self.commands.iter().skip(earliest).position(|command| command.kind == statement.kind);
        let at = fits.map_or(self.commands.len(), |offset| earliest + offset);
        if at == self.commands.len() {
            let collection = self.collection.clone();
            self.commands.push(WriteCommand { collection, kind: statement.kind, statements: vec![] });
        }
        self.commands[at].statements.push(index);
        match &statement.document {
            Some(document) => drop(self.last_command.insert(document, at)),
            None => self.earliest_allowed = at,
        }
    }
}

fn split_by_size<S: AsRef<WriteStatement>>(command: WriteCommand, statements: &[S]) -> Vec<WriteCommand> {
    let mut commands = vec![];
    let (mut bytes, mut taken) = (0, vec![]);
    for index in command.statements {
        let size = statements[index].as_ref().raw.as_bytes().len();
        if bytes + size > MAX_COMMAND_BYTES && !taken.is_empty() {
            let statements = std::mem::take(&mut taken);
            commands.push(WriteCommand { collection: command.collection.clone(), kind: command.kind, statements });
            bytes = 0;
        }
        bytes += size;
        taken.push(index);
    }
    commands.push(WriteCommand { collection: command.collection, kind: command.kind, statements: taken });
    commands
}

impl WriteCommand {
    pub(super) fn to_document<S: AsRef<WriteStatement>>(&self, statements: &[S]) -> RawDocumentBuf {
        let entries = self.statements.iter().map(|index| &statements[*index].as_ref().raw);
        match self.kind {
            StatementKind::Update => update_command(&self.collection, entries),
            StatementKind::Insert => insert_command(&self.collection, entries),
            StatementKind::Delete => {
                let mut command = RawDocumentBuf::new();
                command.append(cstr!("delete"), &*self.collection);
                command.append(cstr!("deletes"), array(entries));
                command.append(cstr!("ordered"), true);
                command
            }
        }
    }
}

/// Finds the documents with these ids, in one reply if its size allows.
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

/// Splits documents into lists that each fit into one command.
pub(super) fn chunks_by_size(documents: &[RawDocumentBuf]) -> Vec<&[RawDocumentBuf]> {
    let (mut lists, mut from, mut bytes) = (vec![], 0, 0);
    for (at, document) in documents.iter().enumerate() {
        let size = document.as_bytes().len();
        if bytes + size > MAX_COMMAND_BYTES && at > from {
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
    fn planned(words: &str) -> Vec<WriteStatement> {
        let mut statements = Statements::default();
        for word in words.split_whitespace() {
            let id = Bson::from(word[1..].parse::<i32>().unwrap());
            if word.starts_with('d') {
                statements.delete("orders", id).unwrap();
            } else {
                statements.update("orders", id, mongodb::bson::doc! { "$set": { "a": 1 } }).unwrap();
            }
        }
        statements.list
    }

    fn shown(words: &str) -> Vec<Vec<usize>> {
        batched(&planned(words)).into_iter().map(|command| command.statements).collect()
    }

    #[test]
    fn statements_of_one_kind_share_one_command() {
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
    fn one_command_per_statement_keeps_the_order() {
        let planned = planned("u1 d1 u2");
        assert_eq!(
            one_per_statement(&planned).into_iter().flat_map(|command| command.statements).collect::<Vec<_>>(),
            [0, 1, 2]
        );
    }
}
