//! Writes message sections in the order that AMQP requires.

use bytes::BytesMut;

use super::{Header, Properties, section};
use crate::Value;
use crate::codec::{ListWriter, MapEntries, MapWriter, encode};

/// Appends sections to a buffer. Call the methods in the order below; each is optional.
///
/// A broker writes header and annotations and appends [`super::Message::after_annotations`] of the stored message.
/// A client continues with properties and a body.
#[derive(Debug)]
pub struct MessageWriter<'b> {
    buffer: &'b mut BytesMut,
}

impl<'b> MessageWriter<'b> {
    pub fn new(buffer: &'b mut BytesMut) -> Self {
        Self { buffer }
    }

    pub fn header(&mut self, header: &Header) -> &mut Self {
        header.encode(self.buffer);
        self
    }

    /// Omitted if `write` writes nothing, like the other maps.
    pub fn delivery_annotations(&mut self, write: impl FnOnce(&mut MapWriter<'_>)) -> &mut Self {
        self.map(section::DELIVERY_ANNOTATIONS, write)
    }

    /// The stored annotations byte for byte, except those named in `replaced`; then what `write` adds. Written even if it
    /// is empty, as Service Bus does.
    pub fn delivery_annotations_over(
        &mut self,
        stored: MapEntries<'_>,
        replaced: &[&str],
        write: impl FnOnce(&mut MapWriter<'_>),
    ) -> &mut Self {
        let mut map = MapWriter::described(self.buffer, section::DELIVERY_ANNOTATIONS);
        copy_except(&mut map, stored, replaced);
        write(&mut map);
        map.finish();
        self
    }

    pub fn message_annotations(&mut self, write: impl FnOnce(&mut MapWriter<'_>)) -> &mut Self {
        self.map(section::MESSAGE_ANNOTATIONS, write)
    }

    /// Like [`delivery_annotations_over`](Self::delivery_annotations_over).
    pub fn message_annotations_over(
        &mut self,
        stored: MapEntries<'_>,
        replaced: &[&str],
        write: impl FnOnce(&mut MapWriter<'_>),
    ) -> &mut Self {
        self.map(section::MESSAGE_ANNOTATIONS, |map| {
            copy_except(map, stored, replaced);
            write(map);
        })
    }

    pub fn properties(&mut self, properties: &Properties<'_>) -> &mut Self {
        properties.encode(self.buffer);
        self
    }

    /// Keys are strings here: `encode::long(map.string("key"), 7)`.
    pub fn application_properties(&mut self, write: impl FnOnce(&mut MapWriter<'_>)) -> &mut Self {
        self.map(section::APPLICATION_PROPERTIES, write)
    }

    /// Like [`delivery_annotations_over`](Self::delivery_annotations_over): for properties changed by an abandon or a
    /// dead-letter.
    pub fn application_properties_over(
        &mut self,
        stored: MapEntries<'_>,
        replaced: &[&str],
        write: impl FnOnce(&mut MapWriter<'_>),
    ) -> &mut Self {
        self.map(section::APPLICATION_PROPERTIES, |map| {
            copy_except(map, stored, replaced);
            write(map);
        })
    }

    /// A section already encoded, such as [`super::Message::properties_section`].
    pub fn encoded(&mut self, section: &[u8]) -> &mut Self {
        self.buffer.extend_from_slice(section);
        self
    }

    /// One data section; a body may have several.
    pub fn data(&mut self, data: &[u8]) -> &mut Self {
        encode::descriptor(self.buffer, section::DATA);
        encode::binary(self.buffer, data);
        self
    }

    pub fn sequence(&mut self, items: &[Value]) -> &mut Self {
        let mut list = ListWriter::described(self.buffer, section::SEQUENCE);
        for item in items {
            item.encode(list.field());
        }
        list.finish();
        self
    }

    pub fn value(&mut self, value: &Value) -> &mut Self {
        encode::descriptor(self.buffer, section::VALUE);
        value.encode(self.buffer);
        self
    }

    /// The last section: checksums and signatures over the bare message.
    pub fn footer(&mut self, write: impl FnOnce(&mut MapWriter<'_>)) -> &mut Self {
        self.map(section::FOOTER, write)
    }

    fn map(&mut self, section: u64, write: impl FnOnce(&mut MapWriter<'_>)) -> &mut Self {
        let start = self.buffer.len();
        let mut map = MapWriter::described(self.buffer, section);
        write(&mut map);
        map.finish_or_remove(start);
        self
    }
}

fn copy_except(map: &mut MapWriter<'_>, stored: MapEntries<'_>, replaced: &[&str]) {
    for (key, value) in stored {
        if !replaced.iter().any(|name| key.is_text(name)) {
            map.copy(key, value);
        }
    }
}
