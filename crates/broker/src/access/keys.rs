//! The keys of a broker, from a file.

use std::fmt;

use serde::Deserialize;

use subtle::ConstantTimeEq;

use super::{AccessGrant, EntraIssuer, is_of_entity, normalize};
use crate::atom::{AccessRight, AuthorizationRule};
use crate::core::Timestamp;

/// A named key. `Debug` never prints it.
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AccessKey {
    pub name: String,
    pub key: String,
    /// Accepted as well: to replace a key, clients move to the second one first.
    #[serde(default)]
    pub secondary_key: Option<String>,
    pub rights: Vec<AccessRight>,
    /// Only for this queue, topic or subscription; `None`: for all entities.
    #[serde(default)]
    pub entity: Option<String>,
}

impl fmt::Debug for AccessKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AccessKey")
            .field("name", &self.name)
            .field("rights", &self.rights)
            .field("entity", &self.entity)
            .finish_non_exhaustive()
    }
}

impl AccessKey {
    /// The values that may have signed a token.
    pub(super) fn values(&self) -> impl Iterator<Item = &str> {
        std::iter::once(self.key.as_str()).chain(self.secondary_key.as_deref())
    }

    /// A rule that was stored with an entity; `None` if it has no name or key.
    pub(super) fn from_rule(rule: &AuthorizationRule, entity: &str) -> Option<Self> {
        let secondary_key = rule.secondary_key.clone().filter(|key| !key.is_empty());
        Some(Self {
            name: rule.key_name.clone()?,
            key: rule.primary_key.clone().filter(|key| !key.is_empty())?,
            secondary_key,
            rights: rule.rights.clone(),
            entity: Some(entity.to_owned()),
        })
    }
}

/// All keys of a broker, and the issuer whose tokens it accepts. There is at least one key, or an issuer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AccessKeys {
    keys: Vec<AccessKey>,
    pub(super) entra: Option<EntraIssuer>,
}

impl From<EntraIssuer> for AccessKeys {
    fn from(issuer: EntraIssuer) -> Self {
        Self { keys: vec![], entra: Some(issuer) }
    }
}

/// Why a file of keys is refused. The text contains no key.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum KeyFileError {
    #[error(
        "line {line}, column {column}: expected `{{\"keys\": [{{\"name\": …, \"key\": …, \"rights\": [\"Send\", \"Listen\", \"Manage\"]}}]}}`"
    )]
    Malformed { line: usize, column: usize },
    #[error("the file contains no key")]
    Empty,
    #[error("key {0} has an empty name or key")]
    EmptyField(usize),
    #[error("key `{0}` has no rights")]
    NoRights(String),
    #[error("two keys are named `{0}`")]
    Duplicate(String),
}

impl AccessKeys {
    /// Reads the file format: `{"keys": [{"name": "reader", "key": "…", "rights": ["Listen"], "entity": "orders"}]}`.
    pub fn parse(text: &str) -> Result<Self, KeyFileError> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct KeyFile {
            keys: Vec<AccessKey>,
        }
        // serde's own text can quote a value, which may be a key.
        let file: KeyFile = serde_json::from_str(text)
            .map_err(|error| KeyFileError::Malformed { line: error.line(), column: error.column() })?;
        Self::new(file.keys)
    }

    pub fn new(keys: Vec<AccessKey>) -> Result<Self, KeyFileError> {
        if keys.is_empty() {
            return Err(KeyFileError::Empty);
        }
        for (index, key) in keys.iter().enumerate() {
            if key.name.is_empty() || key.values().any(str::is_empty) {
                return Err(KeyFileError::EmptyField(index + 1));
            }
            if key.rights.is_empty() {
                return Err(KeyFileError::NoRights(key.name.clone()));
            }
            let scope = |key: &AccessKey| key.entity.as_deref().map(normalize);
            if keys[..index].iter().any(|other| other.name == key.name && scope(other) == scope(key)) {
                return Err(KeyFileError::Duplicate(key.name.clone()));
            }
        }
        Ok(Self { keys, entra: None })
    }

    /// Also accepts tokens of this issuer.
    #[must_use]
    pub fn with_entra(self, issuer: EntraIssuer) -> Self {
        Self { entra: Some(issuer), ..self }
    }

    /// The keys of this name that apply at a normalized path.
    pub(super) fn find<'a>(&'a self, name: &'a str, path: &'a str) -> impl Iterator<Item = &'a AccessKey> {
        self.keys.iter().filter(move |key| {
            let scope = key.entity.as_deref().map(normalize).unwrap_or_default();
            key.name == name && is_of_entity(&scope, path)
        })
    }

    /// What a key gives to a client that names it and knows it: one grant for each of its scopes, without expiry. Compares in constant time.
    pub(crate) fn grants_of(&self, name: &str, key: &str) -> Vec<AccessGrant> {
        let knows = |own: &AccessKey| own.values().any(|value| value.as_bytes().ct_eq(key.as_bytes()).into());
        let keys = self.keys.iter().filter(|own| own.name == name && knows(own));
        let grant = |own: &AccessKey| AccessGrant {
            scope: own.entity.as_deref().map(normalize).unwrap_or_default(),
            rights: own.rights.clone(),
            expires_at: Timestamp(u64::MAX),
        };
        keys.map(grant).collect()
    }

    /// The name of a key with the right to manage the namespace, for a connection string.
    pub fn manager(&self) -> Option<&str> {
        let manages = |key: &&AccessKey| key.entity.is_none() && key.rights.contains(&AccessRight::Manage);
        self.keys.iter().find(manages).map(|key| key.name.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_keys_is_read() {
        let keys = AccessKeys::parse(
            r#"{"keys": [
                {"name": "root", "key": "k1", "rights": ["Manage", "Send", "Listen"]},
                {"name": "reader", "key": "k2", "secondaryKey": "k3", "rights": ["Listen"], "entity": "Orders"}
            ]}"#,
        )
        .unwrap();
        assert_eq!(keys.manager(), Some("root"));
        assert_eq!(keys.find("reader", "orders/$deadletterqueue").count(), 1);
        assert_eq!(keys.find("reader", "other").count(), 0);
        assert_eq!(keys.find("reader", "orders/x").count(), 0, "another queue");
        assert_eq!(keys.find("root", "other").count(), 1);
        assert_eq!(keys.find("reader", "orders").next().unwrap().values().collect::<Vec<_>>(), ["k2", "k3"]);
    }

    #[test]
    fn invalid_files_are_refused_without_their_keys() {
        let key = |fields: &str| format!(r#"{{"keys": [{fields}]}}"#);
        let full = r#"{"name": "a", "key": "hush", "rights": ["Send"]}"#;
        for (text, expected) in [
            (key(""), "the file contains no key"),
            (key(r#"{"name": "", "key": "hush", "rights": ["Send"]}"#), "key 1 has an empty name or key"),
            (key(r#"{"name": "a", "key": "", "rights": ["Send"]}"#), "key 1 has an empty name or key"),
            (key(r#"{"name": "a", "key": "hush", "rights": []}"#), "key `a` has no rights"),
            (key(&format!("{full}, {full}")), "two keys are named `a`"),
        ] {
            assert_eq!(AccessKeys::parse(&text).unwrap_err().to_string(), expected);
        }
        for text in ["", "[]", r#"{"keys": "hush"}"#, &key(r#"{"name": "a", "kee": "hush"}"#)] {
            let error = AccessKeys::parse(text).unwrap_err().to_string();
            assert!(error.starts_with("line ") && !error.contains("hush"), "{error}");
        }
        assert!(!format!("{:?}", AccessKeys::parse(&key(full)).unwrap()).contains("hush"));
    }
}
