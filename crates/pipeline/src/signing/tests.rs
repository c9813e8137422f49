use std::sync::Arc;
use std::time::Duration;

use amqp::Value;
use mongodb::bson::{Bson, RawDocumentBuf, Timestamp, doc};
use proptest::prelude::*;

use super::*;
use crate::event::{AggregateId, ChangeEvent, Epoch, Namespace, Operation, ResumeToken, Term};
use crate::publish::message::{BodyLocation, Encoder, EventMessageId};
use crate::publish::{BodyFormat, SessionMapping};

/// A configured key: its id, and 32 times this byte.
fn key(id: &str, byte: u8) -> String {
    format!("{id}:{}", BASE64.encode([byte; 32]))
}

fn keys(text: &str) -> MessageKeys {
    MessageKeys::parse(text).unwrap()
}

fn event() -> ChangeEvent {
    ChangeEvent {
        token: ResumeToken::try_from(doc! { "_data": "8211" }).unwrap(),
        operation: Operation::Insert,
        namespace: Arc::new(Namespace::new("shop", "events")),
        key: Bson::Int64(9),
        aggregate: AggregateId::new("order-7".into()),
        event_type: Some("OrderPlaced".into()),
        sequence: Some(3),
        cluster_time: Some(Timestamp { time: 1_700_000_000, increment: 1 }),
        wall_time: None,
        document: RawDocumentBuf::try_from(&doc! { "type": "OrderPlaced", "price": 7_i64 }).unwrap(),
    }
}

fn encode_with(keys: Option<&MessageKeys>, content: BodyLocation) -> Message {
    let encoder = Encoder::new(BodyFormat::Bson, SessionMapping::Aggregate, Epoch::FIRST, Term::new(1));
    let mut encoder = encoder.signing(keys.cloned().map(Arc::new));
    let event = event();
    let id = EventMessageId::for_event(&event, None);
    let bytes = encoder.encode(&event, event.aggregate.as_ref().unwrap(), &id, "order-7", content);
    Message::parse(bytes).unwrap()
}

/// One field of a message, and the value it is changed to.
#[derive(Clone, Debug)]
enum Change {
    MessageId(String),
    Session(String),
    Subject(Option<String>),
    ContentType(Option<String>),
    /// `None` removes the property.
    Property(&'static str, Option<Value>),
    Body(Vec<Vec<u8>>),
}

const SIGNED: [&str; 11] = [
    property::FORMAT,
    property::OPERATION,
    property::NAMESPACE,
    property::AGGREGATE,
    property::KEY,
    property::TOKEN,
    property::EPOCH,
    property::SEQUENCE,
    property::TERM,
    property::COMMITTED,
    property::OVERSIZE,
];

fn rewrite(message: &Message, change: &Change) -> Message {
    let mut properties = message.properties().unwrap();
    let (mut body, mut left_out, mut added) = (message.data().map(|data| data.to_vec()).collect(), vec![], None);
    match change {
        Change::MessageId(id) => properties.message_id = Some(id.as_str().into()),
        Change::Session(id) => properties.group_id = Some(id),
        Change::Subject(subject) => properties.subject = subject.as_deref(),
        Change::ContentType(kind) => properties.content_type = kind.as_deref(),
        Change::Property(name, value) => {
            left_out.push(*name);
            added = value.clone().map(|value| (*name, value));
        }
        Change::Body(sections) => body = sections.clone(),
    }
    let mut buffer = BytesMut::new();
    let mut writer = MessageWriter::new(&mut buffer);
    writer.properties(&properties).application_properties_over(message.application_properties(), &left_out, |map| {
        if let Some((name, value)) = &added {
            value.encode(map.string(name));
        }
    });
    for section in &body {
        writer.data(section);
    }
    Message::parse(buffer.freeze()).unwrap()
}

/// What a consumer reads of the message: two messages with the same fields mean the same.
fn fields(message: &Message) -> impl PartialEq + std::fmt::Debug + use<> {
    let properties = message.properties().unwrap();
    let text = |text: Option<&str>| text.map(str::to_owned);
    let by_name = |name: &&str| {
        let value = string_property(message, name)?;
        // An integer of any width is the same integer.
        value.as_integer().map(Value::Long).or_else(|| value.to_value().ok())
    };
    (
        properties.message_id.map(|id| id.to_string()),
        [text(properties.group_id), text(properties.subject), text(properties.content_type)],
        SIGNED.iter().map(by_name).collect::<Vec<_>>(),
        message.data().flatten().collect::<Vec<u8>>(),
    )
}

fn value() -> impl Strategy<Value = Value> {
    prop_oneof![
        ".{0,12}".prop_map(Value::String),
        any::<i64>().prop_map(Value::Long),
        any::<i64>().prop_map(Value::Timestamp),
        proptest::collection::vec(any::<u8>(), 0..12).prop_map(|bytes| Value::Binary(bytes.into())),
    ]
}

fn change() -> impl Strategy<Value = Change> {
    let bytes = || proptest::collection::vec(any::<u8>(), 0..40);
    prop_oneof![
        "[a-z0-9]{1,9}".prop_map(Change::MessageId),
        "[a-z0-9]{1,9}".prop_map(Change::Session),
        proptest::option::of("[a-zA-Z]{0,9}").prop_map(Change::Subject),
        proptest::option::of("[a-z/]{0,9}").prop_map(Change::ContentType),
        (proptest::sample::select(SIGNED.to_vec()), proptest::option::of(value()))
            .prop_map(|(name, value)| Change::Property(name, value)),
        proptest::collection::vec(bytes(), 0..3).prop_map(Change::Body),
    ]
}

proptest! {
    #[test]
    fn a_change_of_any_signed_field_breaks_the_signature(change in change()) {
        let keys = keys(&key("a", 1));
        let signed = encode_with(Some(&keys), BodyLocation::Inline);
        let changed = rewrite(&signed, &change);
        prop_assume!(fields(&changed) != fields(&signed));
        prop_assert_eq!(keys.verify(&changed), Err(SignatureProblem::Invalid));
    }
}

#[test]
fn every_envelope_property_is_signed() {
    let keys = keys(&key("a", 1));
    for content in [BodyLocation::Inline, BodyLocation::ClaimCheck] {
        let signed = encode_with(Some(&keys), content);
        let names = signed.application_properties().filter_map(|(name, _)| name.as_str());
        let ours: Vec<_> =
            names.filter(|name| name.starts_with("headwater-") && *name != property::SIGNATURE).collect();
        assert!(ours.len() >= 10, "{ours:?}");
        for name in ours {
            let name: &'static str = name.to_owned().leak();
            for value in [None, Some(Value::String("forged".into()))] {
                let changed = rewrite(&signed, &Change::Property(name, value));
                assert_eq!(keys.verify(&changed), Err(SignatureProblem::Invalid), "{name}");
            }
        }
        let added = rewrite(&signed, &Change::Property(property::MARKER, Some(Value::String("forged".into()))));
        assert_eq!(keys.verify(&added), Err(SignatureProblem::Invalid));
    }
}

#[test]
fn a_signature_does_not_depend_on_the_encoding() {
    let keys = keys(&key("a", 1));
    let signed = encode_with(Some(&keys), BodyLocation::Inline);
    assert_eq!(keys.verify(&signed), Ok(()));
    // Another width of the integer, at another place in the map; the body in two sections; properties of others.
    let body = signed.data().next().unwrap();
    let (head, tail) = body.split_at(5);
    for change in [
        Change::Property(property::FORMAT, Some(Value::Long(1))),
        Change::Body(vec![head.to_vec(), tail.to_vec()]),
        Change::Property("DeadLetterReason", Some(Value::String("MaxDeliveryCountExceeded".into()))),
        Change::Property(property::DIAGNOSTIC_ID, Some(Value::String("theirs".into()))),
    ] {
        assert_eq!(keys.verify(&rewrite(&signed, &change)), Ok(()), "{change:?}");
    }
}

#[test]
fn a_marker_of_a_signed_message_is_signed() {
    let keys = keys(&key("a", 1));
    let refused = encode_with(Some(&keys), BodyLocation::ClaimCheck);
    let encoder = Encoder::new(BodyFormat::Bson, SessionMapping::Aggregate, Epoch::FIRST, Term::new(1));
    let marker = encoder.signing(Some(Arc::new(keys.clone()))).rejected_marker(&refused).unwrap();
    let marker = Message::parse(marker).unwrap();
    assert!(marker.application_property(property::MARKER).is_some());
    assert_eq!(keys.verify(&marker), Ok(()));
    let signatures = marker.application_properties().filter(|(name, _)| name.as_str() == Some(property::SIGNATURE));
    assert_eq!(signatures.count(), 1);
}

#[test]
fn without_keys_no_message_has_a_signature_or_a_hash() {
    for content in [BodyLocation::Inline, BodyLocation::ClaimCheck] {
        let message = encode_with(None, content);
        assert!(message.application_property(property::SIGNATURE).is_none());
        assert!(message.application_property(property::OVERSIZE_HASH).is_none());
        assert!(is_body_of(&message, b"any"));
    }
}

#[test]
fn the_hash_of_an_oversize_body_is_signed() {
    let message = encode_with(Some(&keys(&key("a", 1))), BodyLocation::ClaimCheck);
    assert!(is_body_of(&message, event().document.as_bytes()));
    assert!(!is_body_of(&message, b"another body"));
}

#[test]
fn any_known_key_verifies_and_one_signs() {
    let (old, new) = (key("old", 1), key("new", 2));
    let both = keys(&format!("{old}\n{new}"));
    let first = encode_with(Some(&both), BodyLocation::Inline);
    let second = encode_with(Some(&both.clone().signing_with("new").unwrap()), BodyLocation::Inline);
    assert_eq!((both.verify(&first), both.verify(&second)), (Ok(()), Ok(())));
    assert_eq!((keys(&old).verify(&first), keys(&new).verify(&second)), (Ok(()), Ok(())));
    assert_eq!(keys(&old).verify(&second), Err(SignatureProblem::UnknownKey));
    // The same id with another key.
    assert_eq!(keys(&key("old", 3)).verify(&first), Err(SignatureProblem::Invalid));
    assert!(both.signing_with("absent").is_none());
}

#[test]
fn unsigned_messages_are_accepted_only_before_the_time() {
    let plain = encode_with(None, BodyLocation::Inline);
    let keys = keys(&key("a", 1));
    assert_eq!(keys.verify(&plain), Err(SignatureProblem::Missing));
    let now = wall_clock();
    let open = keys.clone().accepting_unsigned_until(now + Duration::from_secs(3_600));
    assert_eq!(open.verify(&plain), Ok(()));
    let over = keys.clone().accepting_unsigned_until(now);
    assert_eq!(over.verify(&plain), Err(SignatureProblem::Missing));
    // A signature that is there must be valid at any time.
    for signature in ["a:AAAA", "a:?", "nothing"] {
        let value = Some(Value::String(signature.into()));
        let forged = rewrite(&plain, &Change::Property(property::SIGNATURE, value));
        assert_eq!(open.verify(&forged), Err(SignatureProblem::Invalid), "{signature}");
    }
}

#[test]
fn invalid_keys_are_named_and_never_shown() {
    let hush = BASE64.encode([0xAB; 16]);
    for (text, problem) in [
        (" \n".to_owned(), InvalidMessageKeys::Empty),
        (hush.clone(), InvalidMessageKeys::NoId),
        (format!("no/id:{hush}"), InvalidMessageKeys::Id),
        (format!(":{hush}"), InvalidMessageKeys::Id),
        (format!("a:{hush}"), InvalidMessageKeys::Short("a".into())),
        (format!("a:{hush}?"), InvalidMessageKeys::Encoding("a".into())),
        (format!("{} {}", key("a", 1), key("a", 2)), InvalidMessageKeys::Duplicate("a".into())),
    ] {
        let found = MessageKeys::parse(&text).unwrap_err();
        assert_eq!(found, problem);
        assert!(!found.to_string().contains(&hush), "{found}");
    }
    let text = key("a", 0xAB);
    let shown = format!("{:?}", keys(&text));
    assert!(shown.contains("\"a\"") && !shown.contains(&text[2..]) && !shown.contains("171"), "{shown}");
}
