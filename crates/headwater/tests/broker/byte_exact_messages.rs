//! What a sender writes after the annotations comes back byte for byte: every kind of body, every AMQP type, other encodings of the
//! same value, footers, and sections that AMQP does not define.

use amqp::performative::Performative;
use broker::core::{EntityDefinition, QueueDescription};
use broker::{Broker, StorageLocation};
use bytes::Bytes;

use crate::fixture::SOON;
use crate::raw_peer::{self, RawPeer, transfer};

/// Properties with a message-id, in a 32-bit list: the broker adds an id to messages without one.
const PROPERTIES: &[u8] = b"\x00\x53\x73\xd0\x00\x00\x00\x07\x00\x00\x00\x01\xa1\x01m";

/// One value of each primitive type that is hard to keep, and compound ones: decimals, a char, floats that are no numbers, a described value,
/// arrays, a map with keys of several types.
const RARE_TYPES: &[&[u8]] = &[
    b"\x74\x22\x50\x00\x7d",
    b"\x84\x00\x11\x22\x33\x44\x55\x66\x77",
    b"\x94\x7c\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00",
    b"\x73\x00\x01\xf6\x00",
    b"\x72\x7f\xc0\x00\x01",
    b"\x82\xff\xf8\x00\x00\x00\x00\x00\x01",
    b"\x83\xff\xff\xff\xff\xff\xff\xff\xff",
    b"\x98\x00\x11\x22\x33\x44\x55\x66\x77\x88\x99\xaa\xbb\xcc\xdd\xee\xff",
    b"\x00\xa3\x03a:b\xa1\x01x",
    b"\xe0\x0a\x02\xa3\x03one\x03two",
    b"\xf0\x00\x00\x00\x0d\x00\x00\x00\x02\x74\x22\x50\x00\x7d\x22\x50\x00\x7e",
    b"\xc1\x0a\x04\x54\x01\x41\xa1\x01k\xa0\x01\x00",
    b"\x56\x01",
    b"\x70\x00\x00\x00\x01",
    b"\x80\x00\x00\x00\x00\x00\x00\x00\x01",
    b"\xb1\x00\x00\x00\x01x",
    b"\x45",
];

fn cases() -> Vec<(&'static str, Vec<u8>)> {
    let with = |rest: &[u8]| [PROPERTIES, rest].concat();
    let mut cases = vec![
        ("several data sections", with(b"\x00\x53\x75\xa0\x01a\x00\x53\x75\xb0\x00\x00\x00\x01b")),
        ("several sequences", with(b"\x00\x53\x76\x45\x00\x53\x76\xc0\x03\x01\x54\x07")),
        ("a null value", with(b"\x00\x53\x77\x40")),
        ("a long descriptor", with(b"\x00\x80\x00\x00\x00\x00\x00\x00\x00\x75\xa0\x01a")),
        ("a symbolic descriptor", with(b"\x00\xa3\x10amqp:data:binary\xa0\x01a")),
        ("a footer", with(b"\x00\x53\x75\xa0\x01a\x00\x53\x78\xc1\x06\x02\xa3\x01f\x54\x01")),
        (
            "an unknown section before the body",
            with(b"\x00\x80\x00\x00\x00\x13\x70\x00\x00\x99\xa1\x01u\x00\x53\x75\xa0\x01a"),
        ),
        ("an unknown section after the body", with(b"\x00\x53\x75\xa0\x01a\x00\xa3\x03x:y\xc1\x01\x00")),
        ("no body", with(b"")),
    ];
    for value in RARE_TYPES {
        let body = [b"\x00\x53\x77" as &[u8], value].concat();
        cases.push(("a value", with(&body)));
        // The same as an application property.
        let entries = [b"\xa1\x01p" as &[u8], value].concat();
        let size = u8::try_from(entries.len() + 1).expect("a short map");
        let map = [b"\x00\x53\x74\xc1" as &[u8], &[size, 2], &entries, b"\x00\x53\x75\xa0\x01a"].concat();
        cases.push(("an application property", with(&map)));
    }
    cases
}

#[tokio::test]
async fn messages_come_back_byte_for_byte() {
    let mut config = broker::Config::new("127.0.0.1:0".parse().expect("an address"), StorageLocation::Ephemeral);
    config.entities = vec![("q".into(), EntityDefinition::Queue(QueueDescription::default()))];
    let broker = Broker::start(config).await.expect("a broker");
    let mut sender = RawPeer::sending(broker.address(), "q").await;
    let mut receiver = RawPeer::receiving(broker.address(), "q").await;
    let cases = cases();
    receiver.frame(0, &raw_peer::credit(0, cases.len() as u32, u32::MAX / 4)).await;
    for (id, (what, sent)) in cases.iter().enumerate() {
        // An annotation of the sender stays too, among those of the broker.
        let annotations: &[u8] = b"\x00\x53\x72\xc1\x10\x02\xa3\x08x-opt-me\x74\x22\x50\x00\x7d";
        sender.frame_with(0, &transfer(0, id as u32, false), &[annotations, sent].concat()).await;
        let outcome = sender.until(|frame| matches!(frame, Performative::Disposition(_))).await;
        let Performative::Disposition(outcome) = outcome else { unreachable!("just matched") };
        assert_eq!(outcome.state, Some(amqp::DeliveryState::Accepted), "{what}: {sent:02x?}");
        let received = next_payload(&mut receiver).await;
        assert!(received.ends_with(sent), "{what}: sent {sent:02x?}, received {received:02x?}");
        let kept = b"x-opt-me\x74\x22\x50\x00\x7d";
        assert!(received.windows(kept.len()).any(|part| part == kept), "{what}: the annotation is gone");
    }
    broker.stop().await;
}

async fn next_payload(receiver: &mut RawPeer) -> Bytes {
    loop {
        let (frame, payload) = receiver.poll_frame(SOON).await.expect("the message is delivered");
        if let Performative::Transfer(_) = frame {
            return payload;
        }
    }
}
