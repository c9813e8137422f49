//! Writes the unsynced tail to disk. Only this part writes the log and advances the durable position.
//!
//! A failed sync is never retried on the same file: the kernel may have dropped the pages and report success for the
//! next sync. The file is abandoned from the last good sync on, and everything since, which is still in memory, is
//! written to a new piece.
//!
//! Never blocks the engine. Never touches snapshots, indexes or dead segments: those belong to the [background
//! worker](super::background).

use std::io;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::Duration;

use super::background::BackgroundJob;
use super::disk::{Disk, DiskFile};
use super::layout::{PIECE_HEADER, PieceHeader, PieceName, temporary};
use super::reserved_space::{self, SpaceStatus};
use super::unsynced_tail::{SharedTail, StoreHealth, TailChunk, WakeFn};

/// Delay between two attempts while writing fails.
const RETRY: std::ops::RangeInclusive<Duration> = Duration::from_millis(50)..=Duration::from_secs(1);

/// How often an idle writer checks for free space while the disk is full.
const SPACE_CHECK_INTERVAL: Duration = Duration::from_millis(500);

pub(super) struct LogWriter {
    pub(super) disk: Arc<dyn Disk>,
    pub(super) shared: Arc<SharedTail>,
    pub(super) salt: u32,
    pub(super) segment_bytes: u32,
    pub(super) jobs: Sender<BackgroundJob>,
    pub(super) wake: WakeFn,
    pub(super) current: Option<OpenPiece>,
    /// The piece started last, successful or not: its number is not used again.
    pub(super) last_started: Option<PieceName>,
    /// Files abandoned before they held anything durable; removed after a later piece has replaced them.
    pub(super) abandoned: Vec<String>,
}

/// The piece being written.
pub(super) struct OpenPiece {
    header: PieceHeader,
    file: Arc<dyn DiskFile>,
    /// Set when its first bytes are durable.
    named: bool,
    /// Position up to which it is written.
    end: u64,
    dirty: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WriteStep {
    Progress,
    Idle,
    /// An attempt failed; the bytes in flight stay in memory.
    Stalled,
}

impl LogWriter {
    /// Runs until the store stops. The bytes collected by then are tried once more.
    pub(super) fn run(mut self) {
        let mut pause = *RETRY.start();
        loop {
            match self.step() {
                WriteStep::Progress => pause = *RETRY.start(),
                _ if self.shared.lock().stopping => return,
                WriteStep::Idle => {
                    let disk_full = !self.shared.lock().health.is_good();
                    self.shared.wait_for_work(disk_full.then_some(SPACE_CHECK_INTERVAL));
                }
                WriteStep::Stalled => {
                    self.shared.pause(pause);
                    pause = (pause * 2).min(*RETRY.end());
                }
            }
        }
    }

    /// Writes and syncs what is collected, or what the last attempt left over.
    pub(super) fn step(&mut self) -> WriteStep {
        let chunks: Vec<_> = {
            let mut state = self.shared.lock();
            if state.in_flight.is_empty() {
                state.begin_write();
            }
            state.in_flight.iter().cloned().collect()
        };
        if chunks.is_empty() {
            self.restore_space();
            return WriteStep::Idle;
        }
        let outcome = self.persist(chunks);
        match outcome {
            Ok(()) => self.restore_space(),
            Err(error) => self.abandon_piece(error),
        }
        self.shared.notify_attempt();
        (self.wake)();
        if self.shared.lock().in_flight.is_empty() { WriteStep::Progress } else { WriteStep::Stalled }
    }

    fn persist(&mut self, chunks: Vec<Arc<TailChunk>>) -> io::Result<()> {
        for chunk in chunks {
            self.write(&chunk)?;
            // A closed segment must be durable before the next one gets its name: recovery relies on it.
            if chunk.closing.is_some() {
                self.sync()?;
                self.close(chunk);
            }
        }
        self.sync()
    }

    fn write(&mut self, chunk: &TailChunk) -> io::Result<()> {
        if chunk.bytes.is_empty() {
            return Ok(());
        }
        if self.current.as_ref().is_none_or(|current| current.header.name.segment != chunk.segment) {
            self.current = Some(self.start_piece(chunk)?);
        }
        let current = self.current.as_mut().expect("opened above if there was none");
        // Before the write: after a failed write the file's contents are unknown.
        current.dirty = true;
        current.file.write_at(&chunk.bytes, current.header.file_offset(chunk.offset))?;
        current.end = chunk.end();
        Ok(())
    }

    /// Starts a new piece with `chunk`.
    fn start_piece(&mut self, chunk: &TailChunk) -> io::Result<OpenPiece> {
        let published = self.shared.lock().pieces.get(&chunk.segment).and_then(|pieces| Some(pieces.last()?.name));
        // A failed attempt may have left a file with that number.
        let last = self.last_started.filter(|last_started| last_started.segment == chunk.segment).max(published);
        let name = PieceName { segment: chunk.segment, piece: last.map_or(0, |last| last.piece + 1) };
        self.last_started = Some(name);
        let needed = PIECE_HEADER + chunk.bytes.len() as u64;
        // Allocated at once: appending within allocated space makes each sync cheaper.
        let wanted = PIECE_HEADER + u64::from(self.segment_bytes.saturating_sub(chunk.offset));
        let (file, room) =
            reserved_space::create_with_space(&*self.disk, &temporary(&name.to_string()), wanted.max(needed), needed)?;
        if room == SpaceStatus::Scarce {
            tracing::warn!("disk full: messages are refused until space is free");
            self.shared.lock().health = StoreHealth::Full;
        }
        let header = PieceHeader { name, base: chunk.base, start: chunk.offset, durable: 0 };
        Ok(OpenPiece { header, file, named: false, end: chunk.base, dirty: false })
    }

    fn sync(&mut self) -> io::Result<()> {
        let Some(current) = self.current.as_mut().filter(|current| current.dirty) else { return Ok(()) };
        if current.named {
            current.file.sync()?;
            self.shared.lock().advance(current.end);
        } else {
            publish(&*self.disk, &mut current.header, &*current.file, current.end, self.salt)?;
            current.named = true;
            let replaced = self.shared.lock().publish(current.header, current.end);
            self.abandoned.extend(replaced.iter().map(|header| header.name.to_string()));
            for file in self.abandoned.drain(..) {
                // If this fails, recovery sees that the file is replaced.
                let _ = self.disk.remove(&file);
            }
        }
        current.dirty = false;
        Ok(())
    }

    /// The segment is complete and durable; its index can wait.
    fn close(&mut self, chunk: Arc<TailChunk>) {
        let end = chunk.end();
        let index = chunk.closing.clone().unwrap_or_default();
        drop(chunk);
        self.shared.lock().advance(end);
        if let Some(OpenPiece { header, file, .. }) = self.current.take() {
            let end_at = header.file_offset((end - header.base) as u32);
            // The receiver is gone only while the store stops, and the index is optional.
            let _ = self.jobs.send(BackgroundJob::CloseSegment { file, end_at, end, index });
        }
    }

    fn abandon_piece(&mut self, error: io::Error) {
        if let Some(OpenPiece { header, named: false, .. }) = self.current.take() {
            self.abandoned.extend([temporary(&header.name.to_string()), header.name.to_string()]);
        }
        let mut state = self.shared.lock();
        if reserved_space::is_disk_full(&error) {
            state.health = StoreHealth::Full;
        } else {
            tracing::error!(%error, "failed to write log: it is retried in a new file; check the disk");
            state.health = StoreHealth::Failing(Arc::new(error));
        }
    }

    fn restore_space(&mut self) {
        if self.shared.lock().health.is_good() {
            return;
        }
        let health = match reserved_space::restore(&*self.disk, u64::from(self.segment_bytes)) {
            Ok(()) => StoreHealth::Good,
            Err(error) if reserved_space::is_disk_full(&error) => StoreHealth::Full,
            Err(error) => StoreHealth::Failing(Arc::new(error)),
        };
        if health.is_good() {
            tracing::info!("disk space available: messages are accepted again");
        }
        self.shared.lock().health = health;
        (self.wake)();
    }
}

/// Gives a piece its final name after its first bytes (up to `end`) are durable.
pub(super) fn publish(
    disk: &dyn Disk,
    header: &mut PieceHeader,
    file: &dyn DiskFile,
    end: u64,
    salt: u32,
) -> io::Result<()> {
    header.durable = end;
    let name = header.name.to_string();
    file.write_at(&header.encode(salt), 0)?;
    file.sync()?;
    disk.rename(&temporary(&name), &name)?;
    disk.sync_folder()
}
