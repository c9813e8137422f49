//! Time per message of the hot paths: `cargo run --release -p amqp --example codec_speed`.
//!
//! Each figure is the best of many rounds, because other work on the machine only adds time; rounds are shorter than a slice
//! of the scheduler, so that the best one is not interrupted. The last line is JSON.

use std::hint::black_box;
use std::time::{Duration, Instant};

use amqp::frame::{FrameHeader, write_frame};
use amqp::message::{Header, MessageWriter, Properties, annotation};
use amqp::performative::{Disposition, Performative, Transfer};
use amqp::{
    Attach, ClientSasl, Config, Connection, ConnectionEvent, DeliveryState, LinkId, Message, OutgoingDelivery, Role,
    ServerSasl, Source, Target, codec::Decoder, codec::encode,
};
use bytes::{Bytes, BytesMut};

const ROUNDS: usize = 300;
const MESSAGES: u32 = 1_000;

fn main() {
    let body = vec![7; 1024];
    let message = encode_message(&mut BytesMut::new(), &body);
    let mut figures = Vec::new();
    let mut buffer = BytesMut::with_capacity(2048);
    figures.push(("encode_message_1k", each(MESSAGES, || drop(black_box(encode_message(&mut buffer, &body))))));
    figures.push(("decode_ids_and_bounds", each(MESSAGES, || decode_ids(black_box(message.clone())))));
    figures
        .push(("bounds_only", each(MESSAGES, || drop(black_box(Message::parse(black_box(message.clone())).unwrap())))));
    let stored = Message::parse(message.clone()).unwrap();
    figures.push(("all_properties", each(MESSAGES, || drop(black_box(stored.properties().unwrap())))));
    figures.push(("new_head", each(MESSAGES, || new_head(&mut buffer, &stored))));
    figures.extend(performatives());
    figures.extend(engine(&message));
    for (name, time) in &figures {
        println!("{name:24} {:8.1} ns", time);
    }
    let json: Vec<_> = figures.iter().map(|(name, time)| format!("\"{name}_ns\":{time:.1}")).collect();
    println!("{{\"bench\":\"amqp\",{}}}", json.join(","));
}

/// Nanoseconds per call, at best.
fn each(times: u32, mut work: impl FnMut()) -> f64 {
    best(times, || {
        let start = Instant::now();
        (0..times).for_each(|_| work());
        start.elapsed()
    })
}

fn best(times: u32, mut round: impl FnMut() -> Duration) -> f64 {
    let best = (0..ROUNDS).map(|_| round()).min().expect("some rounds");
    best.as_nanos() as f64 / f64::from(times)
}

/// As our publisher writes it: ids, session, partition key, a few application properties, 1 KiB.
fn encode_message(buffer: &mut BytesMut, body: &[u8]) -> Bytes {
    buffer.reserve(body.len() + 512);
    MessageWriter::new(buffer)
        .message_annotations(|map| {
            map.put_string(annotation::PARTITION_KEY, "order-000000001");
        })
        .properties(&Properties {
            message_id: Some("0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef".into()),
            subject: Some("OrderPlaced"),
            content_type: Some("application/bson"),
            group_id: Some("order-000000001"),
            ..Properties::default()
        })
        .application_properties(|map| {
            encode::string(map.string("operation"), "insert");
            encode::string(map.string("namespace"), "shop.events");
            encode::long(map.string("sequence"), 123_456);
            encode::long(map.string("term"), 7);
        })
        .data(body);
    buffer.split().freeze()
}

fn decode_ids(bytes: Bytes) {
    let message = Message::parse(bytes).unwrap();
    black_box((message.message_id().unwrap(), message.group_id().unwrap(), message.partition_key()));
    black_box(message.scheduled_enqueue_time());
}

/// What a broker puts before a stored message.
fn new_head(buffer: &mut BytesMut, stored: &Message) {
    buffer.clear();
    MessageWriter::new(buffer)
        .header(&Header { durable: Some(true), ttl: Some(60_000), delivery_count: 1, ..Header::default() })
        .message_annotations_over(
            stored.message_annotations(),
            &[annotation::SEQUENCE_NUMBER, annotation::ENQUEUED_TIME, annotation::LOCKED_UNTIL],
            |map| {
                map.put_long(annotation::SEQUENCE_NUMBER, 123_456_789)
                    .put_timestamp(annotation::ENQUEUED_TIME, 1_700_000_000_000)
                    .put_timestamp(annotation::LOCKED_UNTIL, 1_700_000_060_000);
            },
        );
    black_box(&buffer);
}

fn performatives() -> Vec<(&'static str, f64)> {
    let transfer = Performative::Transfer(Transfer {
        handle: 1,
        delivery_id: Some(70_000),
        delivery_tag: Some(Bytes::from_static(&[7; 16])),
        message_format: Some(0),
        settled: Some(false),
        ..Transfer::default()
    });
    let disposition = Performative::Disposition(Disposition {
        role: Role::Receiver,
        first: 70_000,
        last: Some(70_999),
        settled: true,
        state: Some(DeliveryState::Accepted),
        batchable: false,
    });
    let mut figures = Vec::new();
    for (encode, decode, performative) in
        [("encode_transfer", "decode_transfer", transfer), ("encode_disposition", "decode_disposition", disposition)]
    {
        let mut buffer = BytesMut::with_capacity(256);
        let time = each(MESSAGES, || {
            buffer.clear();
            write_frame(&mut buffer, 0, |buffer| black_box(&performative).encode(buffer));
        });
        figures.push((encode, time));
        let bytes = buffer.clone().freeze();
        let time = each(MESSAGES, || {
            let head = FrameHeader::parse(black_box(&bytes), 65_536).unwrap().unwrap();
            let body = bytes.slice(head.body..);
            drop(black_box(Performative::decode(&mut Decoder::new(&body)).unwrap()));
        });
        figures.push((decode, time));
    }
    figures
}

/// Client and server in one process: one thousand messages in flight, all accepted.
fn engine(message: &Bytes) -> Vec<(&'static str, f64)> {
    let now = Instant::now();
    let config = Config { incoming_window: 100_000, ..Config::default() };
    let mut client = Connection::client(config.clone(), ClientSasl::None, now);
    let mut server = Connection::server(config, ServerSasl::default(), now);
    let session = client.begin_session().unwrap();
    let sender = client.attach(session, Attach::sender("s", Source::at("a"), Target::at("q"))).unwrap();
    let mut link = None;
    while client.credit(sender) == 0 {
        carry(&mut client, &mut server, now, &mut |server, event| accept(server, event, &mut link));
        carry(&mut server, &mut client, now, &mut |_, _| ());
    }
    let (mut sending, mut receiving, mut settling) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let start = Instant::now();
        for token in 0..1000 {
            client
                .transfer(sender, OutgoingDelivery { tag: &[7; 16], token, ..OutgoingDelivery::default() }, &[message])
                .unwrap();
        }
        let mut wire = BytesMut::from(&client.take_output()[..]);
        sending.push(start.elapsed());
        let start = Instant::now();
        server.feed(&mut wire, now);
        while let Some(event) = server.poll_event() {
            if let ConnectionEvent::Delivery(delivery) = event {
                let accepted = Some(DeliveryState::Accepted);
                server.dispose(delivery.link, delivery.id, delivery.id, true, accepted).unwrap();
            }
        }
        let mut wire = BytesMut::from(&server.take_output()[..]);
        receiving.push(start.elapsed());
        let start = Instant::now();
        client.feed(&mut wire, now);
        while let Some(event) = client.poll_event() {
            black_box(event);
        }
        settling.push(start.elapsed());
    }
    let per_message = |times: Vec<Duration>| times.into_iter().min().unwrap().as_nanos() as f64 / 1000.0;
    vec![
        ("engine_send_1k", per_message(sending)),
        ("engine_receive_accept_1k", per_message(receiving)),
        ("engine_hear_settlement", per_message(settling)),
    ]
}

fn accept(server: &mut Connection, event: ConnectionEvent, accepted: &mut Option<LinkId>) {
    if let ConnectionEvent::AttachRequested { link, attach, .. } = event {
        server.accept_attach(link, attach.reply()).unwrap();
        server.keep_credit(link, 5_000).unwrap();
        *accepted = Some(link);
    }
}

fn carry(
    from: &mut Connection,
    to: &mut Connection,
    now: Instant,
    react: &mut impl FnMut(&mut Connection, ConnectionEvent),
) {
    to.feed(&mut BytesMut::from(&from.take_output()[..]), now);
    while let Some(event) = to.poll_event() {
        react(to, event);
    }
}
