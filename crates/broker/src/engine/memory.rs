//! What the engine remembers by: a folder on disk, or nothing that outlives the process.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tracing::warn;

use super::Engine;
use crate::core::{Core, Evacuation, Limits, Snapshot, Timestamp, Turn};
use crate::journal::{Journal, Lsn, Volatile};
use crate::store::{Chore, Folder, OpenError, Options, Store};

/// Where a broker keeps its messages.
#[derive(Debug, Clone)]
pub enum Persistence {
    /// In this folder; what was accepted survives any crash.
    Folder(PathBuf),
    /// Nowhere. For tests.
    Ephemeral,
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("create the data folder `{}`", path.display())]
    Create {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("open the data folder `{}`", path.display())]
    Open {
        path: PathBuf,
        #[source]
        source: OpenError,
    },
}

/// Bytes of a snapshot, or messages looked at while cleaning, between two rounds: well under a millisecond.
const STEP: usize = 64 << 10;
const MESSAGES: usize = 512;

pub(crate) struct Durable {
    store: Store,
    snapshot: Option<Snapshot>,
    evacuation: Option<(Vec<u32>, Evacuation)>,
    busy: bool,
}

pub(crate) enum Memory {
    Durable(Box<Durable>),
    Volatile(Volatile),
}

impl Memory {
    /// Opens what there is and gives the core its memory back.
    pub(crate) fn recover(
        persistence: &Persistence,
        limits: Limits,
        now: Timestamp,
        engine: &Engine,
    ) -> Result<(Core, Self), Error> {
        let mut core = Core::new(limits, rand::random());
        let Persistence::Folder(path) = persistence else {
            return Ok((core, Self::Volatile(Volatile::default())));
        };
        let folder = Folder::new(path).map_err(|source| Error::Create { path: path.clone(), source })?;
        let open = |source| Error::Open { path: path.clone(), source };
        let waker = engine.clone();
        let options = Options { wake: Arc::new(move || waker.wake()), ..Options::default() };
        let recovery = Store::open(Arc::new(folder), options).map_err(open)?;
        let replayed = recovery.replay(|meta, body| core.replay(meta, body)).map_err(open)?;
        let store = replayed.finish(|count| core.visit_bodies(count)).map_err(open)?;
        core.recovered(now);
        Ok((core, Self::Durable(Box::new(Durable { store, snapshot: None, evacuation: None, busy: false }))))
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

    pub(super) fn congested(&self) -> bool {
        matches!(self, Self::Durable(durable) if durable.store.congested())
    }

    pub(super) fn wait(&mut self, patience: Duration) -> bool {
        match self {
            Self::Durable(durable) => durable.store.wait_synced(patience),
            Self::Volatile(_) => true,
        }
    }

    pub(super) fn close(self, patience: Duration) {
        if let Self::Durable(durable) = self {
            durable.store.close(patience);
        }
    }

    /// How long the store can be left alone: not at all while it has a chore for the core.
    pub(super) fn patience(&self) -> Duration {
        match self {
            Self::Durable(durable) if durable.busy => Duration::ZERO,
            _ => Duration::MAX,
        }
    }

    /// One step of housekeeping.
    pub(super) fn tend(&mut self, core: &mut Core, now: Timestamp) {
        if let Self::Durable(durable) = self {
            durable.tend(core, now);
        }
    }
}

impl Durable {
    fn tend(&mut self, core: &mut Core, now: Timestamp) {
        let chore = self.store.tend();
        self.busy = chore.is_some();
        match chore {
            None => {}
            Some(Chore::Snapshot { fresh }) => {
                if fresh {
                    self.snapshot = None;
                }
                let snapshot = self.snapshot.get_or_insert_with(|| Snapshot::begin(now));
                let store = &mut self.store;
                if !core.snapshot(snapshot, STEP, |meta| store.snapshot_put(meta, None)) {
                    self.snapshot = None;
                    self.store.snapshot_done();
                }
            }
            Some(Chore::Evacuate(segments)) => self.evacuate(core, now, segments),
        }
    }

    fn evacuate(&mut self, core: &mut Core, now: Timestamp, segments: Vec<u32>) {
        if self.evacuation.as_ref().is_none_or(|(of, _)| *of != segments) {
            self.evacuation = Some((segments.clone(), Evacuation::of(segments)));
        }
        let Some((_, evacuation)) = &mut self.evacuation else { return };
        let mut effects = Vec::new();
        let mut journal = self.store.cleaning();
        let mut turn = Turn { now, journal: &mut journal, effects: &mut effects };
        match core.evacuate(&mut turn, evacuation, MESSAGES) {
            Ok(true) => {}
            Ok(false) => {
                self.evacuation = None;
                self.store.evacuation_done();
            }
            Err(error) => {
                warn!(error = %error, "the store could not be cleaned up; trying again later");
                self.busy = false;
            }
        }
    }
}
