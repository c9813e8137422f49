//! The recipes of `docs/read-models.md`: a pod runs each, and its events must give its documents.

use std::collections::BTreeMap;

use futures_util::TryStreamExt;
use futures_util::future::join_all;
use mongodb::bson::{Bson, Document, doc};
use serde_json::Value as Json;
use testkit::wait::wait_for;

use crate::fixture::{CliFixture, SOON};

const PAGE: &str = include_str!("../../../../docs/read-models.md");

struct Recipe {
    name: String,
    models: String,
    events: Vec<Document>,
    expected: BTreeMap<String, Vec<Json>>,
}

/// Every section that has read models, events and documents.
fn recipes() -> Vec<Recipe> {
    let sections = PAGE.split("\n## ").skip(1);
    let read = sections.filter_map(|section| {
        let name = section.lines().next().unwrap_or_default().to_owned();
        let [models] = blocks(section, "yaml").try_into().ok()?;
        let [events, expected] = blocks(section, "json").try_into().unwrap_or_else(|_| panic!("{name}: two blocks"));
        let event = |line: &str| {
            let json: Json = serde_json::from_str(line).unwrap_or_else(|error| panic!("{name}: {error}: {line}"));
            let Ok(Bson::Document(event)) = Bson::try_from(json) else { panic!("{name}: {line}") };
            event
        };
        let events = events.lines().map(event).collect();
        let expected = serde_json::from_str(&expected).unwrap_or_else(|error| panic!("{name}: {error}"));
        Some(Recipe { name, models, events, expected })
    });
    read.collect()
}

fn blocks(section: &str, language: &str) -> Vec<String> {
    let fence = format!("```{language}\n");
    section.split(&fence).skip(1).map(|rest| rest.split("```").next().unwrap_or_default().to_owned()).collect()
}

#[tokio::test]
async fn every_recipe_gives_the_documents_on_the_page() {
    let recipes = recipes();
    let names: Vec<_> = recipes.iter().map(|recipe| recipe.name.as_str()).collect();
    assert_eq!(names, ["Counters", "Lists", "Joins by fan-out", "Status machines", "Soft delete"]);
    join_all(recipes.iter().enumerate().map(|(at, recipe)| run(at, recipe))).await;
}

async fn run(at: usize, recipe: &Recipe) {
    let models = recipe.models.replacen("read_models:\n", "read_models:\n  database: VIEWS\n", 1);
    let fixture = CliFixture::new(&format!("recipe_{at}"), &models).await;
    fixture.run(&["topology", "apply"]).await.success();
    fixture.source.collection::<Document>("events").insert_many(&recipe.events).await.unwrap();
    let pod = fixture.start_pod("pod-1");
    let cursors = fixture.views.collection::<Document>(pipeline::view::CURSORS);
    wait_for(&recipe.name, SOON, async || {
        let total = doc! { "$group": { "_id": Bson::Null, "applied": { "$sum": "$sequence" } } };
        let found: Vec<Document> = cursors.aggregate([total]).await.unwrap().try_collect().await.unwrap();
        let applied = found.first().and_then(|total| total.get_i64("applied").ok());
        if applied == i64::try_from(recipe.events.len()).ok() { Ok(()) } else { Err(applied) }
    })
    .await;
    for (model, expected) in &recipe.expected {
        let found = fixture.views.collection::<Document>(model).find(doc! {}).sort(doc! { "_id": 1 }).await.unwrap();
        let found: Vec<Document> = found.try_collect().await.unwrap();
        let found: Vec<Json> =
            found.into_iter().map(|document| Bson::Document(document).into_relaxed_extjson()).collect();
        assert_eq!(found, *expected, "{}: `{model}`", recipe.name);
    }
    pod.terminate();
    assert!(pod.wait_for_exit(SOON).await.success());
}
