//! Read models that change: what pods of different generations may do to one aggregate, and what a build leaves.

use std::collections::BTreeMap;
use std::time::Duration;

use mongodb::Client;
use mongodb::bson::{Bson, Document, doc};
use pipeline::capture;
use pipeline::generation::{
    BuildDependencies, BuildOptions, BuildProgressReport, BuildTotals, Builder, Error, Generation, GenerationStage,
    GenerationStore, ModelVersion, carry_discards, complete_switch, prepare_build, raise_fence,
    record_built_collections,
};
use pipeline::source::SourceConfig;
use pipeline::view::{ApplierSetup, ApplyOutcome, DiscardScope, ModelSet, ParkedStore, PipelineStart};
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::fixture::{
    TestApplier, ViewFixture, aggregate, all_delivered, contents, delivered, event, events_namespace, shop_models,
};

/// Long enough for a transaction that is not held back.
const A_MOMENT: Duration = Duration::from_millis(700);

pub(crate) fn version(name: &str, declared: &Value) -> ModelVersion {
    ModelVersion::first(name, serde_json::from_value(declared.clone()).unwrap(), "1".to_owned())
}

/// The shop's generation, and one in which `declared` is built under this name.
fn generations(name: &str, declared: &Value) -> (Generation, Generation) {
    let shop = shop_models();
    let shop = shop.as_object().unwrap().iter();
    let serving: BTreeMap<_, _> = shop.map(|(name, declared)| (name.clone(), version(name, declared))).collect();
    let first = Generation::first(serving.clone());
    let declaration = serde_json::from_value(declared.clone()).unwrap();
    let built = ModelVersion::to_build(name, declaration, "2".to_owned(), 2);
    let mut next = serving;
    next.insert(name.to_owned(), built);
    let building = Generation { number: 2, stage: GenerationStage::Building, next, ..first.clone() };
    (first, building)
}

fn counts() -> Value {
    json!({ "when": { "Placed": { "$inc": { "events": 1 } }, "Added": { "$inc": { "events": 1 } } } })
}

pub(crate) fn pod(fixture: &ViewFixture, models: ModelSet) -> TestApplier {
    TestApplier::start(ApplierSetup { models, ..fixture.setup(&fixture.views) })
}

fn order(events: i64) -> Vec<Document> {
    let first = event("order-1", 1, "Placed", doc! { "customer": "ann" });
    let later = (2..=events).map(|version| event("order-1", version, "Added", doc! { "customer": "ann", "price": 5 }));
    std::iter::once(first).chain(later).collect()
}

struct NoReport;

impl BuildProgressReport for NoReport {
    async fn report(&self, _: &BuildTotals) -> Result<(), Error> {
        Ok(())
    }
}

pub(crate) async fn build(fixture: &ViewFixture, source: SourceConfig, generation: &Generation) -> BuildTotals {
    let source = SourceConfig { database: fixture.source.name().to_owned(), ..source };
    build_from(fixture, fixture.source.client().clone(), source, generation).await
}

/// From another server.
pub(crate) async fn build_from(
    fixture: &ViewFixture,
    server: Client,
    source: SourceConfig,
    generation: &Generation,
) -> BuildTotals {
    let builder = prepared_builder(fixture, server, source, generation).await;
    builder.run(BuildOptions::default(), &NoReport).await.unwrap()
}

pub(crate) async fn prepared_builder(
    fixture: &ViewFixture,
    server: Client,
    source: SourceConfig,
    generation: &Generation,
) -> Builder {
    prepare_build(&fixture.views, "shop", generation).await.unwrap();
    raise_fence(&fixture.views, "shop", generation.number).await.unwrap();
    let dependencies = BuildDependencies {
        pipeline: "shop".to_owned(),
        source,
        server,
        capture: capture::Config::default(),
        start: PipelineStart::Beginning,
        views: (*fixture.views).clone(),
        coordination: (*fixture.views).clone(),
        view: fixture.config.clone(),
    };
    carry_discards(&fixture.views, "shop", generation).await.unwrap();
    Builder::new(dependencies, generation).await.unwrap()
}

pub(crate) fn events_source() -> SourceConfig {
    SourceConfig { sequence: Some("version".into()), ..SourceConfig::events("shop", "events") }
}

/// The collection in which the version is built.
pub(crate) fn built_collection(building: &Generation) -> String {
    building.to_build().next().unwrap().1.collection.clone()
}

#[tokio::test]
async fn a_pod_of_an_earlier_generation_waits() {
    let fixture = ViewFixture::shop("generation_outdated").await;
    let (first, building) = generations("counts", &counts());
    prepare_build(&fixture.views, "shop", &building).await.unwrap();
    let (earlier, later) = (pod(&fixture, first.model_set().unwrap()), pod(&fixture, building.model_set().unwrap()));
    let events = all_delivered(&order(3));
    assert_eq!(later.apply(events[..1].to_vec()).await, [ApplyOutcome::Applied]);

    let mut session = earlier.session_applier();
    let applied = timeout(A_MOMENT, session.apply(events[1..2].to_vec())).await;
    assert!(applied.is_err(), "it does not know `counts`: {applied:?}");
    let outdated = earlier.handle.outdated();
    timeout(A_MOMENT, outdated.notified()).await.expect("the pod is told to load the next generation");

    earlier.handle.set_models(building.model_set().unwrap());
    assert_eq!(earlier.apply(events[1..].to_vec()).await.len(), 2);
    let counted = contents(&fixture.views, &built_collection(&building)).await;
    assert_eq!(counted, [doc! { "_id": "order-1", "events": 3 }]);
}

#[tokio::test]
async fn the_fence_refuses_an_earlier_generation() {
    let fixture = ViewFixture::shop("generation_fence").await;
    let (first, building) = generations("counts", &counts());
    prepare_build(&fixture.views, "shop", &building).await.unwrap();
    let pod = pod(&fixture, first.model_set().unwrap());
    let events = all_delivered(&order(2));
    assert_eq!(pod.apply(events[..1].to_vec()).await, [ApplyOutcome::Applied]);
    raise_fence(&fixture.views, "other", 9).await.unwrap();
    raise_fence(&fixture.views, "shop", 2).await.unwrap();

    // Neither the cursor of a known aggregate nor that of a new one.
    let new = delivered(&event("order-2", 1, "Placed", doc! { "customer": "bob" }), 7);
    for event in [events[1].clone(), new.clone()] {
        let mut session = pod.session_applier();
        assert!(timeout(A_MOMENT, session.apply(vec![event])).await.is_err());
    }
    assert_eq!(fixture.view("orders").await.len(), 1);
    pod.handle.set_models(building.model_set().unwrap());
    let resolved = pod.apply(vec![events[1].clone(), new]).await;
    assert_eq!(resolved.len(), 2);
    assert_eq!(fixture.view("orders").await.len(), 2);
}

#[tokio::test]
async fn a_build_goes_up_to_the_cursor_and_no_further() {
    let fixture = ViewFixture::shop("generation_build").await;
    let (first, building) = generations("counts", &counts());
    // More than one page, and one event that no pod has applied yet.
    let events = order(1_203);
    fixture.write_source(&events).await;
    let other = event("order-2", 1, "Placed", doc! { "customer": "bob" });
    fixture.write_source(std::slice::from_ref(&other)).await;
    let pod = pod(&fixture, first.model_set().unwrap());
    pod.apply(all_delivered(&events[..1_202])).await;
    pod.apply(vec![delivered(&other, 9_000)]).await;

    let totals = build(&fixture, events_source(), &building).await;
    assert_eq!((totals.events, totals.missing_count, totals.parked), (1_203, 0, 0));
    let collection = built_collection(&building);
    let counted = || contents(&fixture.views, &collection);
    assert_eq!(counted().await, [doc! { "_id": "order-1", "events": 1_202 }, doc! { "_id": "order-2", "events": 1 }]);
    let again = build(&fixture, events_source(), &building).await;
    assert_eq!(again.events, 0, "a build that is repeated applies nothing twice");

    pod.handle.set_models(building.model_set().unwrap());
    pod.apply(vec![delivered(&events[1_202], 1_203)]).await;
    assert_eq!(counted().await[0], doc! { "_id": "order-1", "events": 1_203 });
}

#[tokio::test]
async fn a_build_parks_in_the_new_version_only() {
    let fixture = ViewFixture::shop("generation_poison").await;
    // `$inc` on the text that `Placed` has set.
    let poisoned = json!({ "when": {
        "Placed": { "$set": { "total": "none" } }, "Added": { "$inc": { "total": "$$event.payload.price" } },
    } });
    let (first, building) = generations("counts", &poisoned);
    let events = order(3);
    fixture.write_source(&events).await;
    let pod = pod(&fixture, first.model_set().unwrap());
    pod.apply(all_delivered(&events)).await;
    let totals = build(&fixture, events_source(), &building).await;
    assert_eq!((totals.events, totals.parked, totals.missing_count), (3, 2, 0));
    let cursor = fixture.cursor("order-1").await.unwrap();
    let parked: Vec<&str> = cursor.get_document("parked").unwrap().keys().map(String::as_str).collect();
    assert_eq!(parked, ["counts@2"]);

    // Later events queue there, and are applied elsewhere.
    pod.handle.set_models(building.model_set().unwrap());
    let next = event("order-1", 4, "Added", doc! { "customer": "ann", "price": 5 });
    assert_eq!(pod.apply(vec![delivered(&next, 4)]).await, [ApplyOutcome::Parked]);
    let customers = fixture.view("customers").await;
    assert_eq!(customers[0].get("spent"), Some(&Bson::Int32(15)));
    assert_eq!(contents(&fixture.views, "parked_events").await.len(), 3);
}

#[tokio::test]
async fn discarded_events_stay_discarded_in_a_rebuild() {
    let fixture = ViewFixture::shop("generation_discarded").await;
    let poisoned = json!({ "when": { "Added": { "$inc": { "total": "$$event.payload.price" } } } });
    let sums = version("sums", &poisoned);
    let first = Generation::first([("sums".to_owned(), sums.clone())].into());
    let mut events = order(4);
    events[2].get_document_mut("payload").unwrap().insert("price", "free");
    fixture.write_source(&events).await;
    let pod = pod(&fixture, first.model_set().unwrap());
    pod.apply(all_delivered(&events)).await;
    let models = first.model_set().unwrap();
    let parked = ParkedStore::new((*fixture.views).clone(), "shop", false, models, None);
    let (order, namespace) = (aggregate("order-1"), events_namespace());
    assert_eq!(parked.discard(&order, &namespace, "sums", DiscardScope::First).await.unwrap(), 1);
    parked.retry(&order, &namespace, "sums").await.unwrap();
    assert_eq!(fixture.view("sums").await, [doc! { "_id": "order-1", "total": 10 }]);

    let built = ModelVersion::to_build("sums", sums.declaration, sums.fingerprint, 2);
    let building =
        Generation { number: 2, stage: GenerationStage::Building, next: [("sums".to_owned(), built)].into(), ..first };
    let totals = build(&fixture, events_source(), &building).await;
    assert_eq!((totals.parked, totals.missing_count), (0, 0));
    assert_eq!(contents(&fixture.views, &built_collection(&building)).await, [doc! { "_id": "order-1", "total": 10 }]);
}

#[tokio::test]
async fn missing_events_of_the_source_are_reported() {
    let fixture = ViewFixture::shop("generation_missing").await;
    let (first, building) = generations("counts", &counts());
    let events = order(3);
    let pod = pod(&fixture, first.model_set().unwrap());
    pod.apply(all_delivered(&events)).await;
    // The first event is archived.
    fixture.write_source(&events[1..]).await;
    let totals = build(&fixture, events_source(), &building).await;
    assert_eq!((totals.events, totals.missing_count, totals.missing.len()), (0, 1, 1));
    assert_eq!(contents(&fixture.views, &built_collection(&building)).await, []);
}

#[tokio::test]
async fn live_events_and_a_build_do_not_double() {
    let fixture = ViewFixture::shop("generation_race").await;
    let (first, building) = generations("counts", &counts());
    let aggregates = 20;
    let history = |number: u32| {
        let aggregate = format!("order-{number:02}");
        let first = event(&aggregate, 1, "Placed", doc! { "customer": "ann" });
        let later = (2..=12).map(|version| event(&aggregate, version, "Added", doc! { "customer": "ann", "price": 1 }));
        std::iter::once(first).chain(later).collect::<Vec<_>>()
    };
    let histories: Vec<_> = (0..aggregates).map(history).collect();
    for events in &histories {
        fixture.write_source(events).await;
    }
    let pod = pod(&fixture, first.model_set().unwrap());
    for events in &histories {
        pod.apply(all_delivered(&events[..3])).await;
    }
    prepare_build(&fixture.views, "shop", &building).await.unwrap();
    pod.handle.set_models(building.model_set().unwrap());
    let live = async {
        for at in 3..12 {
            for events in &histories {
                pod.apply(vec![delivered(&events[at], u32::try_from(at).unwrap() + 1)]).await;
            }
        }
    };
    let (_, totals) = tokio::join!(live, build(&fixture, events_source(), &building));
    assert_eq!(totals.missing_count, 0);
    let expected: Vec<_> =
        (0..aggregates).map(|number| doc! { "_id": format!("order-{number:02}"), "events": 12 }).collect();
    assert_eq!(contents(&fixture.views, &built_collection(&building)).await, expected);
}

#[tokio::test]
async fn documents_are_built_as_the_source_has_them() {
    let mut fixture = ViewFixture::new("generation_documents", json!({})).await.by_position();
    fixture.by_collection = true;
    let source = SourceConfig::documents("shop", "products");
    let products = fixture.source.collection::<Document>("products");
    products.insert_many([doc! { "_id": 1, "name": "pen" }, doc! { "_id": 2, "name": "ink" }]).await.unwrap();
    let mirror = json!({ "mirror": true });
    let copy = Generation::first([("copy".to_owned(), version("copy", &mirror))].into());
    let pod = pod(&fixture, copy.model_set().unwrap());
    let change = |id: i32, token: u32| {
        let document = doc! { "_id": id, "name": "before" };
        let stored = doc! { "aggregateId": id, "_id": id, "type": "insert" };
        let mut event = delivered(&stored, token);
        event.namespace = std::sync::Arc::new(pipeline::event::Namespace::new("shop", "products"));
        event.body = pipeline::view::EventBody::Document(mongodb::bson::RawDocumentBuf::try_from(&document).unwrap());
        event.sequence = None;
        event
    };
    // The third one is deleted in the source; its delete has not arrived yet.
    pod.apply(vec![change(1, 1), change(2, 2), change(3, 3)]).await;
    let declaration = serde_json::from_value(mirror).unwrap();
    let mut next = copy.serving.clone();
    next.insert("again".to_owned(), ModelVersion::to_build("again", declaration, "2".to_owned(), 2));
    let building = Generation { number: 2, stage: GenerationStage::Building, next, ..copy };
    let totals = build(&fixture, source, &building).await;
    assert_eq!(totals.missing_count, 0);
    let built = contents(&fixture.views, &built_collection(&building)).await;
    assert_eq!(built, [doc! { "_id": 1, "name": "pen" }, doc! { "_id": 2, "name": "ink" }]);
}

#[tokio::test]
async fn a_repeated_switch_keeps_what_was_built() {
    let fixture = ViewFixture::shop("switch_repeated").await;
    let events = order(3);
    fixture.write_source(&events).await;
    let (first, building) = generations("counts", &counts());
    let live = pod(&fixture, first.model_set().unwrap());
    live.apply(all_delivered(&events)).await;
    build(&fixture, events_source(), &building).await;
    let store = GenerationStore::new(&fixture.views, "shop");
    let stored = store.create(building.clone()).await.unwrap();
    let mut switching = Generation { number: 3, stage: GenerationStage::Switching, ..stored };
    record_built_collections(&fixture.views, &mut switching).await.unwrap();
    let switching = store.replace(switching).await.unwrap().unwrap();

    // A pod renamed the collection and died; another one that knows the earlier stage creates it again, empty.
    let namespace = |collection: &str| format!("{}.{collection}", fixture.views.name());
    let rename = doc! { "renameCollection": namespace(&built_collection(&building)), "to": namespace("counts"), "dropTarget": true };
    fixture.views.client().database("admin").run_command(rename).await.unwrap();
    prepare_build(&fixture.views, "shop", &building).await.unwrap();

    let active = complete_switch(&store, &fixture.views, switching).await.unwrap().unwrap();
    assert_eq!(active.stage, GenerationStage::Active);
    assert_eq!(contents(&fixture.views, "counts").await, [doc! { "_id": "order-1", "events": 3 }]);
}

#[tokio::test]
async fn a_restored_cursor_parks_what_its_model_lacks() {
    let fixture = ViewFixture::shop("restored_before_build").await;
    let events = all_delivered(&order(3));
    let (first, building) = generations("counts", &counts());
    // As after a restore to a time before the build: the cursor does not hold for the new version, which serves.
    pod(&fixture, first.model_set().unwrap()).apply(events[..1].to_vec()).await;
    let mut serving = building.next.clone();
    serving.get_mut("counts").unwrap().collection = "counts".to_owned();
    let active = Generation { number: 3, serving, ..first };
    let restored = pod(&fixture, active.model_set().unwrap());
    assert_eq!(restored.apply(events[1..].to_vec()).await, [ApplyOutcome::Parked; 2]);
    let cursors = fixture.views.collection::<Document>("_headwater_cursors");
    let cursor = cursors.find_one(doc! {}).await.unwrap().unwrap();
    let parked = cursor.get_document("parked").unwrap().get_document("counts@2").unwrap();
    assert_eq!(parked.get_str("reason").unwrap(), "not_built", "{cursor}");
    assert_eq!(contents(&fixture.views, "counts").await, Vec::<Document>::new());
}
