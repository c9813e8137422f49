//! The engine's journal: a data folder on disk, or memory only.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tracing::warn;

use super::EngineHandle;
use crate::core::{BrokerLimits, CallContext, Compaction, Core, SnapshotCursor, Timestamp};
use crate::journal::{Journal, Lsn, VolatileJournal};
use crate::store::{LogStore, MaintenanceTask, OpenError, StoreFolder, StoreOptions};

/// Where a broker stores its messages.
#[derive(Debug, Clone)]
pub enum StorageLocation {
    /// In this folder. Accepted messages survive any crash.
    Folder(PathBuf),
    /// In memory only, for tests.
    Ephemeral,
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("failed to create data folder `{}`", path.display())]
    Create {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("failed to open data folder `{}`", path.display())]
    Open {
        path: PathBuf,
        #[source]
        source: OpenError,
    },
}

/// Snapshot bytes, and messages scanned by compaction, per step between two rounds: well under a millisecond.
const STEP: usize = 64 << 10;
const MESSAGES: usize = 512;

pub(crate) struct DurableStorage {
    store: LogStore,
    snapshot: Option<SnapshotCursor>,
    compaction: Option<(Vec<u32>, Compaction)>,
    busy: bool,
}

pub(crate) enum EngineStorage {
    Durable(Box<DurableStorage>),
    Volatile(VolatileJournal),
}

impl EngineStorage {
    /// Opens the data folder and recovers the core from it.
    pub(crate) fn recover(
        persistence: &StorageLocation,
        limits: BrokerLimits,
        now: Timestamp,
        engine: &EngineHandle,
    ) -> Result<(Core, Self), Error> {
        let mut core = Core::new(limits, rand::random());
        let StorageLocation::Folder(path) = persistence else {
            return Ok((core, Self::Volatile(VolatileJournal::default())));
        };
        let folder = StoreFolder::new(path).map_err(|source| Error::Create { path: path.clone(), source })?;
        let open = |source| Error::Open { path: path.clone(), source };
        let waker = engine.clone();
        let options = StoreOptions { wake: Arc::new(move || waker.wake()), ..StoreOptions::default() };
        let recovery = LogStore::open(Arc::new(folder), options).map_err(open)?;
        let replayed = recovery.replay(|meta, body| core.replay(meta, body)).map_err(open)?;
        let store = replayed.finish(|count| core.visit_bodies(count)).map_err(open)?;
        core.finish_recovery(now);
        Ok((core, Self::Durable(Box::new(DurableStorage { store, snapshot: None, compaction: None, busy: false }))))
    }

    pub(super) fn journal(&mut self) -> &mut dyn Journal {
        match self {
            Self::Durable(durable) => &mut durable.store,
            Self::Volatile(volatile) => volatile,
        }
    }

    pub(super) fn synced(&self) -> Lsn {
        match self {
            Self::Durable(durable) => durable.store.synced(),
            Self::Volatile(volatile) => volatile.position(),
        }
    }

    pub(super) fn flush(&self) {
        if let Self::Durable(durable) = self {
            durable.store.flush();
        }
    }

    pub(super) fn is_congested(&self) -> bool {
        matches!(self, Self::Durable(durable) if durable.store.is_congested())
    }

    pub(super) fn wait_synced(&mut self, wait_limit: Duration) -> bool {
        match self {
            Self::Durable(durable) => durable.store.wait_synced(wait_limit),
            Self::Volatile(_) => true,
        }
    }

    pub(super) fn close(self, wait_limit: Duration) {
        if let Self::Durable(durable) = self {
            durable.store.close(wait_limit);
        }
    }

    /// How long the engine may wait: not at all while the store has maintenance work.
    pub(super) fn wait_limit(&self) -> Duration {
        match self {
            Self::Durable(durable) if durable.busy => Duration::ZERO,
            _ => Duration::MAX,
        }
    }

    /// Runs one step of maintenance.
    pub(super) fn run_maintenance(&mut self, core: &mut Core, now: Timestamp) {
        if let Self::Durable(durable) = self {
            durable.run_maintenance(core, now);
        }
    }
}

impl DurableStorage {
    fn run_maintenance(&mut self, core: &mut Core, now: Timestamp) {
        let maintenance = self.store.next_maintenance();
        self.busy = maintenance.is_some();
        match maintenance {
            None => {}
            Some(MaintenanceTask::Snapshot { restart }) => {
                if restart {
                    self.snapshot = None;
                }
                let snapshot = self.snapshot.get_or_insert_with(|| SnapshotCursor::new(now));
                let store = &mut self.store;
                if !core.write_snapshot(snapshot, STEP, |meta| store.put_snapshot_record(meta, None)) {
                    self.snapshot = None;
                    self.store.finish_snapshot();
                }
            }
            Some(MaintenanceTask::Compact(segments)) => self.compact(core, now, segments),
        }
    }

    fn compact(&mut self, core: &mut Core, now: Timestamp, segments: Vec<u32>) {
        // The store offers the same list until the pass is finished; another list is a new pass.
        if self.compaction.as_ref().is_none_or(|(of, _)| *of != segments) {
            self.compaction = Some((segments.clone(), Compaction::of(segments)));
        }
        let Some((_, compaction)) = &mut self.compaction else { return };
        let mut effects = Vec::new();
        let mut journal = self.store.compaction_journal();
        let mut call = CallContext { now, journal: &mut journal, effects: &mut effects };
        match core.compact(&mut call, compaction, MESSAGES) {
            Ok(true) => {}
            Ok(false) => {
                self.compaction = None;
                self.store.finish_compaction();
            }
            Err(error) => {
                warn!(error = %error, "compaction failed: it is retried later");
                // Otherwise the engine would spin on a full disk.
                self.busy = false;
            }
        }
    }
}
