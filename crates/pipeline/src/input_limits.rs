//! How deep and how large the parts of a received message may be. Checked before anything recurses into them: whoever may send to the topic
//! must not be able to overflow the stack of a pod, or to fill its memory.
//!
//! AMQP values have their own limits ([`amqp::codec::MAX_DEPTH`]), and `serde_json` refuses more than 128 levels.

use mongodb::bson::{RawBsonRef, RawDocument};

/// The limit of MongoDB for documents; the outermost document is level 1.
pub(crate) const MAX_NESTING: usize = 100;
/// A BSON document may have 16 MiB, and an update command a little more.
const MAX_BSON_BYTES: usize = (16 << 20) + (16 << 10);
/// The same document as Extended JSON.
const MAX_JSON_BYTES: usize = 64 << 20;
/// Service Bus allows 64 KiB for all properties of a message together.
const MAX_PROPERTY_BYTES: usize = 64 << 10;

/// A BSON body, or `None` if it is none or exceeds a limit.
pub(crate) fn bson_body(bytes: &[u8]) -> Option<&RawDocument> {
    bson_document(bytes, MAX_BSON_BYTES)
}

/// A BSON document in a property of a message.
pub(crate) fn bson_property(bytes: &[u8]) -> Option<&RawDocument> {
    bson_document(bytes, MAX_PROPERTY_BYTES)
}

/// Whether a JSON body is small enough to be parsed.
pub(crate) const fn is_json_size_allowed(bytes: &[u8]) -> bool {
    bytes.len() <= MAX_JSON_BYTES
}

fn bson_document(bytes: &[u8], max_bytes: usize) -> Option<&RawDocument> {
    let document = (bytes.len() <= max_bytes).then(|| RawDocument::from_bytes(bytes).ok()).flatten()?;
    (!nests_deeper_than(document, MAX_NESTING)).then_some(document)
}

/// Walks the document without recursion. A malformed part counts as empty: every reader stops there.
pub(crate) fn nests_deeper_than(document: &RawDocument, levels: usize) -> bool {
    /// A nested document has a type, a name, a length and a terminator.
    const SMALLEST_LEVEL: usize = 7;
    // Most events are too small to nest so deep, and are not walked.
    if document.as_bytes().len() <= levels * SMALLEST_LEVEL {
        return false;
    }
    let mut open = vec![document.iter()];
    while let Some(innermost) = open.last_mut() {
        let nested = match innermost.next() {
            None | Some(Err(_)) => {
                open.pop();
                continue;
            }
            Some(Ok((_, RawBsonRef::Document(document)))) => document,
            // An array is a document with numbers for names.
            Some(Ok((_, RawBsonRef::Array(array)))) => match RawDocument::from_bytes(array.as_bytes()) {
                Ok(document) => document,
                Err(_) => continue,
            },
            Some(Ok((_, RawBsonRef::JavaScriptCodeWithScope(code)))) => code.scope,
            Some(Ok(_)) => continue,
        };
        if open.len() == levels {
            return true;
        }
        open.push(nested.iter());
    }
    false
}

#[cfg(test)]
mod tests {
    use mongodb::bson::{Bson, JavaScriptCodeWithScope, RawArrayBuf, RawBson, RawDocumentBuf, cstr, doc};

    use super::*;

    /// So many levels of documents.
    fn nested(levels: usize) -> RawDocumentBuf {
        let mut document = RawDocumentBuf::new();
        for _ in 1..levels {
            let mut outer = RawDocumentBuf::new();
            outer.append(cstr!("a"), document);
            document = outer;
        }
        document
    }

    #[test]
    fn nesting_is_counted_without_recursion() {
        assert!(!nests_deeper_than(&nested(MAX_NESTING), MAX_NESTING));
        assert!(nests_deeper_than(&nested(MAX_NESTING + 1), MAX_NESTING));
        assert!(nests_deeper_than(&nested(10_000), MAX_NESTING));
        let wide: Vec<Bson> = (0..1_000).map(|number| doc! { "number": number }.into()).collect();
        assert!(!nests_deeper_than(&RawDocumentBuf::try_from(&doc! { "list": wide }).unwrap(), 3));
    }

    #[test]
    fn arrays_and_code_scopes_count_as_levels() {
        let mut array = RawArrayBuf::new();
        for _ in 1..200 {
            let mut outer = RawArrayBuf::new();
            outer.push(array);
            array = outer;
        }
        let mut document = RawDocumentBuf::new();
        document.append(cstr!("list"), array);
        assert!(nests_deeper_than(&document, MAX_NESTING));
        let scope = mongodb::bson::Document::try_from(&*nested(MAX_NESTING)).unwrap();
        let code = Bson::JavaScriptCodeWithScope(JavaScriptCodeWithScope { code: "f".into(), scope });
        let mut document = RawDocumentBuf::new();
        document.append(cstr!("code"), RawBson::try_from(code).unwrap());
        assert!(nests_deeper_than(&document, MAX_NESTING));
    }

    #[test]
    fn a_property_has_a_size_limit() {
        let document = RawDocumentBuf::try_from(&doc! { "v": "x".repeat(MAX_PROPERTY_BYTES) }).unwrap();
        assert!(bson_property(document.as_bytes()).is_none());
        assert!(bson_body(document.as_bytes()).is_some());
    }
}
