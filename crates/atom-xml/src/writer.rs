//! Writes XML elements, attributes and text, with escaping.

use std::fmt::{self, Write};

use quick_xml::escape::escape;

use crate::XmlElement;

#[derive(Default)]
pub struct XmlWriter(String);

impl XmlWriter {
    pub fn into_text(self) -> String {
        self.0
    }

    pub fn element(&mut self, name: &str, attributes: &[(&str, &str)], inside: impl FnOnce(&mut Self)) {
        self.open(name, attributes);
        inside(self);
        self.0.push_str("</");
        self.0.push_str(name);
        self.0.push('>');
    }

    pub fn leaf(&mut self, name: &str, value: impl fmt::Display) {
        self.leaf_with(name, &[], value);
    }

    pub fn leaf_with(&mut self, name: &str, attributes: &[(&str, &str)], value: impl fmt::Display) {
        let text: String = value.to_string().chars().filter(|character| allowed(*character)).collect();
        self.element(name, attributes, |xml| xml.0.push_str(&escape(text)));
    }

    pub fn optional_leaf(&mut self, name: &str, value: Option<impl fmt::Display>) {
        if let Some(value) = value {
            self.leaf(name, value);
        }
    }

    /// Writes a parsed element back.
    pub fn tree(&mut self, element: &XmlElement) {
        let attributes: Vec<_> =
            element.attributes.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        if element.children.is_empty() {
            return self.leaf_with(&element.tag, &attributes, &element.text);
        }
        self.element(&element.tag, &attributes, |xml| element.children.iter().for_each(|child| xml.tree(child)));
    }

    fn open(&mut self, name: &str, attributes: &[(&str, &str)]) {
        self.0.push('<');
        self.0.push_str(name);
        for (key, value) in attributes {
            write!(self.0, " {key}=\"{}\"", escape(*value)).expect("writing to a String cannot fail");
        }
        self.0.push('>');
    }
}

/// Drops characters that XML cannot contain even escaped, so that one odd name does not make a whole list unreadable.
fn allowed(character: char) -> bool {
    !character.is_control() || matches!(character, '\t' | '\n' | '\r')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_and_attributes_are_escaped() {
        let mut xml = XmlWriter::default();
        xml.leaf_with("a", &[("b", "\"<&")], "x < y & \u{1}z");
        assert_eq!(xml.into_text(), "<a b=\"&quot;&lt;&amp;\">x &lt; y &amp; z</a>");
    }
}
