//! The XML of the Service Bus administration API, for the broker that serves it and for the client that uses it.
//!
//! [`XmlElement`] reads a body into a bounded tree, [`XmlWriter`] writes one, and [`duration`] converts ISO 8601 durations.
//! Never knows what an entity is: `broker::atom` and `servicebus::administration` do.

pub mod duration;
mod element;
mod writer;

pub use element::{XmlElement, XmlError};
pub use writer::XmlWriter;

/// Namespace of Atom entries and feeds.
pub const ATOM: &str = "http://www.w3.org/2005/Atom";
/// Namespace of descriptions.
pub const SERVICE_BUS: &str = "http://schemas.microsoft.com/netservices/2010/10/servicebus/connect";
