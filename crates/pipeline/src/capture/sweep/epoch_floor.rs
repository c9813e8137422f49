//! Raises the epoch floor before a sweep, and waits for transactions that cannot have seen it.
//!
//! A message of an older epoch may still be on Service Bus for a key without a cursor. If a consumer applied it after the sweep, nothing would ever
//! delete it. Consumers skip messages below the epoch floor. A transaction that started before the floor was raised does not see it and could
//! still write a cursor that the sweep misses, so the sweep starts after all such transactions have ended.

use std::time::{Duration, Instant};

use futures_util::TryStreamExt;
use mongodb::bson::{Document, doc};
use mongodb::options::WriteConcern;

use super::{MongoError, ReadModelCursors};
use crate::capture::error::{Error, with_timeout};
use crate::capture::handle::CaptureState;
use crate::capture::retry_state::RetryState;
use crate::capture::stream::{ReaderExit, SourceReader};
use crate::event::Epoch;
use crate::stored::cursors::{application_name, floor_id, floor_update};

const RAISE: &str = "raise the epoch floor";
const LIST: &str = "list open transactions";
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// The default `transactionLifetimeLimitSeconds`: the server has ended every transaction by then. Used where we may not list them.
const TRANSACTION_LIFETIME: Duration = Duration::from_secs(60);

impl ReadModelCursors {
    /// Returns when a majority has the floor, and with it everything committed before. Later reads are at least as new.
    async fn write_epoch_floor(&mut self) -> Result<(), MongoError> {
        let mut session = self.cursors.client().start_session().causal_consistency(true).await?;
        let raise = self.cursors.update_one(doc! { "_id": floor_id(&self.pipeline) }, floor_update(self.epoch));
        raise.upsert(true).write_concern(WriteConcern::majority()).session(&mut session).await?;
        self.as_of = session.operation_time();
        Ok(())
    }

    /// Whether a transaction of this pipeline's pods has been open for at least `age`.
    async fn has_transactions_older_than(&self, age: Duration) -> Result<bool, MongoError> {
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
    /// Returns when no transaction can still write a cursor that the sweep would miss.
    pub(super) async fn raise_epoch_floor(
        &mut self,
        views: &mut ReadModelCursors,
        scanned: u64,
    ) -> Result<(), ReaderExit> {
        // No epoch is older than the first.
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
        with_timeout(RAISE, timeout, views.write_epoch_floor()).await?;
        let raised_at = Instant::now();
        loop {
            match with_timeout(LIST, timeout, views.has_transactions_older_than(raised_at.elapsed())).await {
                Ok(false) => break,
                Err(_) if raised_at.elapsed() >= TRANSACTION_LIFETIME => break,
                Ok(true) | Err(_) => tokio::time::sleep(POLL_INTERVAL).await,
            }
            self.handle.record_response(CaptureState::Scanning { scanned });
        }
        // The last transaction may be committed but not yet replicated to a majority; this write waits for it.
        with_timeout(RAISE, timeout, views.write_epoch_floor()).await
    }
}
