//! An entity description as the service wrote it, edited in place.
//!
//! The service accepts elements in its own order only, and an update replaces all of them, authorization rules included. So the XML text is
//! kept, and a change replaces one element of it.

use std::ops::Range;

use quick_xml::Reader;
use quick_xml::escape::{escape, unescape};
use quick_xml::events::Event;

const SERVICE_BUS: &str = "http://schemas.microsoft.com/netservices/2010/10/servicebus/connect";
/// Only the service sets these, so they are not sent back.
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

/// The description of a topic or a subscription.
#[derive(Clone, PartialEq, Eq)]
pub struct EntityDescription {
    /// The XML of the root element, tags included.
    xml: String,
}

/// A rule of a subscription, reduced to what a check needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleSummary {
    pub name: String,
    /// The filter's type, such as `TrueFilter` or `SqlFilter`.
    pub filter: String,
    /// True if the rule selects every message and changes none.
    pub takes_everything: bool,
}

/// A child of the root: its name, the range of the whole element, and the range of its content.
struct Element {
    name: String,
    outer: Range<usize>,
    inner: Range<usize>,
}

impl EntityDescription {
    /// Builds a topic description. The properties must be in the service's order.
    pub fn topic(properties: &[(&str, String)]) -> Self {
        Self::new("TopicDescription", properties)
    }

    /// Builds a subscription description. The properties must be in the service's order.
    pub fn subscription(properties: &[(&str, String)]) -> Self {
        Self::new("SubscriptionDescription", properties)
    }

    fn new(root: &str, properties: &[(&str, String)]) -> Self {
        let inner: String =
            properties.iter().map(|(name, value)| format!("<{name}>{}</{name}>", escape(value.as_str()))).collect();
        Self { xml: format!(r#"<{root} xmlns="{SERVICE_BUS}">{inner}</{root}>"#) }
    }

    /// Finds the first description in a response.
    pub(super) fn read(answer: &str) -> Option<Self> {
        let roots = ["<TopicDescription", "<SubscriptionDescription", "<QueueDescription"];
        let start = roots.iter().filter_map(|root| answer.find(root)).min()?;
        let name: String = answer[start + 1..].chars().take_while(char::is_ascii_alphabetic).collect();
        let end = answer.find(&format!("</{name}>"))? + name.len() + 3;
        Some(Self { xml: answer[start..end].to_owned() })
    }

    /// The text of a property; `None` if the property is missing.
    pub fn value(&self, name: &str) -> Option<String> {
        let element = self.elements().into_iter().find(|element| element.name == name)?;
        unescape(&self.xml[element.inner]).ok().map(|text| text.into_owned())
    }

    /// A number from `CountDetails`, such as `ActiveMessageCount`.
    pub fn count(&self, name: &str) -> Option<u64> {
        let (_, after) = self.xml.split_once(&format!(":{name}>"))?;
        after.split('<').next()?.parse().ok()
    }

    /// Replaces a property's value; false if the property is missing.
    #[must_use]
    pub fn set(&mut self, name: &str, value: &str) -> bool {
        let Some(element) = self.elements().into_iter().find(|element| element.name == name) else { return false };
        self.xml.replace_range(element.outer, &format!("<{name}>{}</{name}>", escape(value)));
        true
    }

    /// The Atom entry to send, without read-only elements.
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

/// Shows only the root's name, because the XML contains keys of authorization rules.
impl std::fmt::Debug for EntityDescription {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let root: String = self.xml[1..].chars().take_while(char::is_ascii_alphabetic).collect();
        f.write_str(&root)
    }
}

impl RuleSummary {
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

/// The detail of an error response.
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
    fn a_change_touches_one_element_and_keeps_the_rest() {
        let mut topic = EntityDescription::read(READ).unwrap();
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
    fn an_empty_feed_has_no_description() {
        assert_eq!(EntityDescription::read(r#"<feed xmlns="a"><title>Publicly Listed Services</title></feed>"#), None);
    }

    #[test]
    fn rules_that_select_everything_are_recognized() {
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
        let rules = RuleSummary::read_all(&feed.concat());
        let seen: Vec<_> = rules.iter().map(|rule| (rule.name.as_str(), rule.takes_everything)).collect();
        assert_eq!(seen, [("$Default", true), ("eu", false), ("marks", false)]);
    }
}
