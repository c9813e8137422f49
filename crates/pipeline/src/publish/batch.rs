//! What goes together: filled by count, by bytes or by time, whichever first. Pure.

use std::collections::VecDeque;
use std::time::Duration;

use amqp::message::BatchBuilder;
use bytes::Bytes;
use servicebus::EncodedMessage;

use super::prefix::Ordinal;

/// When a batch is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchLimits {
    pub count: usize,
    /// What the link takes.
    pub bytes: usize,
    /// How long a lane's first event waits for company; nothing, and only what waits while a transfer is out goes together.
    pub linger: Duration,
}

/// An event's place in the window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowEntry {
    pub ordinal: Ordinal,
    /// Bytes of the window it takes.
    pub weight: usize,
}

/// What travels as one transfer: a message, or a batch of one lane's messages.
#[derive(Clone, Debug)]
pub(super) struct OutboundBatch {
    first: WindowEntry,
    rest: Vec<WindowEntry>,
    /// `None` while something must be stored before it may be sent.
    payload: Option<Bytes>,
    /// It was tried before: it goes again as it is, byte for byte.
    pub(super) is_sealed: bool,
    pub(super) attempts: u32,
}

impl OutboundBatch {
    pub(super) fn new(entry: WindowEntry, message: Option<Bytes>) -> Self {
        Self { first: entry, rest: Vec::new(), payload: message, is_sealed: false, attempts: 0 }
    }

    pub(super) fn entries(&self) -> impl Iterator<Item = WindowEntry> {
        std::iter::once(self.first).chain(self.rest.iter().copied())
    }

    pub(super) fn len(&self) -> usize {
        1 + self.rest.len()
    }

    pub(super) fn is_ready(&self) -> bool {
        self.payload.is_some()
    }

    /// As it goes on the wire.
    pub(super) fn encoded(&self) -> Option<EncodedMessage> {
        let bytes = self.payload.clone()?;
        Some(if self.rest.is_empty() { EncodedMessage::message(bytes) } else { EncodedMessage::batch(bytes) })
    }

    /// The message of an event that waited for it. `false` if it is not here.
    pub(super) fn set_message(&mut self, ordinal: Ordinal, message: &Bytes) -> bool {
        let here = self.first.ordinal == ordinal && self.payload.is_none();
        if here {
            self.payload = Some(message.clone());
        }
        here
    }

    /// Takes the message out; its place waits for another.
    pub(super) fn take_message(&mut self) -> Option<(Ordinal, Bytes)> {
        Some((self.first.ordinal, self.payload.take()?))
    }

    /// The messages of a batch, each alone, as they were put in.
    pub(super) fn split(self) -> Vec<Self> {
        let messages: Vec<Bytes> = match &self.payload {
            Some(payload) if !self.rest.is_empty() => {
                let envelope = amqp::Message::parse(payload.clone()).expect("a batch we encoded can be decoded");
                envelope.data().collect()
            }
            _ => self.payload.iter().cloned().collect(),
        };
        let alone = |(entry, message)| Self { is_sealed: true, ..Self::new(entry, Some(message)) };
        self.entries().zip(messages).map(alone).collect()
    }
}

/// Takes from the front of a lane what goes together. `None` if the front is not ready.
pub(super) fn build_batch(queue: &mut VecDeque<OutboundBatch>, rule: &BatchLimits) -> Option<OutboundBatch> {
    let front = queue.front()?;
    if !front.is_ready() {
        return None;
    }
    let joins = |batch: &OutboundBatch| !batch.is_sealed && batch.is_ready();
    let alone = rule.count < 2 || front.is_sealed || !queue.get(1).is_some_and(joins);
    let mut batch = queue.pop_front()?;
    if !alone {
        let mut envelope = BatchBuilder::new(rule.bytes);
        let mut fits =
            |next: &OutboundBatch| next.payload.as_ref().is_some_and(|message| envelope.add(message).is_ok());
        if fits(&batch) {
            while batch.len() < rule.count && queue.front().is_some_and(|next| joins(next) && fits(next)) {
                let next = queue.pop_front().expect("there is a front");
                batch.rest.push(next.first);
            }
            // A single message needs no batch envelope.
            if !batch.rest.is_empty() {
                batch.payload = Some(envelope.finish());
            }
        }
    }
    batch.is_sealed = true;
    Some(batch)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::publish::prefix::{AcknowledgedPrefix, tests::position};
    use amqp::message::{MessageWriter, Properties};
    use bytes::BytesMut;

    const RULE: BatchLimits = BatchLimits { count: 3, bytes: 10_000, linger: Duration::ZERO };

    fn message(text: &str) -> Bytes {
        let mut buffer = BytesMut::new();
        let properties = Properties { message_id: Some(text[..1].into()), ..Properties::default() };
        MessageWriter::new(&mut buffer).properties(&properties).data(text.as_bytes());
        buffer.freeze()
    }

    fn queue(texts: &[&str]) -> VecDeque<OutboundBatch> {
        let mut prefix = AcknowledgedPrefix::with_failpoint(false);
        let batch = |text: &&str| {
            let entry = WindowEntry { ordinal: prefix.push_event(position(0)), weight: text.len() };
            OutboundBatch::new(entry, (!text.is_empty()).then(|| message(text)))
        };
        texts.iter().map(batch).collect()
    }

    #[test]
    fn what_waits_goes_together_up_to_the_count() {
        let mut waiting = queue(&["a", "b", "c", "d"]);
        let batch = build_batch(&mut waiting, &RULE).unwrap();
        assert_eq!((batch.len(), waiting.len()), (3, 1));
        let alone = build_batch(&mut waiting, &RULE).unwrap();
        assert_eq!(alone.payload, Some(message("d")), "one message needs no envelope");
        assert!(build_batch(&mut waiting, &RULE).is_none());
    }

    #[test]
    fn a_batch_holds_no_more_than_the_link_takes() {
        let large = "x".repeat(4_000);
        let mut waiting = queue(&[&large, &large, &large]);
        assert_eq!(build_batch(&mut waiting, &RULE).unwrap().len(), 2);
        let huge = "x".repeat(20_000);
        let mut waiting = queue(&[&huge, "a"]);
        assert_eq!(build_batch(&mut waiting, &RULE).unwrap().payload, Some(message(&huge)));
    }

    #[test]
    fn nothing_passes_an_event_that_waits_to_be_stored() {
        let mut waiting = queue(&["a", "", "c"]);
        assert_eq!(build_batch(&mut waiting, &RULE).unwrap().len(), 1);
        assert!(build_batch(&mut waiting, &RULE).is_none());
        let ordinal = waiting[0].first.ordinal;
        assert!(waiting[0].set_message(ordinal, &message("b")));
        assert_eq!(build_batch(&mut waiting, &RULE).unwrap().len(), 2);
    }

    #[test]
    fn a_batch_comes_apart_as_it_was_put_together() {
        let mut waiting = queue(&["a", "b", "c"]);
        let parts = build_batch(&mut waiting, &RULE).unwrap().split();
        let messages: Vec<_> = parts.iter().map(|part| part.payload.clone().unwrap()).collect();
        assert_eq!(messages, [message("a"), message("b"), message("c")]);
        // And they do not join again: each goes alone.
        let mut again: VecDeque<_> = parts.into();
        assert_eq!(build_batch(&mut again, &RULE).unwrap().len(), 1);
    }
}
