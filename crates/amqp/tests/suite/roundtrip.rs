//! Round trips of values, performatives, frames and messages.

use amqp::codec::{Decoder, encode};
use amqp::frame::{Frame, read_frame, write_frame};
use amqp::message::{BatchBuilder, Header, MessageId, MessageWriter, Properties};
use amqp::performative::Performative;
use amqp::{Message, Value};
use bytes::{Bytes, BytesMut};
use proptest::option;
use proptest::prelude::*;
use uuid::Uuid;

use crate::generators;

fn encoded(value: &Value) -> Bytes {
    let mut buffer = BytesMut::new();
    value.encode(&mut buffer);
    buffer.freeze()
}

/// An owned message, to be written and compared.
#[derive(Debug, Clone)]
pub(crate) struct MessageContent {
    header: Option<Header>,
    annotations: Vec<(String, Value)>,
    message_id: Option<MessageId<'static>>,
    correlation_id: Option<MessageId<'static>>,
    texts: [Option<String>; 6],
    times: (Option<i64>, Option<i64>),
    group_sequence: Option<u32>,
    user_id: Option<Vec<u8>>,
    application: Vec<(String, Value)>,
    body: Vec<Bytes>,
}

impl MessageContent {
    fn properties(&self) -> Properties<'_> {
        let [to, subject, reply_to, content_type, group_id, reply_to_group_id] =
            self.texts.each_ref().map(Option::as_deref);
        Properties {
            message_id: self.message_id.clone(),
            user_id: self.user_id.as_deref(),
            to,
            subject,
            reply_to,
            correlation_id: self.correlation_id.clone(),
            content_type,
            content_encoding: None,
            absolute_expiry_time: self.times.0,
            creation_time: self.times.1,
            group_id,
            group_sequence: self.group_sequence,
            reply_to_group_id,
        }
    }

    pub(crate) fn has_body(&self) -> bool {
        !self.body.is_empty()
    }

    /// Does the message say what this says?
    pub(crate) fn assert_read(&self, message: &Message) {
        assert_eq!(message.header().unwrap(), self.header.unwrap_or_default());
        assert_eq!(message.properties().unwrap(), self.properties());
        assert_eq!(message.message_annotations().count(), self.annotations.len());
        for (key, value) in &self.annotations {
            assert_eq!(&message.annotation(key).unwrap().to_value().unwrap(), value);
        }
        for (key, value) in &self.application {
            assert_eq!(&message.application_property(key).unwrap().to_value().unwrap(), value);
        }
        assert_eq!(message.data().collect::<Vec<_>>(), self.body);
    }

    pub(crate) fn encode(&self) -> Bytes {
        let mut buffer = BytesMut::new();
        let mut writer = MessageWriter::new(&mut buffer);
        if let Some(header) = &self.header {
            writer.header(header);
        }
        writer
            .message_annotations(|map| {
                for (key, value) in &self.annotations {
                    map.put_value(key, value);
                }
            })
            .properties(&self.properties())
            .application_properties(|map| {
                for (key, value) in &self.application {
                    value.encode(map.string(key));
                }
            });
        for data in &self.body {
            writer.data(data);
        }
        buffer.freeze()
    }
}

fn message_id() -> impl Strategy<Value = MessageId<'static>> {
    prop_oneof![
        any::<u64>().prop_map(MessageId::Ulong),
        any::<u128>().prop_map(|id| MessageId::Uuid(Uuid::from_u128(id))),
        prop::collection::vec(any::<u8>(), 0..40).prop_map(|id| MessageId::Binary(id.into())),
        generators::text().prop_map(|id| MessageId::String(id.into())),
    ]
}

pub(crate) fn content() -> impl Strategy<Value = MessageContent> {
    // Priority 4 and `false` are the defaults, which others leave out.
    let flag = || option::of(Just(true));
    let header = (flag(), option::of(5u8..), option::of(any::<u32>()), flag(), any::<u32>()).prop_map(
        |(durable, priority, ttl, first_acquirer, delivery_count)| Header {
            durable,
            priority,
            ttl,
            first_acquirer,
            delivery_count,
        },
    );
    // A content type is a symbol, so ASCII.
    let texts = (
        [option::of(generators::text()), option::of(generators::text()), option::of(generators::text())],
        option::of("[ -~]{0,20}"),
        [option::of(generators::text()), option::of(generators::text())],
    )
        .prop_map(|([to, subject, reply], content, [group, reply_group])| {
            [to, subject, reply, content, group, reply_group]
        });
    (
        option::of(header),
        prop::collection::btree_map("x-opt-[a-z]{1,9}", generators::plain_value(), 0..5),
        (option::of(message_id()), option::of(message_id())),
        texts,
        (option::of(any::<i64>()), option::of(any::<i64>())),
        option::of(any::<u32>()),
        option::of(prop::collection::vec(any::<u8>(), 0..40)),
        prop::collection::btree_map("[a-z]{1,9}", generators::scalar(), 0..5),
        prop::collection::vec(generators::bytes(), 0..4),
    )
        .prop_map(|(header, annotations, ids, texts, times, group_sequence, user_id, application, body)| {
            MessageContent {
                header,
                annotations: annotations.into_iter().collect(),
                message_id: ids.0,
                correlation_id: ids.1,
                texts,
                times,
                group_sequence,
                user_id,
                application: application.into_iter().collect(),
                body,
            }
        })
}

proptest! {
    #[test]
    fn a_value_is_read_as_written(value in prop_oneof![generators::value(), generators::odd_array()]) {
        let bytes = encoded(&value);
        prop_assert_eq!(Value::from_bytes(&bytes), Ok(value));
        let mut reader = Decoder::new(&bytes);
        prop_assert_eq!(reader.skip().unwrap().encoded(), &bytes[..]);
    }

    #[test]
    fn a_value_cut_short_is_an_error(value in generators::value(), cut in any::<prop::sample::Index>()) {
        let bytes = encoded(&value);
        let cut = cut.index(bytes.len());
        prop_assert!(Value::from_bytes(&bytes.slice(..cut)).is_err());
    }

    #[test]
    fn a_frame_is_read_as_written(
        performative in generators::performative(),
        channel: u16,
        payload in generators::bytes(),
    ) {
        let payload = if matches!(performative, Performative::Transfer(_)) { payload } else { Bytes::new() };
        let mut buffer = BytesMut::new();
        write_frame(&mut buffer, channel, |buffer| {
            performative.encode(buffer);
            buffer.extend_from_slice(&payload);
        });
        let mut bytes = buffer.freeze();
        let read = read_frame(&mut bytes, u32::MAX).unwrap();
        prop_assert_eq!(read, Some(Frame::Amqp { channel, performative, payload }));
        prop_assert!(bytes.is_empty());
    }

    #[test]
    fn a_message_is_read_as_written(content in content()) {
        let message = Message::parse(content.encode()).unwrap();
        prop_assert_eq!(message.has_header(), content.header.is_some());
        content.assert_read(&message);
    }

    #[test]
    fn a_new_head_changes_nothing_behind_it(content in content(), sequence: i64) {
        let stored = Message::parse(content.encode()).unwrap();
        let mut buffer = BytesMut::new();
        MessageWriter::new(&mut buffer)
            .header(&Header::default())
            .message_annotations_over(stored.message_annotations(), &["x-opt-sequence-number"], |map| {
                encode::long(map.symbol("x-opt-sequence-number"), sequence);
            });
        buffer.extend_from_slice(&stored.after_annotations());
        let sent = Message::parse(buffer.freeze()).unwrap();
        prop_assert_eq!(sent.bare(), stored.bare());
        prop_assert_eq!(sent.annotation("x-opt-sequence-number").unwrap().as_long(), Some(sequence));
        for (key, value) in &content.annotations {
            prop_assert_eq!(&sent.annotation(key).unwrap().to_value().unwrap(), value);
        }
    }

    #[test]
    fn a_batch_gives_back_its_messages(contents in prop::collection::vec(content(), 1..5)) {
        let messages: Vec<_> = contents.iter().map(MessageContent::encode).collect();
        let mut batch = BatchBuilder::new(1 << 20);
        for message in &messages {
            batch.add(message).unwrap();
        }
        let size = batch.size();
        let bytes = batch.finish();
        prop_assert_eq!(bytes.len(), size);
        let envelope = Message::parse(bytes).unwrap();
        prop_assert_eq!(envelope.data().collect::<Vec<_>>(), messages);
    }
}
