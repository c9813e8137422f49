//! One direction of one connection: reads, keeps on a [`Line`], delivers, as the fault of the moment has it.
//!
//! Every byte passes a look at the fault between being read and being delivered, so nothing that is sent after a fault
//! is in force gets past it. Never holds more than the line does.

use std::{future::pending, io, sync::atomic::Ordering::Relaxed, time::Duration};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::tcp::{ReadHalf, WriteHalf},
    select,
    time::{Instant, sleep_until},
};

use super::{
    Direction,
    connection::Link,
    counters::Meter,
    fault::{Course, Ending},
    line::{Line, Next},
};

const READ_SIZE: usize = 16 * 1024;

/// Carries bytes until the sender's end has been passed on, or until the connection must be given up.
pub(super) async fn pump(
    link: &Link,
    direction: Direction,
    from: ReadHalf<'_>,
    to: WriteHalf<'_>,
) -> Result<(), Ending> {
    let mut fault = link.faults();
    let mut pipe = Pipe {
        link,
        direction,
        meter: link.meter(direction),
        from,
        to,
        scratch: vec![0; READ_SIZE],
        line: Line::default(),
        has_hole: false,
    };
    loop {
        let course = Course::under(*fault.borrow_and_update(), direction);
        select! {
            biased;
            // cancel-safe: both; a step changes its pipe only after its last await
            _ = fault.changed() => {}
            step = pipe.step(course) => if let Step::Finished = step? { return Ok(()) },
        }
    }
}

enum Step {
    More,
    Finished,
}

struct Pipe<'a> {
    link: &'a Link,
    direction: Direction,
    meter: &'a Meter,
    from: ReadHalf<'a>,
    to: WriteHalf<'a>,
    scratch: Vec<u8>,
    line: Line,
    /// Bytes of this stream were lost, so nothing after them may be delivered.
    has_hole: bool,
}

impl Pipe<'_> {
    async fn step(&mut self, course: Course) -> Result<Step, Ending> {
        match course {
            Course::Flow { .. } if self.has_hole => Err(Ending::Reset),
            // A peer that went away without a word is passed on as such.
            Course::Flow { delay } => self.flow(delay).await.map_err(|_| Ending::Broken),
            Course::Swallow => self.swallow().await,
            Course::Hold => self.hold().await,
            Course::Stop => pending().await,
        }
    }

    async fn flow(&mut self, delay: Duration) -> io::Result<Step> {
        let room = self.line.room().min(READ_SIZE);
        let limit = self.link.bytes_to_next_rule(self.direction);
        select! {
            // cancel-safe: read takes nothing unless it completes
            read = self.from.read(&mut self.scratch[..room]), if room > 0 => self.take(read?),
            // cancel-safe: one write of bytes that stay on the line until it completes
            delivered = deliver(self.line.next(delay), limit, &mut self.to) => match delivered? {
                Some(count) => self.passed(count, delay),
                None => return Ok(Step::Finished),
            },
        }
        Ok(Step::More)
    }

    fn take(&mut self, count: usize) {
        if count == 0 {
            return self.line.end(Instant::now());
        }
        self.meter.received.fetch_add(count as u64, Relaxed);
        self.line.push(&self.scratch[..count], Instant::now());
    }

    fn passed(&mut self, count: usize, delay: Duration) {
        self.line.advance(count);
        self.meter.delivered.fetch_add(count as u64, Relaxed);
        if !delay.is_zero() {
            self.meter.delayed.fetch_add(count as u64, Relaxed);
        }
        self.link.follow_rules(self.direction);
    }

    async fn swallow(&mut self) -> Result<Step, Ending> {
        let spilt = self.line.spill();
        self.lose(spilt);
        if self.line.has_ended() {
            return pending().await;
        }
        match self.from.read(&mut self.scratch).await {
            // The end is not delivered either: it waits for the heal.
            Ok(0) => self.line.end(Instant::now()),
            Ok(count) => {
                self.meter.received.fetch_add(count as u64, Relaxed);
                self.lose(count);
            }
            Err(_) => {
                self.has_hole = true;
                self.line.end(Instant::now());
            }
        }
        Ok(Step::More)
    }

    fn lose(&mut self, count: usize) {
        self.meter.swallowed.fetch_add(count as u64, Relaxed);
        self.has_hole |= count > 0;
    }

    async fn hold(&mut self) -> Result<Step, Ending> {
        // Looks without taking; a failure is the flow's to meet, after the heal.
        if self.line.next(Duration::ZERO).is_some() || self.from.peek(&mut self.scratch[..1]).await.is_ok() {
            self.meter.withheld.fetch_add(1, Relaxed);
        }
        pending().await
    }
}

/// Writes once, when it is due; says how many bytes went, or `None` when it was the end that was passed on.
async fn deliver(next: Option<(Instant, Next<'_>)>, limit: u64, to: &mut WriteHalf<'_>) -> io::Result<Option<usize>> {
    let Some((due, next)) = next else { return pending().await };
    // Asked first, because a timer takes up to a millisecond even for a moment that has passed.
    if due > Instant::now() {
        sleep_until(due).await;
    }
    match next {
        Next::Bytes(bytes) => {
            let allowed = bytes.len().min(usize::try_from(limit).unwrap_or(usize::MAX));
            to.write(&bytes[..allowed]).await.map(Some)
        }
        Next::End => to.shutdown().await.map(|()| None),
    }
}
