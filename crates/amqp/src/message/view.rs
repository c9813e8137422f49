//! A view of an encoded message: finds its sections and decodes them on demand.

use std::ops::Range;

use bytes::Bytes;

use super::{Header, MessageId, Properties, annotation, section};
use crate::codec::{DecodeError, Decoder, MapEntries, ValueRef, code};

/// One encoded message. Cloning shares the bytes. A slice shares them too, and keeps the whole read buffer alive: copy
/// what is kept for long.
#[derive(Clone)]
pub struct Message {
    bytes: Bytes,
    /// Where the value of each section before the body, and of the footer, is; empty where there is none.
    spans: [SectionSpan; SPANS],
    bare: u32,
    /// Where the first of body and footer begins.
    rest: u32,
    body: SectionSpan,
    /// Where bare message and footer end: the end of the message, unless delivery annotations trail it.
    tail: u32,
    body_kind: BodyKind,
}

/// What kind of body a message has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BodyKind {
    /// No body section: illegal, but stored and returned.
    Empty,
    Data,
    Sequence,
    Value,
}

#[derive(Debug, Clone, Copy, Default)]
struct SectionSpan {
    start: u32,
    end: u32,
}

const SPANS: usize = 6;
const HEADER: usize = 0;
const DELIVERY_ANNOTATIONS: usize = 1;
const MESSAGE_ANNOTATIONS: usize = 2;
const PROPERTIES: usize = 3;
const APPLICATION_PROPERTIES: usize = 4;
const FOOTER: usize = 5;

/// The required order of sections; body sections may repeat.
const RANK_BODY: usize = 5;
const RANK_FOOTER: usize = 6;
const RANK_END: usize = 8;

impl Message {
    /// Finds the sections. Their content is decoded on demand.
    pub fn parse(bytes: Bytes) -> Result<Self, DecodeError> {
        let length = u32::try_from(bytes.len()).map_err(|_| DecodeError::OutOfRange("message size"))?;
        let whole = SectionSpan { start: length, end: length };
        let mut found = Layout {
            spans: [SectionSpan::default(); SPANS],
            bare: None,
            rest: None,
            body: whole,
            tail: length,
            kind: BodyKind::Empty,
            next: 0,
        };
        let mut reader = Decoder::new(&bytes);
        while !reader.is_empty() {
            found.section(&mut reader, length)?;
        }
        let Layout { spans, bare, rest, mut body, tail, kind, .. } = found;
        if kind == BodyKind::Empty && spans[FOOTER].is_empty() {
            body = SectionSpan { start: tail, end: tail };
        }
        let (bare, rest) = (bare.unwrap_or(tail), rest.unwrap_or(tail));
        Ok(Self { bytes, spans, bare, rest, body, tail, body_kind: kind })
    }

    /// The whole message as received.
    pub fn encoded(&self) -> &Bytes {
        &self.bytes
    }

    /// The bare message: properties, application properties and body, which intermediaries must not change.
    pub fn bare(&self) -> Bytes {
        self.bytes.slice(self.bare as usize..self.body.end as usize)
    }

    /// Everything after the annotations: the bare message and the footer. A broker appends it to its own header.
    pub fn after_annotations(&self) -> Bytes {
        self.bytes.slice(self.bare as usize..self.tail as usize)
    }

    /// The encoded properties section, empty if there is none; unchanged when application properties are rewritten.
    pub fn properties_section(&self) -> Bytes {
        let span = self.spans[PROPERTIES];
        if span.is_empty() { Bytes::new() } else { self.bytes.slice(self.bare as usize..span.end as usize) }
    }

    /// The encoded body sections and the footer.
    pub fn body_and_footer(&self) -> Bytes {
        self.bytes.slice(self.rest as usize..self.tail as usize)
    }

    pub fn header(&self) -> Result<Header, DecodeError> {
        match self.reader(HEADER).map(|mut reader| reader.list()).transpose()?.flatten() {
            Some(fields) => Header::decode(fields),
            None => Ok(Header::default()),
        }
    }

    pub fn has_header(&self) -> bool {
        !self.spans[HEADER].is_empty()
    }

    pub fn properties(&self) -> Result<Properties<'_>, DecodeError> {
        match self.reader(PROPERTIES).map(|mut reader| reader.list()).transpose()?.flatten() {
            Some(fields) => Properties::decode(fields),
            None => Ok(Properties::default()),
        }
    }

    /// Decodes only the message-id.
    pub fn message_id(&self) -> Result<Option<MessageId<'_>>, DecodeError> {
        self.property(0)?.map(MessageId::decode).transpose()
    }

    /// Decodes only the group-id, which Service Bus calls the session id.
    pub fn group_id(&self) -> Result<Option<&str>, DecodeError> {
        const GROUP_ID: u32 = 10;
        self.property(GROUP_ID)?.map_or(Ok(None), |value| value.reader().string())
    }

    /// One field of the properties, by position.
    fn property(&self, position: u32) -> Result<Option<ValueRef<'_>>, DecodeError> {
        let Some(mut reader) = self.reader(PROPERTIES) else { return Ok(None) };
        let Some(mut fields) = reader.list()? else { return Ok(None) };
        for _ in 0..position {
            fields.skip()?;
        }
        fields.raw()
    }

    pub fn delivery_annotations(&self) -> MapEntries<'_> {
        self.pairs(DELIVERY_ANNOTATIONS)
    }

    pub fn message_annotations(&self) -> MapEntries<'_> {
        self.pairs(MESSAGE_ANNOTATIONS)
    }

    pub fn application_properties(&self) -> MapEntries<'_> {
        self.pairs(APPLICATION_PROPERTIES)
    }

    pub fn footer(&self) -> MapEntries<'_> {
        self.pairs(FOOTER)
    }

    /// One message annotation.
    pub fn annotation(&self, key: &str) -> Option<ValueRef<'_>> {
        self.message_annotations().get(key)
    }

    pub fn application_property(&self, key: &str) -> Option<ValueRef<'_>> {
        self.application_properties().get(key)
    }

    pub fn partition_key(&self) -> Option<&str> {
        self.annotation(annotation::PARTITION_KEY)?.as_str()
    }

    /// Milliseconds since the Unix epoch.
    pub fn scheduled_enqueue_time(&self) -> Option<i64> {
        self.annotation(annotation::SCHEDULED_ENQUEUE_TIME)?.as_timestamp()
    }

    pub fn body(&self) -> BodyKind {
        self.body_kind
    }

    /// The data sections in order; none if the body is of another kind. In a batch, each is one message.
    pub fn data(&self) -> DataSections<'_> {
        let bytes = if self.body_kind == BodyKind::Data { &self.bytes[self.body.range()] } else { &[] };
        DataSections { reader: Decoder::within(&self.bytes, bytes) }
    }

    /// The content of an amqp-value body.
    pub fn value(&self) -> Option<ValueRef<'_>> {
        if self.body_kind != BodyKind::Value {
            return None;
        }
        let mut reader = Decoder::within(&self.bytes, &self.bytes[self.body.range()]);
        reader.descriptor().ok()?;
        reader.skip().ok()
    }

    fn pairs(&self, section: usize) -> MapEntries<'_> {
        let map = self.reader(section).and_then(|mut reader| reader.map().ok().flatten());
        map.unwrap_or_else(|| MapEntries::empty(&self.bytes))
    }

    fn reader(&self, section: usize) -> Option<Decoder<'_>> {
        let span = self.spans[section];
        (!span.is_empty()).then(|| Decoder::within(&self.bytes, &self.bytes[span.range()]))
    }
}

/// What [`Message::parse`] gathers.
struct Layout {
    spans: [SectionSpan; SPANS],
    bare: Option<u32>,
    /// Where the first of body and footer begins.
    rest: Option<u32>,
    body: SectionSpan,
    tail: u32,
    kind: BodyKind,
    /// The lowest rank the next section may have.
    next: usize,
}

impl Layout {
    #[inline]
    fn section(&mut self, reader: &mut Decoder<'_>, length: u32) -> Result<(), DecodeError> {
        let at = length - reader.rest().len() as u32;
        let kind = reader.descriptor()?.standard().filter(|kind| section::ALL.contains(kind));
        let start = length - reader.rest().len() as u32;
        let value = reader.skip()?;
        let span = SectionSpan { start, end: length - reader.rest().len() as u32 };
        let Some(kind) = kind else { return self.unknown_section(at) };
        match kind {
            section::HEADER | section::PROPERTIES => expect(value, is_list, "list")?,
            section::DELIVERY_ANNOTATIONS..=section::APPLICATION_PROPERTIES | section::FOOTER => {
                expect(value, is_map, "map")?
            }
            section::DATA => expect(value, is_binary, "binary")?,
            section::SEQUENCE => expect(value, is_list, "list")?,
            _ => {}
        }
        let rank = match kind {
            section::DATA..=section::VALUE => RANK_BODY,
            section::FOOTER => RANK_FOOTER,
            before_body => (before_body - section::HEADER) as usize,
        };
        // The Python SDK writes delivery annotations at the very end. They are read there, but are no part of the tail.
        if rank == DELIVERY_ANNOTATIONS && self.next > rank && self.next < RANK_END {
            if !self.spans[DELIVERY_ANNOTATIONS].is_empty() {
                return Err(DecodeError::SectionOrder);
            }
            self.spans[DELIVERY_ANNOTATIONS] = span;
            self.tail = at;
            self.next = RANK_END;
            return Ok(());
        }
        if rank < self.next {
            return Err(DecodeError::SectionOrder);
        }
        if rank >= PROPERTIES {
            self.bare.get_or_insert(at);
        }
        match rank {
            RANK_BODY => return self.body_section(kind, at, span.end),
            RANK_FOOTER => return self.footer(at, span),
            before_body => self.spans[before_body] = span,
        }
        self.next = rank + 1;
        Ok(())
    }

    /// A section that AMQP does not define is kept, with the body and the footer.
    fn unknown_section(&mut self, at: u32) -> Result<(), DecodeError> {
        if self.next == RANK_END {
            return Err(DecodeError::SectionOrder);
        }
        self.bare.get_or_insert(at);
        self.rest.get_or_insert(at);
        self.next = self.next.max(RANK_BODY);
        Ok(())
    }

    /// The JavaScript SDK writes its footer before the body: while there is no body, one may follow.
    fn footer(&mut self, at: u32, span: SectionSpan) -> Result<(), DecodeError> {
        if !self.spans[FOOTER].is_empty() {
            return Err(DecodeError::SectionOrder);
        }
        self.spans[FOOTER] = span;
        self.rest.get_or_insert(at);
        if self.kind == BodyKind::Empty {
            self.body = SectionSpan { start: at, end: at };
            self.next = RANK_BODY;
        } else {
            self.next = RANK_FOOTER + 1;
        }
        Ok(())
    }

    fn body_section(&mut self, kind: u64, at: u32, end: u32) -> Result<(), DecodeError> {
        let kind = match kind {
            section::DATA => BodyKind::Data,
            section::SEQUENCE => BodyKind::Sequence,
            _ => BodyKind::Value,
        };
        match self.kind {
            BodyKind::Empty => self.body = SectionSpan { start: at, end },
            same if same == kind && kind != BodyKind::Value => self.body.end = end,
            _ => return Err(DecodeError::SectionOrder),
        }
        self.rest.get_or_insert(at);
        self.kind = kind;
        self.next = RANK_BODY;
        Ok(())
    }
}

fn expect(value: ValueRef<'_>, is: fn(u8) -> bool, expected: &'static str) -> Result<(), DecodeError> {
    if is(value.code()) { Ok(()) } else { Err(DecodeError::Unexpected { expected, found: value.code() }) }
}

/// A null section is the same as a missing one.
fn is_list(format: u8) -> bool {
    matches!(format, code::NULL | code::LIST0 | code::LIST8 | code::LIST32)
}

fn is_map(format: u8) -> bool {
    matches!(format, code::NULL | code::MAP8 | code::MAP32)
}

fn is_binary(format: u8) -> bool {
    matches!(format, code::BINARY8 | code::BINARY32)
}

impl SectionSpan {
    fn is_empty(self) -> bool {
        self.start == self.end
    }

    fn range(self) -> Range<usize> {
        self.start as usize..self.end as usize
    }
}

/// Iterates over the contents of data sections, sharing the message's bytes.
#[derive(Debug, Clone)]
pub struct DataSections<'a> {
    reader: Decoder<'a>,
}

impl Iterator for DataSections<'_> {
    type Item = Bytes;

    fn next(&mut self) -> Option<Bytes> {
        if self.reader.is_empty() {
            return None;
        }
        self.reader.descriptor().ok()?;
        self.reader.binary_bytes().ok()?
    }
}

// May contain customer data: only the structure is shown.
impl std::fmt::Debug for Message {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Message({} bytes, {:?} body)", self.bytes.len(), self.body_kind)
    }
}

#[cfg(test)]
mod tests {
    use bytes::BytesMut;

    use super::*;
    use crate::Value;
    use crate::codec::encode;
    use crate::message::MessageWriter;

    fn full() -> Bytes {
        let mut buffer = BytesMut::new();
        MessageWriter::new(&mut buffer)
            .header(&Header { durable: Some(true), ttl: Some(1000), ..Header::default() })
            .delivery_annotations(|map| {
                map.put_long("d", 1);
            })
            .message_annotations(|map| {
                map.put_string(annotation::PARTITION_KEY, "key").put_timestamp(annotation::SCHEDULED_ENQUEUE_TIME, 5);
            })
            .properties(&Properties {
                message_id: Some(MessageId::Ulong(7)),
                group_id: Some("s"),
                ..Properties::default()
            })
            .application_properties(|map| encode::int(map.string("answer"), 42))
            .data(b"one")
            .data(b"two")
            .footer(|map| {
                map.put_long("crc", 1);
            });
        buffer.freeze()
    }

    #[test]
    fn every_section_is_found() {
        let message = Message::parse(full()).unwrap();
        assert_eq!(message.header().unwrap().ttl, Some(1000));
        assert_eq!(message.delivery_annotations().get("d").unwrap().as_long(), Some(1));
        assert_eq!(message.partition_key(), Some("key"));
        assert_eq!(message.scheduled_enqueue_time(), Some(5));
        assert_eq!(message.properties().unwrap().message_id, Some(MessageId::Ulong(7)));
        assert_eq!(message.properties().unwrap().group_id, Some("s"));
        assert_eq!((message.message_id(), message.group_id()), (Ok(Some(MessageId::Ulong(7))), Ok(Some("s"))));
        assert_eq!(message.application_property("answer").unwrap().as_int(), Some(42));
        assert_eq!(message.data().collect::<Vec<_>>(), [&b"one"[..], b"two"]);
        assert_eq!(message.footer().get("crc").unwrap().as_long(), Some(1));
    }

    #[test]
    fn a_footer_before_the_body_is_read_and_kept_in_place() {
        let mut buffer = BytesMut::new();
        MessageWriter::new(&mut buffer)
            .properties(&Properties { group_id: Some("s"), ..Properties::default() })
            .footer(|map| {
                map.put_long("crc", 1);
            })
            .data(b"body");
        let message = Message::parse(buffer.freeze()).unwrap();
        assert_eq!(message.data().collect::<Vec<_>>(), [&b"body"[..]]);
        assert_eq!(message.footer().get("crc").unwrap().as_long(), Some(1));
        assert_eq!(message.properties_section().len() + message.body_and_footer().len(), message.encoded().len());
    }

    #[test]
    fn a_new_head_before_the_stored_tail_makes_the_message_again() {
        let stored = Message::parse(full()).unwrap();
        let mut buffer = BytesMut::new();
        MessageWriter::new(&mut buffer)
            .header(&Header { delivery_count: 3, ..Header::default() })
            .message_annotations_over(stored.message_annotations(), &[annotation::PARTITION_KEY], |map| {
                map.put_long(annotation::SEQUENCE_NUMBER, 99);
            });
        buffer.extend_from_slice(&stored.after_annotations());
        let sent = Message::parse(buffer.freeze()).unwrap();
        assert_eq!(sent.header().unwrap().delivery_count, 3);
        assert_eq!(sent.annotation(annotation::SEQUENCE_NUMBER).unwrap().as_long(), Some(99));
        assert_eq!(sent.scheduled_enqueue_time(), Some(5));
        assert_eq!(sent.partition_key(), None);
        assert_eq!(sent.bare(), stored.bare());
        assert_eq!(sent.footer().get("crc").unwrap().as_long(), Some(1));
    }

    #[test]
    fn rewritten_application_properties_leave_the_rest_byte_exact() {
        let stored = Message::parse(full()).unwrap();
        let mut buffer = BytesMut::new();
        MessageWriter::new(&mut buffer)
            .encoded(&stored.properties_section())
            .application_properties_over(stored.application_properties(), &[], |map| {
                encode::string(map.string("DeadLetterReason"), "why");
            })
            .encoded(&stored.body_and_footer());
        let changed = Message::parse(buffer.freeze()).unwrap();
        assert_eq!(changed.application_property("answer").unwrap().as_int(), Some(42));
        assert_eq!(changed.application_property("DeadLetterReason").unwrap().as_str(), Some("why"));
        assert_eq!(changed.body_and_footer(), stored.body_and_footer());
    }

    #[test]
    fn trailing_delivery_annotations_stay_out_of_the_tail() {
        let mut buffer = BytesMut::new();
        MessageWriter::new(&mut buffer)
            .properties(&Properties { subject: Some("s"), ..Properties::default() })
            .data(b"body");
        let tail = buffer.clone().freeze();
        MessageWriter::new(&mut buffer).delivery_annotations(|map| {
            map.put_long("d", 1);
        });
        let message = Message::parse(buffer.clone().freeze()).unwrap();
        assert_eq!(message.delivery_annotations().get("d").unwrap().as_long(), Some(1));
        assert_eq!((message.after_annotations(), message.bare()), (tail.clone(), tail));
        MessageWriter::new(&mut buffer).data(b"more");
        assert_eq!(Message::parse(buffer.freeze()).unwrap_err(), DecodeError::SectionOrder);
    }

    #[test]
    fn sections_out_of_order_are_refused() {
        let mut buffer = BytesMut::new();
        MessageWriter::new(&mut buffer).data(b"body").properties(&Properties::default());
        assert_eq!(Message::parse(buffer.freeze()).unwrap_err(), DecodeError::SectionOrder);
    }

    #[test]
    fn a_value_body_is_read_and_two_of_them_are_refused() {
        let mut buffer = BytesMut::new();
        MessageWriter::new(&mut buffer).value(&Value::from("token"));
        assert_eq!(Message::parse(buffer.clone().freeze()).unwrap().value().unwrap().as_str(), Some("token"));
        MessageWriter::new(&mut buffer).value(&Value::Null);
        assert_eq!(Message::parse(buffer.freeze()).unwrap_err(), DecodeError::SectionOrder);
    }

    #[test]
    fn a_message_of_no_bytes_has_no_body() {
        let message = Message::parse(Bytes::new()).unwrap();
        assert_eq!(message.body(), BodyKind::Empty);
        assert!(message.bare().is_empty());
    }
}
