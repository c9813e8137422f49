//! One direction of one connection: reads into a [`DelayQueue`] and delivers from it, as the current fault requires.
//!
//! The pump checks the fault between reading and delivering every byte, so nothing sent after a fault is in force gets
//! past it. It never holds more than the queue.

use std::{future::pending, io, sync::atomic::Ordering::Relaxed, time::Duration};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::tcp::{ReadHalf, WriteHalf},
    select,
    time::{Instant, sleep_until},
};

use super::{
    Direction,
    connection::ProxyLink,
    counters::TrafficMeter,
    delay_queue::{DelayQueue, NextBytes},
    fault::{ByteFlow, ProxyCloseReason},
};

const READ_SIZE: usize = 16 * 1024;

/// Forwards bytes until the sender's end is delivered, or until the connection must close.
pub(super) async fn pump(
    link: &ProxyLink,
    direction: Direction,
    from: ReadHalf<'_>,
    to: WriteHalf<'_>,
) -> Result<(), ProxyCloseReason> {
    let mut fault = link.faults();
    let mut state = Pump {
        link,
        direction,
        meter: link.meter(direction),
        from,
        to,
        scratch: vec![0; READ_SIZE],
        queue: DelayQueue::default(),
        lost_bytes: false,
    };
    loop {
        let byte_flow = ByteFlow::under(*fault.borrow_and_update(), direction);
        select! {
            biased;
            // cancel-safe: both; a step changes its state only after its last await
            _ = fault.changed() => {}
            step = state.step(byte_flow) => if let PumpStep::Finished = step? { return Ok(()) },
        }
    }
}

enum PumpStep {
    More,
    Finished,
}

struct Pump<'a> {
    link: &'a ProxyLink,
    direction: Direction,
    meter: &'a TrafficMeter,
    from: ReadHalf<'a>,
    to: WriteHalf<'a>,
    scratch: Vec<u8>,
    queue: DelayQueue,
    /// Bytes of this stream were lost, so nothing after them may be delivered.
    lost_bytes: bool,
}

impl Pump<'_> {
    async fn step(&mut self, byte_flow: ByteFlow) -> Result<PumpStep, ProxyCloseReason> {
        match byte_flow {
            ByteFlow::Flow { .. } if self.lost_bytes => Err(ProxyCloseReason::Reset),
            // A peer that disconnected is reported to the other peer as a reset.
            ByteFlow::Flow { delay } => self.forward(delay).await.map_err(|_| ProxyCloseReason::Broken),
            ByteFlow::Drop => self.drop_bytes().await,
            ByteFlow::Hold => self.hold().await,
            ByteFlow::Stop => pending().await,
        }
    }

    async fn forward(&mut self, delay: Duration) -> io::Result<PumpStep> {
        let free_bytes = self.queue.free_bytes().min(READ_SIZE);
        let limit = self.link.bytes_to_next_rule(self.direction);
        select! {
            // cancel-safe: read takes nothing unless it completes
            read = self.from.read(&mut self.scratch[..free_bytes]), if free_bytes > 0 => self.enqueue(read?),
            // cancel-safe: one write of bytes that stay in the queue until it completes
            delivered = deliver(self.queue.next(delay), limit, &mut self.to) => match delivered? {
                Some(count) => self.record_delivered(count, delay),
                None => return Ok(PumpStep::Finished),
            },
        }
        Ok(PumpStep::More)
    }

    fn enqueue(&mut self, count: usize) {
        if count == 0 {
            return self.queue.end(Instant::now());
        }
        self.meter.received.fetch_add(count as u64, Relaxed);
        self.queue.push(&self.scratch[..count], Instant::now());
    }

    fn record_delivered(&mut self, count: usize, delay: Duration) {
        self.queue.advance(count);
        self.meter.delivered.fetch_add(count as u64, Relaxed);
        if !delay.is_zero() {
            self.meter.delayed.fetch_add(count as u64, Relaxed);
        }
        self.link.apply_due_rules(self.direction);
    }

    async fn drop_bytes(&mut self) -> Result<PumpStep, ProxyCloseReason> {
        let discarded = self.queue.discard_all();
        self.count_lost(discarded);
        if self.queue.has_ended() {
            return pending().await;
        }
        match self.from.read(&mut self.scratch).await {
            // The end of the stream is held until the heal.
            Ok(0) => self.queue.end(Instant::now()),
            Ok(count) => {
                self.meter.received.fetch_add(count as u64, Relaxed);
                self.count_lost(count);
            }
            Err(_) => {
                self.lost_bytes = true;
                self.queue.end(Instant::now());
            }
        }
        Ok(PumpStep::More)
    }

    fn count_lost(&mut self, count: usize) {
        self.meter.dropped.fetch_add(count as u64, Relaxed);
        self.lost_bytes |= count > 0;
    }

    async fn hold(&mut self) -> Result<PumpStep, ProxyCloseReason> {
        // Peeks only; `forward` meets a failure after the heal.
        if self.queue.next(Duration::ZERO).is_some() || self.from.peek(&mut self.scratch[..1]).await.is_ok() {
            self.meter.withheld.fetch_add(1, Relaxed);
        }
        pending().await
    }
}

/// Writes once, when due; returns the number of bytes, or `None` when it delivered the end of the stream.
async fn deliver(
    next: Option<(Instant, NextBytes<'_>)>,
    limit: u64,
    to: &mut WriteHalf<'_>,
) -> io::Result<Option<usize>> {
    let Some((due, next)) = next else { return pending().await };
    // Checked first, because a timer takes up to a millisecond even for a time in the past.
    if due > Instant::now() {
        sleep_until(due).await;
    }
    match next {
        NextBytes::Bytes(bytes) => {
            let allowed = bytes.len().min(usize::try_from(limit).unwrap_or(usize::MAX));
            to.write(&bytes[..allowed]).await.map(Some)
        }
        NextBytes::End => to.shutdown().await.map(|()| None),
    }
}
