//! Writes BSON into one buffer. The builder of the `bson` crate allocates a buffer per nested document and copies it into its parent, which
//! is most of the work for the small statements of an event.

use mongodb::bson::raw::{CStr, CString};
use mongodb::bson::spec::ElementType;
use mongodb::bson::{Bson, RawBson, RawBsonRef, RawDocumentBuf};

use super::statement::UnwritableValue;

/// Appends the elements of a document to one buffer, in order.
pub(super) struct BsonWriter {
    bytes: Vec<u8>,
}

/// Size of most statements.
const TYPICAL_STATEMENT_BYTES: usize = 192;

impl BsonWriter {
    /// Builds the document that `fill` writes.
    pub(super) fn build(fill: impl FnOnce(&mut Self)) -> RawDocumentBuf {
        let mut writer = Self { bytes: Vec::with_capacity(TYPICAL_STATEMENT_BYTES) };
        writer.write_nested(fill);
        RawDocumentBuf::from_bytes(writer.bytes).expect("length and terminator are written")
    }

    /// Returns what `fill` returns.
    pub(super) fn write_document<R>(&mut self, name: &CStr, fill: impl FnOnce(&mut Self) -> R) -> R {
        self.write_header(ElementType::EmbeddedDocument, name);
        self.write_nested(fill)
    }

    /// `fill` names its elements `0`, `1` and so on: [`Self::index_name`].
    pub(super) fn write_array<R>(&mut self, name: &CStr, fill: impl FnOnce(&mut Self) -> R) -> R {
        self.write_header(ElementType::Array, name);
        self.write_nested(fill)
    }

    pub(super) fn index_name(at: usize) -> CString {
        CString::try_from(at.to_string()).expect("digits contain no zero byte")
    }

    pub(super) fn write_value(&mut self, name: &CStr, value: RawBsonRef<'_>) {
        match value {
            RawBsonRef::String(text) => {
                self.write_header(ElementType::String, name);
                self.write_length(text.len() + 1);
                self.bytes.extend(text.as_bytes());
                self.bytes.push(0);
            }
            RawBsonRef::Int32(number) => self.write_fixed(ElementType::Int32, name, &number.to_le_bytes()),
            RawBsonRef::Int64(number) => self.write_fixed(ElementType::Int64, name, &number.to_le_bytes()),
            RawBsonRef::Double(number) => self.write_fixed(ElementType::Double, name, &number.to_le_bytes()),
            RawBsonRef::Boolean(truth) => self.write_fixed(ElementType::Boolean, name, &[truth.into()]),
            RawBsonRef::Null => self.write_header(ElementType::Null, name),
            RawBsonRef::ObjectId(id) => self.write_fixed(ElementType::ObjectId, name, &id.bytes()),
            RawBsonRef::DateTime(time) => {
                self.write_fixed(ElementType::DateTime, name, &time.timestamp_millis().to_le_bytes())
            }
            RawBsonRef::Document(document) => {
                self.write_fixed(ElementType::EmbeddedDocument, name, document.as_bytes())
            }
            RawBsonRef::Array(array) => self.write_fixed(ElementType::Array, name, array.as_bytes()),
            // Rare types use the builder of the crate.
            other => {
                let mut alone = RawDocumentBuf::new();
                alone.append(name, other);
                let bytes = alone.as_bytes();
                // Without the length and the terminator of the helper document.
                self.bytes.extend(&bytes[4..bytes.len() - 1]);
            }
        }
    }

    pub(super) fn write_bson(&mut self, name: &CStr, value: &Bson) -> Result<(), UnwritableValue> {
        match value {
            Bson::String(text) => self.write_value(name, RawBsonRef::String(text)),
            Bson::ObjectId(id) => self.write_value(name, RawBsonRef::ObjectId(*id)),
            Bson::Int32(number) => self.write_value(name, RawBsonRef::Int32(*number)),
            Bson::Int64(number) => self.write_value(name, RawBsonRef::Int64(*number)),
            other => {
                let raw = RawBson::try_from(other.clone()).map_err(|_| UnwritableValue)?;
                self.write_value(name, raw.as_raw_bson_ref());
            }
        }
        Ok(())
    }

    /// The current length; tells whether something was written.
    pub(super) fn len(&self) -> usize {
        self.bytes.len()
    }

    fn write_nested<R>(&mut self, fill: impl FnOnce(&mut Self) -> R) -> R {
        let at = self.bytes.len();
        // The length comes first and is known last: reserve its four bytes.
        self.bytes.extend([0; 4]);
        let filled = fill(self);
        self.bytes.push(0);
        let length = i32::try_from(self.bytes.len() - at).unwrap_or(i32::MAX);
        self.bytes[at..at + 4].copy_from_slice(&length.to_le_bytes());
        filled
    }

    fn write_fixed(&mut self, kind: ElementType, name: &CStr, value: &[u8]) {
        self.write_header(kind, name);
        self.bytes.extend(value);
    }

    fn write_header(&mut self, kind: ElementType, name: &CStr) {
        self.bytes.push(kind as u8);
        self.bytes.extend(name.as_str().as_bytes());
        self.bytes.push(0);
    }

    fn write_length(&mut self, length: usize) {
        self.bytes.extend(i32::try_from(length).unwrap_or(i32::MAX).to_le_bytes());
    }
}

#[cfg(test)]
mod tests {
    use mongodb::bson::raw::cstr;
    use mongodb::bson::{
        Binary, DateTime, Decimal128, Document, Regex, Timestamp, doc, oid::ObjectId, spec::BinarySubtype,
    };

    use super::*;

    #[test]
    fn the_writer_produces_the_same_bytes_as_the_bson_crate() {
        let decimal: Decimal128 = "1.50".parse().unwrap();
        let binary = Binary { subtype: BinarySubtype::Generic, bytes: vec![1, 2, 3] };
        let values = doc! {
            "text": "é\0x", "int": 1, "long": -1_i64, "double": 0.5, "yes": true, "null": null, "id": ObjectId::new(),
            "time": DateTime::from_millis(-5), "document": { "a": [1, { "b": "c" }] }, "array": ["x", null],
            "timestamp": Timestamp { time: 1, increment: 2 }, "binary": binary, "decimal": decimal, "least": Bson::MinKey,
            "regex": Regex { pattern: cstr!("a").into(), options: cstr!("i").into() },
        };
        let raw = RawDocumentBuf::try_from(&values).unwrap();
        let by_ref = BsonWriter::build(|out| {
            for element in raw.iter() {
                let (name, value) = element.unwrap();
                out.write_value(name, value);
            }
        });
        assert_eq!(by_ref, raw);
        let by_value = BsonWriter::build(|out| {
            for (name, value) in &values {
                out.write_bson(&CString::try_from(name.as_str()).unwrap(), value).unwrap();
            }
        });
        assert_eq!(by_value, raw);
    }

    #[test]
    fn documents_and_arrays_can_be_nested() {
        let nested = BsonWriter::build(|out| {
            out.write_document(cstr!("$set"), |out| out.write_value(cstr!("a"), RawBsonRef::Int32(1)));
            out.write_array(cstr!("list"), |out| {
                out.write_document(&BsonWriter::index_name(0), |_| {});
                out.write_value(&BsonWriter::index_name(1), RawBsonRef::Null);
            });
        });
        let expected = doc! { "$set": { "a": 1 }, "list": [{}, null] };
        assert_eq!(Document::try_from(nested.as_ref()).unwrap(), expected);
    }
}
