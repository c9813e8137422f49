//! What each update operator does with an event value that is data, in plain Rust. Shares no code with the pipeline.

use std::cmp::Ordering;

use mongodb::bson::{Bson, Document, doc};
use serde_json::{Value, json};

/// One update, and its effect on the document of [`seed`]; `None` if the event must be parked.
pub(crate) struct OperatorCase {
    pub(crate) name: &'static str,
    pub(crate) update: Value,
    pub(crate) fold: fn(&mut Document, &Bson) -> Option<()>,
}

/// The document before the hostile event. The lists hold what an injected operator would match.
pub(crate) fn seed() -> Document {
    doc! {
        "n": 5,
        "tags": ["a", "b", 1, Bson::Null, { "x": 1 }, ["a"], [{ "$exists": true }]],
        "lines": [{ "sku": "a", "q": 1 }, { "sku": { "x": 1 }, "q": 2 }, { "sku": Bson::Null, "q": 3 }, { "q": 4 }],
    }
}

pub(crate) fn operator_cases() -> Vec<OperatorCase> {
    let case = |name, update, fold| OperatorCase { name, update, fold };
    vec![
        case("Set", json!({ "$set": { "v": "$$event.payload.v" } }), store),
        case("SetInside", json!({ "$set": { "w.v": "$$event.payload.v" } }), |document, v| {
            document.insert("w", doc! { "v": v });
            Some(())
        }),
        case("SetPipeline", json!([{ "$set": { "v": "$$event.payload.v" } }]), store),
        case("SetOnInsert", json!({ "$setOnInsert": { "v": "$$event.payload.v" } }), |_, _| Some(())),
        case("Unset", json!({ "$unset": { "n": "$$event.payload.v" } }), |document, _| {
            document.remove("n");
            Some(())
        }),
        case("Inc", json!({ "$inc": { "n": "$$event.payload.v" } }), |document, v| {
            document.insert("n", 5.0 + number(v)?);
            Some(())
        }),
        case("Mul", json!({ "$mul": { "n": "$$event.payload.v" } }), |document, v| {
            document.insert("n", 5.0 * number(v)?);
            Some(())
        }),
        case("Min", json!({ "$min": { "n": "$$event.payload.v" } }), |document, v| keep(document, v, Ordering::Less)),
        case("Max", json!({ "$max": { "n": "$$event.payload.v" } }), |document, v| {
            keep(document, v, Ordering::Greater)
        }),
        case("BitOr", json!({ "$bit": { "n": { "or": "$$event.payload.v" } } }), |document, v| {
            let (Bson::Int32(_) | Bson::Int64(_)) = v else { return None };
            #[expect(clippy::cast_possible_truncation, reason = "an integer")]
            let bits = 5 | number(v)? as i64;
            document.insert("n", bits);
            Some(())
        }),
        case("Push", json!({ "$push": { "tags": "$$event.payload.v" } }), |document, v| {
            list(document, "tags").push(v.clone());
            Some(())
        }),
        case("PushDocument", json!({ "$push": { "tags": { "v": "$$event.payload.v" } } }), |document, v| {
            list(document, "tags").push(doc! { "v": v }.into());
            Some(())
        }),
        case("PushEach", json!({ "$push": { "tags": { "$each": "$$event.payload.v" } } }), |document, v| {
            list(document, "tags").extend(v.as_array()?.clone());
            Some(())
        }),
        case(
            "PushSort",
            json!({ "$push": { "lines": { "$each": [], "$sort": { "q": 1 }, "$slice": "$$event.payload.v" } } }),
            |document, v| {
                let keep = number(v).filter(|keep| keep.fract() == 0.0)?;
                #[expect(clippy::cast_possible_truncation, reason = "integral and small")]
                let keep = keep as i64;
                let lines = list(document, "lines");
                let most = usize::try_from(keep.unsigned_abs()).ok()?.min(lines.len());
                *lines = if keep < 0 { lines.split_off(lines.len() - most) } else { lines[..most].to_vec() };
                Some(())
            },
        ),
        case("AddToSet", json!({ "$addToSet": { "tags": "$$event.payload.v" } }), |document, v| {
            let tags = list(document, "tags");
            if !tags.iter().any(|tag| same(tag, v)) {
                tags.push(v.clone());
            }
            Some(())
        }),
        case("Pull", json!({ "$pull": { "tags": "$$event.payload.v" } }), |document, v| {
            list(document, "tags").retain(|tag| !same(tag, v));
            Some(())
        }),
        case("PullField", json!({ "$pull": { "lines": { "sku": "$$event.payload.v" } } }), |document, v| {
            list(document, "lines").retain(|line| !field_matches(line, v));
            Some(())
        }),
        case("PullEq", json!({ "$pull": { "lines": { "sku": { "$eq": "$$event.payload.v" } } } }), |document, v| {
            list(document, "lines").retain(|line| !field_matches(line, v));
            Some(())
        }),
        case(
            "PullOr",
            json!({ "$pull": { "lines": { "$or": [{ "sku": "$$event.payload.v" }, { "q": { "$gt": 3 } }] } } }),
            |document, v| {
                list(document, "lines").retain(|line| !field_matches(line, v) && quantity(line) <= 3);
                Some(())
            },
        ),
        case(
            "PullNor",
            json!({ "$pull": { "lines": { "$nor": [{ "sku": "$$event.payload.v" }], "q": 1 } } }),
            |document, v| {
                list(document, "lines").retain(|line| field_matches(line, v) || quantity(line) != 1);
                Some(())
            },
        ),
        case("PullIn", json!({ "$pull": { "lines": { "sku": { "$in": "$$event.payload.v" } } } }), |document, v| {
            let any = v.as_array()?;
            (!any.iter().any(is_operator)).then_some(())?;
            list(document, "lines").retain(|line| !any.iter().any(|v| field_matches(line, v)));
            Some(())
        }),
        case(
            "PullInOne",
            json!({ "$pull": { "lines": { "sku": { "$in": ["$$event.payload.v"] } } } }),
            |document, v| {
                (!is_operator(v)).then_some(())?;
                list(document, "lines").retain(|line| !field_matches(line, v));
                Some(())
            },
        ),
        case("PullAll", json!({ "$pullAll": { "tags": "$$event.payload.v" } }), |document, v| {
            let all = v.as_array()?;
            list(document, "tags").retain(|tag| !all.iter().any(|v| same(tag, v)));
            Some(())
        }),
        case("Pop", json!({ "$pop": { "tags": "$$event.payload.v" } }), |document, v| {
            let end = number(v).filter(|end| end.abs() == 1.0)?;
            let tags = list(document, "tags");
            tags.remove(if end > 0.0 { tags.len() - 1 } else { 0 });
            Some(())
        }),
    ]
}

fn store(document: &mut Document, v: &Bson) -> Option<()> {
    document.insert("v", v);
    Some(())
}

fn keep(document: &mut Document, v: &Bson, wanted: Ordering) -> Option<()> {
    if compare_with_five(v) == wanted {
        document.insert("n", v);
    }
    Some(())
}

fn list<'d>(document: &'d mut Document, field: &str) -> &'d mut Vec<Bson> {
    document.get_array_mut(field).unwrap()
}

fn quantity(line: &Bson) -> i32 {
    line.as_document().unwrap().get_i32("q").unwrap()
}

/// As a query compares one field with one value: also the elements of a list; a missing field is null.
fn field_matches(line: &Bson, v: &Bson) -> bool {
    let sku = line.as_document().unwrap().get("sku").unwrap_or(&Bson::Null);
    same(sku, v) || sku.as_array().is_some_and(|all| all.iter().any(|one| same(one, v)))
}

fn is_operator(v: &Bson) -> bool {
    match v {
        Bson::RegularExpression(_) => true,
        Bson::Document(document) => document.keys().next().is_some_and(|name| name.starts_with('$')),
        _ => false,
    }
}

pub(crate) fn number(v: &Bson) -> Option<f64> {
    match v {
        Bson::Int32(number) => Some((*number).into()),
        #[expect(clippy::cast_precision_loss, reason = "the generated numbers are small")]
        Bson::Int64(number) => Some(*number as f64),
        Bson::Double(number) => Some(*number),
        _ => None,
    }
}

/// The order of BSON types, next to the number 5.
fn compare_with_five(v: &Bson) -> Ordering {
    match v {
        Bson::MinKey | Bson::Null => Ordering::Less,
        other => number(other).map_or(Ordering::Greater, |number| number.total_cmp(&5.0)),
    }
}

/// As MongoDB compares: numbers by value, the rest by type and content.
pub(crate) fn same(one: &Bson, other: &Bson) -> bool {
    match (one, other) {
        (Bson::Array(one), Bson::Array(other)) => {
            one.len() == other.len() && one.iter().zip(other).all(|(one, other)| same(one, other))
        }
        (Bson::Document(one), Bson::Document(other)) => same_documents(one, other),
        _ => match (number(one), number(other)) {
            (Some(one), Some(other)) => one == other,
            _ => one == other,
        },
    }
}

fn same_documents(one: &Document, other: &Document) -> bool {
    let equal = |((a, x), (b, y)): ((&String, &Bson), (&String, &Bson))| a == b && same(x, y);
    one.len() == other.len() && one.iter().zip(other).all(equal)
}

/// Top-level fields in any order: updates append, and the fold does not know where.
pub(crate) fn same_content(one: &Document, other: &Document) -> bool {
    one.len() == other.len() && one.iter().all(|(name, value)| other.get(name).is_some_and(|found| same(value, found)))
}
