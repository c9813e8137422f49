//! Checks source and read models against existing events.
//!
//! MongoDB treats a missing value as absent, not as an error, so only data can reveal a misspelled path. Findings show nothing of an event but its type.
//! [`evaluate`] decides, and is pure.

use std::collections::{BTreeMap, BTreeSet};

use futures_util::TryStreamExt;
use mongo_error::DriverError;
use mongodb::bson::{Bson, Document, RawDocumentBuf, doc};
use pipeline::capture;
use pipeline::source::{SourceConfig, SourceKind};
use pipeline::view;

use super::CheckFinding;
use crate::config::{Config, EventReference, ModelDeclarations};
use crate::connect::{self, SERVER_SELECTION_TIMEOUT};

const SOURCE: &str = "source";
const READ_MODELS: &str = "read_models";

/// Checks the newest `count` events of every collection.
pub(super) async fn check_events(config: &Config, count: u32) -> anyhow::Result<Vec<CheckFinding>> {
    let client = connect::mongo_client(&config.source_uri, "source.uri", SERVER_SELECTION_TIMEOUT).await?;
    let mut events = vec![];
    for namespace in config.source.namespaces() {
        let collection = client.database(&namespace.database).collection::<Document>(&namespace.collection);
        // Reverse natural order needs no index, and is about the reverse order of insertion.
        let newest = collection.find(doc! {}).sort(doc! { "$natural": -1 }).limit(count.into());
        match async { newest.await?.try_collect::<Vec<_>>().await }.await {
            Ok(found) => events.extend(found),
            Err(error) => {
                let problem = format!("`{namespace}` cannot be sampled: {}", DriverError::from(error));
                return Ok(vec![CheckFinding::error(SOURCE, problem, "fix the cause and check again")]);
            }
        }
    }
    let (upcasted, mut findings) = upcast(config, events.clone()).await?;
    findings.extend(evaluate(&config.source, &config.read_models.declared, &events, &upcasted));
    Ok(findings)
}

/// The events as read models see them, without those that cannot be upcast.
async fn upcast(config: &Config, events: Vec<Document>) -> anyhow::Result<(Vec<Document>, Vec<CheckFinding>)> {
    let models = &config.read_models.models;
    if config.source.kind == SourceKind::Documents || models.is_empty() {
        return Ok((events, vec![]));
    }
    // On the server that pods use for it.
    let views = connect::mongo_client(&config.read_models.uri, "read_models.uri", SERVER_SELECTION_TIMEOUT).await?;
    let (database, count) = (views.database(&config.read_models.database), events.len());
    let results = match view::upcast_documents(&database, &config.source, models, events).await {
        Ok(results) => results,
        Err(error) => {
            let problem = format!("sampled events cannot be upcast: {}", DriverError::from(error));
            return Ok((vec![], vec![CheckFinding::error(SOURCE, problem, "fix the cause and check again")]));
        }
    };
    let mut failed: BTreeMap<String, usize> = BTreeMap::new();
    let usable =
        results.into_iter().filter_map(|result| result.map_err(|detail| *failed.entry(detail).or_default() += 1).ok());
    let usable = usable.collect();
    let finding = |(detail, number): (String, usize)| {
        let problem = format!("{number} of {count} sampled events cannot be upcast, so they are parked: {detail}");
        CheckFinding::error(SOURCE, problem, "correct `source.upcast`, for example with `$ifNull`")
    };
    Ok((usable, failed.into_iter().map(finding).collect()))
}

/// `upcasted`: the events as read models see them.
fn evaluate(
    source: &SourceConfig,
    declared: &ModelDeclarations,
    events: &[Document],
    upcasted: &[Document],
) -> Vec<CheckFinding> {
    if events.is_empty() {
        return vec![CheckFinding::note(SOURCE, "has no events to sample", "sample again when it has")];
    }
    let by_type = group_by_type(source, declared, upcasted);
    let mut findings = check_fields(source, events);
    findings.extend(check_event_types(source, declared, &by_type));
    findings.extend(declared.event_references().iter().filter_map(|value| check_reference(declared, value, &by_type)));
    findings
}

type ByType<'a> = BTreeMap<String, Vec<&'a Document>>;

/// For a `documents` source, each document counts as an event of every type but `delete`.
fn group_by_type<'a>(source: &SourceConfig, declared: &ModelDeclarations, events: &'a [Document]) -> ByType<'a> {
    let mut by_type = ByType::new();
    match source.kind {
        SourceKind::Events => {
            for event in events {
                if let Some(Bson::String(name)) = find_value(event, &source.event_type) {
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

/// The fields that an event needs to be published in order.
fn check_fields(source: &SourceConfig, events: &[Document]) -> Vec<CheckFinding> {
    if source.kind == SourceKind::Documents {
        return vec![];
    }
    let of = events.len();
    let lacking = |fits: &dyn Fn(&Document) -> bool| events.iter().filter(|event| !fits(event)).count();
    let mut findings = vec![];
    let without_id = lacking(&|event| !matches!(find_value(event, &source.aggregate_id), None | Some(Bson::Null)));
    if without_id > 0 {
        let problem =
            format!("{without_id} of {of} sampled events have no `{}`: they are rejected", source.aggregate_id);
        findings.push(CheckFinding::error(SOURCE, problem, "correct `source.aggregate_id`, or fix the events"));
    }
    let untyped = lacking(&|event| matches!(find_value(event, &source.event_type), Some(Bson::String(_))));
    if untyped > 0 {
        let problem = format!(
            "{untyped} of {of} sampled events have no string in `{}`: they reach no read model",
            source.event_type
        );
        findings.push(CheckFinding::warning(SOURCE, problem, "correct `source.event_type`, or fix the events"));
    }
    if let Some(sequence) = &source.sequence {
        let unnumbered = lacking(&|event| {
            RawDocumentBuf::try_from(event).is_ok_and(|event| capture::sequence_of(source, &event).is_some())
        });
        if unnumbered > 0 {
            let problem = format!(
                "{unnumbered} of {of} sampled events have no whole number from 0 in `{sequence}`: they are rejected"
            );
            findings.push(CheckFinding::error(SOURCE, problem, "correct `source.sequence`, or fix the events"));
        }
    }
    findings
}

/// Event types that are declared but do not occur, and event types that occur but are not declared.
fn check_event_types(source: &SourceConfig, declared: &ModelDeclarations, by_type: &ByType<'_>) -> Vec<CheckFinding> {
    if source.kind == SourceKind::Documents {
        return vec![];
    }
    let handled: BTreeSet<String> = declared.event_types().collect();
    let mut findings = vec![];
    for name in handled.iter().filter(|name| !by_type.contains_key(*name)) {
        let problem = format!("a read model handles events of type `{name}`, but no sampled event has it");
        findings.push(CheckFinding::note(READ_MODELS, problem, "check the spelling, or sample more events"));
    }
    if !handled.is_empty() {
        for name in by_type.keys().filter(|name| !handled.contains(*name)) {
            let problem = format!("no read model handles events of type `{name}`");
            findings.push(CheckFinding::note(READ_MODELS, problem, "ignore this if it is intended"));
        }
    }
    findings
}

fn check_reference(declared: &ModelDeclarations, value: &EventReference, by_type: &ByType<'_>) -> Option<CheckFinding> {
    let types: Vec<_> = value.event_types.iter().filter_map(|name| by_type.get(name)).collect();
    let events: Vec<_> = types.into_iter().flatten().collect();
    let lacking = events.iter().filter(|event| find_value(event, &value.path).is_none()).count();
    if lacking == 0 {
        return None;
    }
    let among = match &value.event_types[..] {
        [one] => format!(" of type `{one}`"),
        _ => String::new(),
    };
    let of = events.len();
    let problem = format!("is missing in {lacking} of {of} sampled events{among}");
    let text = declared.explain(&[value.mistake(problem)]).to_string().replace("\n  ", ": ");
    Some(match (value.is_key, lacking == of) {
        (true, true) => CheckFinding::error(READ_MODELS, text, "check the spelling: events without a key are parked"),
        (true, false) => CheckFinding::warning(READ_MODELS, text, "events without a key are parked"),
        (false, true) => {
            CheckFinding::warning(READ_MODELS, text, "check the spelling: a missing value is left out of the update")
        }
        (false, false) => {
            CheckFinding::note(READ_MODELS, text, "ignore this if the value is optional: it is left out of the update")
        }
    })
}

/// The value at a dotted path. Inside an array, the first document that has it counts.
fn find_value<'a>(document: &'a Document, path: &str) -> Option<&'a Bson> {
    let (first, rest) = path.split_once('.').map_or((path, None), |(first, rest)| (first, Some(rest)));
    let value = document.get(first)?;
    let Some(rest) = rest else { return Some(value) };
    match value {
        Bson::Document(document) => find_value(document, rest),
        Bson::Array(values) => {
            values.iter().filter_map(Bson::as_document).find_map(|document| find_value(document, rest))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::FindingLevel;
    use super::*;
    use crate::config::parse_declarations;

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

    fn found(events: &[Document]) -> Vec<(FindingLevel, String)> {
        let source = SourceConfig { sequence: Some("version".into()), ..SourceConfig::events("shop", "events") };
        let findings = evaluate(&source, &parse_declarations(MODELS), events, events);
        findings.into_iter().map(|finding| (finding.level, finding.problem)).collect()
    }

    fn has(found: &[(FindingLevel, String)], level: FindingLevel, words: &str) {
        assert!(found.iter().any(|(at, text)| *at == level && text.contains(words)), "{level:?} {words}: {found:#?}");
    }

    #[test]
    fn missing_values_are_reported_with_their_line() {
        let placed = |at: Option<i32>| {
            let mut payload = doc! { "order": 1, "customer": "ann" };
            payload.extend(at.map(|at| ("at".to_owned(), Bson::from(at))));
            event("Placed", payload)
        };
        let added = event("Added", doc! { "order": 1, "items": [{ "sku": "a" }] });
        let found = found(&[placed(Some(1)), placed(None), added, event("Paid", doc! {})]);
        has(
            &found,
            FindingLevel::Warning,
            "`$$event.payload.custmer`: is missing in 2 of 2 sampled events of type `Placed`",
        );
        has(&found, FindingLevel::Note, "`$$event.payload.at`: is missing in 1 of 2 sampled events of type `Placed`");
        has(&found, FindingLevel::Note, "events of type `Gone`, but no sampled event has it");
        has(&found, FindingLevel::Note, "no read model handles events of type `Paid`");
        assert_eq!(found.len(), 4, "{found:#?}");
        assert!(found.iter().any(|(_, text)| text.contains("line 5, column")), "{found:#?}");
    }

    #[test]
    fn events_without_id_type_or_sequence_are_reported() {
        let bare = doc! { "type": "Placed", "payload": {} };
        let found = found(&[bare, doc! { "aggregateId": 1, "version": 1.5 }]);
        has(&found, FindingLevel::Error, "1 of 2 sampled events have no `aggregateId`");
        has(&found, FindingLevel::Warning, "1 of 2 sampled events have no string in `type`");
        has(
            &found,
            FindingLevel::Error,
            "2 of 2 sampled events have no whole number from 0 in `version`: they are rejected",
        );
        has(&found, FindingLevel::Error, "`$$event.payload.order`: is missing in 1 of 1");
    }

    #[test]
    fn whole_numbers_of_any_type_are_sequences() {
        let one = Bson::Decimal128("1.00".parse().unwrap());
        let events = [one, 2.0.into(), 3_i64.into()].map(|version| doc! { "aggregateId": 1, "version": version });
        let found = found(&events);
        assert!(!found.iter().any(|(_, text)| text.contains("`version`")), "{found:#?}");
    }

    #[test]
    fn an_empty_source_is_reported() {
        has(&found(&[]), FindingLevel::Note, "has no events to sample");
    }
}
