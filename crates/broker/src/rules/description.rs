//! Rules as clients describe them. Stored in the journal as JSON: a later version can add a field.

use serde::{Deserialize, Serialize};

/// The rule that every subscription starts with. It selects every message.
pub const DEFAULT_RULE: &str = "$Default";

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RuleDescription {
    pub name: String,
    pub filter: RuleFilter,
    #[serde(default)]
    pub action: Option<RuleAction>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RuleFilter {
    True,
    False,
    Sql(SqlExpression),
    Correlation(CorrelationFilter),
}

/// An SQL statement that changes selected messages.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RuleAction(pub SqlExpression);

#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct SqlExpression {
    pub expression: String,
    pub parameters: Vec<(String, PropertyValue)>,
}

/// Selects messages whose properties equal all given values.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct CorrelationFilter {
    pub correlation_id: Option<String>,
    pub message_id: Option<String>,
    pub to: Option<String>,
    pub reply_to: Option<String>,
    pub label: Option<String>,
    pub session_id: Option<String>,
    pub reply_to_session_id: Option<String>,
    pub content_type: Option<String>,
    pub properties: Vec<(String, PropertyValue)>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PropertyValue {
    String(String),
    Int(i32),
    Long(i64),
    #[serde(with = "exact_double")]
    Double(f64),
    Boolean(bool),
    /// As the client wrote it.
    DateTime(String),
    /// As the client wrote it; validated.
    Duration(String),
}

impl RuleDescription {
    pub fn default_rule() -> Self {
        Self { name: DEFAULT_RULE.to_owned(), filter: RuleFilter::True, action: None }
    }
}

/// As text, because JSON has no infinity and its reader rounds.
mod exact_double {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(super) fn serialize<S: Serializer>(number: &f64, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(number)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(|_| D::Error::custom("not a number"))
    }
}
