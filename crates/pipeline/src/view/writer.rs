//! BSON written in one go. The crate's own builder has a buffer for every document in a document, and copies each into the next; for
//! the few statements of an event that is most of the work.

use mongodb::bson::raw::{CStr, CString};
use mongodb::bson::spec::ElementType;
use mongodb::bson::{Bson, RawBson, RawBsonRef, RawDocumentBuf};

use super::statement::Unwritable;

/// One buffer, into which the elements of a document go in their order.
pub(super) struct Writer {
    bytes: Vec<u8>,
}

/// What most statements have.
const USUAL: usize = 192;

impl Writer {
    /// The document that `fill` writes.
    pub(super) fn whole(fill: impl FnOnce(&mut Self)) -> RawDocumentBuf {
        let mut writer = Self { bytes: Vec::with_capacity(USUAL) };
        writer.nest(fill);
        RawDocumentBuf::from_bytes(writer.bytes).expect("it has its length and its end")
    }

    pub(super) fn document(&mut self, name: &CStr, fill: impl FnOnce(&mut Self)) {
        self.name(ElementType::EmbeddedDocument, name);
        self.nest(fill);
    }

    /// `fill` names its elements `0`, `1` and so on: [`Self::index`].
    pub(super) fn array(&mut self, name: &CStr, fill: impl FnOnce(&mut Self)) {
        self.name(ElementType::Array, name);
        self.nest(fill);
    }

    pub(super) fn index(at: usize) -> CString {
        CString::try_from(at.to_string()).expect("digits are no zero bytes")
    }

    pub(super) fn value(&mut self, name: &CStr, value: RawBsonRef<'_>) {
        match value {
            RawBsonRef::String(text) => {
                self.name(ElementType::String, name);
                self.length(text.len() + 1);
                self.bytes.extend(text.as_bytes());
                self.bytes.push(0);
            }
            RawBsonRef::Int32(number) => self.fixed(ElementType::Int32, name, &number.to_le_bytes()),
            RawBsonRef::Int64(number) => self.fixed(ElementType::Int64, name, &number.to_le_bytes()),
            RawBsonRef::Double(number) => self.fixed(ElementType::Double, name, &number.to_le_bytes()),
            RawBsonRef::Boolean(truth) => self.fixed(ElementType::Boolean, name, &[truth.into()]),
            RawBsonRef::Null => self.name(ElementType::Null, name),
            RawBsonRef::ObjectId(id) => self.fixed(ElementType::ObjectId, name, &id.bytes()),
            RawBsonRef::DateTime(time) => {
                self.fixed(ElementType::DateTime, name, &time.timestamp_millis().to_le_bytes())
            }
            RawBsonRef::Document(document) => self.fixed(ElementType::EmbeddedDocument, name, document.as_bytes()),
            RawBsonRef::Array(array) => self.fixed(ElementType::Array, name, array.as_bytes()),
            // Seldom met.
            other => {
                let mut alone = RawDocumentBuf::new();
                alone.append(name, other);
                let bytes = alone.as_bytes();
                self.bytes.extend(&bytes[4..bytes.len() - 1]);
            }
        }
    }

    pub(super) fn bson(&mut self, name: &CStr, value: &Bson) -> Result<(), Unwritable> {
        match value {
            Bson::String(text) => self.value(name, RawBsonRef::String(text)),
            Bson::ObjectId(id) => self.value(name, RawBsonRef::ObjectId(*id)),
            Bson::Int32(number) => self.value(name, RawBsonRef::Int32(*number)),
            Bson::Int64(number) => self.value(name, RawBsonRef::Int64(*number)),
            other => {
                let raw = RawBson::try_from(other.clone()).map_err(|_| Unwritable)?;
                self.value(name, raw.as_raw_bson_ref());
            }
        }
        Ok(())
    }

    /// Where it stands: whether something was written can be told by it.
    pub(super) fn len(&self) -> usize {
        self.bytes.len()
    }

    fn nest(&mut self, fill: impl FnOnce(&mut Self)) {
        let at = self.bytes.len();
        self.bytes.extend([0; 4]);
        fill(self);
        self.bytes.push(0);
        let length = i32::try_from(self.bytes.len() - at).unwrap_or(i32::MAX);
        self.bytes[at..at + 4].copy_from_slice(&length.to_le_bytes());
    }

    fn fixed(&mut self, kind: ElementType, name: &CStr, value: &[u8]) {
        self.name(kind, name);
        self.bytes.extend(value);
    }

    fn name(&mut self, kind: ElementType, name: &CStr) {
        self.bytes.push(kind as u8);
        self.bytes.extend(name.as_str().as_bytes());
        self.bytes.push(0);
    }

    fn length(&mut self, length: usize) {
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
    fn what_is_written_is_what_the_crate_would_write() {
        let decimal: Decimal128 = "1.50".parse().unwrap();
        let binary = Binary { subtype: BinarySubtype::Generic, bytes: vec![1, 2, 3] };
        let values = doc! {
            "text": "é\0x", "int": 1, "long": -1_i64, "double": 0.5, "yes": true, "null": null, "id": ObjectId::new(),
            "time": DateTime::from_millis(-5), "document": { "a": [1, { "b": "c" }] }, "array": ["x", null],
            "timestamp": Timestamp { time: 1, increment: 2 }, "binary": binary, "decimal": decimal, "least": Bson::MinKey,
            "regex": Regex { pattern: cstr!("a").into(), options: cstr!("i").into() },
        };
        let raw = RawDocumentBuf::try_from(&values).unwrap();
        let by_ref = Writer::whole(|out| {
            for element in raw.iter() {
                let (name, value) = element.unwrap();
                out.value(name, value);
            }
        });
        assert_eq!(by_ref, raw);
        let by_value = Writer::whole(|out| {
            for (name, value) in &values {
                out.bson(&CString::try_from(name.as_str()).unwrap(), value).unwrap();
            }
        });
        assert_eq!(by_value, raw);
    }

    #[test]
    fn documents_and_arrays_are_nested() {
        let nested = Writer::whole(|out| {
            out.document(cstr!("$set"), |out| out.value(cstr!("a"), RawBsonRef::Int32(1)));
            out.array(cstr!("list"), |out| {
                out.document(&Writer::index(0), |_| {});
                out.value(&Writer::index(1), RawBsonRef::Null);
            });
        });
        let expected = doc! { "$set": { "a": 1 }, "list": [{}, null] };
        assert_eq!(Document::try_from(nested.as_ref()).unwrap(), expected);
    }
}
