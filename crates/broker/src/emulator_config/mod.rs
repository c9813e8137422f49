//! Reads entities from a file in the official emulator's format (`config.json`); comments and trailing commas are allowed.
//! The same keys may be written in YAML.
//!
//! Reports all problems of a file at once, each [`EmulatorConfigProblem`] with its position, the value found and the values
//! allowed. The [core](crate::core) decides what is allowed: every property is validated on a temporary core.
//! So ranges and defaults are those of the service, which are wider than the emulator's
//! (messages do not expire after an hour). Properties that the emulator does not have, such as `EnablePartitioning`, may be set.
//!
//! Never creates an entity: the broker does that when it starts.

mod problem;
mod properties;
mod reader;
mod rules;
mod validation;
mod yaml;

use std::collections::HashMap;

use jsonc_parser::ParseOptions;
use jsonc_parser::ast::Value;

pub use problem::{EmulatorConfigProblem, EmulatorConfigProblems};

use crate::core::{EntityDefinition, QueueDescription, SubscriptionDescription, TopicDescription};
use crate::rules::RuleDescription;
use properties::{QUEUE, SUBSCRIPTION, TOPIC};
use reader::{ConfigReader, JsonNode};
use validation::NameValidator;

/// The entities of a file.
#[derive(Debug, Clone, PartialEq)]
pub struct EmulatorConfig {
    /// The name of its namespace.
    pub namespace: String,
    /// Paths and descriptions, with every topic before its subscriptions.
    pub entities: Vec<(String, EntityDefinition)>,
    /// The rules of subscriptions, by path. A subscription that is not listed has the default rule.
    pub rules: SubscriptionRules,
}

/// The rules of new subscriptions, by path.
pub type SubscriptionRules = HashMap<String, Vec<RuleDescription>>;

/// JSON with comments and trailing commas, and no other extension.
const SYNTAX: ParseOptions = ParseOptions {
    allow_comments: true,
    allow_loose_object_property_names: false,
    allow_trailing_commas: true,
    allow_missing_commas: false,
    allow_single_quoted_strings: false,
    allow_hexadecimal_numbers: false,
    allow_unary_plus_numbers: false,
    allow_bare_decimal_point_numbers: false,
    allow_non_finite_numbers: false,
    allow_extended_string_escapes: false,
};

pub fn parse(text: &str) -> Result<EmulatorConfig, EmulatorConfigProblems> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let root = if is_json(text) {
        let parsed = jsonc_parser::parse_to_ast(text, &Default::default(), &SYNTAX);
        let syntax = |error: jsonc_parser::errors::ParseError| {
            EmulatorConfigProblems::syntax(text, error.range().start, &error.kind().to_string())
        };
        parsed.map_err(syntax)?.value
    } else {
        yaml::parse(text).map_err(|error| EmulatorConfigProblems::syntax(text, error.offset, &error.message))?
    };
    let Some(root) = root else {
        return Err(EmulatorConfigProblems::syntax(text, 0, "The file is empty"));
    };
    let mut parser = ConfigParser {
        reader: ConfigReader::new(text),
        names: NameValidator::default(),
        config: EmulatorConfig { namespace: String::new(), entities: Vec::new(), rules: HashMap::new() },
    };
    parser.root(&JsonNode::root(&root));
    parser.reader.finish().map(|()| parser.config)
}

/// A JSON file starts with an object, or with a comment before it.
fn is_json(text: &str) -> bool {
    text.trim_start().is_empty() || text.trim_start().starts_with(['{', '[', '/', '"'])
}

struct ConfigParser<'t> {
    reader: ConfigReader<'t>,
    names: NameValidator,
    config: EmulatorConfig,
}

impl ConfigParser<'_> {
    fn root(&mut self, root: &JsonNode<'_>) {
        let Some(fields) = self.reader.object(root, &["$schema", "UserConfig"]) else { return };
        if let Some(config) = self.reader.required(root, &fields, "UserConfig") {
            self.user_config(config);
        }
    }

    fn user_config(&mut self, node: &JsonNode<'_>) {
        let Some(fields) = self.reader.object(node, &["Namespaces", "Logging"]) else { return };
        let Some(namespaces) = self.reader.required(node, &fields, "Namespaces") else { return };
        let Some(items) = self.reader.array(namespaces) else { return };
        if items.len() != 1 {
            let found = format!("has {} namespaces: expected exactly one", items.len());
            self.reader.report(namespaces, found);
        }
        for namespace in &items {
            self.namespace(namespace);
        }
    }

    fn namespace(&mut self, node: &JsonNode<'_>) {
        let Some(fields) = self.reader.object(node, &["Name", "Queues", "Topics"]) else { return };
        if let Some(name) = self.reader.required(node, &fields, "Name").and_then(|name| self.reader.string(name)) {
            self.config.namespace = name;
        }
        for queue in self.reader.optional_array(&fields, "Queues") {
            self.queue(&queue);
        }
        for topic in self.reader.optional_array(&fields, "Topics") {
            self.topic(&topic);
        }
    }

    fn queue(&mut self, node: &JsonNode<'_>) {
        let Some(fields) = self.reader.object(node, &["Name", "Properties"]) else { return };
        let description = self.describe(node, fields.get("Properties"), &QUEUE, EntityDefinition::Queue(queue()));
        let Some((name, shown)) = self.name(node, &fields) else { return };
        if let Err(rule) = self.names.add_entity(&name, &description) {
            self.reader.reject(shown, &rule);
        }
        self.config.entities.push((name, description));
    }

    fn topic(&mut self, node: &JsonNode<'_>) {
        let Some(fields) = self.reader.object(node, &["Name", "Properties", "Subscriptions"]) else { return };
        let description = self.describe(node, fields.get("Properties"), &TOPIC, EntityDefinition::Topic(topic()));
        let named = self.name(node, &fields).map(|(name, shown)| {
            if let Err(rule) = self.names.add_entity(&name, &description) {
                self.reader.reject(shown, &rule);
            }
            name
        });
        if let Some(name) = &named {
            self.config.entities.push((name.clone(), description));
        }
        let mut siblings = Vec::new();
        for subscription in self.reader.optional_array(&fields, "Subscriptions") {
            self.subscription(named.as_deref(), &subscription, &mut siblings);
        }
    }

    fn subscription(&mut self, topic: Option<&str>, node: &JsonNode<'_>, siblings: &mut Vec<String>) {
        let Some(fields) = self.reader.object(node, &["Name", "Properties", "Rules"]) else { return };
        let new = EntityDefinition::Subscription(subscription());
        let description = self.describe(node, fields.get("Properties"), &SUBSCRIPTION, new);
        let mut rules = Vec::new();
        for rule in self.reader.optional_array(&fields, "Rules") {
            rules.extend(rules::read(&mut self.reader, &rule, &rules));
        }
        let Some((name, shown)) = self.name(node, &fields) else { return };
        if let Err(rule) = self.names.check_subscription(&name, siblings) {
            self.reader.reject(shown, &rule);
        }
        if let Some(topic) = topic {
            let path = format!("{topic}/Subscriptions/{name}");
            if !rules.is_empty() {
                self.config.rules.insert(path.clone(), rules);
            }
            self.config.entities.push((path, description));
        }
        siblings.push(name);
    }

    fn name<'n, 'v>(
        &mut self,
        node: &JsonNode<'v>,
        fields: &'n reader::JsonFields<'v>,
    ) -> Option<(String, &'n JsonNode<'v>)> {
        let name = self.reader.required(node, fields, "Name")?;
        Some((self.reader.string(name)?, name))
    }

    /// Sets the given properties: validates each one alone, then all together if there are no problems.
    fn describe(
        &mut self,
        entity: &JsonNode<'_>,
        given: Option<&JsonNode<'_>>,
        known: &[&str],
        mut description: EntityDefinition,
    ) -> EntityDefinition {
        let Some(given) = given.filter(|given| !matches!(given.value, Value::NullKeyword(_))) else {
            return description;
        };
        let Some(fields) = self.reader.object(given, known) else { return description };
        let (before, plain) = (self.reader.problems(), description.clone());
        for (name, node) in &fields {
            let mut tried = plain.clone();
            let outcome = properties::set(&mut tried, name, node.value).map_err(str::to_owned);
            match outcome.and_then(|()| validation::validate_description(&tried)) {
                Err(rule) => self.reader.reject(node, &rule),
                Ok(()) => properties::set(&mut description, name, node.value).expect("the same value was set above"),
            }
        }
        if self.reader.problems() == before
            && let Err(rule) = validation::validate_description(&description)
        {
            self.reader.report(entity, format!("cannot be created: {rule}"));
        }
        description
    }
}

// Defaults of the service that differ from the core's.
fn queue() -> QueueDescription {
    let mut queue = QueueDescription::default();
    queue.common.enable_batched_operations = true;
    queue
}

fn topic() -> TopicDescription {
    let mut topic = TopicDescription { support_ordering: true, ..TopicDescription::default() };
    topic.common.enable_batched_operations = true;
    topic
}

fn subscription() -> SubscriptionDescription {
    let mut subscription = SubscriptionDescription::default();
    subscription.common.enable_batched_operations = true;
    subscription.dead_lettering_on_filter_evaluation_exceptions = true;
    subscription
}

#[cfg(test)]
mod tests;
