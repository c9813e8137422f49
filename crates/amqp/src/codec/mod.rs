//! The AMQP 1.0 type system on the wire: reading from [`bytes::Bytes`] without copying, writing into [`bytes::BytesMut`].
//!
//! [`Decoder`] walks encoded values and returns slices of the buffer; [`ValueRef`] and [`RawValue`] are one encoded value,
//! kept as received; [`encode`] and the writers produce encodings. Nothing here panics on any input, nothing
//! allocates for a length that the buffer does not contain, and nothing recurses without a bound.

pub mod code;
mod decoder;
pub mod encode;
mod error;
mod value_ref;
mod writer;

pub use decoder::{Decoder, Descriptor, ListFields, MapEntries};
pub(crate) use decoder::{ascii, utf8};
pub use error::DecodeError;
pub use value_ref::{RawValue, ValueRef};
pub use writer::{ListWriter, MapWriter};

/// How deep lists, maps, arrays and descriptions may nest when decoded into a [`crate::Value`].
pub const MAX_DEPTH: u32 = 32;

/// How many items one decoded [`crate::Value`] may hold in all: an item costs one byte on the wire and about forty in
/// memory, so this keeps the worst message at ten megabytes.
pub const MAX_ITEMS: u32 = 1 << 18;
