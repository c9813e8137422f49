//! Bytes from the Python SDK's encoder (`vectors/pyamqp.py`), decoded by ours.

use amqp::codec::RawValue;
use amqp::frame::{Frame, read_frame};
use amqp::message::{BATCH_FORMAT, BodyKind, Header, MessageId, Properties};
use amqp::performative::{
    Attach, Begin, Close, Detach, Disposition, End, Flow, Modified, Open, Performative, ReceiverSettleMode,
    SenderSettleMode, Transfer,
};
use amqp::sasl::{SaslCode, SaslFrame};
use amqp::{Array, DeliveryState, ElementType, Error, Map, Message, Role, Source, Symbol, Target, Value, condition};
use bytes::{Bytes, BytesMut};
use uuid::Uuid;

const VECTORS: &str = include_str!("../vectors/pyamqp.txt");
const ID: Uuid = Uuid::from_u128(0x00112233_4455_6677_8899_aabbccddeeff);

fn vectors(kind: &str) -> impl Iterator<Item = (&'static str, Bytes)> {
    VECTORS.lines().filter_map(move |line| {
        let mut words = line.split(' ');
        let (found, name, hex) = (words.next()?, words.next()?, words.next()?);
        (found == kind).then(|| (name, unhex(hex)))
    })
}

fn vector(kind: &str, name: &str) -> Bytes {
    vectors(kind).find(|(found, _)| *found == name).unwrap_or_else(|| panic!("no {kind} {name}")).1
}

fn unhex(hex: &str) -> Bytes {
    let digits = |at: usize| u8::from_str_radix(&hex[at..at + 2], 16).expect("hex");
    (0..hex.len()).step_by(2).map(digits).collect()
}

fn expected_value(name: &str) -> Value {
    match name {
        "null" => Value::Null,
        "true" => Value::Boolean(true),
        "false" => Value::Boolean(false),
        "ubyte" => Value::Ubyte(200),
        "ushort" => Value::Ushort(60000),
        "byte" => Value::Byte(-5),
        "short" => Value::Short(-3000),
        "uint0" => Value::Uint(0),
        "uint-small" => Value::Uint(255),
        "uint" => Value::Uint(4_000_000_000),
        "ulong0" => Value::Ulong(0),
        "ulong-small" => Value::Ulong(7),
        "ulong" => Value::Ulong((1 << 63) + 1),
        "int-small" => Value::Int(-100),
        "int" => Value::Int(-100_000),
        "long-small" => Value::Long(100),
        "long" => Value::Long(-(1 << 40)),
        "float" => Value::Float(1.5),
        "double" => Value::Double(-2.25),
        "timestamp" => Value::Timestamp(1_700_000_000_123),
        "uuid" => Value::Uuid(ID),
        "binary" => Value::Binary(Bytes::from_static(&[0, 1, 255])),
        "binary-large" => Value::Binary("x".repeat(300).into()),
        "string" => "grüße".into(),
        "string-large" => "y".repeat(300).into(),
        "symbol" => Value::symbol("amqp:symbol"),
        "decimal128" => Value::Decimal128(0x303c_0000_0000_0000_0000_0000_0000_013a_u128.to_be_bytes()),
        "list" => Value::List(vec![Value::Uint(1), "two".into(), Value::Null]),
        "list0" => Value::List(vec![]),
        "list-large" => Value::List(vec![Value::Binary("z".repeat(200).into()); 2]),
        "map" => Map::new().with("key", 5i64).with(Symbol::from("sym"), true).into(),
        "array-uuid" => Array::uuids([ID, ID]).into(),
        "array-long" => Array::longs([1, -1, 1 << 40]).into(),
        "array-string" => Array::strings(["a".into(), "bc".into()]).into(),
        "array-empty" => Array::new(ElementType::Null, vec![]).unwrap().into(),
        "described" => Value::described(0x0013_7000_000c, "session".into()),
        other => panic!("unknown vector {other}"),
    }
}

#[test]
fn values_are_read_with_their_exact_type() {
    let mut seen = 0;
    for (name, bytes) in vectors("value") {
        let value = Value::from_bytes(&bytes).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(value, expected_value(name), "{name}");
        let mut again = BytesMut::new();
        value.encode(&mut again);
        assert_eq!(Value::from_bytes(&again.freeze()), Ok(value), "{name}");
        seen += 1;
    }
    assert!(seen > 30);
}

#[test]
fn values_of_one_encoding_are_written_as_python_writes_them() {
    // Python writes booleans with a byte of their own, and arrays in the short form: both are as good.
    for (name, bytes) in vectors("value") {
        if name.starts_with("array") || ["true", "false", "map"].contains(&name) {
            continue;
        }
        let mut buffer = BytesMut::new();
        expected_value(name).encode(&mut buffer);
        assert_eq!(buffer.freeze(), bytes, "{name}");
    }
}

fn frame(name: &str) -> Frame {
    let mut bytes = vector("frame", name);
    let frame = read_frame(&mut bytes, u32::MAX).unwrap_or_else(|error| panic!("{name}: {error:?}"));
    assert!(bytes.is_empty());
    frame.expect("complete")
}

fn performative(name: &str) -> (Performative, Bytes) {
    match frame(name) {
        Frame::Amqp { channel: 0, performative, payload } => (performative, payload),
        other => panic!("{name}: {other:?}"),
    }
}

fn assert_performative(name: &str, expected: &Performative) {
    assert_eq!(&performative(name).0, expected, "{name}");
}

#[test]
fn connection_and_session_frames_are_read() {
    assert_eq!(frame("empty"), Frame::Empty);
    let open = Open {
        container_id: "container".into(),
        hostname: Some("host".into()),
        max_frame_size: 1 << 20,
        channel_max: u16::MAX,
        idle_time_out: Some(60_000),
        outgoing_locales: None,
        incoming_locales: None,
        offered_capabilities: None,
        desired_capabilities: None,
        properties: Some(Map::new().with(Symbol::from("product"), "py")),
    };
    assert_performative("open", &Performative::Open(Box::new(open)));
    let begin = Begin {
        remote_channel: None,
        next_outgoing_id: 0,
        incoming_window: 5000,
        outgoing_window: 5000,
        handle_max: u32::MAX,
        offered_capabilities: None,
        desired_capabilities: None,
        properties: None,
    };
    assert_performative("begin", &Performative::Begin(Box::new(begin)));
    assert_performative("end", &Performative::End(End { error: None }));
    let forced = Some(Box::new(Error::new(condition::CONNECTION_FORCED, "bye")));
    assert_performative("close", &Performative::Close(Close { error: forced }));
}

#[test]
fn attaches_keep_address_and_filter_as_python_wrote_them() {
    let source = Source {
        expiry_policy: Some("session-end".into()),
        ..Source::at("amqps://host/queue").with_filter("com.microsoft:session-filter", RawValue::string("session"))
    };
    let attach = Attach {
        handle: 3,
        snd_settle_mode: SenderSettleMode::Unsettled,
        rcv_settle_mode: ReceiverSettleMode::Second,
        max_message_size: Some(1 << 20),
        properties: Some(Map::new().with(Symbol::from("com.microsoft:timeout"), 65_000u32)),
        ..Attach::receiver("link", source, Target::at("target"))
    };
    assert_performative("attach-session-receiver", &Performative::Attach(Box::new(attach)));
    let (Performative::Attach(next), _) = performative("attach-next-session") else { panic!("not an attach") };
    let filter = next.source.as_ref().unwrap().filter.as_ref().unwrap();
    assert!(filter.get("com.microsoft:session-filter").unwrap().get().is_null());
}

#[test]
fn transfers_flows_and_dispositions_are_read() {
    let flow = Flow {
        next_incoming_id: Some(7),
        incoming_window: 5000,
        next_outgoing_id: 9,
        outgoing_window: 5000,
        handle: Some(2),
        delivery_count: Some(4),
        link_credit: Some(100),
        drain: true,
        ..Flow::default()
    };
    assert_performative("flow", &Performative::Flow(flow));
    let transfer = Transfer {
        handle: 1,
        delivery_id: Some(300),
        delivery_tag: Some(Bytes::from_static(&[1, 2, 3, 4])),
        message_format: Some(0),
        settled: Some(false),
        more: true,
        ..Transfer::default()
    };
    assert_eq!(performative("transfer"), (Performative::Transfer(transfer), Bytes::from_static(b"payload")));
    let said = |first, last, settled, state| {
        let state = Some(state);
        Performative::Disposition(Disposition { role: Role::Receiver, first, last, settled, state, batchable: false })
    };
    assert_performative("disposition-accepted", &said(5, Some(9), false, DeliveryState::Accepted));
    assert_performative("disposition-released", &said(5, None, true, DeliveryState::Released));
    let modified = Modified {
        delivery_failed: true,
        undeliverable_here: false,
        message_annotations: Some(Map::new().with(Symbol::from("why"), "busy")),
    };
    assert_performative("disposition-modified", &said(5, Some(5), true, DeliveryState::Modified(Box::new(modified))));
    let mut error = Error::new(condition::DEAD_LETTER, "text");
    error.info.insert(Symbol::from("DeadLetterReason"), "reason");
    let (Performative::Disposition(rejected), _) = performative("disposition-rejected") else { panic!() };
    let Some(DeliveryState::Rejected(Some(found))) = rejected.state else { panic!("{rejected:?}") };
    assert_eq!((found.condition, found.description), (error.condition, error.description));
    assert_eq!(found.info.get("DeadLetterReason"), Some(&"reason".into()));
    let idle = Some(Box::new(Error::new(condition::DETACH_FORCED, "idle")));
    assert_performative("detach", &Performative::Detach(Detach { handle: 4, closed: true, error: idle }));
}

#[test]
fn sasl_frames_are_read() {
    let init = SaslFrame::Init {
        mechanism: "ANONYMOUS".into(),
        initial_response: Some(Bytes::from_static(b"hello")),
        hostname: Some("host".into()),
    };
    assert_eq!(frame("sasl-init"), Frame::Sasl(init));
    let offered = SaslFrame::Mechanisms(vec!["ANONYMOUS".into(), "MSSBCBS".into()]);
    assert_eq!(frame("sasl-mechanisms"), Frame::Sasl(offered));
    assert_eq!(frame("sasl-outcome"), Frame::Sasl(SaslFrame::Outcome { code: SaslCode::Ok, additional_data: None }));
}

fn message(name: &str) -> Message {
    Message::parse(vector("message", name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

#[test]
fn a_full_message_is_read_section_by_section() {
    let message = message("full");
    let header = Header {
        durable: Some(true),
        priority: Some(4),
        ttl: Some(60_000),
        first_acquirer: Some(false),
        delivery_count: 2,
    };
    assert_eq!(message.header(), Ok(header));
    assert_eq!(message.delivery_annotations().get("x-opt-lock-token").unwrap().as_uuid(), Some(ID));
    assert_eq!(message.partition_key(), Some("session"));
    assert_eq!(message.scheduled_enqueue_time(), Some(1_700_000_000_000));
    let properties = Properties {
        message_id: Some("message".into()),
        user_id: Some(b"user"),
        to: Some("to"),
        subject: Some("subject"),
        reply_to: Some("reply"),
        correlation_id: Some(MessageId::Ulong(77)),
        content_type: Some("text/plain"),
        content_encoding: Some("gzip"),
        absolute_expiry_time: Some(1_800_000_000_000),
        creation_time: Some(1_700_000_000_000),
        group_id: Some("session"),
        group_sequence: Some(3),
        reply_to_group_id: Some("reply-session"),
    };
    assert_eq!(message.properties(), Ok(properties));
    assert_eq!(message.application_property("text").unwrap().as_str(), Some("value"));
    assert_eq!(message.application_property("number").unwrap().as_long(), Some(1 << 40));
    assert_eq!(message.application_property("flag").unwrap().as_bool(), Some(true));
    assert_eq!(message.data().collect::<Vec<_>>(), [&b"one"[..], b"two"]);
    assert_eq!(message.footer().get("crc").unwrap().as_long(), Some(9));
}

#[test]
fn message_ids_keep_their_type_and_bodies_their_kind() {
    let uuid = message("uuid-id");
    assert_eq!(uuid.properties().unwrap().message_id, Some(MessageId::Uuid(ID)));
    assert_eq!(uuid.data().collect::<Vec<_>>(), [&b""[..]]);
    let binary = message("binary-id");
    assert_eq!(binary.properties().unwrap().message_id, Some(MessageId::Binary(vec![1, 2].into())));
    assert_eq!(binary.value().unwrap().as_map().unwrap().get("a").unwrap().as_int(), Some(1));
    assert_eq!(message("sequence").body(), BodyKind::Sequence);
}

#[test]
fn a_batch_is_taken_apart_into_its_messages() {
    assert_eq!(BATCH_FORMAT, 0x8001_3700);
    let batch = message("batch");
    assert_eq!(batch.partition_key(), Some("s"));
    let inner: Vec<_> = batch.data().map(|bytes| Message::parse(bytes).unwrap()).collect();
    assert_eq!(inner.len(), 3);
    for message in inner {
        assert_eq!(message.properties().unwrap().group_id, Some("s"));
        assert_eq!(message.data().collect::<Vec<_>>(), [&b"body"[..]]);
    }
}
