//! Who does the work on the disk: two threads, or, in tests, the caller.

use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use super::Options;
use super::disk::Disk;
use super::janitor::{Janitor, Job, Report};
use super::shared::Shared;
use super::writer::{Step, Writer};

pub(super) struct Hands {
    shared: Arc<Shared>,
    /// `None` only while the store is dropped: the janitor ends when nobody can send any more.
    jobs: Option<Sender<Job>>,
    reports: Receiver<Report>,
    /// Snapshot bytes handed over and not yet written.
    pub(super) waiting: Arc<AtomicUsize>,
    workers: Workers,
}

enum Workers {
    Threads(Vec<JoinHandle<()>>),
    ByHand(Box<(Writer, Janitor)>),
}

impl Hands {
    pub(super) fn new(disk: &Arc<dyn Disk>, shared: &Arc<Shared>, salt: u32, options: &Options) -> io::Result<Self> {
        let (jobs, jobs_inbox) = channel();
        let (reports, reports_inbox) = channel();
        let waiting = Arc::default();
        let writer = Writer {
            disk: Arc::clone(disk),
            shared: Arc::clone(shared),
            salt,
            segment_bytes: options.segment_bytes,
            jobs: jobs.clone(),
            wake: Arc::clone(&options.wake),
            current: None,
            begun: None,
            strays: Vec::new(),
        };
        let janitor = Janitor {
            disk: Arc::clone(disk),
            salt,
            jobs: jobs_inbox,
            reports,
            wake: Arc::clone(&options.wake),
            waiting: Arc::clone(&waiting),
            snapshot: None,
        };
        let workers = if options.by_hand {
            Workers::ByHand(Box::new((writer, janitor)))
        } else {
            let writer = thread("store-writer", move || writer.run())?;
            Workers::Threads(vec![writer, thread("store-janitor", move || janitor.run())?])
        };
        Ok(Self { shared: Arc::clone(shared), jobs: Some(jobs), reports: reports_inbox, waiting, workers })
    }

    pub(super) fn send(&self, job: Job) {
        if let Some(jobs) = &self.jobs {
            // The janitor lives as long as we do.
            let _ = jobs.send(job);
        }
    }

    pub(super) fn report(&self) -> Option<Report> {
        self.reports.try_recv().ok()
    }

    /// See [`super::Store::work`].
    pub(super) fn work(&mut self) -> bool {
        let Workers::ByHand(workers) = &mut self.workers else { return false };
        let (writer, janitor) = &mut **workers;
        let mut any = false;
        loop {
            let wrote = writer.step() == Step::Progress;
            if !janitor.step() && !wrote {
                return any;
            }
            any = true;
        }
    }

    /// See [`super::Store::work_aside`].
    pub(super) fn work_aside(&mut self) -> bool {
        let Workers::ByHand(workers) = &mut self.workers else { return false };
        workers.1.step()
    }
}

fn thread(name: &str, run: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    std::thread::Builder::new().name(name.to_owned()).spawn(run)
}

impl Drop for Hands {
    fn drop(&mut self) {
        self.shared.lock().stopping = true;
        self.shared.notify();
        self.jobs = None;
        if let Workers::Threads(threads) = &mut self.workers {
            for thread in threads.drain(..) {
                // A worker that panicked has said so; there is nobody left to tell.
                let _ = thread.join();
            }
        }
    }
}
