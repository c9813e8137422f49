//! Runs the fuzz bodies on stable Rust: arbitrary bytes, and valid bytes with a few changes.

use amqp::frame::write_frame;
use amqp::message::{Header, MessageWriter, Properties};
use amqp::performative::Performative;
use bytes::{Bytes, BytesMut};
use proptest::prelude::*;

use crate::generators;

#[path = "../../fuzz/bodies.rs"]
mod bodies;

fn noise() -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(any::<u8>(), 0..400)
}

type Mutations = Vec<(prop::sample::Index, u8)>;

fn changes() -> impl Strategy<Value = Mutations> {
    prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4)
}

fn changed(mut bytes: Vec<u8>, changes: &Mutations) -> Vec<u8> {
    for (at, byte) in changes {
        if !bytes.is_empty() {
            let at = at.index(bytes.len());
            bytes[at] = *byte;
        }
    }
    bytes
}

fn framed(performatives: &[(u8, Performative, Bytes)]) -> Vec<u8> {
    let mut buffer = BytesMut::new();
    for (channel, performative, payload) in performatives {
        write_frame(&mut buffer, (*channel).into(), |buffer| {
            performative.encode(buffer);
            buffer.extend_from_slice(payload);
        });
    }
    buffer.to_vec()
}

/// Small numbers meet each other more often than arbitrary ones do.
fn tamed(performative: Performative) -> Performative {
    match performative {
        Performative::Attach(mut attach) => {
            attach.handle %= 5;
            Performative::Attach(attach)
        }
        Performative::Transfer(mut transfer) => {
            transfer.handle %= 3;
            transfer.delivery_id = transfer.delivery_id.map(|id| id % 8);
            Performative::Transfer(transfer)
        }
        Performative::Flow(mut flow) => {
            flow.handle = flow.handle.map(|handle| handle % 3);
            flow.link_credit = flow.link_credit.map(|credit| credit % 9);
            flow.delivery_count = flow.delivery_count.map(|count| count % 9);
            Performative::Flow(flow)
        }
        Performative::Disposition(mut disposition) => {
            disposition.first %= 8;
            disposition.last = disposition.last.map(|last| last % 8);
            Performative::Disposition(disposition)
        }
        Performative::Detach(mut detach) => {
            detach.handle %= 4;
            Performative::Detach(detach)
        }
        other => other,
    }
}

fn session_frame() -> impl Strategy<Value = (u8, Performative, Bytes)> {
    (0u8..2, generators::performative(), generators::bytes()).prop_map(|(channel, performative, payload)| {
        let payload = if matches!(performative, Performative::Transfer(_)) { payload } else { Bytes::new() };
        (channel, tamed(performative), payload)
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    #[test]
    fn random_bytes_never_panic(data in noise()) {
        bodies::types(&data);
        bodies::frames(&data);
        bodies::messages(&data);
        bodies::server(&data);
    }

    #[test]
    fn mutated_values_never_panic(value in generators::value(), changes in changes()) {
        let mut buffer = BytesMut::new();
        value.encode(&mut buffer);
        bodies::types(&changed(buffer.to_vec(), &changes));
    }

    #[test]
    fn mutated_frames_never_panic(frames in prop::collection::vec(session_frame(), 1..5), changes in changes()) {
        bodies::frames(&changed(framed(&frames), &changes));
    }

    #[test]
    fn mutated_messages_never_panic(value in generators::value(), data in generators::bytes(), changes in changes()) {
        let mut buffer = BytesMut::new();
        MessageWriter::new(&mut buffer)
            .header(&Header::default())
            .message_annotations(|map| {
                map.put_value("x-opt-sequence-number", &value);
            })
            .properties(&Properties { message_id: Some("id".into()), group_id: Some("group"), ..Properties::default() })
            .data(&data);
        bodies::messages(&changed(buffer.to_vec(), &changes));
    }

    #[test]
    fn a_server_survives_reordered_frames_and_bad_bytes(
        mode: u8,
        frames in prop::collection::vec(session_frame(), 1..20),
        changes in changes(),
    ) {
        // Raw stream after a good handshake.
        let mut data = vec![mode & !2 | 1];
        data.extend(changed(framed(&frames), &changes));
        bodies::server(&data);
    }
}
