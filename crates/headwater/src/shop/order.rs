//! Generates the next event of an order. Pure: random numbers and time are arguments.

use mongodb::bson::{DateTime, Document, doc};
use rand::{Rng, RngExt};

const CUSTOMERS: [&str; 16] = [
    "ada", "alan", "barbara", "claude", "dennis", "donald", "edsger", "frances", "grace", "hedy", "john", "karen",
    "ken", "leslie", "margaret", "niklaus",
];
const CITIES: [&str; 6] = ["Bergen", "Lisbon", "Lyon", "Porto", "Turin", "Utrecht"];
/// Products and prices in cents.
const PRODUCTS: [(&str, i64); 8] = [
    ("atlas", 4_900),
    ("compass", 2_450),
    ("lantern", 3_200),
    ("map", 990),
    ("oar", 5_500),
    ("rope", 1_275),
    ("sail", 18_900),
    ("whistle", 450),
];
const CARRIERS: [&str; 3] = ["barge", "ferry", "kayak"];
const REASONS: [&str; 3] = ["changed their mind", "found it cheaper", "ordered twice"];
/// Open orders at a time; with fewer the shop places a new one.
const MIN_OPEN: usize = 12;
const MAX_OPEN: usize = 60;

/// An order that is neither shipped nor cancelled.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct OpenOrder {
    pub(super) number: u64,
    pub(super) version: i64,
    customer: String,
    items: usize,
    total: i64,
    paid: i64,
}

/// The open orders, and the number of the next order.
#[derive(Clone, Debug, Default)]
pub(super) struct ShopState {
    pub(super) next: u64,
    pub(super) open: Vec<OpenOrder>,
}

impl ShopState {
    /// The shop's next event, as stored.
    pub(super) fn next(&mut self, rng: &mut impl Rng, now: DateTime) -> Document {
        let open = self.open.len();
        if open < MIN_OPEN || (open < MAX_OPEN && rng.random_bool(0.17)) {
            let (order, event) = OpenOrder::place(self.next, rng, now);
            self.next += 1;
            self.open.push(order);
            return event;
        }
        let at = rng.random_range(0..open);
        let (event, over) = self.open[at].step(rng, now);
        if over {
            self.open.swap_remove(at);
        }
        event
    }

    /// Replays an event that was written before.
    pub(super) fn replay(&mut self, event: &Document) {
        let (Some(number), Ok(kind)) = (order_number(event), event.get_str("type")) else { return };
        self.next = self.next.max(number + 1);
        let at = self.open.iter().position(|order| order.number == number).unwrap_or_else(|| {
            self.open.push(OpenOrder { number, version: 0, customer: String::new(), items: 0, total: 0, paid: 0 });
            self.open.len() - 1
        });
        let order = &mut self.open[at];
        order.version = event.get_i64("version").unwrap_or(order.version);
        let payload = event.get_document("payload").cloned().unwrap_or_default();
        let amount = payload.get_i64("amount").unwrap_or(0);
        match kind {
            "OrderPlaced" => order.customer = payload.get_str("customer").unwrap_or_default().to_owned(),
            "ItemAdded" => (order.items, order.total) = (order.items + 1, order.total + amount),
            "PaymentTaken" => order.paid += amount,
            _ => drop(self.open.swap_remove(at)),
        }
    }
}

impl OpenOrder {
    fn place(number: u64, rng: &mut impl Rng, now: DateTime) -> (Self, Document) {
        let customer = choose(rng, &CUSTOMERS);
        let mut order = Self { number, version: 0, customer: customer.to_owned(), items: 0, total: 0, paid: 0 };
        let event = order.event("OrderPlaced", doc! { "customer": customer, "city": choose(rng, &CITIES) }, now);
        (order, event)
    }

    /// The order's next event, and whether it is its last.
    fn step(&mut self, rng: &mut impl Rng, now: DateTime) -> (Document, bool) {
        if self.items == 0 || (self.paid == 0 && self.items < 6 && rng.random_bool(0.6)) {
            return (self.add(rng, now), false);
        }
        if self.paid == 0 && rng.random_bool(0.1) {
            let payload = doc! { "customer": &self.customer, "reason": choose(rng, &REASONS) };
            return (self.event("OrderCancelled", payload, now), true);
        }
        if self.paid < self.total {
            return (self.pay(rng, now), false);
        }
        let payload = doc! { "customer": &self.customer, "carrier": choose(rng, &CARRIERS) };
        (self.event("OrderShipped", payload, now), true)
    }

    fn add(&mut self, rng: &mut impl Rng, now: DateTime) -> Document {
        let (sku, price) = PRODUCTS[rng.random_range(0..PRODUCTS.len())];
        let quantity = rng.random_range(1..=3_i64);
        let amount = quantity * price;
        (self.items, self.total) = (self.items + 1, self.total + amount);
        let payload = doc! { "sku": sku, "quantity": quantity, "price": price, "amount": amount };
        self.event("ItemAdded", payload, now)
    }

    /// Most customers pay at once; some pay half first.
    fn pay(&mut self, rng: &mut impl Rng, now: DateTime) -> Document {
        let owed = self.total - self.paid;
        let amount = if self.paid == 0 && rng.random_bool(0.2) { (owed / 2).max(1) } else { owed };
        self.paid += amount;
        let payload = doc! { "customer": &self.customer, "amount": amount, "day": day(now) };
        self.event("PaymentTaken", payload, now)
    }

    fn event(&mut self, kind: &str, payload: Document, now: DateTime) -> Document {
        self.version += 1;
        let id = format!("order-{:08}", self.number);
        doc! { "aggregateId": id, "version": self.version, "type": kind, "at": now, "payload": payload }
    }
}

fn order_number(event: &Document) -> Option<u64> {
    event.get_str("aggregateId").ok()?.strip_prefix("order-")?.parse().ok()
}

/// `2026-01-31`.
fn day(now: DateTime) -> String {
    now.try_to_rfc3339_string().map(|text| text.chars().take(10).collect()).unwrap_or_default()
}

fn choose<'a>(rng: &mut impl Rng, from: &[&'a str]) -> &'a str {
    from[rng.random_range(0..from.len())]
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use rand::SeedableRng;
    use rand::rngs::StdRng;

    use super::*;

    #[test]
    fn orders_number_events_from_one_and_all_types_occur() {
        let mut state = ShopState::default();
        let mut rng = StdRng::seed_from_u64(7);
        let mut versions = BTreeMap::<String, i64>::new();
        let mut kinds = BTreeSet::new();
        for _ in 0..5_000 {
            let event = state.next(&mut rng, DateTime::from_millis(1));
            let version = versions.entry(event.get_str("aggregateId").unwrap().to_owned()).or_default();
            *version += 1;
            assert_eq!(event.get_i64("version").unwrap(), *version);
            kinds.insert(event.get_str("type").unwrap().to_owned());
        }
        assert_eq!(kinds.len(), 5, "{kinds:?}");
        assert!(state.open.len() <= MAX_OPEN);
    }

    #[test]
    fn a_restarted_shop_continues_its_open_orders() {
        let mut state = ShopState::default();
        let mut rng = StdRng::seed_from_u64(8);
        let mut again = ShopState::default();
        for _ in 0..2_000 {
            again.replay(&state.next(&mut rng, DateTime::from_millis(1)));
        }
        let sorted = |mut state: ShopState| {
            state.open.sort_by_key(|order| order.number);
            (state.next, state.open)
        };
        assert_eq!(sorted(state), sorted(again));
    }
}
