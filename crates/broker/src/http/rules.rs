//! Rules of subscriptions: every subscription has the default rule; others are not implemented.

use hyper::{Method, StatusCode};

use super::backend::PageRange;
use super::response::{self, HttpError, HttpResponse};
use crate::atom::{self, AdminEntity, DEFAULT_RULE, FeedPage, RequestContext, RuleDescription};

/// The error for all other rules.
const RULES_NOT_IMPLEMENTED: &str = "rules other than the default rule are not implemented";

pub(super) fn not_implemented() -> HttpError {
    HttpError::new(StatusCode::NOT_IMPLEMENTED, RULES_NOT_IMPLEMENTED)
}

pub(super) fn list_rules(context: &RequestContext, subscription: &AdminEntity, page: PageRange) -> HttpResponse {
    let path = format!("{}/Rules", subscription.address);
    let feed = FeedPage { title: "Rules", path: &path, skip: page.skip, top: page.top, more: false };
    let all = [RuleDescription::default_rule()];
    let shown: Vec<_> = all.into_iter().skip(page.skip).take(page.top).collect();
    response::feed(feed.of_rules(context, &subscription.address, &shown, subscription.runtime.created_at))
}

pub(super) fn handle(
    method: &Method,
    context: &RequestContext,
    subscription: &AdminEntity,
    name: &str,
) -> Result<HttpResponse, HttpError> {
    let default = name.eq_ignore_ascii_case(DEFAULT_RULE);
    match (method, default) {
        (&Method::GET, true) => {
            let created_at = subscription.runtime.created_at;
            let xml = atom::rule_entry(context, &subscription.address, &RuleDescription::default_rule(), created_at);
            Ok(response::entry(StatusCode::OK, xml))
        }
        (&Method::GET | &Method::DELETE, false) => {
            Err(HttpError::not_found(&format!("{}/Rules/{name}", subscription.address)))
        }
        (&Method::PUT, _) | (&Method::DELETE, true) => Err(not_implemented()),
        _ => Err(HttpError::method_not_allowed(method)),
    }
}
