//! Source and target of a link, kept as the peer encoded them.

use bytes::BytesMut;

use super::{descriptor, put_raw, raw_field};
use crate::Symbol;
use crate::codec::{DecodeError, Decoder, ListWriter, MapWriter, RawValue, ValueRef, encode};

/// Where messages come from. Fields that are not interpreted are kept as encoded, to be echoed byte for byte.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Source {
    /// Usually a string; see [`Source::address`].
    pub raw_address: Option<RawValue>,
    pub durable: u32,
    pub expiry_policy: Option<Symbol>,
    pub timeout: u32,
    pub dynamic: bool,
    pub dynamic_node_properties: Option<RawValue>,
    pub distribution_mode: Option<Symbol>,
    pub filter: Option<FilterSet>,
    pub default_outcome: Option<RawValue>,
    pub outcomes: Option<RawValue>,
    pub capabilities: Option<RawValue>,
}

impl Source {
    pub fn at(address: &str) -> Self {
        Self { raw_address: Some(RawValue::string(address)), ..Self::default() }
    }

    pub fn address(&self) -> Option<&str> {
        self.raw_address.as_ref()?.as_str()
    }

    /// Adds or replaces one filter entry.
    #[must_use]
    pub fn with_filter(mut self, name: impl Into<Symbol>, value: RawValue) -> Self {
        self.filter.get_or_insert_default().set(name, value);
        self
    }

    pub(super) fn decode(reader: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        if reader.descriptor()?.standard() != Some(descriptor::SOURCE) {
            return Err(DecodeError::UnknownDescriptor);
        }
        let mut fields = reader.list()?.ok_or(DecodeError::Missing("source"))?;
        Ok(Self {
            raw_address: raw_field(&mut fields)?,
            durable: fields.uint()?.unwrap_or(0),
            expiry_policy: fields.symbol()?.map(|name| name.to_owned().into()),
            timeout: fields.uint()?.unwrap_or(0),
            dynamic: fields.boolean()?.unwrap_or(false),
            dynamic_node_properties: raw_field(&mut fields)?,
            distribution_mode: fields.symbol()?.map(|name| name.to_owned().into()),
            filter: fields.raw()?.map(FilterSet::decode).transpose()?,
            default_outcome: raw_field(&mut fields)?,
            outcomes: raw_field(&mut fields)?,
            capabilities: raw_field(&mut fields)?,
        })
    }

    pub fn encode(&self, buffer: &mut BytesMut) {
        let mut list = ListWriter::described(buffer, descriptor::SOURCE);
        list.optional(self.raw_address.as_ref(), put_raw)
            .optional((self.durable != 0).then_some(self.durable), encode::uint)
            .optional(self.expiry_policy.as_ref().map(Symbol::as_str), encode::symbol)
            .optional((self.timeout != 0).then_some(self.timeout), encode::uint)
            .flag(self.dynamic)
            .optional(self.dynamic_node_properties.as_ref(), put_raw)
            .optional(self.distribution_mode.as_ref().map(Symbol::as_str), encode::symbol)
            .optional(self.filter.as_ref(), |buffer, filter| filter.encode(buffer))
            .optional(self.default_outcome.as_ref(), put_raw)
            .optional(self.outcomes.as_ref(), put_raw)
            .optional(self.capabilities.as_ref(), put_raw)
            .finish_full();
    }
}

/// A filter set: names, and values exactly as encoded, described or plain.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct FilterSet(Vec<(Symbol, RawValue)>);

impl FilterSet {
    pub fn get(&self, name: &str) -> Option<&RawValue> {
        self.0.iter().find(|(key, _)| *key == name).map(|(_, value)| value)
    }

    /// Adds an entry or replaces its value.
    pub fn set(&mut self, name: impl Into<Symbol>, value: RawValue) {
        let name = name.into();
        match self.0.iter_mut().find(|(key, _)| *key == name) {
            Some(entry) => entry.1 = value,
            None => self.0.push((name, value)),
        }
    }

    pub fn iter(&self) -> impl Iterator<Item = (&str, &RawValue)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value))
    }

    fn decode(raw: ValueRef<'_>) -> Result<Self, DecodeError> {
        let Some(pairs) = raw.reader().map()? else { return Ok(Self::default()) };
        let mut filter = Vec::new();
        let expected = pairs.len();
        for (key, value) in pairs {
            let name = key.as_text().ok_or(DecodeError::OutOfRange("filter name"))?;
            filter.push((Symbol::from(name.to_owned()), value.to_raw()));
        }
        if filter.len() < expected { Err(DecodeError::Truncated) } else { Ok(Self(filter)) }
    }

    fn encode(&self, buffer: &mut BytesMut) {
        let mut map = MapWriter::new(buffer);
        for (name, value) in &self.0 {
            map.symbol(name.as_str()).extend_from_slice(value.encoded());
        }
        map.finish();
    }
}

/// Where messages go: a node, or the transaction coordinator.
#[derive(Debug, Clone, PartialEq)]
pub enum Target {
    Node(TargetNode),
    Coordinator(Coordinator),
}

#[derive(Debug, Clone, PartialEq, Default)]
pub struct TargetNode {
    pub raw_address: Option<RawValue>,
    pub durable: u32,
    pub expiry_policy: Option<Symbol>,
    pub timeout: u32,
    pub dynamic: bool,
    pub dynamic_node_properties: Option<RawValue>,
    pub capabilities: Option<RawValue>,
}

#[derive(Debug, Clone, PartialEq, Default)]
pub struct Coordinator {
    pub capabilities: Option<RawValue>,
}

impl Target {
    pub fn at(address: &str) -> Self {
        Self::Node(TargetNode { raw_address: Some(RawValue::string(address)), ..TargetNode::default() })
    }

    pub fn address(&self) -> Option<&str> {
        match self {
            Self::Node(node) => node.raw_address.as_ref()?.as_str(),
            Self::Coordinator(_) => None,
        }
    }

    pub(super) fn decode(reader: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        let kind = reader.descriptor()?.standard();
        let mut fields = reader.list()?.ok_or(DecodeError::Missing("target"))?;
        match kind {
            Some(descriptor::TARGET) => Ok(Self::Node(TargetNode {
                raw_address: raw_field(&mut fields)?,
                durable: fields.uint()?.unwrap_or(0),
                expiry_policy: fields.symbol()?.map(|name| name.to_owned().into()),
                timeout: fields.uint()?.unwrap_or(0),
                dynamic: fields.boolean()?.unwrap_or(false),
                dynamic_node_properties: raw_field(&mut fields)?,
                capabilities: raw_field(&mut fields)?,
            })),
            Some(descriptor::COORDINATOR) => {
                Ok(Self::Coordinator(Coordinator { capabilities: raw_field(&mut fields)? }))
            }
            _ => Err(DecodeError::UnknownDescriptor),
        }
    }

    pub fn encode(&self, buffer: &mut BytesMut) {
        match self {
            Self::Node(node) => node.encode(buffer),
            Self::Coordinator(coordinator) => ListWriter::described(buffer, descriptor::COORDINATOR)
                .optional(coordinator.capabilities.as_ref(), put_raw)
                .finish_full(),
        }
    }
}

impl TargetNode {
    fn encode(&self, buffer: &mut BytesMut) {
        ListWriter::described(buffer, descriptor::TARGET)
            .optional(self.raw_address.as_ref(), put_raw)
            .optional((self.durable != 0).then_some(self.durable), encode::uint)
            .optional(self.expiry_policy.as_ref().map(Symbol::as_str), encode::symbol)
            .optional((self.timeout != 0).then_some(self.timeout), encode::uint)
            .flag(self.dynamic)
            .optional(self.dynamic_node_properties.as_ref(), put_raw)
            .optional(self.capabilities.as_ref(), put_raw)
            .finish_full();
    }
}

impl From<TargetNode> for Target {
    fn from(node: TargetNode) -> Self {
        Self::Node(node)
    }
}

impl From<Coordinator> for Target {
    fn from(coordinator: Coordinator) -> Self {
        Self::Coordinator(coordinator)
    }
}
