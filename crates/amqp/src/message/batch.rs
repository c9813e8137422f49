//! The Service Bus batch: one transfer that carries many messages.

use bytes::{Bytes, BytesMut};

use super::{BATCH_FORMAT, Message, MessageWriter, Properties, annotation};
use crate::codec::DecodeError;

/// Fills a batch up to a size. The envelope repeats the first message's id, session id and partition key, as the
/// official clients do and partitioned entities need.
#[derive(Debug)]
pub struct BatchBuilder {
    buffer: BytesMut,
    limit: usize,
    count: usize,
}

/// The message does not fit into the batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BatchFull {
    #[error("batch of {limit} bytes has no room for {wanted} more")]
    NoRoom { wanted: usize, limit: usize },
    #[error("invalid message")]
    Malformed(#[from] DecodeError),
}

/// Descriptor and the longest binary head of a data section.
const DATA_HEAD: usize = 8;

impl BatchBuilder {
    /// The message format to send it with.
    pub const FORMAT: u32 = BATCH_FORMAT;

    /// A batch of at most `limit` encoded bytes.
    pub fn new(limit: usize) -> Self {
        Self { buffer: BytesMut::new(), limit, count: 0 }
    }

    /// Adds one complete encoded message. On an error the batch is as it was before.
    pub fn add(&mut self, message: &Bytes) -> Result<(), BatchFull> {
        let start = self.buffer.len();
        if self.count == 0 {
            self.envelope(&Message::parse(message.clone())?)?;
        }
        let wanted = self.buffer.len() + message.len() + DATA_HEAD;
        if wanted > self.limit {
            self.buffer.truncate(start);
            return Err(BatchFull::NoRoom { wanted: message.len() + DATA_HEAD, limit: self.limit });
        }
        MessageWriter::new(&mut self.buffer).data(message);
        self.count += 1;
        Ok(())
    }

    pub fn len(&self) -> usize {
        self.count
    }

    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Encoded bytes so far.
    pub fn size(&self) -> usize {
        self.buffer.len()
    }

    /// The encoded batch, to be sent with [`Self::FORMAT`].
    pub fn finish(self) -> Bytes {
        self.buffer.freeze()
    }

    fn envelope(&mut self, first: &Message) -> Result<(), DecodeError> {
        let Properties { message_id, group_id, .. } = first.properties()?;
        let mut writer = MessageWriter::new(&mut self.buffer);
        writer.message_annotations(|map| {
            for key in [annotation::PARTITION_KEY, annotation::VIA_PARTITION_KEY] {
                if let Some(value) = first.annotation(key).and_then(|value| value.as_str()) {
                    map.put_string(key, value);
                }
            }
        });
        if message_id.is_some() || group_id.is_some() {
            writer.properties(&Properties { message_id, group_id, ..Properties::default() });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(id: &str) -> Bytes {
        let mut buffer = BytesMut::new();
        MessageWriter::new(&mut buffer)
            .message_annotations(|map| {
                map.put_string(annotation::PARTITION_KEY, "p");
            })
            .properties(&Properties { message_id: Some(id.into()), group_id: Some("p"), ..Properties::default() })
            .data(b"body");
        buffer.freeze()
    }

    #[test]
    fn the_messages_of_a_batch_come_out_as_they_went_in() {
        let mut batch = BatchBuilder::new(1000);
        let messages = [message("a"), message("b"), message("c")];
        messages.iter().for_each(|message| batch.add(message).unwrap());
        let envelope = Message::parse(batch.finish()).unwrap();
        assert_eq!(envelope.data().collect::<Vec<_>>(), messages);
        assert_eq!(envelope.properties().unwrap().message_id, Some("a".into()));
        assert_eq!(envelope.partition_key(), Some("p"));
    }

    #[test]
    fn a_message_that_does_not_fit_leaves_the_batch_as_it_was() {
        let mut batch = BatchBuilder::new(150);
        batch.add(&message("a")).unwrap();
        let size = batch.size();
        assert!(matches!(batch.add(&message("b")), Err(BatchFull::NoRoom { .. })));
        assert_eq!((batch.len(), batch.size()), (1, size));
    }
}
