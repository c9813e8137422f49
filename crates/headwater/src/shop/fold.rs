//! The expected read models of the shop: a fold over its events in plain Rust.

use std::collections::BTreeMap;

use mongodb::bson::{Bson, Document};

/// A document with sorted fields and integers of one type: the pipeline guarantees neither order nor type.
pub(super) type NormalizedDocument = BTreeMap<String, Bson>;
/// The documents of one read model, by key.
pub(super) type ExpectedView = BTreeMap<String, NormalizedDocument>;

/// One order in the read models that have one document per order.
#[derive(Debug, Default)]
pub(super) struct ExpectedOrder {
    pub(super) summary: Option<NormalizedDocument>,
    pub(super) open: Option<NormalizedDocument>,
}

/// The read models to which many orders contribute.
#[derive(Debug, Default)]
pub(super) struct ExpectedTotals {
    pub(super) customers: ExpectedView,
    pub(super) products: ExpectedView,
    pub(super) days: ExpectedView,
}

impl ExpectedOrder {
    pub(super) fn apply(&mut self, event: &Document, totals: &mut ExpectedTotals) {
        let nothing = Document::new();
        let payload = event.get_document("payload").unwrap_or(&nothing);
        let id = event.get("aggregateId").cloned().unwrap_or(Bson::Null);
        let at = event.get("at").cloned().unwrap_or(Bson::Null);
        let value = |name: &str| payload.get(name).cloned().unwrap_or(Bson::Null);
        let number = |name: &str| payload.get_i64(name).unwrap_or(0);
        let summary = self.summary.get_or_insert_with(|| new(&id));
        match event.get_str("type").unwrap_or_default() {
            "OrderPlaced" => {
                set(summary, "status", "placed");
                set(summary, "customer", value("customer"));
                set(summary, "city", value("city"));
                set(summary, "placedAt", at.clone());
                let open = self.open.get_or_insert_with(|| new(&id));
                set(open, "customer", value("customer"));
                set(open, "since", at.clone());
                let customer = document(&mut totals.customers, &value("customer"));
                add(customer, "orders", 1);
                set_latest(customer, "lastOrderAt", at);
            }
            "ItemAdded" => {
                add(summary, "items", number("quantity"));
                add(summary, "total", number("amount"));
                let line = ["sku", "quantity", "amount"].map(|name| (name.to_owned(), value(name)));
                let lines = summary.entry("lines".to_owned()).or_insert_with(|| Bson::Array(vec![]));
                if let Bson::Array(lines) = lines {
                    lines.push(Bson::Document(Document::from_iter(line)));
                }
                add(self.open.get_or_insert_with(|| new(&id)), "items", number("quantity"));
                let product = document(&mut totals.products, &value("sku"));
                add(product, "sold", number("quantity"));
                add(product, "revenue", number("amount"));
                set_latest(product, "lastSoldAt", at);
            }
            "PaymentTaken" => {
                add(summary, "paid", number("amount"));
                let paid = to_i64(summary.get("paid")) >= to_i64(summary.get("total"));
                set(summary, "status", if paid { "paid" } else { "part_paid" });
                add(document(&mut totals.customers, &value("customer")), "spent", number("amount"));
                let day = document(&mut totals.days, &value("day"));
                add(day, "payments", 1);
                add(day, "revenue", number("amount"));
            }
            "OrderShipped" => {
                set(summary, "status", "shipped");
                set(summary, "carrier", value("carrier"));
                self.open = None;
            }
            "OrderCancelled" => {
                set(summary, "status", "cancelled");
                set(summary, "reason", value("reason"));
                self.open = None;
                add(document(&mut totals.customers, &value("customer")), "cancelled", 1);
            }
            _ => {}
        }
    }
}

pub(super) fn normalize(document: Document) -> NormalizedDocument {
    document.into_iter().map(|(name, value)| (name, normalize_value(value))).collect()
}

fn normalize_value(value: Bson) -> Bson {
    match value {
        Bson::Int32(number) => Bson::Int64(number.into()),
        Bson::Array(values) => Bson::Array(values.into_iter().map(normalize_value).collect()),
        Bson::Document(document) => Bson::Document(Document::from_iter(normalize(document))),
        other => other,
    }
}

fn new(id: &Bson) -> NormalizedDocument {
    NormalizedDocument::from([("_id".to_owned(), id.clone())])
}

fn document<'a>(view: &'a mut ExpectedView, key: &Bson) -> &'a mut NormalizedDocument {
    view.entry(key.as_str().unwrap_or_default().to_owned()).or_insert_with(|| new(key))
}

fn set(document: &mut NormalizedDocument, field: &str, value: impl Into<Bson>) {
    document.insert(field.to_owned(), value.into());
}

fn add(document: &mut NormalizedDocument, field: &str, amount: i64) {
    let before = to_i64(document.get(field));
    document.insert(field.to_owned(), Bson::Int64(before + amount));
}

fn set_latest(document: &mut NormalizedDocument, field: &str, at: Bson) {
    let time = |value: Option<&Bson>| value.and_then(Bson::as_datetime).copied();
    if time(document.get(field)) < time(Some(&at)) {
        document.insert(field.to_owned(), at);
    }
}

fn to_i64(value: Option<&Bson>) -> i64 {
    value.and_then(Bson::as_i64).unwrap_or(0)
}
