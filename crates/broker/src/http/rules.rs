//! Rules, as far as they go: every subscription has the default one, and no other can be made yet.

use hyper::{Method, StatusCode};

use super::namespace::Page;
use super::reply::{self, Refusal, Response};
use crate::atom::{self, DEFAULT_RULE, Entity, Feed, Place, Rule};

/// What clients are told until the broker filters.
const NOT_YET: &str = "rules other than the default one, which takes every message, are not implemented";

pub(super) fn not_implemented() -> Refusal {
    Refusal::new(StatusCode::NOT_IMPLEMENTED, NOT_YET)
}

pub(super) fn list(place: &Place, subscription: &Entity, page: Page) -> Response {
    let path = format!("{}/Rules", subscription.address);
    let feed = Feed { title: "Rules", path: &path, skip: page.skip, top: page.top, more: false };
    let all = [Rule::takes_everything()];
    let shown: Vec<_> = all.into_iter().skip(page.skip).take(page.top).collect();
    reply::feed(feed.of_rules(place, &subscription.address, &shown, subscription.runtime.created_at))
}

pub(super) fn answer(method: &Method, place: &Place, subscription: &Entity, name: &str) -> Result<Response, Refusal> {
    let default = name.eq_ignore_ascii_case(DEFAULT_RULE);
    match (method, default) {
        (&Method::GET, true) => {
            let created_at = subscription.runtime.created_at;
            let xml = atom::rule_entry(place, &subscription.address, &Rule::takes_everything(), created_at);
            Ok(reply::entry(StatusCode::OK, xml))
        }
        (&Method::GET | &Method::DELETE, false) => {
            Err(Refusal::not_found(&format!("{}/Rules/{name}", subscription.address)))
        }
        (&Method::PUT, _) | (&Method::DELETE, true) => Err(not_implemented()),
        _ => Err(Refusal::method(method)),
    }
}
