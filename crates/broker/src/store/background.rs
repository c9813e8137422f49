//! File work that nobody waits for: indexes of closed segments, snapshots, removal of dead segments.
//!
//! Runs jobs in order and never waits for a sync of the log: the [store](super::LogStore) sends a job only when it is
//! safe. A failure costs disk space or time at the next start, never a message.

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

/// A snapshot is synced in parts: one large sync at its end would delay the log's own syncs.
const SYNC_EVERY: u64 = 8 << 20;

pub(super) enum BackgroundJob {
    /// Writes the index after the frames, which end at `end_at`. An empty index only frees the unused space after them.
    CloseSegment {
        file: Arc<dyn DiskFile>,
        end_at: u64,
        end: u64,
        index: Bytes,
    },
    SnapshotBegin {
        header: SnapshotHeader,
        from_reserve: bool,
    },
    SnapshotBytes(Vec<u8>),
    /// The journal is durable up to the snapshot's end: the file gets its final name.
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
    /// Snapshot bytes sent to the worker and not yet written.
    pub(super) queued_bytes: Arc<AtomicUsize>,
    pub(super) snapshot: Option<SnapshotWriter>,
}

/// The snapshot being written.
pub(super) struct SnapshotWriter {
    name: String,
    header: SnapshotHeader,
    file: Arc<dyn DiskFile>,
    size: u64,
    synced: u64,
}

impl BackgroundWorker {
    /// Runs until the store is dropped.
    pub(super) fn run(mut self) {
        while let Ok(job) = self.jobs.recv() {
            self.run_job(job);
        }
    }

    /// Runs the waiting jobs; returns whether there were any.
    pub(super) fn step(&mut self) -> bool {
        let jobs: Vec<_> = self.jobs.try_iter().collect();
        let any = !jobs.is_empty();
        jobs.into_iter().for_each(|job| self.run_job(job));
        any
    }

    fn run_job(&mut self, job: BackgroundJob) {
        match job {
            BackgroundJob::CloseSegment { file, end_at, end, index } => self.close_segment(&*file, end_at, end, &index),
            BackgroundJob::SnapshotBegin { header, from_reserve } => {
                let last_started = self.begin_snapshot(header, from_reserve);
                self.report_failure(last_started);
            }
            BackgroundJob::SnapshotBytes(bytes) => {
                let written = self.append_bytes(&bytes);
                self.queued_bytes.fetch_sub(bytes.len(), Ordering::Relaxed);
                self.report_failure(written);
            }
            BackgroundJob::SnapshotPublish(end) => {
                let published = self.publish_snapshot(end);
                self.report_failure(published);
            }
            BackgroundJob::Remove { segment, pieces } => self.remove_segment(segment, &pieces),
        }
        (self.wake)();
    }

    fn close_segment(&self, file: &dyn DiskFile, end_at: u64, end: u64, index: &[u8]) {
        let closed = if index.is_empty() {
            file.truncate(end_at)
        } else {
            let footer_at = end_at + index.len() as u64;
            let footer = SegmentFooter { index_at: end_at, end }.encode(self.salt);
            file.write_at(index, end_at)
                .and_then(|()| file.write_at(&footer, footer_at))
                .and_then(|()| file.truncate(footer_at + footer.len() as u64))
                .and_then(|()| file.sync())
        };
        if let Err(error) = closed {
            tracing::warn!(%error, "failed to write segment index: the next start reads the whole segment");
        }
    }

    fn begin_snapshot(&mut self, header: SnapshotHeader, from_reserve: bool) -> io::Result<()> {
        if from_reserve {
            reserved_space::release_for_snapshot(&*self.disk);
        }
        let name = snapshot_name(header.from);
        let file = self.disk.create(&temporary(&name))?;
        self.snapshot = Some(SnapshotWriter { name, header, file, size: 0, synced: 0 });
        self.append_bytes(&header.encode(self.salt))
    }

    /// Does nothing after a failure, which is already reported to the store.
    fn append_bytes(&mut self, bytes: &[u8]) -> io::Result<()> {
        let Some(snapshot) = &mut self.snapshot else { return Ok(()) };
        snapshot.file.write_at(bytes, snapshot.size)?;
        snapshot.size += bytes.len() as u64;
        if snapshot.size - snapshot.synced >= SYNC_EVERY {
            snapshot.file.sync()?;
            snapshot.synced = snapshot.size;
        }
        Ok(())
    }

    fn publish_snapshot(&mut self, end: SnapshotFooter) -> io::Result<()> {
        self.append_bytes(&end.encode(self.salt))?;
        let Some(snapshot) = &self.snapshot else { return Ok(()) };
        snapshot.file.sync()?;
        self.disk.rename(&temporary(&snapshot.name), &snapshot.name)?;
        self.disk.sync_folder()?;
        let report = JobReport::Published { from: snapshot.header.from, bytes: snapshot.size };
        // Only after the new one is durable under its name.
        self.remove_older_snapshots(snapshot.header.from);
        self.snapshot = None;
        self.report(report);
        Ok(())
    }

    fn remove_older_snapshots(&self, from: u64) {
        let names = self.disk.list().unwrap_or_default();
        for name in names.iter().filter(|name| parse_snapshot_name(name).is_some_and(|older| older < from)) {
            // If this fails, the next start removes the file.
            let _ = self.disk.remove(name);
        }
    }

    fn report_failure(&mut self, outcome: io::Result<()>) {
        if let Err(error) = outcome {
            tracing::warn!(%error, "failed to write snapshot: it is retried later");
            self.drop_snapshot();
            self.report(JobReport::SnapshotFailed);
        }
    }

    fn drop_snapshot(&mut self) {
        if let Some(snapshot) = self.snapshot.take() {
            let _ = self.disk.remove(&temporary(&snapshot.name));
        }
    }

    fn remove_segment(&self, segment: u32, pieces: &[PieceName]) {
        let gone = |name: &PieceName| match self.disk.remove(&name.to_string()) {
            // A retry may find some pieces removed already.
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        };
        let outcome = pieces.iter().try_for_each(gone).and_then(|()| self.disk.sync_folder());
        self.report(match outcome {
            Ok(()) => JobReport::Removed { segment },
            Err(error) => {
                tracing::warn!(%error, segment, "failed to remove dead segment: it is retried later");
                JobReport::NotRemoved { segment }
            }
        });
    }

    fn report(&self, report: JobReport) {
        // The receiver is gone only while the store is dropped.
        let _ = self.reports.send(report);
    }
}
