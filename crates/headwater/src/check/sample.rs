//! Read models and source, looked at with events that are there: what no server can say without data.
//!
//! A value that an event lacks is no mistake to MongoDB, it is left out; so a misspelt path shows only in what is missing. Nothing of an event but
//! its type is ever shown. The decision is [`judge`]'s, which is pure.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures_util::TryStreamExt;
use mongo_error::DriverError;
use mongodb::bson::{Bson, Document, doc};
use pipeline::source::{SourceConfig, SourceKind};

use super::Finding;
use crate::config::{Config, Declared, EventValue};

const SOURCE: &str = "source";
const READ_MODELS: &str = "read_models";
const FOUND_WITHIN: Duration = Duration::from_secs(5);

/// The newest `count` events of every collection.
pub(super) async fn ask(config: &Config, count: u32) -> anyhow::Result<Vec<Finding>> {
    let client = crate::run::client(&config.source_uri, "source.uri", Some(FOUND_WITHIN)).await?;
    let mut events = vec![];
    for namespace in config.source.namespaces() {
        let collection = client.database(&namespace.database).collection::<Document>(&namespace.collection);
        let newest = collection.find(doc! {}).sort(doc! { "$natural": -1 }).limit(count.into());
        match async { newest.await?.try_collect::<Vec<_>>().await }.await {
            Ok(found) => events.extend(found),
            Err(error) => {
                let problem = format!("`{namespace}` cannot be sampled: {}", DriverError::from(error));
                return Ok(vec![Finding::error(SOURCE, problem, "mend that and check again")]);
            }
        }
    }
    Ok(judge(&config.source, &config.read_models.declared, &events))
}

fn judge(source: &SourceConfig, declared: &Declared, events: &[Document]) -> Vec<Finding> {
    if events.is_empty() {
        return vec![Finding::note(SOURCE, "holds nothing to sample", "sample again when it does")];
    }
    let by_type = by_type(source, declared, events);
    let mut findings = fields(source, events);
    findings.extend(unhandled(source, declared, &by_type));
    findings.extend(declared.event_values().iter().filter_map(|value| absent(declared, value, &by_type)));
    findings
}

type ByType<'a> = BTreeMap<String, Vec<&'a Document>>;

/// A document stands for every operation that leaves one behind.
fn by_type<'a>(source: &SourceConfig, declared: &Declared, events: &'a [Document]) -> ByType<'a> {
    let mut by_type = ByType::new();
    match source.kind {
        SourceKind::Events => {
            for event in events {
                if let Some(Bson::String(name)) = find(event, &source.event_type) {
                    by_type.entry(name.clone()).or_default().push(event);
                }
            }
        }
        SourceKind::Documents => {
            for name in declared.event_types().filter(|name| name != "delete") {
                by_type.insert(name, events.iter().collect());
            }
        }
    }
    by_type
}

/// What an event must have to become a message in its place.
fn fields(source: &SourceConfig, events: &[Document]) -> Vec<Finding> {
    if source.kind == SourceKind::Documents {
        return vec![];
    }
    let of = events.len();
    let lacking = |fits: &dyn Fn(&Document) -> bool| events.iter().filter(|event| !fits(event)).count();
    let mut findings = vec![];
    let nobody = lacking(&|event| !matches!(find(event, &source.aggregate_id), None | Some(Bson::Null)));
    if nobody > 0 {
        let problem = format!("{nobody} of {of} sampled events have no `{}`: they are rejected", source.aggregate_id);
        findings.push(Finding::error(
            SOURCE,
            problem,
            "name the right field in `source.aggregate_id`, or mend the events",
        ));
    }
    let untyped = lacking(&|event| matches!(find(event, &source.event_type), Some(Bson::String(_))));
    if untyped > 0 {
        let problem = format!(
            "{untyped} of {of} sampled events have no text in `{}`: no read model hears of them",
            source.event_type
        );
        findings.push(Finding::warning(
            SOURCE,
            problem,
            "name the right field in `source.event_type`, or mend the events",
        ));
    }
    if let Some(sequence) = &source.sequence {
        let unnumbered = lacking(&|event| matches!(find(event, sequence), Some(Bson::Int32(_) | Bson::Int64(_))));
        if unnumbered > 0 {
            let problem = format!("{unnumbered} of {of} sampled events have no whole number in `{sequence}`");
            findings.push(Finding::warning(
                SOURCE,
                problem,
                "name the right field in `source.sequence`, or mend the events",
            ));
        }
    }
    findings
}

/// Types that are declared and not there, and the other way round.
fn unhandled(source: &SourceConfig, declared: &Declared, by_type: &ByType<'_>) -> Vec<Finding> {
    if source.kind == SourceKind::Documents {
        return vec![];
    }
    let handled: BTreeSet<String> = declared.event_types().collect();
    let mut findings = vec![];
    for name in handled.iter().filter(|name| !by_type.contains_key(*name)) {
        let problem = format!("no sampled event is of type `{name}`, which is handled");
        findings.push(Finding::note(READ_MODELS, problem, "sample more, or mind its spelling"));
    }
    if !handled.is_empty() {
        for name in by_type.keys().filter(|name| !handled.contains(*name)) {
            let problem = format!("events of type `{name}` occur, and no read model handles them");
            findings.push(Finding::note(READ_MODELS, problem, "nothing, if that is meant"));
        }
    }
    findings
}

fn absent(declared: &Declared, value: &EventValue, by_type: &ByType<'_>) -> Option<Finding> {
    let types: Vec<_> = value.event_types.iter().filter_map(|name| by_type.get(name)).collect();
    let events: Vec<_> = types.into_iter().flatten().collect();
    let lacking = events.iter().filter(|event| find(event, &value.path).is_none()).count();
    if lacking == 0 {
        return None;
    }
    let among = match &value.event_types[..] {
        [one] => format!(" of type `{one}`"),
        _ => String::new(),
    };
    let of = events.len();
    let problem = format!("is missing in {lacking} of {of} sampled events{among}");
    let told = declared.explain(&[value.mistake(problem)]).to_string().replace("\n  ", ": ");
    Some(match (value.is_key, lacking == of) {
        (true, true) => Finding::error(READ_MODELS, told, "mind its spelling: without a key events are parked"),
        (true, false) => Finding::warning(READ_MODELS, told, "without a key an event is parked"),
        (false, true) => Finding::warning(READ_MODELS, told, "mind its spelling: what an event lacks is left out"),
        (false, false) => Finding::note(READ_MODELS, told, "nothing, if it may be missing: it is left out then"),
    })
}

/// A value by its dotted path; through an array it is there if any of its documents has it.
fn find<'a>(document: &'a Document, path: &str) -> Option<&'a Bson> {
    let (first, rest) = path.split_once('.').map_or((path, None), |(first, rest)| (first, Some(rest)));
    let value = document.get(first)?;
    let Some(rest) = rest else { return Some(value) };
    match value {
        Bson::Document(document) => find(document, rest),
        Bson::Array(values) => values.iter().filter_map(Bson::as_document).find_map(|document| find(document, rest)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::Level;
    use super::*;
    use crate::config::declared_in;

    const MODELS: &str = "
orders:
  key: $$event.payload.order
  when:
    Placed: { $set: { customer: $$event.payload.custmer, at: $$event.payload.at } }
    Added: [ { $set: { skus: { $concatArrays: [ $skus, $$event.payload.items.sku ] } } } ]
    Gone: delete
";

    fn event(kind: &str, payload: Document) -> Document {
        doc! { "aggregateId": "order-1", "type": kind, "version": 1, "payload": payload }
    }

    fn found(events: &[Document]) -> Vec<(Level, String)> {
        let source = SourceConfig { sequence: Some("version".into()), ..SourceConfig::events("shop", "events") };
        let findings = judge(&source, &declared_in(MODELS), events);
        findings.into_iter().map(|finding| (finding.level, finding.problem)).collect()
    }

    fn has(found: &[(Level, String)], level: Level, words: &str) {
        assert!(found.iter().any(|(at, said)| *at == level && said.contains(words)), "{level:?} {words}: {found:#?}");
    }

    #[test]
    fn what_events_lack_is_found_with_its_line() {
        let placed = |at: Option<i32>| {
            let mut payload = doc! { "order": 1, "customer": "ann" };
            payload.extend(at.map(|at| ("at".to_owned(), Bson::from(at))));
            event("Placed", payload)
        };
        let added = event("Added", doc! { "order": 1, "items": [{ "sku": "a" }] });
        let found = found(&[placed(Some(1)), placed(None), added, event("Paid", doc! {})]);
        has(&found, Level::Warning, "`$$event.payload.custmer`: is missing in 2 of 2 sampled events of type `Placed`");
        has(&found, Level::Note, "`$$event.payload.at`: is missing in 1 of 2 sampled events of type `Placed`");
        has(&found, Level::Note, "no sampled event is of type `Gone`");
        has(&found, Level::Note, "events of type `Paid` occur, and no read model handles them");
        assert_eq!(found.len(), 4, "{found:#?}");
        assert!(found.iter().any(|(_, said)| said.contains("line 5, column")), "{found:#?}");
    }

    #[test]
    fn events_without_what_places_them_are_found() {
        let bare = doc! { "type": "Placed", "payload": {} };
        let found = found(&[bare, doc! { "aggregateId": 1, "version": 1.5 }]);
        has(&found, Level::Error, "1 of 2 sampled events have no `aggregateId`");
        has(&found, Level::Warning, "1 of 2 sampled events have no text in `type`");
        has(&found, Level::Warning, "2 of 2 sampled events have no whole number in `version`");
        has(&found, Level::Error, "`$$event.payload.order`: is missing in 1 of 1");
    }

    #[test]
    fn an_empty_source_says_so() {
        has(&found(&[]), Level::Note, "holds nothing to sample");
    }
}
