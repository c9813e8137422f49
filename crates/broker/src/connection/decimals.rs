//! Decimal application properties. Service Bus decodes a `decimal128` and encodes it again in the form of .NET's
//! `System.Decimal`. The Python SDK writes the standard form and reads only the service's, so a broker that keeps the bytes
//! makes its messages unreadable for it.
//!
//! | | sign | exponent, biased by 6176 | coefficient |
//! | --- | --- | --- | --- |
//! | standard (IEEE 754) | 1 bit | the next 14 bits | the last 113 bits |
//! | service | 1 bit | its upper bits in byte 0, its lower 7 bits in byte 1 above the lowest bit | the last 96 bits |

use amqp::Message;
use amqp::codec::code;
use bytes::Bytes;

const BIAS: i32 = 6176;
/// The exponents of `System.Decimal`.
const EXPONENTS: std::ops::RangeInclusive<i32> = -28..=0;

/// The bytes of a message, with its decimal application properties in the form of the service.
pub(super) fn encode_as_service(message: &Message) -> Bytes {
    let encoded = message.encoded();
    let head = encoded.len() - message.body_and_footer().len();
    // Hardly any message has one: do not look at each property.
    if !encoded[..head].contains(&code::DECIMAL128) {
        return encoded.clone();
    }
    let mut changed = None;
    for (_, value) in message.application_properties() {
        let bytes: Option<[u8; 16]> = value.encoded().get(1..).and_then(|bytes| bytes.try_into().ok());
        let decimal = bytes.filter(|_| value.code() == code::DECIMAL128).and_then(to_service_form);
        if let Some(decimal) = decimal {
            // The value is a part of the message's bytes.
            let at = value.encoded().as_ptr() as usize - encoded.as_ptr() as usize + 1;
            changed.get_or_insert_with(|| encoded.to_vec())[at..at + 16].copy_from_slice(&decimal);
        }
    }
    changed.map_or_else(|| encoded.clone(), Bytes::from)
}

/// `None` if it already has that form, or has no such form.
fn to_service_form(standard: [u8; 16]) -> Option<[u8; 16]> {
    let (high, low) = (i32::from(standard[0] & 0x7f), i32::from(standard[1] >> 1));
    if EXPONENTS.contains(&((high << 9 | low) - BIAS)) {
        return None;
    }
    // Bytes 2 and 3 and the lowest bit of byte 1 hold what exceeds 96 bits.
    let fits = standard[0] & 0x60 != 0x60 && standard[1] & 1 == 0 && standard[2..4] == [0, 0];
    let exponent = (high << 7 | low) - BIAS;
    if !fits || !EXPONENTS.contains(&exponent) {
        return None;
    }
    let biased = exponent + BIAS;
    let mut service = standard;
    service[0] = standard[0] & 0x80 | (biased >> 9) as u8;
    service[1] = ((biased & 0x7f) << 1) as u8;
    Some(service)
}

#[cfg(test)]
mod tests {
    use amqp::codec::encode;
    use amqp::message::MessageWriter;
    use bytes::BytesMut;

    use super::*;

    /// 12.5 in the standard form and in the service's.
    const STANDARD: [u8; 16] = [0x30, 0x3e, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 125];
    const SERVICE: [u8; 16] = [0x0c, 0x3e, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 125];

    fn message(decimal: [u8; 16]) -> Bytes {
        let mut buffer = BytesMut::new();
        let mut writer = MessageWriter::new(&mut buffer);
        writer.application_properties(|map| {
            encode::int(map.string("n"), 7);
            let value = map.string("d");
            value.extend_from_slice(&[code::DECIMAL128]);
            value.extend_from_slice(&decimal);
        });
        writer.data(&[code::DECIMAL128; 20]);
        buffer.freeze()
    }

    #[test]
    fn a_standard_decimal_gets_the_form_of_the_service() {
        let parsed = Message::parse(message(STANDARD)).unwrap();
        assert_eq!(encode_as_service(&parsed), message(SERVICE));
    }

    #[test]
    fn other_messages_keep_their_bytes() {
        let large = [0x30, 0x3f, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
        for decimal in [SERVICE, large, [0x7c, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]] {
            let parsed = Message::parse(message(decimal)).unwrap();
            assert_eq!(encode_as_service(&parsed), message(decimal));
        }
    }
}
