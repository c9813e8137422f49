//! Declarations of read models, as they come from a configuration file.

use mongodb::bson::{RawDocumentBuf, doc};
use pipeline::view::{EventBody, Projection, ProjectionEvent, ReadModel, ReadModelDeclaration, Statements};
use serde_json::json;

use super::events::delivered;

pub(super) const WORDS: &[&[u8]] = &[
    b"\"$$event.payload.v\"",
    b"\"$$event.\"",
    b"\"$set\":",
    b"\"$push\":",
    b"\"$pull\":",
    b"\"$each\":",
    b"\"$in\":",
    b"\"$or\":",
    b"\"$not\":",
    b"\"$elemMatch\":",
    b"\"$expr\":",
    b"\"when\":",
    b"\"key\":",
    b"[[[[[[[[",
    b"{\"a\":",
    b"\"$oid\":",
    b"{\"$date\":",
    b"{\"$numberLong\":\"",
    b"\"delete\"",
];

pub(super) fn declarations() -> Vec<Vec<u8>> {
    let declared = [
        json!({ "when": { "Hostile": { "$set": { "a": "$$event.payload.v" }, "$inc": { "n": 1 } } } }),
        json!({ "key": { "c": "$$event.payload.v" }, "when": { "Hostile": { "$pull": { "l": { "a": { "$in": ["$$event.payload.v"] } } } } } }),
        json!({ "when": { "Hostile": { "$push": { "l": { "$each": "$$event.payload.v", "$sort": { "a": 1 } } } } } }),
        json!({ "when": { "Hostile": [{ "$set": { "a": { "$add": ["$a", "$$event.payload.v"] } } }], "Other": "delete" } }),
        json!({ "mirror": true, "from": "events", "indexes": [{ "keys": { "a": 1 }, "unique": true }] }),
    ];
    declared.iter().map(|one| one.to_string().into_bytes()).collect()
}

pub(super) fn compile(data: &[u8]) {
    let Ok(declared) = serde_json::from_slice::<ReadModelDeclaration>(data) else { return };
    match ReadModel::compile("model", &declared) {
        Ok(model) => {
            let document = doc! { "payload": { "v": { "$exists": [1, "a"] } } };
            let Ok(document) = RawDocumentBuf::try_from(&document) else { return };
            let event = delivered(EventBody::Document(document.clone()));
            let _ = model.apply(&ProjectionEvent::new(&event, &document), &mut Statements::default());
        }
        Err(problems) => assert!(problems.iter().all(|problem| !problem.to_string().is_empty())),
    }
}
