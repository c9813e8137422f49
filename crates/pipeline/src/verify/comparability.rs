//! Pure: whether a fold of the source must give the documents of a read model, and document by document or only as a whole.

use mongodb::bson::{Bson, Document};

use crate::source::{SourceConfig, SourceKind};
use crate::view::ReadModelDeclaration;

/// How a read model can be compared with its source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Comparability {
    /// Each aggregate writes its own document.
    ByAggregate,
    /// Several aggregates write a document, and their order does not matter.
    AsWhole,
    /// It cannot; the reason, for operators.
    NotComparable(String),
}

/// The result of these does not depend on the order of events; a list is compared as a multiset.
const ORDER_INDEPENDENT: [&str; 5] = ["$inc", "$min", "$max", "$addToSet", "$push"];
/// Variables and operators of a pipeline whose value is another one in a fold.
const VOLATILE: [&str; 5] = ["$$NOW", "$$CLUSTER_TIME", "$$USER_ROLES", "$rand", "$sampleRate"];

pub fn comparability_of(declaration: &ReadModelDeclaration, source: &SourceConfig) -> Comparability {
    let not_comparable = |reason: &str| Comparability::NotComparable(reason.to_owned());
    if source.kind == SourceKind::Documents {
        return not_comparable("a source of documents does not keep the changes that the read model applied");
    }
    if source.sequence.is_none() {
        return not_comparable(
            "the source has no sequence (`source.sequence`), so nobody knows which events a document shows",
        );
    }
    if let Some((event_type, word)) = find_volatile(&declaration.when) {
        return Comparability::NotComparable(format!(
            "`when.{event_type}` uses `{word}`, which gives another value each time"
        ));
    }
    let by_aggregate = format!("$$event.{}", source.aggregate_id);
    if declaration.key.as_ref().is_none_or(|key| key.as_str() == Some(&by_aggregate)) {
        return Comparability::ByAggregate;
    }
    match find_order_dependent(&declaration.when) {
        None => Comparability::AsWhole,
        Some((event_type, word)) => Comparability::NotComparable(format!(
            "several aggregates write a document, and the result of `{word}` in `when.{event_type}` depends on their order"
        )),
    }
}

fn find_volatile(when: &Document) -> Option<(&str, &str)> {
    when.iter().find_map(|(event_type, clause)| match clause {
        Bson::Document(update) => update.contains_key("$currentDate").then_some((event_type.as_str(), "$currentDate")),
        Bson::Array(stages) => stages.iter().find_map(find_volatile_word).map(|word| (event_type.as_str(), word)),
        _ => None,
    })
}

fn find_volatile_word(value: &Bson) -> Option<&'static str> {
    let known = |text: &str| VOLATILE.into_iter().find(|word| *word == text || text.starts_with(&format!("{word}.")));
    match value {
        Bson::String(text) => known(text),
        Bson::Array(values) => values.iter().find_map(find_volatile_word),
        Bson::Document(document) => document
            .iter()
            .filter(|(name, _)| *name != "$literal")
            .find_map(|(name, value)| known(name).or_else(|| find_volatile_word(value))),
        _ => None,
    }
}

fn find_order_dependent(when: &Document) -> Option<(&str, &str)> {
    when.iter().find_map(|(event_type, clause)| match clause {
        Bson::Document(update) => {
            let dependent = update.iter().find(|(operator, fields)| !is_order_independent(operator, fields));
            dependent.map(|(operator, _)| (event_type.as_str(), operator.as_str()))
        }
        Bson::Array(_) => Some((event_type.as_str(), "a pipeline")),
        _ => Some((event_type.as_str(), "delete")),
    })
}

fn is_order_independent(operator: &str, fields: &Bson) -> bool {
    // `$slice`, `$sort` and `$position` of a `$push` choose by order.
    let is_plain = |value: &Bson| {
        value.as_document().is_none_or(|value| value.keys().all(|name| !CHOOSES.contains(&name.as_str())))
    };
    ORDER_INDEPENDENT.contains(&operator)
        && (operator != "$push" || fields.as_document().is_some_and(|fields| fields.values().all(is_plain)))
}

const CHOOSES: [&str; 3] = ["$slice", "$sort", "$position"];

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn comparability(declaration: serde_json::Value) -> Comparability {
        let source = SourceConfig { sequence: Some("version".into()), ..SourceConfig::events("shop", "events") };
        comparability_of(&serde_json::from_value(declaration).unwrap(), &source)
    }

    #[test]
    fn the_key_and_the_operators_decide() {
        let set = json!({ "$set": { "a": 1 } });
        assert_eq!(comparability(json!({ "when": { "X": set } })), Comparability::ByAggregate);
        assert_eq!(
            comparability(json!({ "key": "$$event.aggregateId", "when": { "X": "delete" } })),
            Comparability::ByAggregate
        );
        let shared =
            |clause: serde_json::Value| comparability(json!({ "key": "$$event.day", "when": { "X": clause } }));
        for clause in [
            json!({ "$inc": { "n": 1 }, "$max": { "last": "$$event.at" } }),
            json!({ "$addToSet": { "ids": "$$event.aggregateId" } }),
            json!({ "$push": { "ids": { "$each": ["$$event.aggregateId"] } } }),
        ] {
            assert_eq!(shared(clause), Comparability::AsWhole);
        }
        for (clause, word) in [
            (set, "$set"),
            (json!([{ "$set": { "a": 1 } }]), "a pipeline"),
            (json!("delete"), "delete"),
            (json!({ "$push": { "last": { "$each": ["$$event.at"], "$slice": -5 } } }), "$push"),
        ] {
            let Comparability::NotComparable(reason) = shared(clause) else { panic!("{word}") };
            assert!(reason.contains(&format!("`{word}` in `when.X`")), "{reason}");
        }
    }

    #[test]
    fn a_clock_in_a_clause_is_not_comparable() {
        let cases = [
            (json!({ "$currentDate": { "at": true } }), "$currentDate"),
            (json!([{ "$set": { "at": "$$NOW" } }]), "$$NOW"),
            (json!([{ "$set": { "at": { "$cond": [true, { "$rand": {} }, 1] } } }]), "$rand"),
        ];
        for (clause, word) in cases {
            let found = comparability(json!({ "when": { "X": clause } }));
            assert!(matches!(&found, Comparability::NotComparable(reason) if reason.contains(word)), "{found:?}");
        }
        // In an update document it is a text, and so it is as a literal.
        for clause in [json!({ "$set": { "at": "$$NOW" } }), json!([{ "$set": { "at": { "$literal": "$$NOW" } } }])] {
            assert_eq!(comparability(json!({ "when": { "X": clause } })), Comparability::ByAggregate);
        }
    }

    #[test]
    fn a_source_without_a_sequence_is_not_comparable() {
        let declaration: ReadModelDeclaration = serde_json::from_value(json!({ "when": { "X": "delete" } })).unwrap();
        for source in [SourceConfig::events("shop", "events"), SourceConfig::documents("shop", "orders")] {
            assert!(matches!(comparability_of(&declaration, &source), Comparability::NotComparable(_)));
        }
    }
}
