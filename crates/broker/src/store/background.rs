//! File work that nobody waits for: indexes of finished segments, snapshots, removal of dead segments.
//!
//! Works off its jobs in order and never waits for the log to be synced: the [store](super::Store) sends a job only when it may be done.
//! A failure here costs room or time at the next start, never a message.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender};

use bytes::Bytes;

use super::disk::{Disk, DiskFile};
use super::layout::{
    PieceName, SegmentFooter, SnapshotFooter, SnapshotHeader, parse_snapshot_name, snapshot_name, temporary,
};
use super::reserved_space;
use super::unsynced_tail::WakeFn;

/// A snapshot is synced bit by bit: one large sync at its end would make the log's own syncs wait.
const SYNC_EVERY: u64 = 8 << 20;

pub(super) enum BackgroundJob {
    /// Puts the index behind the frames, which end at `end_at`; an empty one only gives back the room allocated behind them.
    Seal {
        file: Arc<dyn DiskFile>,
        end_at: u64,
        end: u64,
        index: Bytes,
    },
    SnapshotBegin {
        head: SnapshotHeader,
        from_reserve: bool,
    },
    SnapshotBytes(Vec<u8>),
    /// The journal is durable up to the snapshot's end: it may have its name.
    SnapshotPublish(SnapshotFooter),
    Remove {
        segment: u32,
        pieces: Vec<PieceName>,
    },
}

pub(super) enum JobReport {
    Published { from: u64, bytes: u64 },
    SnapshotFailed,
    Removed { segment: u32 },
    NotRemoved { segment: u32 },
}

pub(super) struct BackgroundWorker {
    pub(super) disk: Arc<dyn Disk>,
    pub(super) salt: u32,
    pub(super) jobs: Receiver<BackgroundJob>,
    pub(super) reports: Sender<JobReport>,
    pub(super) wake: WakeFn,
    /// Snapshot bytes handed over and not yet written.
    pub(super) queued_bytes: Arc<AtomicUsize>,
    pub(super) snapshot: Option<SnapshotWriter>,
}

/// A snapshot in the making.
pub(super) struct SnapshotWriter {
    name: String,
    head: SnapshotHeader,
    file: Arc<dyn DiskFile>,
    size: u64,
    synced: u64,
}

impl BackgroundWorker {
    /// Until the store is gone.
    pub(super) fn run(mut self) {
        while let Ok(job) = self.jobs.recv() {
            self.run_job(job);
        }
    }

    /// Works off what is there; says whether there was anything.
    pub(super) fn step(&mut self) -> bool {
        let jobs: Vec<_> = self.jobs.try_iter().collect();
        let any = !jobs.is_empty();
        jobs.into_iter().for_each(|job| self.run_job(job));
        any
    }

    fn run_job(&mut self, job: BackgroundJob) {
        match job {
            BackgroundJob::Seal { file, end_at, end, index } => self.seal(&*file, end_at, end, &index),
            BackgroundJob::SnapshotBegin { head, from_reserve } => {
                let last_started = self.begin(head, from_reserve);
                self.check(last_started);
            }
            BackgroundJob::SnapshotBytes(bytes) => {
                let written = self.add(&bytes);
                self.queued_bytes.fetch_sub(bytes.len(), Ordering::Relaxed);
                self.check(written);
            }
            BackgroundJob::SnapshotPublish(end) => {
                let published = self.publish(end);
                self.check(published);
            }
            BackgroundJob::Remove { segment, pieces } => self.remove(segment, &pieces),
        }
        (self.wake)();
    }

    fn seal(&self, file: &dyn DiskFile, end_at: u64, end: u64, index: &[u8]) {
        let sealed = if index.is_empty() {
            file.truncate(end_at)
        } else {
            let seal_at = end_at + index.len() as u64;
            let seal = SegmentFooter { index_at: end_at, end }.encode(self.salt);
            file.write_at(index, end_at)
                .and_then(|()| file.write_at(&seal, seal_at))
                .and_then(|()| file.truncate(seal_at + seal.len() as u64))
                .and_then(|()| file.sync())
        };
        if let Err(error) = sealed {
            tracing::warn!(%error, "a finished segment gets no index: the next start reads it whole");
        }
    }

    fn begin(&mut self, head: SnapshotHeader, from_reserve: bool) -> io::Result<()> {
        if from_reserve {
            reserved_space::release_for_snapshot(&*self.disk);
        }
        let name = snapshot_name(head.from);
        let file = self.disk.create(&temporary(&name))?;
        self.snapshot = Some(SnapshotWriter { name, head, file, size: 0, synced: 0 });
        self.add(&head.encode(self.salt))
    }

    /// Does nothing after a failure: the store has been told.
    fn add(&mut self, bytes: &[u8]) -> io::Result<()> {
        let Some(snapshot) = &mut self.snapshot else { return Ok(()) };
        snapshot.file.write_at(bytes, snapshot.size)?;
        snapshot.size += bytes.len() as u64;
        if snapshot.size - snapshot.synced >= SYNC_EVERY {
            snapshot.file.sync()?;
            snapshot.synced = snapshot.size;
        }
        Ok(())
    }

    fn publish(&mut self, end: SnapshotFooter) -> io::Result<()> {
        self.add(&end.encode(self.salt))?;
        let Some(snapshot) = &self.snapshot else { return Ok(()) };
        snapshot.file.sync()?;
        self.disk.rename(&temporary(&snapshot.name), &snapshot.name)?;
        self.disk.sync_folder()?;
        let report = JobReport::Published { from: snapshot.head.from, bytes: snapshot.size };
        self.remove_older(snapshot.head.from);
        self.snapshot = None;
        self.report(report);
        Ok(())
    }

    fn remove_older(&self, from: u64) {
        let names = self.disk.list().unwrap_or_default();
        for name in names.iter().filter(|name| parse_snapshot_name(name).is_some_and(|older| older < from)) {
            // At worst it is removed at the next start.
            let _ = self.disk.remove(name);
        }
    }

    fn check(&mut self, outcome: io::Result<()>) {
        if let Err(error) = outcome {
            tracing::warn!(%error, "a snapshot fails; another is tried later");
            self.drop_snapshot();
            self.report(JobReport::SnapshotFailed);
        }
    }

    fn drop_snapshot(&mut self) {
        if let Some(snapshot) = self.snapshot.take() {
            let _ = self.disk.remove(&temporary(&snapshot.name));
        }
    }

    fn remove(&self, segment: u32, pieces: &[PieceName]) {
        let gone = |name: &PieceName| match self.disk.remove(&name.to_string()) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        };
        let outcome = pieces.iter().try_for_each(gone).and_then(|()| self.disk.sync_folder());
        self.report(match outcome {
            Ok(()) => JobReport::Removed { segment },
            Err(error) => {
                tracing::warn!(%error, segment, "a dead segment cannot be removed; it is tried again later");
                JobReport::NotRemoved { segment }
            }
        });
    }

    fn report(&self, report: JobReport) {
        // A store that is gone needs no report.
        let _ = self.reports.send(report);
    }
}
