//! A change event as the server sends it: its fields, and the join of an event that arrives in fragments.

use mongodb::bson::raw::RawBsonRef;
use mongodb::bson::{DateTime, RawArray, RawDocument, RawDocumentBuf, Timestamp};

use super::error::Error;
use crate::event::ResumeToken;

/// The fields that capture uses, borrowed from the reply.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RawChange<'a> {
    token: Option<&'a RawDocument>,
    pub(super) operation: Option<&'a str>,
    pub(super) namespace: Option<&'a RawDocument>,
    pub(super) key: Option<&'a RawDocument>,
    pub(super) document: Option<&'a RawDocument>,
    pub(super) cluster_time: Option<Timestamp>,
    pub(super) wall_time: Option<DateTime>,
    fragment: Option<Fragment>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Fragment {
    number: i32,
    of: i32,
}

const NOT_BSON: Error = Error::Unreadable { problem: "is not BSON" };

impl<'a> RawChange<'a> {
    pub(super) fn parse(raw: &'a RawDocument) -> Result<Self, Error> {
        let mut change = Self::default();
        change.add(raw)?;
        Ok(change)
    }

    /// Reads all fields in one pass. Each fragment has some of the fields; the last fragment wins for those that all have (`_id`, `splitEvent`).
    fn add(&mut self, raw: &'a RawDocument) -> Result<(), Error> {
        for element in raw {
            let (name, value) = element.map_err(|_| NOT_BSON)?;
            match (name.as_str(), value) {
                ("_id", RawBsonRef::Document(token)) => self.token = Some(token),
                ("operationType", RawBsonRef::String(operation)) => self.operation = Some(operation),
                ("ns", RawBsonRef::Document(namespace)) => self.namespace = Some(namespace),
                ("documentKey", RawBsonRef::Document(key)) => self.key = Some(key),
                ("fullDocument", RawBsonRef::Document(document)) => self.document = Some(document),
                ("clusterTime", RawBsonRef::Timestamp(time)) => self.cluster_time = Some(time),
                ("wallTime", RawBsonRef::DateTime(time)) => self.wall_time = Some(time),
                ("splitEvent", RawBsonRef::Document(split)) => self.fragment = Some(Fragment::parse(split)?),
                _ => {}
            }
        }
        Ok(())
    }

    pub(super) fn token(&self) -> Result<ResumeToken, Error> {
        let token = self.token.ok_or(Error::Unreadable { problem: "has no `_id`" })?;
        ResumeToken::try_from(token)
            .map_err(|_| Error::Unreadable { problem: "has an `_id` that is not a resume token" })
    }
}

impl Fragment {
    fn parse(split: &RawDocument) -> Result<Self, Error> {
        let number =
            |name| split.get_i32(name).map_err(|_| Error::Unreadable { problem: "has an unknown `splitEvent` format" });
        Ok(Self { number: number("fragment")?, of: number("of")? })
    }
}

/// The fragments of an incomplete event. Dropped together with their stream: a reopened stream sends all fragments again.
#[derive(Debug, Default)]
pub(super) struct FragmentBuffer {
    pending: Vec<RawDocumentBuf>,
}

/// The result of adding one raw event.
pub(super) enum FragmentJoin<'a> {
    Whole(RawChange<'a>),
    /// Buffered until the last fragment arrives. The token lies inside the event, so it must not be saved.
    Partial(ResumeToken),
}

impl FragmentBuffer {
    /// Whether an event is incomplete. A token taken now would lie inside it.
    pub(super) fn is_partial(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Must be called after each whole event.
    pub(super) fn clear(&mut self) {
        self.pending.clear();
    }

    pub(super) fn join<'a>(&'a mut self, raw: &'a RawDocument) -> Result<FragmentJoin<'a>, Error> {
        let change = RawChange::parse(raw)?;
        let Some(Fragment { number, of }) = change.fragment else {
            return if self.is_partial() { Err(OUT_OF_ORDER) } else { Ok(FragmentJoin::Whole(change)) };
        };
        if usize::try_from(number) != Ok(self.pending.len() + 1) {
            return Err(OUT_OF_ORDER);
        }
        if number < of {
            self.pending.push(raw.to_owned());
            return Ok(FragmentJoin::Partial(change.token()?));
        }
        let mut whole = RawChange::default();
        for fragment in &self.pending {
            whole.add(fragment)?;
        }
        whole.add(raw)?;
        Ok(FragmentJoin::Whole(whole))
    }
}

const OUT_OF_ORDER: Error = Error::Unreadable { problem: "arrived with its fragments out of order" };

/// One reply of the server: the events, and the resume token after them.
#[derive(Debug)]
pub(super) struct CursorBatch<'a> {
    pub(super) events: &'a RawArray,
    pub(super) token: Option<ResumeToken>,
}

impl<'a> CursorBatch<'a> {
    pub(super) fn parse(reply: &'a RawDocument) -> Result<Self, Error> {
        let cursor = reply.get_document("cursor").map_err(|_| NOT_BSON)?;
        let (mut events, mut token) = (None, None);
        for element in cursor {
            let (name, value) = element.map_err(|_| NOT_BSON)?;
            match (name.as_str(), value) {
                ("firstBatch" | "nextBatch", RawBsonRef::Array(batch)) => events = Some(batch),
                ("postBatchResumeToken", RawBsonRef::Document(raw)) => token = ResumeToken::try_from(raw).ok(),
                _ => {}
            }
        }
        Ok(Self { events: events.ok_or(NOT_BSON)?, token })
    }
}

pub(super) fn batch_documents(batch: &RawArray) -> impl Iterator<Item = Result<&RawDocument, Error>> {
    batch.into_iter().map(|value| value.ok().and_then(RawBsonRef::as_document).ok_or(NOT_BSON))
}

#[cfg(test)]
mod tests {
    use super::*;
    use mongodb::bson::rawdoc;

    fn fragment(data: &str, number: i32, of: i32, rest: RawDocumentBuf) -> RawDocumentBuf {
        let mut raw = rawdoc! { "_id": { "_data": data }, "splitEvent": { "fragment": number, "of": of } };
        for element in &rest {
            let (name, value) = element.unwrap();
            raw.append(name, value);
        }
        raw
    }

    #[test]
    fn fragments_join_to_one_event_with_the_last_token() {
        let first = fragment("8201", 1, 3, rawdoc! { "operationType": "update", "documentKey": { "_id": 7 } });
        let second = fragment("8202", 2, 3, rawdoc! { "fullDocument": { "_id": 7 } });
        let third = fragment("8203", 3, 3, rawdoc! { "updateDescription": {} });
        let mut fragments = FragmentBuffer::default();
        assert!(matches!(fragments.join(&first), Ok(FragmentJoin::Partial(_))));
        assert!(fragments.is_partial());
        assert!(matches!(fragments.join(&second), Ok(FragmentJoin::Partial(_))));
        let Ok(FragmentJoin::Whole(whole)) = fragments.join(&third) else { panic!("not whole") };
        assert_eq!(whole.token().unwrap().key(), "8203");
        assert_eq!(whole.operation, Some("update"));
        assert!(whole.key.is_some() && whole.document.is_some());
        fragments.clear();
        assert!(!fragments.is_partial());
    }

    #[test]
    fn a_fragment_out_of_order_is_an_error() {
        let second = fragment("8202", 2, 3, rawdoc! {});
        assert!(FragmentBuffer::default().join(&second).is_err());
        let mut fragments = FragmentBuffer::default();
        let first = fragment("8201", 1, 3, rawdoc! {});
        assert!(matches!(fragments.join(&first), Ok(FragmentJoin::Partial(_))));
        let whole = rawdoc! { "_id": { "_data": "8205" }, "operationType": "insert" };
        assert!(fragments.join(&whole).is_err());
    }
}
