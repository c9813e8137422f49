//! Atom entries and feeds around descriptions, and the service's error format.

use std::fmt;
use std::sync::Arc;

use atom_xml::{ATOM, SERVICE_BUS, XmlWriter};

use crate::core::Timestamp;

use super::entity::{AdminEntity, EntityAddress, NamespaceInfo};
use super::rule;
use super::timestamp;
use super::write;
use crate::rules::{CompiledRule, RuleDescription};

const INSTANCE: &str = "http://www.w3.org/2001/XMLSchema-instance";

/// The API version of a client, such as `2021-05`. Newer versions only add properties.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApiVersion(String);

impl ApiVersion {
    /// `None` unless it is a year and a month.
    pub fn parse(text: &str) -> Option<Self> {
        let shaped = text.len() == 7
            && text.bytes().enumerate().all(|(at, byte)| if at == 4 { byte == b'-' } else { byte.is_ascii_digit() });
        shaped.then(|| Self(text.to_owned()))
    }

    pub(super) fn knows_large_messages(&self) -> bool {
        self.0.as_str() >= "2021-05"
    }

    pub(super) fn knows_filter_counts(&self) -> bool {
        self.0.as_str() >= "2024-05"
    }
}

/// The newest version that the SDKs use.
impl Default for ApiVersion {
    fn default() -> Self {
        Self("2024-05".to_owned())
    }
}

impl fmt::Display for ApiVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The request's base URL, for ids and links. Clients parse entity names from them.
#[derive(Debug, Clone)]
pub struct RequestContext {
    /// Scheme and authority, such as `http://localhost:5300`.
    pub base: String,
    pub version: ApiVersion,
    pub namespace: NamespaceInfo,
}

impl RequestContext {
    fn url(&self, path: impl fmt::Display) -> String {
        format!("{}/{path}?api-version={}", self.base, self.version)
    }

    fn page(&self, path: &str, skip: usize, top: usize) -> String {
        format!("{}/{path}?$skip={skip}&$top={top}&api-version={}", self.base, self.version)
    }
}

/// One page of a list.
pub struct FeedPage<'a> {
    pub title: &'a str,
    /// The path of the list itself.
    pub path: &'a str,
    pub skip: usize,
    pub top: usize,
    /// True if another page follows.
    pub more: bool,
}

pub fn entity_entry(context: &RequestContext, entity: &AdminEntity) -> String {
    let mut xml = XmlWriter::default();
    write_entity(&mut xml, &[("xmlns", ATOM)], context, entity);
    xml.into_text()
}

pub fn rule_entry(
    context: &RequestContext,
    subscription: &EntityAddress,
    rule: &RuleDescription,
    created_at: Timestamp,
) -> String {
    let mut xml = XmlWriter::default();
    write_rule(&mut xml, &[("xmlns", ATOM)], context, subscription, rule, created_at);
    xml.into_text()
}

pub fn namespace_entry(context: &RequestContext) -> String {
    let NamespaceInfo { name, created_at, modified_at, tier, .. } = &context.namespace;
    let mut xml = XmlWriter::default();
    let head = EntryHead {
        id: context.url("$namespaceinfo"),
        title: name,
        times: (*created_at, *modified_at),
        author: Some(name),
    };
    entry(&mut xml, &[("xmlns", ATOM)], &head, "NamespaceInfo", |xml| {
        xml.leaf("CreatedTime", timestamp::format(*created_at));
        xml.leaf("MessagingSKU", tier.name());
        xml.leaf("ModifiedTime", timestamp::format(*modified_at));
        xml.leaf("Name", name);
        xml.leaf("NamespaceType", "Messaging");
    });
    xml.into_text()
}

/// The reply to `GET /`: the service lists nothing publicly.
pub fn root_feed(context: &RequestContext) -> String {
    let mut xml = XmlWriter::default();
    xml.element("feed", &[("xmlns", ATOM)], |xml| {
        xml.leaf_with("title", &[("type", "text")], "Publicly Listed Services");
        let subtitle = "This is the list of publicly-listed services currently available";
        xml.leaf_with("subtitle", &[("type", "text")], subtitle);
        xml.leaf("id", &context.base);
        xml.leaf("updated", timestamp::format(context.namespace.modified_at));
        xml.leaf("generator", "Service Bus 1.1");
    });
    xml.into_text()
}

impl FeedPage<'_> {
    pub fn of_entities(&self, context: &RequestContext, entities: &[AdminEntity]) -> String {
        let updated = entities.iter().map(|entity| entity.runtime.updated_at).max();
        feed(self, context, updated, |xml, base| {
            entities.iter().for_each(|entity| write_entity(xml, &[("xml:base", base)], context, entity));
        })
    }

    pub fn of_rules(
        &self,
        context: &RequestContext,
        subscription: &EntityAddress,
        rules: &[Arc<CompiledRule>],
    ) -> String {
        let updated = rules.iter().map(|rule| rule.created_at).max();
        feed(self, context, updated, |xml, base| {
            for rule in rules {
                let CompiledRule { description, created_at, .. } = &**rule;
                write_rule(xml, &[("xml:base", base)], context, subscription, description, *created_at);
            }
        })
    }
}

fn feed(
    page: &FeedPage<'_>,
    context: &RequestContext,
    updated: Option<Timestamp>,
    entries: impl FnOnce(&mut XmlWriter, &str),
) -> String {
    let mut xml = XmlWriter::default();
    let own = context.page(page.path, page.skip, page.top);
    xml.element("feed", &[("xmlns", ATOM)], |xml| {
        xml.leaf_with("title", &[("type", "text")], page.title);
        xml.leaf("id", &own);
        xml.leaf("updated", timestamp::format(updated.unwrap_or(context.namespace.modified_at)));
        link(xml, "self", &own);
        // The Python SDK takes the second link for the next page, whatever its name. So there may be no other links here.
        if page.more {
            link(xml, "next", &context.page(page.path, page.skip + page.top, page.top));
        }
        entries(xml, &own);
    });
    xml.into_text()
}

/// The body of an error response. SDKs show the detail to their users.
pub fn error(status: u16, detail: &str) -> String {
    let mut xml = XmlWriter::default();
    xml.element("Error", &[], |xml| {
        xml.leaf("Code", status);
        xml.leaf("Detail", detail);
    });
    xml.into_text()
}

fn write_entity(xml: &mut XmlWriter, attributes: &[(&str, &str)], context: &RequestContext, entity: &AdminEntity) {
    let author = match entity.address {
        EntityAddress::Entity(_) => Some(context.namespace.name.as_str()),
        EntityAddress::Subscription { .. } => None,
    };
    let times = (entity.runtime.created_at, entity.runtime.updated_at);
    let head = EntryHead { id: context.url(&entity.address), title: entity.address.name(), times, author };
    let root = write::root(&entity.properties.description);
    entry(xml, attributes, &head, root, |xml| write::description(xml, entity, context));
}

fn write_rule(
    xml: &mut XmlWriter,
    attributes: &[(&str, &str)],
    context: &RequestContext,
    subscription: &EntityAddress,
    rule: &RuleDescription,
    created_at: Timestamp,
) {
    let id = context.url(format_args!("{subscription}/Rules/{}", rule.name));
    let head = EntryHead { id, title: &rule.name, times: (created_at, created_at), author: None };
    entry(xml, attributes, &head, "RuleDescription", |xml| rule::write(xml, rule, created_at));
}

struct EntryHead<'a> {
    id: String,
    title: &'a str,
    times: (Timestamp, Timestamp),
    author: Option<&'a str>,
}

fn entry(
    xml: &mut XmlWriter,
    attributes: &[(&str, &str)],
    head: &EntryHead<'_>,
    root: &str,
    description: impl FnOnce(&mut XmlWriter),
) {
    xml.element("entry", attributes, |xml| {
        xml.leaf("id", &head.id);
        xml.leaf_with("title", &[("type", "text")], head.title);
        xml.leaf("published", timestamp::format(head.times.0));
        xml.leaf("updated", timestamp::format(head.times.1));
        if let Some(author) = head.author {
            xml.element("author", &[], |xml| xml.leaf("name", author));
        }
        link(xml, "self", &head.id);
        xml.element("content", &[("type", "application/xml")], |xml| {
            xml.element(root, &[("xmlns", SERVICE_BUS), ("xmlns:i", INSTANCE)], description);
        });
    });
}

fn link(xml: &mut XmlWriter, relation: &str, url: &str) {
    xml.element("link", &[("rel", relation), ("href", url)], |_| {});
}
