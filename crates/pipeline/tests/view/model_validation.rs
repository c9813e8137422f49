//! Problems in declarations are found before the first event, with their paths.

use pipeline::view::{ModelProblem, ReadModel, ReadModelDeclaration, validate};
use serde_json::{Value, json};
use testkit::mongo::shared;

/// All problems, found with and without the server.
async fn find_problems(declared: Value) -> Vec<ModelProblem> {
    let views = shared().await.unwrap().database("validation");
    let declaration: ReadModelDeclaration = serde_json::from_value(declared).unwrap();
    match ReadModel::compile("orders", &declaration) {
        Err(problems) => problems,
        Ok(model) => validate(&views, &model).await.unwrap(),
    }
}

fn when(clause: Value) -> Value {
    json!({ "when": { "Placed": clause } })
}

#[tokio::test]
async fn each_problem_is_reported_at_its_path() {
    let table = [
        (when(json!({ "$sett": { "a": 1 } })), "when.Placed.$sett.a", "Unknown modifier"),
        (when(json!({ "$inc": { "a": "x" } })), "when.Placed.$inc.a", "non-numeric"),
        (when(json!({ "$set": { "a": 1 }, "$inc": { "a": 1 } })), "when.Placed", "conflict"),
        (when(json!({ "$push": { "a": { "$each": "x" } } })), "when.Placed.$push.a", "array"),
        (when(json!({ "$set": { "a": "$$event..b" } })), "when.Placed.$set.a", "empty part"),
        (when(json!({ "$set": { "a": { "b": "$$evnt.b" } } })), "when.Placed.$set.a.b", "no value of the event"),
        (when(json!({ "$set": { "_id": 1 } })), "when.Placed.$set._id", "cannot be changed"),
        (when(json!({ "status": "placed" })), "when.Placed.status", "not an operator"),
        (when(json!({ "$set": 5 })), "when.Placed.$set", "a map from fields"),
        (when(json!({})), "when.Placed", "no operator"),
        (when(json!([])), "when.Placed", "no stage"),
        (when(json!([5])), "when.Placed.0", "is a map"),
        (when(json!("remove")), "when.Placed", "`delete`"),
        (when(json!([{ "$set": { "a": 1 } }, { "$sett": { "a": 1 } }])), "when.Placed.1", "$sett"),
        (when(json!([{ "$set": { "a": { "$addd": [1, 2] } } }])), "when.Placed.0", "$addd"),
        (when(json!([{ "$set": { "a": { "$cond": [1, 2] } } }])), "when.Placed.0", "$cond"),
        (when(json!([{ "$set": { "a": "$$evnt.b" } }])), "when.Placed.0", "evnt"),
        (when(json!([{ "$group": { "_id": 1 } }])), "when.Placed.0", "$group"),
        (json!({ "when": {} }), "when", "no event type"),
        (json!({ "mirror": true, "when": { "a": "delete" } }), "mirror", "no `when`"),
        (json!({ "key": "customer", "when": { "a": "delete" } }), "key", "no value of the event"),
        (json!({ "key": "$$event.", "when": { "a": "delete" } }), "key", "empty part"),
        (json!({ "key": { "c": "$$envt.c" }, "when": { "a": "delete" } }), "key.c", "no value of the event"),
        (json!({ "when": { "a": "delete" }, "indexes": [{ "unique": true }] }), "indexes.0", "needs `keys`"),
    ];
    for (declared, path, problem) in table {
        let found = find_problems(declared.clone()).await;
        assert_eq!(found.len(), 1, "{declared}: {found:?}");
        let ModelProblem { model, event_type, path: at, problem: reported } = &found[0];
        assert_eq!((model.as_str(), at.join(".").as_str()), ("orders", path), "{declared}: {reported}");
        assert!(reported.contains(problem), "{declared}: {reported}");
        assert_eq!(event_type.as_deref(), path.contains("Placed").then_some("Placed"), "{declared}");
    }
}

#[tokio::test]
async fn valid_declarations_pass_for_any_value_type() {
    let right = [
        when(json!({ "$set": { "a": "$$event.a", "t": "$5" }, "$inc": { "n": "$$event.n" }, "$unset": { "x": "" } })),
        when(json!({ "$push": { "l": { "$each": "$$event.l", "$slice": -5, "$sort": 1 } } })),
        when(
            json!({ "$addToSet": { "l": "$$event.a" }, "$pullAll": { "m": "$$event.l" }, "$max": { "n": "$$event.n" } }),
        ),
        when(json!({ "$currentDate": { "at": true }, "$rename": { "a": "b" }, "$mul": { "p": "$$event.p" } })),
        when(
            json!([{ "$set": { "s": { "$cond": [{ "$gte": ["$$event.a", "$total"] }, "paid", "open"] } } }, { "$unset": "x" }]),
        ),
        when(json!([{ "$replaceWith": { "$mergeObjects": ["$$ROOT", "$$event.payload"] } }])),
        when(json!("delete")),
        json!({ "key": { "c": "$$event.c", "m": "$$event.m" }, "when": { "Placed": { "$inc": { "n": 1 } } } }),
        json!({ "mirror": true }),
    ];
    for declared in right {
        let found = find_problems(declared.clone()).await;
        assert!(found.is_empty(), "{declared}: {found:?}");
    }
}

#[test]
fn reserved_collections_cannot_be_read_models() {
    let declared: ReadModelDeclaration = serde_json::from_value(when(json!("delete"))).unwrap();
    for name in ["_headwater_cursors", "parked_events", "", "system.x", "a$b"] {
        assert!(ReadModel::compile(name, &declared).is_err(), "{name}");
    }
    let unknown = serde_json::from_value::<ReadModelDeclaration>(json!({ "whem": {} }));
    assert!(unknown.unwrap_err().to_string().contains("whem"));
}
