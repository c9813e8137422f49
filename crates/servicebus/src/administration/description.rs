//! A description as the service wrote it, changed in place.
//!
//! The service takes elements in its own order only, and an update replaces all of them, authorization rules included. So what was read is
//! kept as text, and a change touches one element of it.

use std::ops::Range;

use quick_xml::Reader;
use quick_xml::escape::{escape, unescape};
use quick_xml::events::Event;

const SERVICE_BUS: &str = "http://schemas.microsoft.com/netservices/2010/10/servicebus/connect";
/// Only the service sets these; sent back, they would be noise.
const READ_ONLY: [&str; 10] = [
    "SizeInBytes",
    "MessageCount",
    "CreatedAt",
    "UpdatedAt",
    "AccessedAt",
    "SubscriptionCount",
    "CountDetails",
    "IsAnonymousAccessible",
    "EntityAvailabilityStatus",
    "MaxMessageSizeInKilobytes",
];

/// A topic or a subscription.
#[derive(Clone, PartialEq, Eq)]
pub struct Description {
    /// From the first bracket of its root to the last.
    xml: String,
}

/// A rule of a subscription.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    pub name: String,
    /// `TrueFilter`, `SqlFilter` …
    pub filter: String,
    /// Whether it takes every message, and leaves it as it is.
    pub takes_everything: bool,
}

/// An element directly below the root: its name, all of it, and what is inside.
struct Element {
    name: String,
    outer: Range<usize>,
    inner: Range<usize>,
}

impl Description {
    /// A topic with these properties, in the service's order.
    pub fn topic(properties: &[(&str, String)]) -> Self {
        Self::new("TopicDescription", properties)
    }

    /// A subscription with these properties, in the service's order.
    pub fn subscription(properties: &[(&str, String)]) -> Self {
        Self::new("SubscriptionDescription", properties)
    }

    fn new(root: &str, properties: &[(&str, String)]) -> Self {
        let inner: String =
            properties.iter().map(|(name, value)| format!("<{name}>{}</{name}>", escape(value.as_str()))).collect();
        Self { xml: format!(r#"<{root} xmlns="{SERVICE_BUS}">{inner}</{root}>"#) }
    }

    /// The first description in an answer.
    pub(super) fn read(answer: &str) -> Option<Self> {
        let roots = ["<TopicDescription", "<SubscriptionDescription", "<QueueDescription"];
        let start = roots.iter().filter_map(|root| answer.find(root)).min()?;
        let name: String = answer[start + 1..].chars().take_while(char::is_ascii_alphabetic).collect();
        let end = answer.find(&format!("</{name}>"))? + name.len() + 3;
        Some(Self { xml: answer[start..end].to_owned() })
    }

    /// The text of a property; `None` if it is not there.
    pub fn value(&self, name: &str) -> Option<String> {
        let element = self.elements().into_iter().find(|element| element.name == name)?;
        unescape(&self.xml[element.inner]).ok().map(|text| text.into_owned())
    }

    /// A count, as `CountDetails` has it: `ActiveMessageCount`.
    pub fn count(&self, name: &str) -> Option<u64> {
        let (_, after) = self.xml.split_once(&format!(":{name}>"))?;
        after.split('<').next()?.parse().ok()
    }

    /// False when there is no such property to change.
    #[must_use]
    pub fn set(&mut self, name: &str, value: &str) -> bool {
        let Some(element) = self.elements().into_iter().find(|element| element.name == name) else { return false };
        self.xml.replace_range(element.outer, &format!("<{name}>{}</{name}>", escape(value)));
        true
    }

    /// As an entry to be sent.
    pub(super) fn entry(&self) -> String {
        let mut xml = self.xml.clone();
        for element in self.elements().iter().rev().filter(|element| READ_ONLY.contains(&element.name.as_str())) {
            xml.replace_range(element.outer.clone(), "");
        }
        format!(r#"<entry xmlns="http://www.w3.org/2005/Atom"><content type="application/xml">{xml}</content></entry>"#)
    }

    fn elements(&self) -> Vec<Element> {
        let mut reader = Reader::from_str(&self.xml);
        let (mut depth, mut found, mut begun) = (0, vec![], None);
        let mut before = 0;
        while let Ok(event) = reader.read_event() {
            let at = usize::try_from(reader.buffer_position()).unwrap_or(usize::MAX);
            match event {
                Event::Start(start) => {
                    if depth == 1 {
                        begun = Some((start.name().as_ref().to_owned(), before, at));
                    }
                    depth += 1;
                }
                Event::Empty(empty) if depth == 1 => {
                    let name = empty.name().as_ref().to_owned();
                    found.push(Element { name, outer: before..at, inner: at..at });
                }
                Event::End(_) => {
                    depth -= 1;
                    if depth == 1
                        && let Some((name, outer, inner)) = begun.take()
                    {
                        found.push(Element { name, outer: outer..at, inner: inner..before });
                    }
                }
                Event::Eof => break,
                _ => {}
            }
            before = at;
        }
        found
    }
}

/// Keys of authorization rules are in it.
impl std::fmt::Debug for Description {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let root: String = self.xml[1..].chars().take_while(char::is_ascii_alphabetic).collect();
        f.write_str(&root)
    }
}

impl Rule {
    pub(super) fn read_all(answer: &str) -> Vec<Self> {
        let rules = answer.split("<RuleDescription").skip(1);
        let read = rules.map(|text| {
            let text = text.split("</RuleDescription>").next().unwrap_or_default();
            let kind_in = |element: &str| {
                let (_, after) = text.split_once(&format!("<{element}"))?;
                let tag = after.split('>').next()?;
                tag.split_once("type=\"").and_then(|(_, kind)| kind.split('"').next()).map(str::to_owned)
            };
            let filter = kind_in("Filter").unwrap_or_default();
            let changes = kind_in("Action").is_some_and(|action| action != "EmptyRuleAction");
            let expression = text.split_once("<SqlExpression>").and_then(|(_, after)| after.split('<').next());
            let everything = filter == "TrueFilter" || (filter == "SqlFilter" && expression == Some("1=1"));
            let name = text.rsplit_once("<Name>").and_then(|(_, after)| after.split('<').next()).unwrap_or_default();
            Self { name: name.to_owned(), filter, takes_everything: everything && !changes }
        });
        read.collect()
    }
}

/// What the service says of a refusal.
pub(super) fn detail(answer: &str) -> String {
    let detail = answer.split_once("<Detail>").and_then(|(_, after)| after.split("</Detail>").next());
    let text = detail.unwrap_or("no detail");
    unescape(text).map_or_else(|_| text.to_owned(), |text| text.into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const READ: &str = r#"<entry><content type="application/xml"><TopicDescription xmlns="x" xmlns:i="y"><DefaultMessageTimeToLive>P1D</DefaultMessageTimeToLive><SizeInBytes>7</SizeInBytes><AuthorizationRules><AuthorizationRule><KeyName>k &amp; l</KeyName></AuthorizationRule></AuthorizationRules><UserMetadata/><CountDetails xmlns:d="z"><d:ActiveMessageCount>3</d:ActiveMessageCount></CountDetails><EnablePartitioning>true</EnablePartitioning></TopicDescription></content></entry>"#;

    #[test]
    fn a_change_touches_one_element_and_keeps_the_order_and_the_authorization_rules() {
        let mut topic = Description::read(READ).unwrap();
        assert_eq!(topic.value("DefaultMessageTimeToLive").as_deref(), Some("P1D"));
        assert_eq!(topic.count("ActiveMessageCount"), Some(3));
        assert!(topic.set("DefaultMessageTimeToLive", "P<2"));
        assert!(!topic.set("KeyName", "hers"), "it is not the topic's own");
        assert_eq!(topic.value("DefaultMessageTimeToLive").as_deref(), Some("P<2"));
        let sent = topic.entry();
        let expected = r#"<TopicDescription xmlns="x" xmlns:i="y"><DefaultMessageTimeToLive>P&lt;2</DefaultMessageTimeToLive><AuthorizationRules><AuthorizationRule><KeyName>k &amp; l</KeyName></AuthorizationRule></AuthorizationRules><UserMetadata/><EnablePartitioning>true</EnablePartitioning></TopicDescription>"#;
        assert!(sent.contains(expected), "{sent}");
        assert!(!format!("{topic:?}").contains("KeyName"));
    }

    #[test]
    fn a_list_of_nothing_describes_nothing() {
        assert_eq!(Description::read(r#"<feed xmlns="a"><title>Publicly Listed Services</title></feed>"#), None);
    }

    #[test]
    fn rules_are_told_apart_by_what_they_take() {
        let rule = |filter: &str, action: &str, name: &str| {
            format!(
                r#"<entry><RuleDescription xmlns="x"><Filter i:type="{filter}"><SqlExpression>1=1</SqlExpression></Filter><Action i:type="{action}"/><Name>{name}</Name></RuleDescription></entry>"#
            )
        };
        let feed = [
            rule("TrueFilter", "EmptyRuleAction", "$Default"),
            rule("CorrelationFilter", "EmptyRuleAction", "eu"),
            rule("SqlFilter", "SqlRuleAction", "marks"),
        ];
        let rules = Rule::read_all(&feed.concat());
        let seen: Vec<_> = rules.iter().map(|rule| (rule.name.as_str(), rule.takes_everything)).collect();
        assert_eq!(seen, [("$Default", true), ("eu", false), ("marks", false)]);
    }
}
