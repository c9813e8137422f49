//! What goes before a sweep: the mark, and the wait for those who cannot have seen it.
//!
//! A message of an older epoch may still be on the bus when the cursors are swept, of a key that has no cursor yet; applied later, nobody would
//! ever delete what it wrote. From the mark on consumers pass such messages over. A transaction that began before does not see the mark,
//! and could write its cursor behind the sweep's back, so the sweep begins when all of those have ended.

use std::time::{Duration, Instant};

use futures_util::TryStreamExt;
use mongodb::bson::{Document, doc};
use mongodb::options::WriteConcern;

use super::{DriverError, ReadModelCursors};
use crate::capture::error::{Error, with_timeout};
use crate::capture::handle::CaptureState;
use crate::capture::retry_state::RetryState;
use crate::capture::stream::{ReaderExit, SourceReader};
use crate::event::Epoch;
use crate::view::{application_name, floor_id, floor_update};

const MARK: &str = "mark the epoch as swept";
const LOOK: &str = "look for open transactions";
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// After so long the server has ended them all, unless it was told otherwise (`transactionLifetimeLimitSeconds`). For where we may not look.
const LIFETIME: Duration = Duration::from_secs(60);

impl ReadModelCursors {
    /// Returns when a majority has it, and with it all that was committed before. What is read from here on is not older.
    async fn write_epoch_floor(&mut self) -> Result<(), DriverError> {
        let mut session = self.cursors.client().start_session().causal_consistency(true).await?;
        let marked = self.cursors.update_one(doc! { "_id": floor_id(&self.pipeline) }, floor_update(self.epoch));
        marked.upsert(true).write_concern(WriteConcern::majority()).session(&mut session).await?;
        self.as_of = session.operation_time();
        Ok(())
    }

    /// Whether a transaction of this pipeline's pods has been open for so long.
    async fn has_transactions_older_than(&self, age: Duration) -> Result<bool, DriverError> {
        let age = i64::try_from(age.as_micros()).unwrap_or(i64::MAX);
        let pipeline = [
            doc! { "$currentOp": { "allUsers": false, "idleSessions": true } },
            doc! { "$match": { "appName": application_name(&self.pipeline), "transaction.timeOpenMicros": { "$gte": age } } },
            doc! { "$project": { "type": 1 } },
        ];
        let found: Vec<Document> =
            self.cursors.client().database("admin").aggregate(pipeline).await?.try_collect().await?;
        Ok(!found.is_empty())
    }
}

impl SourceReader {
    /// Returns when no cursor can come up behind a sweep's back.
    pub(super) async fn raise_epoch_floor(
        &mut self,
        views: &mut ReadModelCursors,
        scanned: u64,
    ) -> Result<(), ReaderExit> {
        // Nothing is older than the first.
        if views.epoch == Epoch::FIRST {
            return Ok(());
        }
        let mut retry = RetryState::new(self.source_client.config.initial_timeout());
        loop {
            match self.raise_and_wait(views, scanned, retry.timeout()).await {
                Ok(()) => return Ok(()),
                Err(error) if error.is_transient() => self.back_off(&mut retry, &error).await,
                Err(error) => return Err(error.into()),
            }
        }
    }

    async fn raise_and_wait(&self, views: &mut ReadModelCursors, scanned: u64, timeout: Duration) -> Result<(), Error> {
        with_timeout(MARK, timeout, views.write_epoch_floor()).await?;
        let marked = Instant::now();
        loop {
            match with_timeout(LOOK, timeout, views.has_transactions_older_than(marked.elapsed())).await {
                Ok(false) => break,
                Err(_) if marked.elapsed() >= LIFETIME => break,
                Ok(true) | Err(_) => tokio::time::sleep(LOOK_EVERY).await,
            }
            self.handle.record_response(CaptureState::Scanning { scanned });
        }
        // The last of them may be committed, and not yet by a majority.
        with_timeout(MARK, timeout, views.write_epoch_floor()).await
    }
}
