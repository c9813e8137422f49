//! A lease in memory, for tests of the elector: obeys [`Statement::apply`] to the letter, and can be made to fail.

use std::sync::{Arc, Mutex};

use tokio::sync::{Notify, watch};

use crate::error::Error;
use crate::record::{Record, ServerTime, Statement};
use crate::store::LeaseStore;

use std::time::Duration;

/// The faults a seam can have; the second is the one that finds bugs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Nothing is done, and an error says so.
    Refuse,
    /// It is done, and the answer is lost.
    DoThenFail,
    /// Nothing is done, and there is no answer.
    Silence,
    /// Nothing is done, and the error is one that trying again does not heal.
    Unfit,
    /// All is well, but for the watch.
    Unwatchable,
}

/// Shared by all pods of a test.
#[derive(Clone)]
pub(crate) struct MemoryLease {
    shared: Arc<Mutex<Shared>>,
    changes: watch::Sender<u64>,
    /// Faults of this pod's way to the store.
    line: Arc<Mutex<Option<Fault>>>,
    ttl: Duration,
}

#[derive(Default)]
struct Shared {
    record: Option<Record>,
    history: Vec<Record>,
}

impl MemoryLease {
    pub(crate) fn new(ttl: Duration) -> Self {
        Self { shared: Arc::default(), changes: watch::Sender::new(0), line: Arc::default(), ttl }
    }

    /// The same lease, over another pod's line.
    pub(crate) fn another_line(&self) -> Self {
        Self { line: Arc::default(), ..self.clone() }
    }

    pub(crate) fn fail(&self, fault: Option<Fault>) {
        *self.line.lock().unwrap() = fault;
    }

    pub(crate) fn record(&self) -> Option<Record> {
        self.shared.lock().unwrap().record
    }

    /// Every record there ever was.
    pub(crate) fn history(&self) -> Vec<Record> {
        self.shared.lock().unwrap().history.clone()
    }

    /// What an operator, or a restore, may do behind everyone's back.
    pub(crate) fn set(&self, record: Option<Record>) {
        self.shared.lock().unwrap().record = record;
        self.changes.send_modify(|count| *count += 1);
    }

    async fn faulty(&self) -> Result<Option<Fault>, Error> {
        let fault = *self.line.lock().unwrap();
        match fault {
            Some(Fault::Refuse) => Err(away()),
            Some(Fault::Silence) => std::future::pending().await,
            Some(Fault::Unfit) => Err(Error::Format { key: "memory".into(), found: 2, known: 1 }),
            Some(Fault::DoThenFail | Fault::Unwatchable) | None => Ok(fault),
        }
    }
}

impl LeaseStore for MemoryLease {
    async fn inspect(&self) -> Result<(), Error> {
        self.faulty().await.map(drop)
    }

    async fn read(&self) -> Result<Option<Record>, Error> {
        self.faulty().await?;
        Ok(self.record())
    }

    async fn submit(&self, statement: &Statement) -> Result<Option<Record>, Error> {
        let fault = self.faulty().await?;
        let applied = {
            let mut shared = self.shared.lock().unwrap();
            let applied = statement.apply(shared.record.as_ref(), self.ttl, ServerTime::default());
            if let Some(record) = applied {
                shared.record = applied;
                shared.history.push(record);
            }
            applied
        };
        self.changes.send_modify(|count| *count += 1);
        if fault == Some(Fault::DoThenFail) { Err(away()) } else { Ok(applied) }
    }

    async fn watch(&self, changed: &Notify) -> Error {
        if *self.line.lock().unwrap() == Some(Fault::Unwatchable) {
            return away();
        }
        let mut changes = self.changes.subscribe();
        changed.notify_one();
        while changes.changed().await.is_ok() {
            changed.notify_one();
        }
        away()
    }

    async fn close(&self) {}
}

fn away() -> Error {
    Error::NoAnswer { doing: "reach", key: "memory".into(), within: Duration::ZERO }
}
