//! Encodes one primitive value at the end of a buffer, in its shortest form.

use bytes::{BufMut, BytesMut};
use uuid::Uuid;

use super::code;

pub fn null(buffer: &mut BytesMut) {
    buffer.put_u8(code::NULL);
}

pub fn boolean(buffer: &mut BytesMut, value: bool) {
    buffer.put_u8(if value { code::TRUE } else { code::FALSE });
}

pub fn ubyte(buffer: &mut BytesMut, value: u8) {
    buffer.extend_from_slice(&[code::UBYTE, value]);
}

pub fn byte(buffer: &mut BytesMut, value: i8) {
    fixed(buffer, code::BYTE, value.to_be_bytes());
}

pub fn ushort(buffer: &mut BytesMut, value: u16) {
    fixed(buffer, code::USHORT, value.to_be_bytes());
}

pub fn short(buffer: &mut BytesMut, value: i16) {
    fixed(buffer, code::SHORT, value.to_be_bytes());
}

#[inline]
pub fn uint(buffer: &mut BytesMut, value: u32) {
    match value {
        0 => buffer.put_u8(code::UINT0),
        1..=0xff => buffer.extend_from_slice(&[code::SMALL_UINT, value as u8]),
        _ => fixed(buffer, code::UINT, value.to_be_bytes()),
    }
}

pub fn int(buffer: &mut BytesMut, value: i32) {
    match i8::try_from(value) {
        Ok(small) => fixed(buffer, code::SMALL_INT, small.to_be_bytes()),
        Err(_) => fixed(buffer, code::INT, value.to_be_bytes()),
    }
}

pub fn ulong(buffer: &mut BytesMut, value: u64) {
    match value {
        0 => buffer.put_u8(code::ULONG0),
        1..=0xff => buffer.extend_from_slice(&[code::SMALL_ULONG, value as u8]),
        _ => fixed(buffer, code::ULONG, value.to_be_bytes()),
    }
}

pub fn long(buffer: &mut BytesMut, value: i64) {
    match i8::try_from(value) {
        Ok(small) => fixed(buffer, code::SMALL_LONG, small.to_be_bytes()),
        Err(_) => fixed(buffer, code::LONG, value.to_be_bytes()),
    }
}

pub fn float(buffer: &mut BytesMut, value: f32) {
    fixed(buffer, code::FLOAT, value.to_be_bytes());
}

pub fn double(buffer: &mut BytesMut, value: f64) {
    fixed(buffer, code::DOUBLE, value.to_be_bytes());
}

pub fn character(buffer: &mut BytesMut, value: char) {
    fixed(buffer, code::CHAR, u32::from(value).to_be_bytes());
}

/// Milliseconds since the Unix epoch.
pub fn timestamp(buffer: &mut BytesMut, milliseconds: i64) {
    fixed(buffer, code::TIMESTAMP, milliseconds.to_be_bytes());
}

pub fn uuid(buffer: &mut BytesMut, value: Uuid) {
    fixed(buffer, code::UUID, value.into_bytes());
}

#[inline]
pub fn binary(buffer: &mut BytesMut, value: &[u8]) {
    variable(buffer, code::BINARY8, code::BINARY32, value);
}

pub fn string(buffer: &mut BytesMut, value: &str) {
    variable(buffer, code::STRING8, code::STRING32, value.as_bytes());
}

pub fn symbol(buffer: &mut BytesMut, value: &str) {
    variable(buffer, code::SYMBOL8, code::SYMBOL32, value.as_bytes());
}

/// The constructor of a described value with a numeric descriptor; the described value follows.
pub fn descriptor(buffer: &mut BytesMut, descriptor: u64) {
    match u8::try_from(descriptor) {
        Ok(small) => buffer.extend_from_slice(&[code::DESCRIBED, code::SMALL_ULONG, small]),
        Err(_) => {
            buffer.put_u8(code::DESCRIBED);
            ulong(buffer, descriptor);
        }
    }
}

/// The head of a `binary` value of this length, whose content follows.
pub fn binary_head(buffer: &mut BytesMut, length: usize) {
    variable_head(buffer, code::BINARY8, code::BINARY32, length);
}

#[inline]
pub(crate) fn fixed<const N: usize>(buffer: &mut BytesMut, format: u8, value: [u8; N]) {
    buffer.put_u8(format);
    buffer.extend_from_slice(&value);
}

#[inline]
fn variable(buffer: &mut BytesMut, short: u8, long: u8, value: &[u8]) {
    variable_head(buffer, short, long, value.len());
    buffer.extend_from_slice(value);
}

/// AMQP cannot encode lengths beyond 32 bits; `max-message-size` keeps callers below that.
#[inline]
fn variable_head(buffer: &mut BytesMut, short: u8, long: u8, length: usize) {
    match u8::try_from(length) {
        Ok(length) => buffer.extend_from_slice(&[short, length]),
        Err(_) => {
            let length = u32::try_from(length).expect("an AMQP value is shorter than 4 GiB");
            fixed(buffer, long, length.to_be_bytes());
        }
    }
}
