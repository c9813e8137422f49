//! The queue between capture and publisher, bounded in bytes and in events.
//!
//! The sender acquires capacity before it enqueues a batch; receiving the batch releases it. A batch larger than the whole queue waits
//! until the queue is empty.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

use super::CaptureItem;

/// The receiving end. After capture has ended it returns the remaining batches, then `None`.
#[derive(Debug)]
pub struct CaptureReceiver {
    batches: mpsc::UnboundedReceiver<CapturedBatch>,
}

impl CaptureReceiver {
    /// The next batch, in order and never empty. Cancel-safe.
    pub async fn next(&mut self) -> Option<Vec<CaptureItem>> {
        self.batches.recv().await.map(|queued| queued.batch)
    }
}

#[derive(Debug)]
struct CapturedBatch {
    batch: Vec<CaptureItem>,
    _bytes: OwnedSemaphorePermit,
    _events: OwnedSemaphorePermit,
}

/// The sending end.
#[derive(Debug)]
pub(super) struct CaptureSender {
    batches: mpsc::UnboundedSender<CapturedBatch>,
    bytes: QueueCapacity,
    events: QueueCapacity,
}

/// The receiver is dropped.
#[derive(Debug)]
pub(super) struct QueueClosed;

pub(super) fn bounded_queue(bytes: u32, events: u32) -> (CaptureSender, CaptureReceiver) {
    let (sender, batches) = mpsc::unbounded_channel();
    (
        CaptureSender { batches: sender, bytes: QueueCapacity::new(bytes), events: QueueCapacity::new(events) },
        CaptureReceiver { batches },
    )
}

impl CaptureSender {
    /// Waits for capacity; calls `on_full` first if there is none.
    pub(super) async fn send(&self, batch: Vec<CaptureItem>, on_full: impl FnOnce()) -> Result<(), QueueClosed> {
        if batch.is_empty() {
            return Ok(());
        }
        let (bytes, events) = (batch.iter().map(CaptureItem::weight).sum(), batch.len());
        let room = async { (self.bytes.acquire(bytes).await, self.events.acquire(events).await) };
        tokio::pin!(room);
        let (bytes, events) = match futures_util::poll!(&mut room) {
            std::task::Poll::Ready(room) => room,
            std::task::Poll::Pending => {
                on_full();
                tokio::select! {
                    room = room => room,
                    () = self.batches.closed() => return Err(QueueClosed),
                }
            }
        };
        self.batches.send(CapturedBatch { batch, _bytes: bytes, _events: events }).map_err(|_| QueueClosed)
    }
}

#[derive(Debug)]
struct QueueCapacity {
    size: u32,
    permits: Arc<Semaphore>,
}

impl QueueCapacity {
    fn new(size: u32) -> Self {
        Self { size, permits: Arc::new(Semaphore::new(size as usize)) }
    }

    async fn acquire(&self, amount: usize) -> OwnedSemaphorePermit {
        let amount = u32::try_from(amount).unwrap_or(u32::MAX).min(self.size);
        self.permits.clone().acquire_many_owned(amount).await.expect("the semaphore is never closed")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint::CheckpointPhase;
    use mongodb::bson::Timestamp;
    use std::cell::Cell;

    fn watermarks(count: u32) -> Vec<CaptureItem> {
        let mark =
            |increment| CaptureItem::Watermark(CheckpointPhase::Unstarted, Some(Timestamp { time: 1, increment }));
        (0..count).map(mark).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn send_waits_until_a_received_batch_frees_capacity() {
        let (sender, mut receiver) = bounded_queue(1 << 20, 10);
        let full = Cell::new(false);
        sender.send(watermarks(6), || full.set(true)).await.unwrap();
        assert!(!full.get());
        let second = sender.send(watermarks(6), || full.set(true));
        tokio::pin!(second);
        assert!(futures_util::poll!(&mut second).is_pending());
        assert!(full.get());
        assert_eq!(receiver.next().await.unwrap().len(), 6);
        second.await.unwrap();
        assert_eq!(receiver.next().await.unwrap().len(), 6);
    }

    #[tokio::test]
    async fn a_batch_larger_than_the_queue_passes_alone() {
        let (sender, mut receiver) = bounded_queue(1, 1);
        sender.send(watermarks(100), || panic!("there was room")).await.unwrap();
        assert_eq!(receiver.next().await.unwrap().len(), 100);
    }

    #[tokio::test]
    async fn a_waiting_send_fails_when_the_receiver_is_dropped() {
        let (sender, receiver) = bounded_queue(1, 1);
        sender.send(watermarks(1), || ()).await.unwrap();
        let waiting = sender.send(watermarks(1), || ());
        tokio::pin!(waiting);
        assert!(futures_util::poll!(&mut waiting).is_pending());
        drop(receiver);
        assert!(waiting.await.is_err());
    }
}
