//! The checks before capture starts. Each error names the fix.

use futures_util::TryStreamExt;
use mongodb::IndexModel;
use mongodb::bson::{Bson, DateTime, Document, doc};

use super::config::StartPosition;
use super::error::{Error, with_timeout};
use super::source_client::{SourceClient, StreamStart};
use super::unresumable::is_refusal;
use crate::event::Namespace;
use crate::source::{FullDocument, SourceKind};

const NAMESPACE_NOT_FOUND: i32 = 26;
/// The clocks of the members differ, and so does the clock of the person who wrote the time down.
const MAX_CLOCK_SKEW_MS: i64 = 60_000;
/// The `msg` of a mongos in its `hello` reply.
const MONGOS: &str = "isdbgrid";

pub(super) async fn check(source_client: &SourceClient, start: &StartPosition) -> Result<(), Error> {
    source_client.source.validate()?;
    check_not_own(source_client)?;
    check_filter_shape(&source_client.config.filter)?;
    check_filter_accepted(source_client).await?;
    check_start_has_passed(source_client, start).await?;
    for namespace in source_client.source.namespaces() {
        match source_client.source.kind {
            SourceKind::Events if *start == StartPosition::Beginning => {
                check_scan_index(source_client, namespace).await?
            }
            SourceKind::Events => {}
            SourceKind::Documents => {
                check_sharded_by_id(source_client, &namespace).await?;
                if source_client.source.full_document == FullDocument::PostImage {
                    check_post_images(source_client, namespace).await?;
                }
            }
        }
    }
    Ok(())
}

fn check_not_own(source_client: &SourceClient) -> Result<(), Error> {
    let own =
        source_client.source.namespaces().into_iter().find(|namespace| source_client.config.own.contains(namespace));
    own.map_or(Ok(()), |namespace| Err(Error::OwnNamespace { namespace }))
}

fn check_filter_shape(filter: &[Document]) -> Result<(), Error> {
    for (number, stage) in (1..).zip(filter) {
        let mut names = stage.keys();
        match (names.next(), names.next()) {
            (Some(name), None) if name.starts_with('$') => {}
            _ => return Err(Error::FilterShape { number, problem: "is not a map with one `$` operator" }),
        }
    }
    Ok(())
}

/// Opens the stream with the filter. If the server refuses, opens it stage by stage to find the wrong stage.
async fn check_filter_accepted(source_client: &SourceClient) -> Result<(), Error> {
    let filter = &source_client.config.filter;
    if source_client.open_unread(StreamStart::Now, filter).await.is_ok() {
        return Ok(());
    }
    source_client.open_unread(StreamStart::Now, &[]).await?;
    for number in 1..=filter.len() {
        if let Err(error) = source_client.open_unread(StreamStart::Now, &filter[..number]).await {
            let name = filter[number - 1].keys().next().cloned().unwrap_or_default();
            return Err(filter_error(number, name, error));
        }
    }
    Ok(())
}

fn filter_error(number: usize, name: String, error: Error) -> Error {
    match error {
        Error::Server { source, .. } | Error::Refused { source, .. } if is_refusal(source.get()) => {
            Error::FilterRefused { number, name, source }
        }
        error => error,
    }
}

/// A stream that starts in the future would skip everything written until then.
async fn check_start_has_passed(source_client: &SourceClient, start: &StartPosition) -> Result<(), Error> {
    let StartPosition::At(time) = *start else { return Ok(()) };
    let hello = hello(source_client).await?;
    match hello.get_datetime("localTime") {
        Ok(&now) if is_ahead(time, now) => Err(Error::StartInFuture { start: *start, now: StartPosition::At(now) }),
        Ok(_) | Err(_) => Ok(()),
    }
}

fn is_ahead(time: DateTime, now: DateTime) -> bool {
    time.timestamp_millis() > now.timestamp_millis().saturating_add(MAX_CLOCK_SKEW_MS)
}

async fn hello(source_client: &SourceClient) -> Result<Document, Error> {
    let server = source_client.client().database("admin");
    let request = async { server.run_command(doc! { "hello": 1 }).await };
    with_timeout("run `hello` on the source", source_client.config.initial_timeout(), request).await
}

/// A snapshot of events reads along the index (aggregate, sequence).
pub(super) async fn check_scan_index(source_client: &SourceClient, namespace: Namespace) -> Result<(), Error> {
    let Some(sequence) = source_client.source.sequence.clone() else { return Err(Error::NoSequence) };
    let aggregate_id = source_client.source.aggregate_id.clone();
    let collection = source_client.collection(&namespace);
    let listed = async { collection.list_indexes().await?.try_collect::<Vec<_>>().await };
    let indexes =
        match with_timeout("list the indexes of the source", source_client.config.initial_timeout(), listed).await {
            Err(Error::Server { source, .. }) if source.code() == Some(NAMESPACE_NOT_FOUND) => Vec::new(),
            listed => listed?,
        };
    if indexes.iter().any(|index| is_scan_index(index, [&aggregate_id, &sequence])) {
        return Ok(());
    }
    Err(Error::NoIndex { namespace, aggregate_id, sequence })
}

/// Whether the index holds every document once, in the order of these fields.
fn is_scan_index(index: &IndexModel, fields: [&str; 2]) -> bool {
    let ascending = |value: &Bson| matches!(value, Bson::Int32(1) | Bson::Int64(1)) || *value == Bson::Double(1.0);
    let keys = index.keys.iter().map(|(name, value)| (name.as_str(), ascending(value)));
    let whole = index.options.as_ref().is_none_or(|options| {
        options.sparse != Some(true)
            && options.hidden != Some(true)
            && options.partial_filter_expression.is_none()
            && options.collation.is_none()
    });
    keys.eq(fields.map(|name| (name, true))) && whole
}

async fn check_post_images(source_client: &SourceClient, namespace: Namespace) -> Result<(), Error> {
    let database = source_client.database();
    let listed = async {
        let found = database.list_collections().filter(doc! { "name": &namespace.collection }).await?;
        found.try_collect::<Vec<_>>().await
    };
    let found =
        with_timeout("read the collection options of the source", source_client.config.initial_timeout(), listed)
            .await?;
    let images = found.iter().filter_map(|collection| collection.options.change_stream_pre_and_post_images.as_ref());
    if images.into_iter().any(|images| images.enabled) { Ok(()) } else { Err(Error::NoPostImages { namespace }) }
}

/// Two documents must not share an `_id`. Only a shard key of `_id` guarantees that across shards
/// (`docs/decisions/013-sharded-documents.md`). `translate` catches a collection that is sharded later.
async fn check_sharded_by_id(source_client: &SourceClient, namespace: &Namespace) -> Result<(), Error> {
    let timeout = source_client.config.initial_timeout();
    let hello = hello(source_client).await?;
    if !hello.get_str("msg").is_ok_and(|msg| msg == MONGOS) {
        return Ok(());
    }
    let sharded = source_client.client().database("config").collection::<Document>("collections");
    let request = async { sharded.find_one(doc! { "_id": namespace.to_string() }).await };
    let found = with_timeout("read the shard key of the source", timeout, request).await?;
    let key = found.as_ref().and_then(|collection| collection.get_document("key").ok());
    match key.and_then(|key| key.keys().find(|field| *field != "_id")) {
        Some(field) => Err(Error::ShardedBy { namespace: namespace.clone(), field: field.clone() }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mongodb::options::IndexOptions;

    fn index(keys: Document, options: Option<IndexOptions>) -> IndexModel {
        IndexModel::builder().keys(keys).options(options).build()
    }

    #[test]
    fn a_scan_index_covers_every_document_in_order() {
        let fields = ["aggregateId", "version"];
        assert!(is_scan_index(&index(doc! { "aggregateId": 1, "version": 1 }, None), fields));
        assert!(is_scan_index(&index(doc! { "aggregateId": 1.0, "version": 1_i64 }, None), fields));
        let unique = IndexOptions::builder().unique(true).build();
        assert!(is_scan_index(&index(doc! { "aggregateId": 1, "version": 1 }, Some(unique)), fields));
        for keys in [
            doc! { "aggregateId": 1 },
            doc! { "version": 1, "aggregateId": 1 },
            doc! { "aggregateId": 1, "version": -1 },
            doc! { "aggregateId": "hashed", "version": 1 },
            doc! { "aggregateId": 1, "version": 1, "at": 1 },
        ] {
            assert!(!is_scan_index(&index(keys.clone(), None), fields), "{keys}");
        }
        let sparse = IndexOptions::builder().sparse(true).build();
        assert!(!is_scan_index(&index(doc! { "aggregateId": 1, "version": 1 }, Some(sparse)), fields));
    }

    #[test]
    fn a_start_may_be_ahead_by_the_clock_skew() {
        let at = DateTime::from_millis;
        assert!(!is_ahead(at(0), at(1_000)));
        assert!(!is_ahead(at(61_000), at(1_000)));
        assert!(is_ahead(at(61_001), at(1_000)));
        assert!(!is_ahead(at(i64::MAX), at(i64::MAX)));
    }

    #[test]
    fn a_filter_stage_has_exactly_one_operator() {
        assert!(check_filter_shape(&[doc! { "$match": {} }, doc! { "$project": { "a": 0 } }]).is_ok());
        for wrong in [doc! {}, doc! { "match": {} }, doc! { "$match": {}, "$set": {} }] {
            let error = check_filter_shape(&[doc! { "$match": {} }, wrong]).unwrap_err();
            assert!(matches!(error, Error::FilterShape { number: 2, .. }));
        }
    }
}
