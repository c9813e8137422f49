//! Decoding errors.

/// Why bytes are not a valid AMQP value. Small and `Copy`, because it is created on the hot path; never contains content.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    #[error("value ends before its declared length")]
    Truncated,
    #[error("format code {0:#04x} is not an AMQP type")]
    UnknownCode(u8),
    #[error("expected {expected}, found format code {found:#04x}")]
    Unexpected { expected: &'static str, found: u8 },
    #[error("string is not UTF-8")]
    NotUtf8,
    #[error("symbol is not ASCII")]
    NotAscii,
    #[error("nested deeper than {} levels", super::MAX_DEPTH)]
    TooDeep,
    #[error("more than {} items", super::MAX_ITEMS)]
    TooManyItems,
    #[error("map has a key without a value")]
    OddMap,
    #[error("mandatory field `{0}` is missing")]
    Missing(&'static str),
    #[error("`{0}` is out of range")]
    OutOfRange(&'static str),
    #[error("descriptor is not known here")]
    UnknownDescriptor,
    #[error("bytes are left after the value")]
    Trailing,
    #[error("message sections are out of order or repeated")]
    SectionOrder,
}
