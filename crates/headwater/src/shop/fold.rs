//! What the shop's read models must be after its events, in plain Rust.

use std::collections::BTreeMap;

use mongodb::bson::{Bson, Document};

/// A document, its fields in one order and its whole numbers of one type: neither is promised.
pub(super) type Plain = BTreeMap<String, Bson>;
/// Documents of one read model by key.
pub(super) type View = BTreeMap<String, Plain>;

/// What one order is, in the read models that have a document an order.
#[derive(Debug, Default)]
pub(super) struct Order {
    pub(super) summary: Option<Plain>,
    pub(super) open: Option<Plain>,
}

/// The read models that many orders write.
#[derive(Debug, Default)]
pub(super) struct Totals {
    pub(super) customers: View,
    pub(super) products: View,
    pub(super) days: View,
}

impl Order {
    pub(super) fn apply(&mut self, event: &Document, totals: &mut Totals) {
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
                let customer = of(&mut totals.customers, &value("customer"));
                add(customer, "orders", 1);
                later(customer, "lastOrderAt", at);
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
                let product = of(&mut totals.products, &value("sku"));
                add(product, "sold", number("quantity"));
                add(product, "revenue", number("amount"));
                later(product, "lastSoldAt", at);
            }
            "PaymentTaken" => {
                add(summary, "paid", number("amount"));
                let paid = whole(summary.get("paid")) >= whole(summary.get("total"));
                set(summary, "status", if paid { "paid" } else { "part_paid" });
                add(of(&mut totals.customers, &value("customer")), "spent", number("amount"));
                let day = of(&mut totals.days, &value("day"));
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
                add(of(&mut totals.customers, &value("customer")), "cancelled", 1);
            }
            _ => {}
        }
    }
}

pub(super) fn plain(document: Document) -> Plain {
    document.into_iter().map(|(name, value)| (name, plain_value(value))).collect()
}

fn plain_value(value: Bson) -> Bson {
    match value {
        Bson::Int32(number) => Bson::Int64(number.into()),
        Bson::Array(values) => Bson::Array(values.into_iter().map(plain_value).collect()),
        Bson::Document(document) => Bson::Document(Document::from_iter(plain(document))),
        other => other,
    }
}

fn new(id: &Bson) -> Plain {
    Plain::from([("_id".to_owned(), id.clone())])
}

fn of<'a>(view: &'a mut View, key: &Bson) -> &'a mut Plain {
    view.entry(key.as_str().unwrap_or_default().to_owned()).or_insert_with(|| new(key))
}

fn set(document: &mut Plain, field: &str, value: impl Into<Bson>) {
    document.insert(field.to_owned(), value.into());
}

fn add(document: &mut Plain, field: &str, amount: i64) {
    let before = whole(document.get(field));
    document.insert(field.to_owned(), Bson::Int64(before + amount));
}

fn later(document: &mut Plain, field: &str, at: Bson) {
    let time = |value: Option<&Bson>| value.and_then(Bson::as_datetime).copied();
    if time(document.get(field)) < time(Some(&at)) {
        document.insert(field.to_owned(), at);
    }
}

fn whole(value: Option<&Bson>) -> i64 {
    value.and_then(Bson::as_i64).unwrap_or(0)
}
