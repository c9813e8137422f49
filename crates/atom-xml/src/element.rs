//! Parses XML into a small tree that is searched by local names: clients choose prefixes freely. Qualified names are kept, so that a tree can
//! be written back unchanged.
//!
//! Depth and number of elements are bounded and document types are refused, so that the cost is bounded by the body's size.

use quick_xml::events::{BytesRef, BytesStart, Event};
use quick_xml::{Reader, XmlVersion};

const MAX_DEPTH: usize = 32;
const MAX_ELEMENTS: usize = 20_000;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct XmlElement {
    /// The local name.
    pub name: String,
    /// The name with its prefix.
    pub(crate) tag: String,
    /// With prefixes, namespace declarations included.
    pub(crate) attributes: Vec<(String, String)>,
    pub children: Vec<XmlElement>,
    /// Only written back if there are no children.
    pub text: String,
}

#[derive(Debug, thiserror::Error)]
pub enum XmlError {
    #[error("body is not UTF-8")]
    NotUtf8,
    #[error("body is not well-formed XML")]
    IllFormed(#[from] quick_xml::Error),
    #[error("body is not well-formed XML")]
    Attribute(#[from] quick_xml::events::attributes::AttrError),
    #[error("body contains a document type or an unknown entity")]
    Entity,
    #[error("body is nested too deeply or has too many elements")]
    TooMuch,
    #[error("body ends inside its root element")]
    Unfinished,
    #[error("body has more than one root element")]
    Trailing,
}

impl XmlElement {
    pub fn new(name: &str, text: impl Into<String>) -> Self {
        Self { name: name.to_owned(), tag: name.to_owned(), text: text.into(), ..Self::default() }
    }

    #[must_use]
    pub fn with_attribute(mut self, name: &str, value: &str) -> Self {
        self.attributes.push((name.to_owned(), value.to_owned()));
        self
    }

    pub fn child(&self, name: &str) -> Option<&Self> {
        self.children.iter().find(|child| child.name == name)
    }

    /// The value of `xsi:type` without its prefix, whatever prefix the client uses for `xsi`.
    pub fn kind(&self) -> Option<&str> {
        let (_, value) = self.attributes.iter().find(|(name, _)| local_name(name) == "type")?;
        Some(local_name(value))
    }

    /// The elements of this name in the tree, outermost first; the content of a match is not searched.
    pub fn descendants<'a>(&'a self, name: &str) -> Vec<&'a Self> {
        if self.name == name {
            return vec![self];
        }
        self.children.iter().flat_map(|child| child.descendants(name)).collect()
    }

    /// The trimmed text of a child; `None` if the child is missing or empty.
    pub fn value(&self, name: &str) -> Option<&str> {
        self.child(name).map(|child| child.text.trim()).filter(|text| !text.is_empty())
    }
}

impl XmlElement {
    pub fn parse(body: &[u8]) -> Result<Self, XmlError> {
        let text = std::str::from_utf8(body).map_err(|_| XmlError::NotUtf8)?;
        let mut reader = Reader::from_str(text.strip_prefix('\u{feff}').unwrap_or(text));
        let mut builder = TreeBuilder::default();
        loop {
            match reader.read_event()? {
                Event::Start(start) => builder.open(&start)?,
                Event::Empty(start) => {
                    builder.open(&start)?;
                    builder.close()?;
                }
                Event::End(_) => builder.close()?,
                Event::Text(text) => builder.text(&text.xml10_content()),
                Event::CData(text) => builder.text(&text.xml10_content()),
                Event::GeneralRef(reference) => builder.text(&resolve(&reference)?.to_string()),
                Event::DocType(_) => return Err(XmlError::Entity),
                Event::Decl(_) | Event::PI(_) | Event::Comment(_) => {}
                Event::Eof => return builder.root.filter(|_| builder.open.is_empty()).ok_or(XmlError::Unfinished),
            }
        }
    }
}

/// The open elements, outermost first, and the finished root.
#[derive(Default)]
struct TreeBuilder {
    open: Vec<XmlElement>,
    root: Option<XmlElement>,
    elements: usize,
}

impl TreeBuilder {
    fn open(&mut self, start: &BytesStart<'_>) -> Result<(), XmlError> {
        self.elements += 1;
        if self.open.len() == MAX_DEPTH || self.elements > MAX_ELEMENTS {
            return Err(XmlError::TooMuch);
        }
        if self.root.is_some() {
            return Err(XmlError::Trailing);
        }
        self.open.push(XmlElement {
            name: start.local_name().into_inner().to_owned(),
            tag: start.name().as_ref().to_owned(),
            attributes: attributes(start)?,
            ..XmlElement::default()
        });
        Ok(())
    }

    fn close(&mut self) -> Result<(), XmlError> {
        let done = self.open.pop().ok_or(XmlError::Unfinished)?;
        match self.open.last_mut() {
            Some(parent) => parent.children.push(done),
            None => self.root = Some(done),
        }
        Ok(())
    }

    fn text(&mut self, text: &str) {
        if let Some(element) = self.open.last_mut() {
            element.text.push_str(text);
        }
    }
}

fn attributes(start: &BytesStart<'_>) -> Result<Vec<(String, String)>, XmlError> {
    let mut found = Vec::new();
    for attribute in start.attributes() {
        let attribute = attribute?;
        let value = attribute.normalized_value(XmlVersion::Implicit1_0)?.into_owned();
        found.push((attribute.key.as_ref().to_owned(), value));
    }
    Ok(found)
}

fn local_name(name: &str) -> &str {
    name.rsplit(':').next().unwrap_or(name)
}

fn resolve(reference: &BytesRef<'_>) -> Result<char, XmlError> {
    if let Some(character) = reference.resolve_char_ref()? {
        return Ok(character);
    }
    match &**reference {
        "lt" => Ok('<'),
        "gt" => Ok('>'),
        "amp" => Ok('&'),
        "apos" => Ok('\''),
        "quot" => Ok('"'),
        _ => Err(XmlError::Entity),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_comments_and_escapes_are_handled() {
        let body = br#"<?xml version="1.0"?><a:entry xmlns:a="x" i:type="q:Thing" xmlns:i="y"><!-- no -->
            <b>1 &lt; 2 &#38; 3 &#x3e; 2</b><c><![CDATA[<raw>]]></c><d/></a:entry>"#;
        let root = XmlElement::parse(body).unwrap();
        assert_eq!((root.name.as_str(), root.kind()), ("entry", Some("Thing")));
        assert_eq!(root.value("b"), Some("1 < 2 & 3 > 2"));
        assert_eq!(root.value("c"), Some("<raw>"));
        assert!(root.child("d").is_some() && root.value("d").is_none());
    }

    #[test]
    fn a_tree_is_written_back_with_prefixes_and_attributes() {
        let body =
            r#"<a:entry xmlns:a="x" i:type="q:Thing" xmlns:i="y"><b>1 &lt; 2</b><a:c d="&quot;"></a:c></a:entry>"#;
        let mut xml = crate::XmlWriter::default();
        xml.tree(&XmlElement::parse(body.as_bytes()).unwrap());
        assert_eq!(xml.into_text(), body);
    }

    #[test]
    fn broken_and_hostile_bodies_are_refused() {
        let deep = "<a>".repeat(40) + &"</a>".repeat(40);
        let many = format!("<a>{}</a>", "<b/>".repeat(MAX_ELEMENTS));
        let bodies: [(&str, &[u8]); 13] = [
            ("empty", b""),
            ("text only", b"hello"),
            ("cut", b"<a><b>"),
            ("cut tag", b"<a><b"),
            ("crossed", b"<a><b></a></b>"),
            ("closed twice", b"<a></a></a>"),
            ("two roots", b"<a/><b/>"),
            ("unknown entity", b"<a>&huge;</a>"),
            ("lone ampersand", b"<a>x & y</a>"),
            ("document type", b"<!DOCTYPE a [<!ENTITY b \"c\">]><a>&b;</a>"),
            ("not UTF-8", b"<a>\xff</a>"),
            ("deep", deep.as_bytes()),
            ("many", many.as_bytes()),
        ];
        for (name, body) in bodies {
            assert!(XmlElement::parse(body).is_err(), "{name}");
        }
    }

    proptest::proptest! {
        #[test]
        fn no_body_makes_the_reader_panic(body in "[<>/!?\\[\\]&;#xa-c =\"'-]{0,40}") {
            let _ = XmlElement::parse(body.as_bytes());
        }
    }
}
