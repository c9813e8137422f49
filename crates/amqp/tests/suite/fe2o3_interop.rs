//! Interop with `serde_amqp` and `fe2o3-amqp-types`: they decode and encode our bytes, and we decode theirs.

use amqp::codec::Decoder;
use amqp::performative::Performative;
use amqp::{Message, Value};
use bytes::{Bytes, BytesMut};
use fe2o3_amqp_types::messaging::message::__private::{Deserializable, Serializable};
use fe2o3_amqp_types::messaging::{self, Body};
use fe2o3_amqp_types::performatives as theirs;
use proptest::prelude::*;
use serde_amqp::{from_slice, to_vec};

use crate::{generators, roundtrip};

/// Through their decoder and their encoder.
fn through<T>(bytes: &[u8]) -> Bytes
where
    T: serde::de::DeserializeOwned + serde::Serialize,
{
    let decoded: T = from_slice(bytes).unwrap_or_else(|error| panic!("they cannot read {bytes:02x?}: {error}"));
    to_vec(&decoded).expect("they write what they read").into()
}

/// The same whatever widths its parts were written in.
fn as_value(performative: &Performative) -> Value {
    let mut buffer = BytesMut::new();
    performative.encode(&mut buffer);
    Value::from_bytes(&buffer.freeze()).unwrap()
}

proptest! {
    #[test]
    fn they_read_our_values_and_we_read_theirs(
        value in prop_oneof![4 => generators::plain_value(), 1 => generators::plain_array()],
    ) {
        let mut buffer = BytesMut::new();
        value.encode(&mut buffer);
        let again = through::<serde_amqp::Value>(&buffer);
        prop_assert_eq!(Value::from_bytes(&again), Ok(value));
    }

    #[test]
    fn they_read_our_performatives_and_we_read_theirs(performative in generators::performative()) {
        let mut buffer = BytesMut::new();
        performative.encode(&mut buffer);
        let again = match &performative {
            Performative::Open(_) => through::<theirs::Open>(&buffer),
            Performative::Begin(_) => through::<theirs::Begin>(&buffer),
            Performative::Attach(_) => through::<theirs::Attach>(&buffer),
            Performative::Flow(_) => through::<theirs::Flow>(&buffer),
            Performative::Transfer(_) => through::<theirs::Transfer>(&buffer),
            Performative::Disposition(_) => through::<theirs::Disposition>(&buffer),
            Performative::Detach(_) => through::<theirs::Detach>(&buffer),
            Performative::End(_) => through::<theirs::End>(&buffer),
            Performative::Close(_) => through::<theirs::Close>(&buffer),
        };
        let read = Performative::decode(&mut Decoder::new(&again)).unwrap();
        prop_assert_eq!(as_value(&read), as_value(&performative));
    }

    #[test]
    fn they_read_our_messages_and_we_read_theirs(
        content in roundtrip::content().prop_filter("they want a body", |content| content.has_body()),
    ) {
        let ours = content.encode();
        let Deserializable(read): Deserializable<messaging::Message<Body<serde_amqp::Value>>> = from_slice(&ours).unwrap();
        let again = to_vec(&Serializable(read)).unwrap();
        content.assert_read(&Message::parse(again.into()).unwrap());
    }
}
