//! Verification: corrupted documents are found by their kind and path and repaired, while events flow; nothing else is reported.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use mongodb::bson::{Bson, Document, doc};
use pipeline::source_walk::EventPages;
use pipeline::verify::{
    DifferenceKind, Finding, SkipReason, Verifier, VerifyDependencies, VerifyScope, VerifySink, VerifyTotals,
};
use pipeline::view::{DiscardScope, OrderingMode, PipelineStart};
use serde_json::{Value, json};

use crate::fixture::{TestApplier, ViewFixture, aggregate, delivered, event, events_namespace, model};

const ORDERS: i64 = 12;
const EVENTS: i64 = 4;

fn models() -> Value {
    json!({ "orders": { "when": {
        "Placed": { "$set": {
            "customer": "$$event.payload.customer", "status": "placed", "address": { "city": "$$event.payload.city", "zip": 1 }
        } },
        "Added": { "$inc": { "total": "$$event.payload.price" }, "$push": { "seen": "$$event.version" } },
        "Cancelled": "delete",
    } } })
}

fn order_id(number: i64) -> String {
    format!("order-{number:02}")
}

fn order_event(number: i64, version: i64) -> Document {
    let id = order_id(number);
    match version {
        1 => event(&id, 1, "Placed", doc! { "customer": "ada", "city": "Ulm" }),
        EVENTS if number == 10 => event(&id, version, "Cancelled", doc! {}),
        _ => event(&id, version, "Added", doc! { "price": version }),
    }
}

struct VerifyFixture {
    fixture: ViewFixture,
    pod: TestApplier,
}

#[derive(Default)]
struct Findings(Vec<Finding>);

impl VerifySink for Findings {
    fn finding(&mut self, finding: &Finding) {
        self.0.push(finding.clone());
    }

    fn progress(&mut self, _totals: &VerifyTotals) {}
}

impl VerifyFixture {
    async fn new(purpose: &str) -> Self {
        let fixture = ViewFixture::new(purpose, models()).await;
        let pod = fixture.pod();
        Self { fixture, pod }
    }

    /// Twelve orders of four events; the tenth is cancelled.
    async fn with_orders(purpose: &str) -> Self {
        let fixture = Self::new(purpose).await;
        for version in 1..=EVENTS {
            for number in 1..=ORDERS {
                fixture.apply(order_event(number, version)).await;
            }
        }
        fixture
    }

    async fn apply(&self, event: Document) {
        self.fixture.write_source(std::slice::from_ref(&event)).await;
        let token = u32::try_from(event.get_i64("version").unwrap()).unwrap();
        self.pod.apply(vec![delivered(&event, token)]).await;
    }

    async fn verify(&self, scope: VerifyScope, repair: bool) -> (VerifyTotals, Vec<Finding>) {
        let dependencies = VerifyDependencies {
            generation: 1,
            pipeline: "shop".into(),
            views: (*self.fixture.views).clone(),
            model: Arc::new(model("orders", &models()["orders"])),
            pages: EventPages::new(self.fixture.history(), None),
            first_sequence: 1,
            token: None,
        };
        let verifier = Verifier::open(dependencies).await.unwrap();
        let mut findings = Findings::default();
        let totals = verifier.run(&scope, repair, &mut findings).await.unwrap();
        verifier.close().await;
        (totals, findings.0)
    }

    async fn change(&self, number: i64, update: impl Into<mongodb::options::UpdateModifications>) {
        let orders = self.fixture.views.collection::<Document>("orders");
        let changed = orders.update_one(doc! { "_id": order_id(number) }, update).await.unwrap();
        assert_eq!(changed.modified_count, 1, "{number}");
    }

    /// Ten corruptions and one more, each of its own order.
    async fn corrupt(&self) {
        let orders = self.fixture.views.collection::<Document>("orders");
        orders.delete_one(doc! { "_id": order_id(1) }).await.unwrap();
        self.change(2, doc! { "$inc": { "total": 4_i64 }, "$push": { "seen": 4_i64 } }).await;
        self.change(3, vec![doc! { "$set": { "seen": { "$reverseArray": "$seen" } } }]).await;
        self.change(4, doc! { "$inc": { "total": -4_i64 }, "$pop": { "seen": 1 } }).await;
        orders.insert_one(doc! { "_id": "nobody", "status": "placed" }).await.unwrap();
        self.change(5, doc! { "$set": { "note": "by hand" } }).await;
        self.change(6, doc! { "$unset": { "status": "" } }).await;
        self.change(7, doc! { "$set": { "customer": 7 } }).await;
        self.change(8, doc! { "$set": { "address.city": "Bonn" } }).await;
        self.change(9, doc! { "$set": { "address": { "zip": 1, "city": "Ulm" } } }).await;
        orders.insert_one(doc! { "_id": order_id(10), "total": 9_i64 }).await.unwrap();
    }
}

/// Path and kind of each difference, by document.
type FoundKinds = Vec<(String, Vec<(String, DifferenceKind)>)>;

fn expected_kinds() -> FoundKinds {
    use DifferenceKind::{
        DifferentType, DifferentValue, ExtraDocument, ExtraField, FieldOrder, MissingDocument, MissingField, Reordered,
    };
    let kinds = [
        ("nobody".to_owned(), vec![("", ExtraDocument)]),
        (order_id(1), vec![("", MissingDocument)]),
        (order_id(10), vec![("", ExtraDocument)]),
        (order_id(2), vec![("seen.3", ExtraField), ("total", DifferentValue)]),
        (order_id(3), vec![("seen", Reordered)]),
        (order_id(4), vec![("seen.2", MissingField), ("total", DifferentValue)]),
        (order_id(5), vec![("note", ExtraField)]),
        (order_id(6), vec![("status", MissingField)]),
        (order_id(7), vec![("customer", DifferentType)]),
        (order_id(8), vec![("address.city", DifferentValue)]),
        (order_id(9), vec![("address", FieldOrder)]),
    ];
    let owned = |kinds: Vec<(&str, _)>| kinds.into_iter().map(|(path, kind)| (path.to_owned(), kind)).collect();
    let mut kinds: Vec<_> = kinds.into_iter().map(|(id, kinds)| (id, owned(kinds))).collect();
    kinds.sort();
    kinds
}

fn kinds(findings: &[Finding]) -> FoundKinds {
    let kinds = |finding: &Finding| {
        let differences = finding.differences.iter();
        let mut kinds: Vec<_> = differences.map(|found| (found.path.clone(), found.kind)).collect();
        kinds.sort();
        (finding.id.as_str().unwrap().to_owned(), kinds)
    };
    let mut all: Vec<_> = findings.iter().map(kinds).collect();
    all.sort();
    all
}

#[tokio::test]
async fn each_corruption_is_found_by_kind_and_path() {
    let fixture = VerifyFixture::with_orders("verify_kinds").await;
    let (totals, findings) = fixture.verify(VerifyScope::All, false).await;
    assert_eq!((totals.compared, totals.different), (12, 0), "{findings:?}");
    fixture.corrupt().await;
    let before = fixture.fixture.view("orders").await;
    let (totals, findings) = fixture.verify(VerifyScope::All, false).await;
    assert_eq!(kinds(&findings), expected_kinds());
    assert_eq!((totals.compared, totals.different, totals.repaired), (13, 11, 0));
    assert_eq!(fixture.fixture.view("orders").await, before, "nothing is changed without `repair`");
    // A sample of more than there are is everything.
    let (totals, _) = fixture.verify(VerifyScope::Sample(1_000), false).await;
    assert_eq!((totals.compared, totals.different), (13, 11));
    let only = VerifyScope::Aggregates(vec![aggregate("order-02"), aggregate("nobody"), aggregate("unknown")]);
    assert_eq!(fixture.verify(only, false).await.0.different, 2);
}

#[tokio::test]
async fn corruptions_are_repaired_while_events_flow() {
    let fixture = VerifyFixture::with_orders("verify_repair").await;
    fixture.corrupt().await;
    let is_done = AtomicBool::new(false);
    let writing = async {
        let mut version = EVENTS;
        while !is_done.load(Ordering::Relaxed) {
            version += 1;
            for number in 1..=ORDERS {
                fixture.apply(order_event(number, version)).await;
            }
        }
        version
    };
    let repairing = async {
        let found = fixture.verify(VerifyScope::All, true).await;
        is_done.store(true, Ordering::Relaxed);
        found
    };
    let (last, (totals, findings)) = tokio::join!(writing, repairing);
    assert_eq!(totals.different, 11, "{findings:?}");
    assert_eq!(totals.unrepaired(), 0, "{findings:?}");
    assert_eq!(fixture.verify(VerifyScope::All, false).await.0.different, 0);
    // Not only equal to our own fold: events 2 to `last` in order, and their sum.
    let documents = fixture.fixture.view("orders").await;
    assert_eq!(documents.len(), 12);
    for document in documents.iter().filter(|document| document.get_str("_id").unwrap() != "order-10") {
        let (seen, total): (Vec<Bson>, i64) = ((2..=last).map(Bson::from).collect(), (2..=last).sum());
        let expected = doc! {
            "_id": document.get("_id").unwrap().clone(), "address": { "city": "Ulm", "zip": 1 }, "customer": "ada",
            "status": "placed", "seen": seen, "total": total,
        };
        assert_eq!(*document, expected);
    }
}

#[tokio::test]
async fn concurrent_events_are_never_reported() {
    let fixture = VerifyFixture::with_orders("verify_live").await;
    let is_done = AtomicBool::new(false);
    let write = async |numbers: std::ops::RangeInclusive<i64>| {
        let mut version = EVENTS;
        while !is_done.load(Ordering::Relaxed) {
            version += 1;
            for number in numbers.clone() {
                fixture.apply(order_event(number, version)).await;
            }
        }
    };
    let verifying = async {
        let mut all = vec![];
        for _ in 0..15 {
            let (totals, findings) = fixture.verify(VerifyScope::All, false).await;
            all.push((totals.compared, totals.skipped(), findings));
        }
        is_done.store(true, Ordering::Relaxed);
        all
    };
    let ((), (), all) = tokio::join!(write(1..=6), write(7..=12), verifying);
    for (compared, skipped, findings) in all {
        assert!(findings.is_empty(), "{findings:?}");
        assert_eq!((compared, skipped), (12, 0));
    }
}

#[tokio::test]
async fn parked_and_discarded_events_are_no_difference() {
    let fixture = VerifyFixture::new("verify_parked").await;
    for number in [1, 2] {
        fixture.apply(order_event(number, 1)).await;
        // The price cannot be added.
        fixture.apply(event(&order_id(number), 2, "Added", doc! { "price": "x" })).await;
        fixture.apply(order_event(number, 3)).await;
    }
    let (totals, _) = fixture.verify(VerifyScope::All, true).await;
    assert_eq!((totals.compared, totals.different), (0, 0));
    assert_eq!(totals.skipped[&SkipReason::Parked], 2);
    let parked = fixture.fixture.parked_store();
    let first = aggregate("order-01");
    parked.discard(&first, &events_namespace(), "orders", DiscardScope::First).await.unwrap();
    parked.retry(&first, &events_namespace(), "orders").await.unwrap();
    let (totals, findings) = fixture.verify(VerifyScope::All, false).await;
    assert_eq!((totals.compared, totals.different, totals.skipped()), (1, 0, 1), "{findings:?}");
}

#[tokio::test]
async fn a_shared_document_is_compared_as_a_whole() {
    let customers = json!({ "customers": { "key": "$$event.payload.customer", "when": {
        "Placed": { "$inc": { "orders": 1 }, "$push": { "ids": "$$event.aggregateId" } },
        "Added": { "$inc": { "spent": "$$event.payload.price" }, "$max": { "last": "$$event.version" } },
    } } });
    let fixture = ViewFixture::new("verify_whole", customers.clone()).await;
    let pod = fixture.pod();
    let apply = async |number: i64, version: i64| {
        let (id, customer) = (order_id(number), ["ada", "grace"][usize::from(number % 2 == 0)]);
        let event = match version {
            1 => event(&id, 1, "Placed", doc! { "customer": customer }),
            _ => event(&id, version, "Added", doc! { "customer": customer, "price": 0.1 }),
        };
        fixture.write_source(std::slice::from_ref(&event)).await;
        pod.apply(vec![delivered(&event, u32::try_from(version).unwrap())]).await;
    };
    let verify = async || {
        let dependencies = VerifyDependencies {
            generation: 1,
            pipeline: "shop".into(),
            views: (*fixture.views).clone(),
            model: Arc::new(model("customers", &customers["customers"])),
            pages: EventPages::new(fixture.history(), None),
            first_sequence: 1,
            token: None,
        };
        let verifier = Verifier::open(dependencies).await.unwrap();
        let mut findings = Findings::default();
        let totals = verifier.run_whole(&mut findings).await.unwrap();
        verifier.close().await;
        (totals, findings.0)
    };
    // Not aggregate by aggregate: the lists and sums depend on the order.
    for version in 1..=5 {
        for number in 1..=6 {
            apply(7 - number, version).await;
        }
    }
    let live = async {
        for version in 6..=12 {
            for number in 1..=6 {
                apply(number, version).await;
            }
        }
    };
    let checks = async {
        for _ in 0..3 {
            let (totals, findings) = verify().await;
            assert_eq!((totals.compared, totals.different), (2, 0), "{findings:?}");
        }
    };
    tokio::join!(live, checks);
    let documents = fixture.views.collection::<Document>("customers");
    documents.update_one(doc! { "_id": "ada" }, doc! { "$inc": { "orders": 1 } }).await.unwrap();
    documents.delete_one(doc! { "_id": "grace" }).await.unwrap();
    documents.insert_one(doc! { "_id": "nobody" }).await.unwrap();
    let (totals, findings) = verify().await;
    let expected = [
        ("ada", "orders", DifferenceKind::DifferentValue),
        ("grace", "", DifferenceKind::MissingDocument),
        ("nobody", "", DifferenceKind::ExtraDocument),
    ];
    let expected = expected.map(|(id, path, kind)| (id.to_owned(), vec![(path.to_owned(), kind)]));
    assert_eq!(kinds(&findings), expected);
    assert_eq!((totals.compared, totals.different), (3, 3));
    let names = fixture.views.list_collection_names().await.unwrap();
    assert!(!names.iter().any(|name| name.starts_with("_headwater_scratch")), "{names:?}");
}

#[tokio::test]
async fn an_incomplete_source_is_not_compared() {
    let fixture = VerifyFixture::with_orders("verify_archived").await;
    let events = fixture.fixture.source.collection::<Document>("events");
    events.delete_many(doc! { "aggregateId": { "$in": ["order-01", "order-02"] }, "version": 1 }).await.unwrap();
    events.delete_many(doc! { "aggregateId": "order-03" }).await.unwrap();
    events.delete_one(doc! { "aggregateId": "order-04", "version": 4 }).await.unwrap();
    let (totals, findings) = fixture.verify(VerifyScope::All, true).await;
    assert_eq!((totals.compared, totals.different), (8, 0), "{findings:?}");
    assert_eq!(totals.skipped[&SkipReason::SourceIncomplete], 3);
    assert_eq!(totals.skipped[&SkipReason::Regressed], 1);
}

#[tokio::test]
async fn a_pipeline_from_now_on_is_compared_from_there() {
    let mut fixture = ViewFixture::new("verify_now", models()).await;
    fixture.mode = OrderingMode::Sequence { start: PipelineStart::Now, first: 1, filtered: false };
    let pod = fixture.pod();
    let fixture = VerifyFixture { fixture, pod };
    fixture.fixture.write_source(&[order_event(1, 1), order_event(1, 2)]).await;
    for version in 3..=4 {
        fixture.apply(order_event(1, version)).await;
    }
    let (totals, findings) = fixture.verify(VerifyScope::All, false).await;
    assert_eq!((totals.compared, totals.different, totals.skipped()), (1, 0, 0), "{findings:?}");
}
