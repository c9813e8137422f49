//! The store's two threads. In tests the caller does their work.

use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use super::StoreOptions;
use super::background::{BackgroundJob, BackgroundWorker, JobReport};
use super::disk::Disk;
use super::unsynced_tail::SharedTail;
use super::writer::{LogWriter, WriteStep};

pub(super) struct StoreThreads {
    shared: Arc<SharedTail>,
    /// `None` only during drop: the background worker ends when the last sender is gone.
    jobs: Option<Sender<BackgroundJob>>,
    reports: Receiver<JobReport>,
    /// Snapshot bytes sent to the worker and not yet written.
    pub(super) queued_bytes: Arc<AtomicUsize>,
    io_workers: IoWorkers,
}

enum IoWorkers {
    Threads(Vec<JoinHandle<()>>),
    Manual(Box<(LogWriter, BackgroundWorker)>),
}

impl StoreThreads {
    pub(super) fn new(
        disk: &Arc<dyn Disk>,
        shared: &Arc<SharedTail>,
        salt: u32,
        options: &StoreOptions,
    ) -> io::Result<Self> {
        let (jobs, jobs_inbox) = channel();
        let (reports, reports_inbox) = channel();
        let queued_bytes = Arc::default();
        let writer = LogWriter {
            disk: Arc::clone(disk),
            shared: Arc::clone(shared),
            salt,
            segment_bytes: options.segment_bytes,
            jobs: jobs.clone(),
            wake: Arc::clone(&options.wake),
            current: None,
            last_started: None,
            abandoned: Vec::new(),
        };
        let background = BackgroundWorker {
            disk: Arc::clone(disk),
            salt,
            jobs: jobs_inbox,
            reports,
            wake: Arc::clone(&options.wake),
            queued_bytes: Arc::clone(&queued_bytes),
            snapshot: None,
        };
        let io_workers = if options.manual_io {
            IoWorkers::Manual(Box::new((writer, background)))
        } else {
            let writer = thread("store-writer", move || writer.run())?;
            IoWorkers::Threads(vec![writer, thread("store-background", move || background.run())?])
        };
        Ok(Self { shared: Arc::clone(shared), jobs: Some(jobs), reports: reports_inbox, queued_bytes, io_workers })
    }

    pub(super) fn send(&self, job: BackgroundJob) {
        if let Some(jobs) = &self.jobs {
            // The receiver lives as long as this struct.
            let _ = jobs.send(job);
        }
    }

    pub(super) fn next_report(&self) -> Option<JobReport> {
        self.reports.try_recv().ok()
    }

    /// See [`super::LogStore::run_pending_io`].
    pub(super) fn run_pending_io(&mut self) -> bool {
        let IoWorkers::Manual(io_workers) = &mut self.io_workers else { return false };
        let (writer, background) = &mut **io_workers;
        let mut any = false;
        loop {
            let wrote = writer.step() == WriteStep::Progress;
            if !background.step() && !wrote {
                return any;
            }
            any = true;
        }
    }

    /// See [`super::LogStore::run_background_io`].
    pub(super) fn run_background_io(&mut self) -> bool {
        let IoWorkers::Manual(io_workers) = &mut self.io_workers else { return false };
        io_workers.1.step()
    }
}

fn thread(name: &str, run: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    std::thread::Builder::new().name(name.to_owned()).spawn(run)
}

impl Drop for StoreThreads {
    fn drop(&mut self) {
        self.shared.lock().stopping = true;
        self.shared.notify();
        // Ends the background worker's receive loop.
        self.jobs = None;
        if let IoWorkers::Threads(threads) = &mut self.io_workers {
            for thread in threads.drain(..) {
                // A panic has already been reported.
                let _ = thread.join();
            }
        }
    }
}
