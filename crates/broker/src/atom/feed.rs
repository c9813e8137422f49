//! The Atom around a description: entries, feeds with their links, and the service's errors.

use std::fmt;

use crate::core::Timestamp;

use super::entity::{Address, Entity, NamespaceInfo};
use super::moment;
use super::rule::{self, Rule};
use super::write::{self, Terms};
use super::xml::Xml;

const ATOM: &str = "http://www.w3.org/2005/Atom";
const SERVICE_BUS: &str = "http://schemas.microsoft.com/netservices/2010/10/servicebus/connect";
const INSTANCE: &str = "http://www.w3.org/2001/XMLSchema-instance";

/// The version of the administration API a client speaks, such as `2021-05`. Newer ones only add properties.
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
}

/// The newest one the SDKs speak.
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

/// Where the request came in, for ids and links: clients take entity names out of them.
#[derive(Debug, Clone)]
pub struct Place {
    /// Scheme and authority, such as `http://localhost:5300`.
    pub base: String,
    pub version: ApiVersion,
    pub namespace: NamespaceInfo,
}

impl Place {
    fn url(&self, path: impl fmt::Display) -> String {
        format!("{}/{path}?api-version={}", self.base, self.version)
    }

    fn page(&self, path: &str, skip: usize, top: usize) -> String {
        format!("{}/{path}?$skip={skip}&$top={top}&api-version={}", self.base, self.version)
    }

    fn terms(&self) -> Terms<'_> {
        Terms { version: &self.version, namespace: &self.namespace }
    }
}

/// One page of a list.
pub struct Feed<'a> {
    pub title: &'a str,
    /// The path of the list itself.
    pub path: &'a str,
    pub skip: usize,
    pub top: usize,
    /// Whether another page follows this one.
    pub more: bool,
}

pub fn entity_entry(place: &Place, entity: &Entity) -> String {
    let mut xml = Xml::default();
    write_entity(&mut xml, &[("xmlns", ATOM)], place, entity);
    xml.into_text()
}

pub fn rule_entry(place: &Place, subscription: &Address, rule: &Rule, created_at: Timestamp) -> String {
    let mut xml = Xml::default();
    write_rule(&mut xml, &[("xmlns", ATOM)], place, subscription, rule, created_at);
    xml.into_text()
}

pub fn namespace_entry(place: &Place) -> String {
    let NamespaceInfo { name, created_at, modified_at, .. } = &place.namespace;
    let mut xml = Xml::default();
    let head =
        Head { id: place.url("$namespaceinfo"), title: name, times: (*created_at, *modified_at), author: Some(name) };
    entry(&mut xml, &[("xmlns", ATOM)], &head, "NamespaceInfo", |xml| {
        xml.leaf("CreatedTime", moment::format(*created_at));
        xml.leaf("MessagingSKU", "Standard");
        xml.leaf("ModifiedTime", moment::format(*modified_at));
        xml.leaf("Name", name);
        xml.leaf("NamespaceType", "Messaging");
    });
    xml.into_text()
}

impl Feed<'_> {
    pub fn of_entities(&self, place: &Place, entities: &[Entity]) -> String {
        let updated = entities.iter().map(|entity| entity.runtime.updated_at).max();
        feed(self, place, updated, |xml, base| {
            entities.iter().for_each(|entity| write_entity(xml, &[("xml:base", base)], place, entity));
        })
    }

    pub fn of_rules(&self, place: &Place, subscription: &Address, rules: &[Rule], created_at: Timestamp) -> String {
        feed(self, place, Some(created_at), |xml, base| {
            for rule in rules {
                write_rule(xml, &[("xml:base", base)], place, subscription, rule, created_at);
            }
        })
    }
}

fn feed(page: &Feed<'_>, place: &Place, updated: Option<Timestamp>, entries: impl FnOnce(&mut Xml, &str)) -> String {
    let mut xml = Xml::default();
    let own = place.page(page.path, page.skip, page.top);
    xml.element("feed", &[("xmlns", ATOM)], |xml| {
        xml.leaf_with("title", &[("type", "text")], page.title);
        xml.leaf("id", &own);
        xml.leaf("updated", moment::format(updated.unwrap_or(place.namespace.modified_at)));
        link(xml, "self", &own);
        // The Python SDK takes the second of two links for the next page, whatever its name: no others may be here.
        if page.more {
            link(xml, "next", &place.page(page.path, page.skip + page.top, page.top));
        }
        entries(xml, &own);
    });
    xml.into_text()
}

/// The body of a refusal. SDKs show the detail to their users.
pub fn error(status: u16, detail: &str) -> String {
    let mut xml = Xml::default();
    xml.element("Error", &[], |xml| {
        xml.leaf("Code", status);
        xml.leaf("Detail", detail);
    });
    xml.into_text()
}

fn write_entity(xml: &mut Xml, attributes: &[(&str, &str)], place: &Place, entity: &Entity) {
    let author = match entity.address {
        Address::Entity(_) => Some(place.namespace.name.as_str()),
        Address::Subscription { .. } => None,
    };
    let times = (entity.runtime.created_at, entity.runtime.updated_at);
    let head = Head { id: place.url(&entity.address), title: entity.address.name(), times, author };
    let root = write::root(&entity.properties.description);
    entry(xml, attributes, &head, root, |xml| write::description(xml, entity, &place.terms()));
}

fn write_rule(
    xml: &mut Xml,
    attributes: &[(&str, &str)],
    place: &Place,
    subscription: &Address,
    rule: &Rule,
    created_at: Timestamp,
) {
    let id = place.url(format_args!("{subscription}/Rules/{}", rule.name));
    let head = Head { id, title: &rule.name, times: (created_at, created_at), author: None };
    entry(xml, attributes, &head, "RuleDescription", |xml| rule::write(xml, rule, created_at));
}

struct Head<'a> {
    id: String,
    title: &'a str,
    times: (Timestamp, Timestamp),
    author: Option<&'a str>,
}

fn entry(xml: &mut Xml, attributes: &[(&str, &str)], head: &Head<'_>, root: &str, description: impl FnOnce(&mut Xml)) {
    xml.element("entry", attributes, |xml| {
        xml.leaf("id", &head.id);
        xml.leaf_with("title", &[("type", "text")], head.title);
        xml.leaf("published", moment::format(head.times.0));
        xml.leaf("updated", moment::format(head.times.1));
        if let Some(author) = head.author {
            xml.element("author", &[], |xml| xml.leaf("name", author));
        }
        link(xml, "self", &head.id);
        xml.element("content", &[("type", "application/xml")], |xml| {
            xml.element(root, &[("xmlns", SERVICE_BUS), ("xmlns:i", INSTANCE)], description);
        });
    });
}

fn link(xml: &mut Xml, relation: &str, url: &str) {
    xml.element("link", &[("rel", relation), ("href", url)], |_| {});
}
