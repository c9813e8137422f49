//! Brings the unsynced tail to the disk: the only part that writes the log, and the one that says how far it is durable.
//!
//! A sync that fails is never repeated and believed: the kernel may have dropped the pages and will call the next sync a success. The
//! file is given up from the last good sync on, and everything since, which is still in memory, is written to a new piece.
//!
//! Never blocks the engine; never touches snapshots, indexes or dead segments (those are the [janitor](super::janitor)'s).

use std::io;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::Duration;

use super::disk::{Disk, DiskFile};
use super::janitor::Job;
use super::layout::{PIECE_HEAD, PieceHead, PieceName, temporary};
use super::reserve::{self, Room};
use super::shared::{Chunk, Health, Shared, Wake};

/// Between two attempts while writing fails.
const RETRY: std::ops::RangeInclusive<Duration> = Duration::from_millis(50)..=Duration::from_secs(1);

/// How often an idle writer looks whether there is room again.
const LOOK_FOR_ROOM: Duration = Duration::from_millis(500);

pub(super) struct Writer {
    pub(super) disk: Arc<dyn Disk>,
    pub(super) shared: Arc<Shared>,
    pub(super) salt: u32,
    pub(super) segment_bytes: u32,
    pub(super) jobs: Sender<Job>,
    pub(super) wake: Wake,
    pub(super) current: Option<Current>,
    /// The piece last begun, whether or not it came to anything: its number is not used again.
    pub(super) begun: Option<PieceName>,
    /// Files given up before they held anything durable; removed once a later piece has replaced them.
    pub(super) strays: Vec<String>,
}

/// The piece being written.
pub(super) struct Current {
    head: PieceHead,
    file: Arc<dyn DiskFile>,
    /// Set once its first bytes are durable.
    named: bool,
    /// Position up to which it is written.
    end: u64,
    dirty: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    Progress,
    Idle,
    /// An attempt failed; what is in flight stays there.
    Stalled,
}

impl Writer {
    /// Until the store stops. What is gathered by then is still tried once.
    pub(super) fn run(mut self) {
        let mut pause = *RETRY.start();
        loop {
            match self.step() {
                Step::Progress => pause = *RETRY.start(),
                _ if self.shared.lock().stopping => return,
                Step::Idle => {
                    let restless = !self.shared.lock().health.is_good();
                    self.shared.wait_for_work(restless.then_some(LOOK_FOR_ROOM));
                }
                Step::Stalled => {
                    self.shared.pause(pause);
                    pause = (pause * 2).min(*RETRY.end());
                }
            }
        }
    }

    /// Writes and syncs what has gathered, or what the last attempt left.
    pub(super) fn step(&mut self) -> Step {
        let chunks: Vec<_> = {
            let mut state = self.shared.lock();
            if state.in_flight.is_empty() {
                state.take();
            }
            state.in_flight.iter().cloned().collect()
        };
        if chunks.is_empty() {
            self.look_for_room();
            return Step::Idle;
        }
        let outcome = self.persist(chunks);
        match outcome {
            Ok(()) => self.look_for_room(),
            Err(error) => self.give_up(error),
        }
        self.shared.notify_attempt();
        (self.wake)();
        if self.shared.lock().in_flight.is_empty() { Step::Progress } else { Step::Stalled }
    }

    fn persist(&mut self, chunks: Vec<Arc<Chunk>>) -> io::Result<()> {
        for chunk in chunks {
            self.write(&chunk)?;
            if chunk.closing.is_some() {
                self.sync()?;
                self.close(chunk);
            }
        }
        self.sync()
    }

    fn write(&mut self, chunk: &Chunk) -> io::Result<()> {
        if chunk.bytes.is_empty() {
            return Ok(());
        }
        if self.current.as_ref().is_none_or(|current| current.head.name.segment != chunk.segment) {
            self.current = Some(self.begin(chunk)?);
        }
        let current = self.current.as_mut().expect("a piece is open: begun above unless one was");
        current.dirty = true;
        current.file.write_at(&chunk.bytes, current.head.place(chunk.offset))?;
        current.end = chunk.end();
        Ok(())
    }

    /// A new piece that begins with `chunk`.
    fn begin(&mut self, chunk: &Chunk) -> io::Result<Current> {
        let published = self.shared.lock().pieces.get(&chunk.segment).and_then(|pieces| Some(pieces.last()?.name));
        let last = self.begun.filter(|begun| begun.segment == chunk.segment).max(published);
        let name = PieceName { segment: chunk.segment, piece: last.map_or(0, |last| last.piece + 1) };
        self.begun = Some(name);
        let needed = PIECE_HEAD + chunk.bytes.len() as u64;
        let wanted = PIECE_HEAD + u64::from(self.segment_bytes.saturating_sub(chunk.offset));
        let (file, room) = reserve::make_room(&*self.disk, &temporary(&name.to_string()), wanted.max(needed), needed)?;
        if room == Room::Scarce {
            tracing::warn!("the disk is full: messages are refused until there is room");
            self.shared.lock().health = Health::Full;
        }
        let head = PieceHead { name, base: chunk.base, start: chunk.offset, durable: 0 };
        Ok(Current { head, file, named: false, end: chunk.base, dirty: false })
    }

    fn sync(&mut self) -> io::Result<()> {
        let Some(current) = self.current.as_mut().filter(|current| current.dirty) else { return Ok(()) };
        if current.named {
            current.file.sync()?;
            self.shared.lock().advance(current.end);
        } else {
            publish(&*self.disk, &mut current.head, &*current.file, current.end, self.salt)?;
            current.named = true;
            let replaced = self.shared.lock().publish(current.head, current.end);
            self.strays.extend(replaced.iter().map(|head| head.name.to_string()));
            for stray in self.strays.drain(..) {
                // At worst a file that recovery sees to be replaced.
                let _ = self.disk.remove(&stray);
            }
        }
        current.dirty = false;
        Ok(())
    }

    /// The segment is whole and durable; its index is not urgent.
    fn close(&mut self, chunk: Arc<Chunk>) {
        let end = chunk.end();
        let index = chunk.closing.clone().unwrap_or_default();
        drop(chunk);
        self.shared.lock().advance(end);
        if let Some(Current { head, file, .. }) = self.current.take() {
            let end_at = head.place((end - head.base) as u32);
            // A janitor that is gone means that the store stops; an index is only a help.
            let _ = self.jobs.send(Job::Seal { file, end_at, end, index });
        }
    }

    fn give_up(&mut self, error: io::Error) {
        if let Some(Current { head, named: false, .. }) = self.current.take() {
            self.strays.extend([temporary(&head.name.to_string()), head.name.to_string()]);
        }
        let mut state = self.shared.lock();
        if reserve::is_full(&error) {
            state.health = Health::Full;
        } else {
            tracing::error!(%error, "writing the log fails; it is tried again elsewhere");
            state.health = Health::Failing(Arc::new(error));
        }
    }

    fn look_for_room(&mut self) {
        if self.shared.lock().health.is_good() {
            return;
        }
        let health = match reserve::restore(&*self.disk, u64::from(self.segment_bytes)) {
            Ok(()) => Health::Good,
            Err(error) if reserve::is_full(&error) => Health::Full,
            Err(error) => Health::Failing(Arc::new(error)),
        };
        if health.is_good() {
            tracing::info!("there is room again: messages are accepted");
        }
        self.shared.lock().health = health;
        (self.wake)();
    }
}

/// Gives a piece its name, when its first bytes (up to `end`) are durable.
pub(super) fn publish(
    disk: &dyn Disk,
    head: &mut PieceHead,
    file: &dyn DiskFile,
    end: u64,
    salt: u32,
) -> io::Result<()> {
    head.durable = end;
    let name = head.name.to_string();
    file.write_at(&head.encode(salt), 0)?;
    file.sync()?;
    disk.rename(&temporary(&name), &name)?;
    disk.sync_folder()
}
