//! The AMQP codec and state machine, without a socket.
//!
//! Each function must return on any input, and checks the properties of whatever was decoded. The property tests of `amqp` include this file:
//! they run it on the inputs of their own generators, and `amqp` cannot depend on this crate.

use std::time::{Duration, Instant};

use amqp::codec::{Decoder, RawValue};
use amqp::frame::{Frame, FrameHeader, ProtocolHeader, read_frame, take_frames, write_frame};
use amqp::message::{BatchBuilder, Header, MessageWriter};
use amqp::performative::{Begin, Open, Performative};
use amqp::{
    Attach, CommandError, Config, Connection, ConnectionEvent, DeliveryState, Error, Message, OutgoingDelivery, Role,
    ServerSasl, Source, Target, Value, condition,
};
use bytes::{Bytes, BytesMut};

/// A decoded value has the length that `skip` reports, and survives a round trip.
pub(super) fn types(data: &[u8]) {
    let bytes = Bytes::copy_from_slice(data);
    let mut reader = Decoder::new(&bytes);
    let skipped = Decoder::new(&bytes).skip().map(|value| value.encoded().len());
    if let Ok(value) = Value::decode(&mut reader) {
        assert_eq!(skipped, Ok(bytes.len() - reader.rest().len()));
        let once = encode_value(&value);
        let again = Value::from_bytes(&once).expect("what we write, we read");
        // Bytes, not values: NaN does not equal itself.
        assert_eq!(encode_value(&again), once);
    }
    if let Ok(raw) = RawValue::from_encoded(bytes) {
        let value = raw.get();
        let _ = (value.as_bool(), value.as_uint(), value.as_ulong(), value.as_int(), value.as_long(), value.as_ubyte());
        let _ = (value.as_timestamp(), value.as_uuid(), value.as_bytes(), value.as_text(), value.as_integer());
        let _ = (value.as_described().is_some(), value.as_list().is_some(), value.undescribed().is_null());
        let _ = value.as_map().map(|pairs| (pairs.count(), pairs.get("key").is_some()));
    }
}

fn encode_value(value: &Value) -> Bytes {
    let mut buffer = BytesMut::new();
    value.encode(&mut buffer);
    buffer.freeze()
}

/// A decoded performative survives a round trip; all frames are visited.
pub(super) fn frames(data: &[u8]) {
    let mut bytes = Bytes::copy_from_slice(data);
    while let Ok(Some(frame)) = read_frame(&mut bytes, 1 << 20) {
        if let Frame::Amqp { performative, .. } = frame {
            let once = encode_performative(&performative);
            let again = Performative::decode(&mut Decoder::new(&once)).expect("what we write, we read");
            assert_eq!(encode_performative(&again), once);
        }
    }
    let mut buffer = BytesMut::from(data);
    if let Ok(run) = take_frames(&mut buffer, 1 << 20) {
        assert_eq!(run.len() + buffer.len(), data.len());
        let mut at = 0;
        while at < run.len() {
            at += FrameHeader::parse(&run[at..], 1 << 20).expect("checked").expect("complete").size;
        }
        assert_eq!(at, run.len());
    }
}

fn encode_performative(performative: &Performative) -> Bytes {
    let mut buffer = BytesMut::new();
    performative.encode(&mut buffer);
    buffer.freeze()
}

/// A decoded message keeps its bare part under a new head, and survives a batch.
pub(super) fn messages(data: &[u8]) {
    let bytes = Bytes::copy_from_slice(data);
    let Ok(message) = Message::parse(bytes.clone()) else { return };
    let _ = (message.header().is_ok(), message.properties().is_ok(), message.value().is_some(), message.has_header());
    let _ = (message.partition_key(), message.scheduled_enqueue_time(), message.application_property("key").is_some());
    let _ =
        (message.delivery_annotations().count(), message.footer().count(), message.application_properties().count());
    message.data().for_each(|inner| drop(Message::parse(inner)));
    let mut head = BytesMut::new();
    MessageWriter::new(&mut head).header(&Header::default()).message_annotations_over(
        message.message_annotations(),
        &["x-opt-sequence-number"],
        |map| {
            map.put_long("x-opt-sequence-number", 1);
        },
    );
    head.extend_from_slice(&message.after_annotations());
    let sent = Message::parse(head.freeze()).expect("a new head before a tail that was understood");
    assert_eq!(sent.bare(), message.bare());
    assert_eq!(sent.data().count(), message.data().count());
    let parts = [message.properties_section(), message.body_and_footer()].concat();
    assert!(Message::parse(parts.into()).is_ok());
    let mut batch = BatchBuilder::new(usize::MAX);
    if batch.add(&bytes).is_ok() {
        let envelope = Message::parse(batch.finish()).expect("a batch is a message");
        assert_eq!(envelope.data().collect::<Vec<_>>(), [bytes]);
    }
}

/// A server under arbitrary input: never panics, bounds its output, and does not depend on chunk boundaries.
///
/// The first byte chooses: whether a good handshake comes first, whether the rest is raw or cut into well-formed
/// frames, and how the stream is chunked.
pub(super) fn server(data: &[u8]) {
    let Some((&mode, rest)) = data.split_first() else { return };
    let mut stream = if mode & 1 != 0 { handshake("b", "a") } else { Vec::new() };
    if mode & 2 != 0 {
        wrap_in_frames(rest, &mut stream)
    } else {
        stream.extend_from_slice(rest)
    }
    let chunk = usize::from(mode >> 2) + 1;
    serve(&stream, chunk);
    assert_eq!(collect_events(&stream, stream.len().max(1)), collect_events(&stream, chunk), "chunks must not matter");
}

/// With an owner that uses all commands.
fn serve(stream: &[u8], chunk: usize) {
    let start = Instant::now();
    let mut server = Connection::server(config(), ServerSasl::default(), start);
    let mut input = BytesMut::new();
    let mut output = 0;
    for (index, piece) in stream.chunks(chunk).enumerate() {
        let now = start + Duration::from_millis(index as u64);
        input.extend_from_slice(piece);
        server.feed(&mut input, now);
        assert!(input.len() <= config().max_frame_size as usize, "nothing complete is left unread");
        while let Some(event) = server.poll_event() {
            let _ = react(&mut server, event);
        }
        server.on_tick(now);
        output += server.take_output().len();
        assert_eq!(server.output_len(), 0);
    }
    assert!(output <= 4096 + stream.len() * 256, "{output} bytes out for {} in", stream.len());
    server.on_tick(start + Duration::from_secs(3600));
    assert!(server.is_closed());
}

/// Without an owner: all events and all output.
fn collect_events(stream: &[u8], chunk: usize) -> (Vec<String>, Vec<u8>) {
    let start = Instant::now();
    let mut server = Connection::server(config(), ServerSasl::default(), start);
    let mut input = BytesMut::new();
    let (mut events, mut output) = (Vec::new(), Vec::new());
    for piece in stream.chunks(chunk) {
        input.extend_from_slice(piece);
        server.feed(&mut input, start);
        events.extend(std::iter::from_fn(|| server.poll_event()).map(|event| format!("{event:?}")));
        output.extend_from_slice(&server.take_output());
    }
    (events, output)
}

fn config() -> Config {
    Config {
        max_frame_size: 4096,
        channel_max: 7,
        handle_max: 7,
        max_links: 9,
        incoming_window: 16,
        max_message_size: 2000,
        max_incomplete_bytes: 6000,
        ..Config::default()
    }
}

fn react(server: &mut Connection, event: ConnectionEvent) -> Result<(), CommandError> {
    match event {
        ConnectionEvent::AttachRequested { link, attach, .. } if attach.name.len() % 5 == 4 => {
            server.refuse_attach(link, Error::new(condition::NOT_FOUND, "no"))
        }
        // Held, perhaps for ever.
        ConnectionEvent::AttachRequested { attach, .. } if attach.name.len() % 5 == 3 => Ok(()),
        ConnectionEvent::AttachRequested { link, attach, .. } => {
            server.accept_attach(link, attach.reply())?;
            if attach.role == Role::Sender { server.keep_credit(link, 5) } else { Ok(()) }
        }
        ConnectionEvent::Credit { link, credit, drain } => {
            for n in 0..credit.min(2) {
                server.transfer(
                    link,
                    OutgoingDelivery { tag: &[1], token: n.into(), ..OutgoingDelivery::default() },
                    &[b"ab", b"c"],
                )?;
            }
            if drain { server.drained(link) } else { Ok(()) }
        }
        ConnectionEvent::Delivery(delivery) if !delivery.settled => {
            server.dispose(delivery.link, delivery.id, delivery.id, true, Some(DeliveryState::Accepted))
        }
        ConnectionEvent::Disposition(received) if !received.settled => {
            received.deliveries.iter().try_for_each(|delivery| {
                server.dispose(received.link, delivery.id, delivery.id, true, received.state.clone())
            })
        }
        ConnectionEvent::SessionBegun { session, .. } => {
            server.attach(session, Attach::receiver("back", Source::at("a"), Target::at("b"))).map(drop)
        }
        ConnectionEvent::Attached { link, .. } => {
            server.set_credit(link, 3)?;
            server.drain(link)
        }
        ConnectionEvent::Drained { link } => server.detach(link, None),
        _ => Ok(()),
    }
}

/// Pieces of the input, each led by channel and length, as frames that are well formed outside.
fn wrap_in_frames(mut rest: &[u8], stream: &mut Vec<u8>) {
    while let Some((&[channel, length], body)) = rest.split_first_chunk::<2>() {
        let (body, later) = body.split_at(body.len().min(length.into()));
        let mut buffer = BytesMut::new();
        write_frame(&mut buffer, channel.into(), |buffer| buffer.extend_from_slice(body));
        stream.extend_from_slice(&buffer);
        rest = later;
    }
}

/// Header, open, and on channel 0 an AMQP session with a link each way: one that sends to `target`, one that receives from `source`.
pub(super) fn handshake(target: &str, source: &str) -> Vec<u8> {
    let mut buffer = BytesMut::from(&ProtocolHeader::Amqp.bytes()[..]);
    let open = Open {
        container_id: "fuzz".into(),
        hostname: None,
        max_frame_size: 600,
        channel_max: 9,
        idle_time_out: Some(10_000),
        outgoing_locales: None,
        incoming_locales: None,
        offered_capabilities: None,
        desired_capabilities: None,
        properties: None,
    };
    let begin = Begin {
        remote_channel: None,
        next_outgoing_id: u32::MAX,
        incoming_window: 100,
        outgoing_window: 100,
        handle_max: 9,
        offered_capabilities: None,
        desired_capabilities: None,
        properties: None,
    };
    let sender = Attach::sender("s", Source::at("a"), Target::at(target));
    let receiver = Attach { handle: 1, ..Attach::receiver("r", Source::at(source), Target::at("b")) };
    write_frame(&mut buffer, 0, |buffer| open.encode(buffer));
    write_frame(&mut buffer, 0, |buffer| begin.encode(buffer));
    write_frame(&mut buffer, 0, |buffer| sender.encode(buffer));
    write_frame(&mut buffer, 0, |buffer| receiver.encode(buffer));
    buffer.to_vec()
}
