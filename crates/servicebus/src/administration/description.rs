//! An entity description as the service wrote it, edited in place.
//!
//! The service accepts elements in its own order only, and an update replaces all of them, authorization rules included. So the whole
//! XML tree is kept, and a change replaces the text of one element.

use atom_xml::{ATOM, SERVICE_BUS, XmlElement, XmlWriter};

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
pub struct EntityDescription(XmlElement);

/// A rule of a subscription, reduced to what a check needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleSummary {
    pub name: String,
    /// The filter's type, such as `TrueFilter` or `SqlFilter`.
    pub filter: String,
    /// True if the rule selects every message and changes none.
    pub takes_everything: bool,
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
        let mut root = XmlElement::new(root, "").with_attribute("xmlns", SERVICE_BUS);
        root.children = properties.iter().map(|(name, value)| XmlElement::new(name, value)).collect();
        Self(root)
    }

    /// Finds the first description in a response.
    pub(super) fn read(response: &str) -> Option<Self> {
        let response = XmlElement::parse(response.as_bytes()).ok()?;
        let roots = ["TopicDescription", "SubscriptionDescription", "QueueDescription"];
        roots.iter().find_map(|root| response.descendants(root).first().copied().cloned()).map(Self)
    }

    /// The text of a property; `None` if the property is missing.
    pub fn value(&self, name: &str) -> Option<String> {
        self.0.child(name).map(|element| element.text.clone())
    }

    /// A number from `CountDetails`, such as `ActiveMessageCount`.
    pub fn count(&self, name: &str) -> Option<u64> {
        self.0.child("CountDetails")?.value(name)?.parse().ok()
    }

    /// Replaces a property's value; false if the property is missing.
    #[must_use]
    pub fn set(&mut self, name: &str, value: &str) -> bool {
        let Some(element) = self.0.children.iter_mut().find(|element| element.name == name) else { return false };
        *element = XmlElement::new(name, value);
        true
    }

    /// The Atom entry to send, without read-only elements.
    pub(super) fn entry(&self) -> String {
        let mut root = self.0.clone();
        root.children.retain(|element| !READ_ONLY.contains(&element.name.as_str()));
        let mut xml = XmlWriter::default();
        xml.element("entry", &[("xmlns", ATOM)], |xml| {
            xml.element("content", &[("type", "application/xml")], |xml| xml.tree(&root));
        });
        xml.into_text()
    }
}

/// Shows only the root's name, because the XML contains keys of authorization rules.
impl std::fmt::Debug for EntityDescription {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0.name)
    }
}

impl RuleSummary {
    /// The rules in a response; none if it cannot be parsed.
    pub(super) fn read_all(response: &str) -> Vec<Self> {
        let Ok(response) = XmlElement::parse(response.as_bytes()) else { return Vec::new() };
        response.descendants("RuleDescription").into_iter().map(Self::read).collect()
    }

    fn read(rule: &XmlElement) -> Self {
        let kind_of = |element: &str| rule.child(element).and_then(XmlElement::kind);
        let filter = kind_of("Filter").unwrap_or_default();
        let changes_messages = kind_of("Action").is_some_and(|action| action != "EmptyRuleAction");
        let expression = rule.child("Filter").and_then(|filter| filter.value("SqlExpression"));
        let selects_all = filter == "TrueFilter" || (filter == "SqlFilter" && expression == Some("1=1"));
        Self {
            name: rule.value("Name").unwrap_or_default().to_owned(),
            filter: filter.to_owned(),
            takes_everything: selects_all && !changes_messages,
        }
    }
}

/// The detail of an error response.
pub(super) fn detail(response: &str) -> String {
    let response = XmlElement::parse(response.as_bytes()).ok();
    let detail = response.as_ref().and_then(|response| response.value("Detail"));
    detail.unwrap_or("no detail").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    const READ: &str = r#"<entry><content type="application/xml"><TopicDescription xmlns="x" xmlns:i="y"><DefaultMessageTimeToLive>P1D</DefaultMessageTimeToLive><SizeInBytes>7</SizeInBytes><AuthorizationRules><AuthorizationRule i:type="Shared"><KeyName>k &amp; l</KeyName></AuthorizationRule></AuthorizationRules><UserMetadata/><CountDetails xmlns:d="z"><d:ActiveMessageCount>3</d:ActiveMessageCount></CountDetails><EnablePartitioning>true</EnablePartitioning></TopicDescription></content></entry>"#;

    #[test]
    fn a_change_touches_one_element_and_keeps_the_rest() {
        let mut topic = EntityDescription::read(READ).unwrap();
        assert_eq!(topic.value("DefaultMessageTimeToLive").as_deref(), Some("P1D"));
        assert_eq!(topic.count("ActiveMessageCount"), Some(3));
        assert!(topic.set("DefaultMessageTimeToLive", "P<2"));
        assert!(!topic.set("KeyName", "hers"), "it is not the topic's own");
        assert_eq!(topic.value("DefaultMessageTimeToLive").as_deref(), Some("P<2"));
        let sent = topic.entry();
        let expected = r#"<TopicDescription xmlns="x" xmlns:i="y"><DefaultMessageTimeToLive>P&lt;2</DefaultMessageTimeToLive><AuthorizationRules><AuthorizationRule i:type="Shared"><KeyName>k &amp; l</KeyName></AuthorizationRule></AuthorizationRules><UserMetadata></UserMetadata><EnablePartitioning>true</EnablePartitioning></TopicDescription>"#;
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
        let rules = RuleSummary::read_all(&format!("<feed>{}</feed>", feed.concat()));
        let seen: Vec<_> = rules.iter().map(|rule| (rule.name.as_str(), rule.takes_everything)).collect();
        assert_eq!(seen, [("$Default", true), ("eu", false), ("marks", false)]);
    }
}
