//! Slices of the source: aggregates in index order, each with its highest sequence.
//!
//! A slice is a bounded read of index keys, without documents. If the read ends inside an aggregate, one more seek finds the highest key of that
//! aggregate, so an aggregate with millions of events costs one slice. A resumed walk uses `min`, because `$gt` does not cross BSON types.

use std::sync::Arc;
use std::time::Duration;

use mongodb::bson::{Bson, Document, RawDocument, RawDocumentBuf, Timestamp, doc};
use mongodb::options::{Collation, Hint, ReadConcern, ReadPreference, SelectionCriteria};
use mongodb::{Client, ClientSession, Collection};
use tokio::time::timeout;

use super::error::Error;
use crate::event::{AggregateId, Namespace};
use crate::sequence::read_sequence;
use crate::source::SourceConfig;
use crate::stored::Identity;

/// Index keys per slice: about a thousand aggregates of a few events each. A reply of this size takes a server milliseconds.
const SLICE_KEYS: i64 = 4_000;
const ACTION: &str = "walk the index of aggregate and sequence";
/// The driver itself would wait forever for a dead connection.
const WITHIN: Duration = Duration::from_secs(60);

/// Reads the aggregates of a source in index order, collection by collection in name order.
#[derive(Clone, Debug)]
pub struct SourceWalk {
    client: Client,
    collections: Vec<(Arc<Namespace>, Collection<RawDocumentBuf>)>,
    aggregate: String,
    sequence: String,
    slice_keys: i64,
}

/// The last aggregate of a slice; the next slice starts after it.
#[derive(Clone, PartialEq)]
pub struct WalkPosition {
    pub collection: String,
    pub aggregate: Bson,
}

/// The highest sequence of an aggregate in one collection.
#[derive(Clone, Debug, PartialEq)]
pub struct SourceHead {
    pub aggregate: AggregateId,
    pub sequence: i64,
}

/// A part of the source, as it was at one operation time.
#[derive(Clone, Debug)]
pub struct SourceSlice {
    pub namespace: Arc<Namespace>,
    pub heads: Vec<SourceHead>,
    /// Keys without a valid aggregate id or without a whole number as sequence: the producer rejects such events.
    pub unusable: u64,
    /// Every event in the slice was committed at this time or before.
    pub read_at: Timestamp,
    pub end: WalkPosition,
}

/// One entry of the index.
#[derive(Clone, Debug, PartialEq)]
struct IndexKey {
    aggregate: Bson,
    sequence: Option<i64>,
}

impl SourceWalk {
    /// `None` for a source without a sequence.
    pub fn new(client: &Client, source: &SourceConfig) -> Option<Self> {
        let sequence = source.sequence.clone()?;
        let mut namespaces: Vec<Arc<Namespace>> = source.namespaces().into_iter().map(Arc::new).collect();
        namespaces.sort();
        let opened = |namespace: Arc<Namespace>| {
            let collection = client.database(&namespace.database).collection(&namespace.collection);
            (namespace, collection)
        };
        let collections = namespaces.into_iter().map(opened).collect();
        let aggregate = source.aggregate_id.clone();
        Some(Self { client: client.clone(), collections, aggregate, sequence, slice_keys: SLICE_KEYS })
    }

    /// For tests: smaller slices.
    #[must_use]
    pub fn with_slice_keys(self, slice_keys: i64) -> Self {
        Self { slice_keys, ..self }
    }

    /// The slice after this position, or the first one; `None` at the end of the source.
    pub async fn next_slice(&self, after: Option<&WalkPosition>) -> Result<Option<SourceSlice>, Error> {
        for (namespace, collection) in &self.collections {
            let after = match after {
                Some(position) if position.collection > namespace.collection => continue,
                Some(position) if position.collection == namespace.collection => Some(&position.aggregate),
                Some(_) | None => None,
            };
            let read = timeout(WITHIN, self.read_slice(namespace, collection, after)).await;
            let slice = read.map_err(|_| Error::Timeout {
                action: ACTION,
                namespace: Namespace::clone(namespace),
                within: WITHIN,
            })??;
            if slice.is_some() {
                return Ok(slice);
            }
        }
        Ok(None)
    }

    async fn read_slice(
        &self,
        namespace: &Arc<Namespace>,
        collection: &Collection<RawDocumentBuf>,
        after: Option<&Bson>,
    ) -> Result<Option<SourceSlice>, Error> {
        let failed = |source: mongodb::error::Error| Error::Source {
            action: ACTION,
            namespace: Namespace::clone(namespace),
            source: source.into(),
        };
        let started = self.client.start_session().causal_consistency(true).await;
        let mut session = started.map_err(failed)?;
        let (keys, is_cut) = self.read_keys(collection, after, &mut session).await.map_err(failed)?;
        let mut groups = group_keys(keys, after);
        let Some(last) = groups.last_mut() else { return Ok(None) };
        if is_cut {
            last.sequence = self.highest_sequence(collection, &last.aggregate, &mut session).await.map_err(failed)?;
        }
        let end = WalkPosition { collection: namespace.collection.clone(), aggregate: last.aggregate.clone() };
        let read_at = session.operation_time().ok_or(Error::NoOperationTime)?;
        let (heads, unusable) = usable_heads(groups);
        Ok(Some(SourceSlice { namespace: Arc::clone(namespace), heads, unusable, read_at, end }))
    }

    /// The keys, and whether there may be more of the last aggregate.
    async fn read_keys(
        &self,
        collection: &Collection<RawDocumentBuf>,
        after: Option<&Bson>,
        session: &mut ClientSession,
    ) -> Result<(Vec<IndexKey>, bool), mongodb::error::Error> {
        let mut find = collection.find(doc! {}).hint(Hint::Keys(self.index())).sort(self.index());
        find = find.return_key(true).limit(self.slice_keys).collation(simple_collation());
        find = find.read_concern(ReadConcern::majority()).selection_criteria(primary());
        if let Some(aggregate) = after {
            find = find.min(doc! { &self.aggregate: aggregate.clone(), &self.sequence: Bson::MaxKey });
        }
        let mut found = find.session(&mut *session).await?;
        let (mut keys, mut read) = (Vec::new(), 0);
        while found.advance(session).await? {
            keys.extend(self.parse_key(found.current()));
            read += 1;
        }
        Ok((keys, read >= self.slice_keys))
    }

    /// The highest number; other types in the index do not count.
    async fn highest_sequence(
        &self,
        collection: &Collection<RawDocumentBuf>,
        aggregate: &Bson,
        session: &mut ClientSession,
    ) -> Result<Option<i64>, mongodb::error::Error> {
        let numbers = doc! { "$gte": f64::NEG_INFINITY, "$lte": f64::INFINITY };
        let filter = doc! { &self.aggregate: { "$eq": aggregate.clone() }, &self.sequence: numbers };
        let mut find = collection.find(filter).hint(Hint::Keys(self.index())).sort(doc! { &self.sequence: -1 });
        find = find.return_key(true).limit(1).collation(simple_collation());
        find = find.read_concern(ReadConcern::majority()).selection_criteria(primary());
        let mut found = find.session(&mut *session).await?;
        let is_found = found.advance(session).await?;
        Ok(is_found.then(|| self.parse_key(found.current())).flatten().and_then(|key| key.sequence))
    }

    fn index(&self) -> Document {
        doc! { &self.aggregate: 1, &self.sequence: 1 }
    }

    /// A returned key has the paths of the index as plain field names.
    fn parse_key(&self, key: &RawDocument) -> Option<IndexKey> {
        let value = |name: &str| key.get(name).ok().flatten();
        let aggregate = Bson::try_from(value(&self.aggregate)?).ok()?;
        Some(IndexKey { aggregate, sequence: value(&self.sequence).and_then(read_sequence) })
    }
}

/// One key per aggregate, with its highest sequence. Equal values are neighbours in the index, whatever their numeric type. Keys of the aggregate
/// before the slice are left out.
fn group_keys(keys: Vec<IndexKey>, after: Option<&Bson>) -> Vec<IndexKey> {
    let after = after.map(Identity::of);
    let mut groups: Vec<(Identity, IndexKey)> = Vec::new();
    for key in keys {
        let identity = Identity::of(&key.aggregate);
        match groups.last_mut() {
            Some((last, group)) if *last == identity => group.sequence = group.sequence.max(key.sequence),
            _ if after.as_ref() == Some(&identity) => {}
            _ => groups.push((identity, key)),
        }
    }
    groups.into_iter().map(|(_, key)| key).collect()
}

fn usable_heads(groups: Vec<IndexKey>) -> (Vec<SourceHead>, u64) {
    let all = groups.len();
    let usable = groups.into_iter().filter_map(|IndexKey { aggregate, sequence }| {
        Some(SourceHead { aggregate: AggregateId::new(aggregate)?, sequence: sequence? })
    });
    let heads: Vec<SourceHead> = usable.collect();
    let unusable = (all - heads.len()) as u64;
    (heads, unusable)
}

/// The collation of the index, which `capture` checks.
fn simple_collation() -> Collation {
    Collation::builder().locale("simple").build()
}

fn primary() -> SelectionCriteria {
    SelectionCriteria::ReadPreference(ReadPreference::Primary)
}

/// Without the aggregate, which is content of a document.
impl std::fmt::Debug for WalkPosition {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WalkPosition").field("collection", &self.collection).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(aggregate: impl Into<Bson>, sequence: impl Into<Option<i64>>) -> IndexKey {
        IndexKey { aggregate: aggregate.into(), sequence: sequence.into() }
    }

    #[test]
    fn keys_of_one_aggregate_become_its_highest_sequence() {
        let keys = vec![key("a", 1), key("a", 2), key("b", 7), key(1, 1), key(1_i64, 2), key(1.0, 3)];
        let groups = group_keys(keys, None);
        assert_eq!(groups, [key("a", 2), key("b", 7), key(1, 3)]);
    }

    #[test]
    fn the_aggregate_before_the_slice_is_left_out() {
        let keys = vec![key("a", None), key("b", 1)];
        assert_eq!(group_keys(keys, Some(&"a".into())), [key("b", 1)]);
        assert_eq!(group_keys(vec![key("a", None)], Some(&"a".into())), []);
    }

    #[test]
    fn keys_without_an_aggregate_or_a_number_are_unusable() {
        let (heads, unusable) = usable_heads(vec![key(Bson::Null, 1), key("a", None), key("b", 2)]);
        assert_eq!((heads.len(), heads[0].sequence, unusable), (1, 2, 2));
    }
}
