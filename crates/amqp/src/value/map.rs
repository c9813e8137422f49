//! A map that keeps the order of its entries, so that a decoded map encodes to the same bytes.

use super::Value;

/// Keys and values in wire order. Keys are looked up by text: symbol and string keys are used interchangeably by clients.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Map(Vec<(Value, Value)>);

impl Map {
    pub const fn new() -> Self {
        Self(Vec::new())
    }

    pub fn get(&self, key: &str) -> Option<&Value> {
        self.0.iter().find(|(name, _)| name.as_text() == Some(key)).map(|(_, value)| value)
    }

    /// Adds an entry, or replaces the value of an equal key.
    pub fn insert(&mut self, key: impl Into<Value>, value: impl Into<Value>) {
        let (key, value) = (key.into(), value.into());
        match self.0.iter_mut().find(|(name, _)| *name == key) {
            Some(entry) => entry.1 = value,
            None => self.0.push((key, value)),
        }
    }

    /// [`insert`](Self::insert), for building a map in one expression.
    #[must_use]
    pub fn with(mut self, key: impl Into<Value>, value: impl Into<Value>) -> Self {
        self.insert(key, value);
        self
    }

    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&Value, &Value)> {
        self.0.iter().map(|(key, value)| (key, value))
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// As received, even with a key twice.
    pub(crate) fn push(&mut self, key: Value, value: Value) {
        self.0.push((key, value));
    }
}

impl FromIterator<(Value, Value)> for Map {
    fn from_iter<T: IntoIterator<Item = (Value, Value)>>(entries: T) -> Self {
        Self(entries.into_iter().collect())
    }
}
