//! A lease in memory, for tests of the elector. Applies [`LeaseStatement::apply`] exactly, and can be made to fail.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::{Notify, watch};

use crate::error::Error;
use crate::record::{LeaseRecord, LeaseStatement, ServerTime};
use crate::store::LeaseStore;

/// The faults a store can have. `DoThenFail` is the one that finds bugs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StoreFault {
    /// Nothing is done, and an error says so.
    Refuse,
    /// The statement is applied, and the reply is lost.
    DoThenFail,
    /// Nothing is done, and there is no reply.
    Silence,
    /// Nothing is done, and the error is one that a retry cannot fix.
    Unusable,
    /// Everything works except the watch.
    Unwatchable,
}

/// Shared by all pods of a test.
#[derive(Clone)]
pub(crate) struct MemoryLeaseStore {
    lease: Arc<Mutex<StoredLease>>,
    changes: watch::Sender<u64>,
    /// The fault between this pod and the store.
    fault: Arc<Mutex<Option<StoreFault>>>,
    ttl: Duration,
}

#[derive(Default)]
struct StoredLease {
    record: Option<LeaseRecord>,
    history: Vec<LeaseRecord>,
}

impl MemoryLeaseStore {
    pub(crate) fn new(ttl: Duration) -> Self {
        Self { lease: Arc::default(), changes: watch::Sender::new(0), fault: Arc::default(), ttl }
    }

    /// The same lease for another pod, with faults of its own.
    pub(crate) fn for_another_pod(&self) -> Self {
        Self { fault: Arc::default(), ..self.clone() }
    }

    pub(crate) fn inject(&self, fault: Option<StoreFault>) {
        *self.fault.lock().unwrap() = fault;
    }

    pub(crate) fn record(&self) -> Option<LeaseRecord> {
        self.lease.lock().unwrap().record
    }

    /// Every record that was ever written.
    pub(crate) fn history(&self) -> Vec<LeaseRecord> {
        self.lease.lock().unwrap().history.clone()
    }

    /// Replaces the record, as an operator or a restore may do at any time.
    pub(crate) fn set(&self, record: Option<LeaseRecord>) {
        self.lease.lock().unwrap().record = record;
        self.changes.send_modify(|count| *count += 1);
    }

    async fn check_fault(&self) -> Result<Option<StoreFault>, Error> {
        let fault = *self.fault.lock().unwrap();
        match fault {
            Some(StoreFault::Refuse) => Err(unreachable_store()),
            Some(StoreFault::Silence) => std::future::pending().await,
            Some(StoreFault::Unusable) => Err(Error::Format { key: "memory".into(), found: 2, supported: 1 }),
            Some(StoreFault::DoThenFail | StoreFault::Unwatchable) | None => Ok(fault),
        }
    }
}

impl LeaseStore for MemoryLeaseStore {
    async fn inspect(&self) -> Result<(), Error> {
        self.check_fault().await.map(drop)
    }

    async fn read(&self) -> Result<Option<LeaseRecord>, Error> {
        self.check_fault().await?;
        Ok(self.record())
    }

    async fn submit(&self, statement: &LeaseStatement) -> Result<Option<LeaseRecord>, Error> {
        let fault = self.check_fault().await?;
        let applied = {
            let mut lease = self.lease.lock().unwrap();
            let applied = statement.apply(lease.record.as_ref(), self.ttl, ServerTime::default());
            if let Some(record) = applied {
                lease.record = applied;
                lease.history.push(record);
            }
            applied
        };
        self.changes.send_modify(|count| *count += 1);
        if fault == Some(StoreFault::DoThenFail) { Err(unreachable_store()) } else { Ok(applied) }
    }

    async fn watch(&self, changed: &Notify) -> Error {
        if *self.fault.lock().unwrap() == Some(StoreFault::Unwatchable) {
            return unreachable_store();
        }
        let mut changes = self.changes.subscribe();
        changed.notify_one();
        while changes.changed().await.is_ok() {
            changed.notify_one();
        }
        unreachable_store()
    }

    async fn close(&self) {}
}

fn unreachable_store() -> Error {
    Error::Timeout { operation: "reach", key: "memory".into(), timeout: Duration::ZERO }
}
