//! Peers of the broker that do not speak AMQP, or speak it with bad intent.

use amqp::frame::{ProtocolHeader, write_frame};
use amqp::performative::{Begin, Flow, Open, Performative, Transfer};
use amqp::{Attach, Source, Target};
use bytes::{Bytes, BytesMut};

use crate::exchange::send_all;
use crate::processes::{broker_memory, start_broker};
use crate::table::HostileTable;

#[tokio::test]
async fn hostile_amqp_peers_do_no_harm() {
    let folder = tempfile::tempdir().unwrap();
    let broker = start_broker(folder.path()).await;
    let mut table = HostileTable::new("AMQP");
    send_all(&mut table, broker.address(), "/health", inputs()).await;
    table.finish(&broker_memory(&broker));
}

fn inputs() -> Vec<(String, Vec<u8>)> {
    let mut inputs = noise();
    inputs.extend(headers());
    inputs.extend(frames());
    inputs.extend(performatives());
    inputs
}

fn noise() -> Vec<(String, Vec<u8>)> {
    let mut inputs = vec![("nothing".to_owned(), vec![])];
    for byte in [0x00, 0x01, b'A', b'G', 0x16, 0x7f, 0x80, 0xff] {
        for length in [1, 7, 64, 65_536] {
            inputs.push((format!("{length} times {byte:#04x}"), vec![byte; length]));
        }
    }
    inputs
        .push(("a TLS hello".to_owned(), [&[0x16, 3, 1, 0xff, 0xff, 1, 0, 0xff, 0xff, 3, 3][..], &[7; 600]].concat()));
    inputs
}

fn headers() -> Vec<(String, Vec<u8>)> {
    let header = |protocol, major, minor, revision| [&b"AMQP"[..], &[protocol, major, minor, revision]].concat();
    let mut inputs: Vec<_> = [(1, 1, 0, 0), (4, 1, 0, 0), (255, 1, 0, 0), (0, 2, 0, 0), (0, 0, 9, 1), (2, 1, 0, 0)]
        .into_iter()
        .map(|(a, b, c, d)| (format!("header {a} {b}.{c}.{d}"), header(a, b, c, d)))
        .collect();
    inputs.push(("two headers".to_owned(), header(0, 1, 0, 0).repeat(2)));
    inputs.push(("a thousand headers".to_owned(), header(3, 1, 0, 0).repeat(1_000)));
    inputs.push(("SASL header and noise".to_owned(), [header(3, 1, 0, 0), vec![0xa5; 4_096]].concat()));
    inputs
}

fn amqp(frames: &[u8]) -> Vec<u8> {
    [&ProtocolHeader::Amqp.bytes()[..], frames].concat()
}

fn raw_frame(size: u32, doff: u8, kind: u8, channel: u16, body: &[u8]) -> Vec<u8> {
    [&size.to_be_bytes()[..], &[doff, kind], &channel.to_be_bytes(), body].concat()
}

/// Frames that are wrong before their content is read, and values that are wrong in themselves.
fn frames() -> Vec<(String, Vec<u8>)> {
    let mut inputs = vec![];
    for size in [0, 1, 7, 9, 0x0010_0001, 0x7fff_ffff, u32::MAX] {
        inputs.push((format!("frame of {size} bytes"), amqp(&raw_frame(size, 2, 0, 0, &[0; 64]))));
    }
    for doff in [0, 1, 3, 255] {
        inputs.push((format!("data offset {doff}"), amqp(&raw_frame(16, doff, 0, 0, &[0; 8]))));
    }
    for kind in [1, 2, 255] {
        inputs.push((format!("frame type {kind}"), amqp(&raw_frame(16, 2, kind, 0, &[0; 8]))));
    }
    inputs.push(("10,000 empty frames".to_owned(), amqp(&raw_frame(8, 2, 0, 0, &[]).repeat(10_000))));
    inputs.push(("empty frame on channel 65535".to_owned(), amqp(&raw_frame(8, 2, 0, u16::MAX, &[]))));
    let nested = |code: &[u8], times: usize| code.repeat(times);
    let bodies: Vec<(&str, Vec<u8>)> = vec![
        ("unknown performative", vec![0x00, 0x53, 0xff, 0x45]),
        ("descriptor without value", vec![0x00, 0x53, 0x10]),
        ("descriptors 5,000 deep", nested(&[0x00], 5_000)),
        ("lists 5,000 deep", nested(&[0xd0, 0, 0, 0xff, 0xff, 0, 0, 0, 1], 5_000)),
        ("maps 5,000 deep", nested(&[0xd1, 0, 0, 0xff, 0xff, 0, 0, 0, 2, 0x40], 5_000)),
        ("arrays 5,000 deep", nested(&[0xf0, 0, 0, 0xff, 0xff, 0, 0, 0, 1], 5_000)),
        ("array of 4 billion nulls", vec![0x00, 0x53, 0x10, 0xf0, 0, 0, 0, 5, 0xff, 0xff, 0xff, 0xff, 0x40]),
        ("array of 4 billion empty lists", vec![0x00, 0x53, 0x10, 0xf0, 0, 0, 0, 5, 0xff, 0xff, 0xff, 0xff, 0x45]),
        ("list of 4 billion entries", vec![0x00, 0x53, 0x10, 0xd0, 0, 0, 0, 4, 0xff, 0xff, 0xff, 0xff]),
        ("map with one entry", vec![0x00, 0x53, 0x10, 0xc1, 2, 1, 0x40]),
        ("text that is not UTF-8", vec![0x00, 0x53, 0x10, 0xc0, 5, 1, 0xa1, 2, 0xff, 0xfe]),
        ("binary of 4 GB", vec![0x00, 0x53, 0x10, 0xb0, 0xff, 0xff, 0xff, 0xff]),
        ("text shorter than it says", vec![0x00, 0x53, 0x10, 0xc0, 9, 1, 0xa1, 200, b'a']),
        ("open without a container", vec![0x00, 0x53, 0x10, 0x45]),
        ("boolean 2", vec![0x00, 0x53, 0x10, 0xc0, 3, 1, 0x56, 2]),
        ("bytes after the performative", vec![0x00, 0x53, 0x11, 0x45, 1, 2, 3]),
    ];
    for (name, body) in bodies {
        let size = u32::try_from(body.len() + 8).unwrap();
        inputs.push((name.to_owned(), amqp(&raw_frame(size, 2, 0, 0, &body))));
    }
    inputs
}

fn open() -> Open {
    Open {
        container_id: "peer".into(),
        hostname: None,
        max_frame_size: 65_536,
        channel_max: 9,
        idle_time_out: None,
        outgoing_locales: None,
        incoming_locales: None,
        offered_capabilities: None,
        desired_capabilities: None,
        properties: None,
    }
}

fn begin() -> Begin {
    Begin {
        remote_channel: None,
        next_outgoing_id: 0,
        incoming_window: 1_000,
        outgoing_window: 1_000,
        handle_max: u32::MAX,
        offered_capabilities: None,
        desired_capabilities: None,
        properties: None,
    }
}

/// A conversation after the header; each entry is a channel, a performative and a payload.
fn conversation(frames: &[(u16, Performative, &[u8])]) -> Vec<u8> {
    let mut buffer = BytesMut::new();
    for (channel, performative, payload) in frames {
        write_frame(&mut buffer, *channel, |buffer| {
            performative.encode(buffer);
            buffer.extend_from_slice(payload);
        });
    }
    amqp(&buffer)
}

fn after_begin(frames: Vec<(u16, Performative, &[u8])>) -> Vec<u8> {
    let start =
        vec![(0, Performative::Open(Box::new(open())), &b""[..]), (0, Performative::Begin(Box::new(begin())), b"")];
    conversation(&start.into_iter().chain(frames).collect::<Vec<_>>())
}

fn sender(handle: u32, to: &str) -> Performative {
    Performative::Attach(Box::new(Attach { handle, ..Attach::sender("s", Source::at("me"), Target::at(to)) }))
}

fn receiver(handle: u32, from: &str) -> Performative {
    Performative::Attach(Box::new(Attach { handle, ..Attach::receiver("r", Source::at(from), Target::at("me")) }))
}

fn transfer(handle: u32, id: u32, tag: usize, more: bool) -> Performative {
    Performative::Transfer(Transfer {
        handle,
        delivery_id: Some(id),
        delivery_tag: Some(Bytes::from(vec![7; tag])),
        message_format: Some(0),
        more,
        ..Transfer::default()
    })
}

/// Well-formed frames in an order or with values that make no sense.
fn performatives() -> Vec<(String, Vec<u8>)> {
    let open = || Performative::Open(Box::new(open()));
    let begin = || Performative::Begin(Box::new(begin()));
    let huge = "n".repeat(40_000);
    let mut inputs = vec![
        ("open twice".to_owned(), conversation(&[(0, open(), b""), (0, open(), b"")])),
        ("begin before open".to_owned(), conversation(&[(0, begin(), b"")])),
        ("begin twice on a channel".to_owned(), after_begin(vec![(0, begin(), b"")])),
        ("begin on channel 65535".to_owned(), conversation(&[(0, open(), b""), (u16::MAX, begin(), b"")])),
        ("a handle twice".to_owned(), after_begin(vec![(0, sender(0, "a"), b""), (0, sender(0, "b"), b"")])),
        ("the highest handle".to_owned(), after_begin(vec![(0, sender(u32::MAX, "a"), b"")])),
        ("transfer without a link".to_owned(), after_begin(vec![(0, transfer(5, 0, 4, false), b"x")])),
        (
            "transfer without credit".to_owned(),
            after_begin(vec![(0, sender(0, "a"), b""), (0, transfer(0, 0, 4, false), b"x")]),
        ),
        (
            "transfer to $cbs that is noise".to_owned(),
            after_begin(vec![(0, sender(0, "$cbs"), b""), (0, transfer(0, 0, 4, false), &[0xa5; 300])]),
        ),
        (
            "delivery tag of 40 KB".to_owned(),
            after_begin(vec![(0, sender(0, "$cbs"), b""), (0, transfer(0, 0, 40_000, false), b"x")]),
        ),
        (
            "transfer that never ends".to_owned(),
            after_begin(
                std::iter::once((0, sender(0, "$cbs"), &b""[..]))
                    .chain((0..200).map(|_| (0, transfer(0, 0, 4, true), &[7; 2_000][..])))
                    .collect(),
            ),
        ),
        (
            "flow with wild numbers".to_owned(),
            after_begin(vec![
                (0, receiver(0, "a"), b""),
                (
                    0,
                    Performative::Flow(Flow {
                        handle: Some(0),
                        link_credit: Some(u32::MAX),
                        delivery_count: Some(u32::MAX),
                        next_incoming_id: Some(u32::MAX),
                        incoming_window: u32::MAX,
                        ..Flow::default()
                    }),
                    b"",
                ),
            ]),
        ),
        (
            "flow for an unknown handle".to_owned(),
            after_begin(vec![(
                0,
                Performative::Flow(Flow { handle: Some(77), link_credit: Some(1), ..Flow::default() }),
                b"",
            )]),
        ),
        (
            "1,000 links".to_owned(),
            // The highest first: it is refused before an attach of a link that does not exist.
            after_begin((0..1_000).rev().map(|handle| (0, receiver(handle, "a"), &b""[..])).collect()),
        ),
    ];
    for name in [
        "",
        "\0",
        "../../etc/passwd",
        "$management",
        "$cbs/$management",
        "a/Subscriptions//x",
        "A\u{202e}b",
        "events/$DeadLetterQueue/$DeadLetterQueue",
        huge.as_str(),
    ] {
        let shown = if name.len() > 60 { "40,000 letters" } else { name };
        inputs.push((format!("send to `{}`", shown.escape_debug()), after_begin(vec![(0, sender(0, name), b"")])));
        inputs
            .push((format!("receive from `{}`", shown.escape_debug()), after_begin(vec![(0, receiver(0, name), b"")])));
    }
    inputs
}
