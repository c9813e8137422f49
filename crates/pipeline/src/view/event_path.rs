//! `$$event.payload.price`: the path of an event value.
//!
//! Resolves as in an update pipeline: a path through an array returns an array of the values of its documents.

use mongodb::bson::{RawArrayBuf, RawBsonRef, RawDocument};

const EVENT: &str = "$$event";

/// The segments after `$$event`; empty for the whole event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct EventPath(Vec<String>);

/// The value at a path: a single one, or those collected from an array.
pub(super) enum EventPathValue<'a> {
    Single(RawBsonRef<'a>),
    Collected(RawArrayBuf),
}

impl EventPathValue<'_> {
    pub(super) fn as_ref(&self) -> RawBsonRef<'_> {
        match self {
            Self::Single(value) => *value,
            Self::Collected(values) => RawBsonRef::Array(values),
        }
    }
}

impl EventPath {
    /// `None` for text that is no event path; an error if it is one but malformed.
    pub(super) fn parse(text: &str) -> Option<Result<Self, &'static str>> {
        let rest = text.strip_prefix(EVENT)?;
        if rest.is_empty() {
            return Some(Ok(Self(vec![])));
        }
        // `$$eventual` is another variable; the caller decides about it.
        let path = rest.strip_prefix('.')?;
        Some(Self::parse_segments(path))
    }

    fn parse_segments(path: &str) -> Result<Self, &'static str> {
        let segments: Vec<String> = path.split('.').map(str::to_owned).collect();
        if segments.iter().any(String::is_empty) {
            return Err("has an empty part in its path");
        }
        if segments.iter().any(|segment| segment.starts_with('$') || segment.contains('\0')) {
            return Err("has a part in its path that cannot be a field");
        }
        Ok(Self(segments))
    }

    /// A field of a document, without `$$event`.
    pub(super) fn from_field(path: &str) -> Option<Self> {
        Self::parse_segments(path).ok()
    }

    pub(super) fn find<'a>(&self, event: &'a RawDocument) -> Option<EventPathValue<'a>> {
        resolve(RawBsonRef::Document(event), &self.0)
    }
}

fn resolve<'a>(value: RawBsonRef<'a>, path: &[String]) -> Option<EventPathValue<'a>> {
    let Some((first, rest)) = path.split_first() else {
        return Some(EventPathValue::Single(value));
    };
    match value {
        RawBsonRef::Document(document) => resolve(document.get(first).ok().flatten()?, rest),
        RawBsonRef::Array(values) => {
            let mut collected = RawArrayBuf::new();
            for found in values.into_iter().flatten().filter_map(|value| resolve(value, path)) {
                collected.push(found.as_ref());
            }
            Some(EventPathValue::Collected(collected))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use mongodb::bson::{Bson, RawDocumentBuf, doc};

    use super::*;

    fn find(path: &str) -> Option<Bson> {
        let event = doc! { "a": { "b": 1, "n": null }, "items": [{ "sku": "x" }, 5, { "qty": 1 }, { "sku": "$y" }] };
        let event = RawDocumentBuf::try_from(&event).unwrap();
        let found = EventPath::parse(path).unwrap().unwrap().find(&event)?;
        Some(Bson::try_from(found.as_ref()).unwrap())
    }

    #[test]
    fn a_path_resolves_as_in_a_pipeline() {
        assert_eq!(find("$$event.a.b"), Some(1.into()));
        assert_eq!(find("$$event.a.n"), Some(Bson::Null));
        assert_eq!(find("$$event.a"), Some(doc! { "b": 1, "n": null }.into()));
        assert_eq!(find("$$event.items.sku"), Some(vec!["x", "$y"].into()));
        assert_eq!(find("$$event.items.0"), Some(Bson::Array(vec![])));
        assert_eq!(find("$$event.a.c"), None);
        assert_eq!(find("$$event.a.b.c"), None);
        assert!(matches!(find("$$event"), Some(Bson::Document(_))));
    }

    #[test]
    fn other_text_is_not_a_broken_event_path() {
        assert!(EventPath::parse("event.a").is_none());
        assert!(EventPath::parse("$$eventual").is_none());
        assert!(EventPath::parse("$$event.").unwrap().is_err());
        assert!(EventPath::parse("$$event.a..b").unwrap().is_err());
        assert!(EventPath::parse("$$event.$a").unwrap().is_err());
    }
}
