//! Builds the batches of a lane: full by count, bytes or time. Pure.

use std::collections::VecDeque;
use std::time::Duration;

use amqp::message::BatchBuilder;
use bytes::Bytes;
use servicebus::EncodedMessage;

use super::acknowledged_prefix::CaptureOrdinal;

/// The limits of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchLimits {
    pub count: usize,
    /// Maximum message size of the link.
    pub bytes: usize,
    /// How long the first event of a lane waits for others. If zero, only events that queue behind a transfer in flight are batched.
    pub linger: Duration,
}

/// An event in the send window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowEntry {
    pub ordinal: CaptureOrdinal,
    /// Bytes it takes of the window.
    pub weight: usize,
}

/// One transfer: a message, or a batch of messages of one lane.
#[derive(Clone, Debug)]
pub(super) struct OutboundBatch {
    first: WindowEntry,
    rest: Vec<WindowEntry>,
    /// `None` while a write to MongoDB must finish before it may be sent.
    payload: Option<Bytes>,
    /// Sent before: a retry must send the same bytes.
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

    /// The encoded transfer; `None` if it is not ready.
    pub(super) fn encoded(&self) -> Option<EncodedMessage> {
        let bytes = self.payload.clone()?;
        Some(if self.rest.is_empty() { EncodedMessage::message(bytes) } else { EncodedMessage::batch(bytes) })
    }

    /// Sets the message of an event that waits for one. `false` if the event is not in this batch.
    pub(super) fn set_message(&mut self, ordinal: CaptureOrdinal, message: &Bytes) -> bool {
        let here = self.first.ordinal == ordinal && self.payload.is_none();
        if here {
            self.payload = Some(message.clone());
        }
        here
    }

    /// Takes the message out; the event waits for another message.
    pub(super) fn take_message(&mut self) -> Option<(CaptureOrdinal, Bytes)> {
        Some((self.first.ordinal, self.payload.take()?))
    }

    pub(super) fn payload(&self) -> Option<Bytes> {
        self.payload.clone()
    }

    /// Splits a batch into halves, to find the message that was refused.
    pub(super) fn split(self) -> Vec<Self> {
        let messages: Vec<Bytes> = match &self.payload {
            Some(payload) if !self.rest.is_empty() => {
                let envelope = amqp::Message::parse(payload.clone()).expect("a batch we encoded can be decoded");
                envelope.data().collect()
            }
            _ => self.payload.iter().cloned().collect(),
        };
        let entries: Vec<_> = self.entries().zip(messages).collect();
        entries.chunks(entries.len().div_ceil(2).max(1)).filter_map(Self::join).collect()
    }

    /// Sealed: the messages must not join another batch, since one of them was refused.
    fn join(messages: &[(WindowEntry, Bytes)]) -> Option<Self> {
        let ((first, message), others) = messages.split_first()?;
        let mut envelope = BatchBuilder::new(usize::MAX);
        let payload = if others.is_empty() {
            message.clone()
        } else {
            messages.iter().for_each(|(_, message)| envelope.add(message).expect("a message we encoded fits"));
            envelope.finish()
        };
        let rest = others.iter().map(|(entry, _)| *entry).collect();
        Some(Self { rest, is_sealed: true, ..Self::new(*first, Some(payload)) })
    }
}

/// Takes the next batch from the front of a lane. `None` if the front is not ready.
pub(super) fn build_batch(queue: &mut VecDeque<OutboundBatch>, limits: &BatchLimits) -> Option<OutboundBatch> {
    let front = queue.front()?;
    if !front.is_ready() {
        return None;
    }
    let joins = |batch: &OutboundBatch| !batch.is_sealed && batch.is_ready();
    let alone = limits.count < 2 || front.is_sealed || !queue.get(1).is_some_and(joins);
    let mut batch = queue.pop_front()?;
    if !alone {
        let mut envelope = BatchBuilder::new(limits.bytes);
        let mut fits =
            |next: &OutboundBatch| next.payload.as_ref().is_some_and(|message| envelope.add(message).is_ok());
        if fits(&batch) {
            while batch.len() < limits.count && queue.front().is_some_and(|next| joins(next) && fits(next)) {
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
    use crate::publish::acknowledged_prefix::{AcknowledgedPrefix, tests::position};
    use amqp::message::{MessageWriter, Properties};
    use bytes::BytesMut;

    const LIMITS: BatchLimits = BatchLimits { count: 3, bytes: 10_000, linger: Duration::ZERO };

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
    fn queued_messages_are_batched_up_to_the_count() {
        let mut waiting = queue(&["a", "b", "c", "d"]);
        let batch = build_batch(&mut waiting, &LIMITS).unwrap();
        assert_eq!((batch.len(), waiting.len()), (3, 1));
        let alone = build_batch(&mut waiting, &LIMITS).unwrap();
        assert_eq!(alone.payload, Some(message("d")), "one message needs no batch envelope");
        assert!(build_batch(&mut waiting, &LIMITS).is_none());
    }

    #[test]
    fn a_batch_fits_the_size_limit_of_the_link() {
        let large = "x".repeat(4_000);
        let mut waiting = queue(&[&large, &large, &large]);
        assert_eq!(build_batch(&mut waiting, &LIMITS).unwrap().len(), 2);
        let huge = "x".repeat(20_000);
        let mut waiting = queue(&[&huge, "a"]);
        assert_eq!(build_batch(&mut waiting, &LIMITS).unwrap().payload, Some(message(&huge)));
    }

    #[test]
    fn no_message_passes_one_that_waits_for_a_write() {
        let mut waiting = queue(&["a", "", "c"]);
        assert_eq!(build_batch(&mut waiting, &LIMITS).unwrap().len(), 1);
        assert!(build_batch(&mut waiting, &LIMITS).is_none());
        let ordinal = waiting[0].first.ordinal;
        assert!(waiting[0].set_message(ordinal, &message("b")));
        assert_eq!(build_batch(&mut waiting, &LIMITS).unwrap().len(), 2);
    }

    #[test]
    fn a_refused_batch_splits_into_halves() {
        let mut waiting = queue(&["a", "b", "c"]);
        let mut parts: VecDeque<_> = build_batch(&mut waiting, &LIMITS).unwrap().split().into();
        assert_eq!(parts.iter().map(OutboundBatch::len).collect::<Vec<_>>(), [2, 1]);
        // They do not join again.
        let first = build_batch(&mut parts, &LIMITS).unwrap();
        let messages: Vec<_> = first.split().into_iter().map(|part| part.payload.unwrap()).collect();
        assert_eq!(messages, [message("a"), message("b")]);
        assert_eq!(parts[0].payload, Some(message("c")));
    }
}
