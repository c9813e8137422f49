//! Rules of subscriptions: create, replace, read, list and delete.

use bytes::Bytes;
use hyper::{Method, StatusCode};

use super::backend::{NamespaceBackend, PageRange};
use super::response::{self, HttpError, HttpResponse};
use crate::atom::{self, EntityAddress, EntryContent, FeedPage, RequestContext};
use crate::rules::{CompiledRule, RuleDescription};

pub(super) async fn list_rules(
    namespace: &impl NamespaceBackend,
    context: &RequestContext,
    subscription: EntityAddress,
    page: PageRange,
) -> Result<HttpResponse, HttpError> {
    let path = format!("{subscription}/Rules");
    let PageRange { skip, top } = page;
    // One more than requested shows whether another page follows.
    let mut rules = namespace.list_rules(subscription.clone(), PageRange { skip, top: top + 1 }).await?;
    let more = rules.len() > top && top > 0;
    rules.truncate(top);
    let feed = FeedPage { title: "Rules", path: &path, skip, top, more };
    Ok(response::feed(feed.of_rules(context, &subscription, &rules)))
}

/// The rule of a `PUT`. The path names it, whatever the body says.
pub(super) fn parse_rule(name: &str, body: &Bytes) -> Result<RuleDescription, HttpError> {
    match atom::parse_entry(body)? {
        EntryContent::Rule(rule) => Ok(RuleDescription { name: name.to_owned(), ..*rule }),
        _ => Err(HttpError::bad_request("expected a RuleDescription at this path")),
    }
}

/// Handles a request for one rule. `put` is the rule to store, and whether it replaces one.
pub(super) async fn handle(
    namespace: &impl NamespaceBackend,
    method: &Method,
    context: &RequestContext,
    subscription: EntityAddress,
    name: String,
    put: Option<(RuleDescription, bool)>,
) -> Result<HttpResponse, HttpError> {
    let entry = |status, rule: &CompiledRule| {
        let xml = atom::rule_entry(context, &subscription, &rule.description, rule.created_at);
        response::entry(status, xml)
    };
    match (method, put) {
        (&Method::GET, _) => Ok(entry(StatusCode::OK, &*namespace.get_rule(subscription.clone(), name).await?)),
        (&Method::DELETE, _) => {
            namespace.delete_rule(subscription, name).await?;
            Ok(response::empty())
        }
        (_, Some((rule, replace))) => {
            let stored = namespace.put_rule(subscription.clone(), rule, replace).await?;
            Ok(entry(if replace { StatusCode::OK } else { StatusCode::CREATED }, &stored))
        }
        _ => Err(HttpError::method_not_allowed(method)),
    }
}
