//! The expected read models of the shop, in plain Rust. Shares no code with the pipeline.

use std::collections::BTreeMap;

use mongodb::bson::{Bson, Document, doc};

use crate::fixture::event;

/// `orders` and `customers` after these events, in order, each sorted by key.
pub(crate) fn fold(events: &[Document]) -> (Vec<Document>, Vec<Document>) {
    let (mut orders, mut customers) = (BTreeMap::<String, Document>::new(), BTreeMap::<String, Document>::new());
    for event in events {
        let (id, version) = (event.get_str("aggregateId").unwrap(), event.get_i64("version").unwrap());
        let payload = event.get_document("payload").unwrap();
        let kind = event.get_str("type").unwrap();
        if kind == "Cancelled" {
            orders.remove(id);
            continue;
        }
        let order = orders.entry(id.into()).or_insert_with(|| doc! { "_id": id });
        match kind {
            "Placed" => {
                order.insert("customer", payload.get("customer").unwrap().clone());
                order.insert("status", "placed");
            }
            "Added" => add(order, "total", payload.get_i64("price").unwrap()),
            "Paid" => {
                let paid = payload.get_i64("amount").unwrap() >= order.get_i64("total").unwrap_or(0);
                order.insert("status", if paid { "paid" } else { "part_paid" });
            }
            other => panic!("no event is called {other}"),
        }
        let seen = order.entry("seen").or_insert(Bson::Array(vec![]));
        let Bson::Array(seen) = seen else { panic!("seen is a list") };
        seen.push(version.into());
        let Ok(name) = payload.get_str("customer") else { continue };
        let customer = customers.entry(name.into()).or_insert_with(|| doc! { "_id": name });
        match kind {
            "Placed" => add(customer, "orders", 1),
            "Added" => add(customer, "spent", payload.get_i64("price").unwrap()),
            _ => {}
        }
    }
    (orders.into_values().collect(), customers.into_values().collect())
}

fn add(document: &mut Document, field: &str, amount: i64) {
    let before = document.get_i64(field).unwrap_or(0);
    document.insert(field, before + amount);
}

/// Normalises field order and number types: neither is guaranteed.
pub(crate) fn plain(documents: Vec<Document>) -> Vec<BTreeMap<String, Bson>> {
    let number = |value: Bson| match value {
        Bson::Int32(number) => Bson::Int64(number.into()),
        other => other,
    };
    documents.into_iter().map(|it| it.into_iter().map(|(name, value)| (name, number(value))).collect()).collect()
}

/// Events of a shop: so many per order, the orders in turn, with few customers.
pub(crate) fn day(orders: usize, events_each: i64) -> Vec<Document> {
    let mut all = vec![];
    for version in 1..=events_each {
        for order in 0..orders {
            let customer = format!("customer-{}", order % 7);
            let price = (order as i64 * 31 + version * 17) % 100;
            let (kind, payload) = match version {
                1 => ("Placed", doc! { "customer": customer }),
                _ if version == events_each && order % 5 == 0 => ("Paid", doc! { "amount": 120_i64 }),
                _ => ("Added", doc! { "customer": customer, "price": price }),
            };
            all.push(event(&format!("order-{order:04}"), version, kind, payload));
        }
    }
    all
}
