//! Writers that insert, update and delete documents at two thousand per second until stopped.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use mongodb::bson::{Document, doc};
use mongodb::options::{DeleteOneModel, InsertOneModel, UpdateOneModel, WriteConcern, WriteModel};
use mongodb::{Collection, Namespace};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

const WRITERS: i64 = 4;
/// Each writer sends one bulk write per round; late rounds are made up for, so that a slow machine keeps the rate.
const ROUND: Duration = Duration::from_millis(80);
const INSERTS: i64 = 10;
const UPDATES: i64 = 20;
const DELETES: usize = 9;

/// Counts as reported by the server.
#[derive(Default)]
pub(super) struct WriteCounts {
    inserted: AtomicU64,
    updated: AtomicU64,
    deleted: AtomicU64,
}

pub(super) struct DocumentChurn {
    counts: Arc<WriteCounts>,
    stop: CancellationToken,
    writers: JoinSet<()>,
}

impl DocumentChurn {
    /// The documents `0..held` exist.
    pub(super) fn start(documents: &Collection<Document>, held: i64) -> Self {
        let (counts, stop) = (Arc::<WriteCounts>::default(), CancellationToken::new());
        let mut writers = JoinSet::new();
        for number in 0..WRITERS {
            let writer =
                ChurnWriter { documents: documents.clone(), held, number, round: 0, inserted: VecDeque::new() };
            writers.spawn(writer.run(Arc::clone(&counts), stop.clone()));
        }
        Self { counts, stop, writers }
    }

    /// Inserts, updates and deletes so far.
    pub(super) fn counts(&self) -> [u64; 3] {
        let WriteCounts { inserted, updated, deleted } = &*self.counts;
        [inserted, updated, deleted].map(|count| count.load(Ordering::Relaxed))
    }

    pub(super) fn total(&self) -> u64 {
        self.counts().iter().sum()
    }

    pub(super) async fn stop(self) {
        self.stop.cancel();
        self.writers.join_all().await;
    }
}

/// Each writer has its own documents.
struct ChurnWriter {
    documents: Collection<Document>,
    held: i64,
    number: i64,
    round: i64,
    /// Its inserted documents that still exist.
    inserted: VecDeque<i64>,
}

impl ChurnWriter {
    async fn run(mut self, counts: Arc<WriteCounts>, stop: CancellationToken) {
        let mut due = Instant::now();
        while !stop.is_cancelled() {
            let models = self.next_round();
            // Unordered: with ordered writes a mongos sends them shard by shard.
            let written = self.documents.client().bulk_write(models).ordered(false);
            let written = written.write_concern(WriteConcern::majority()).await.unwrap();
            counts.inserted.fetch_add(written.inserted_count as u64, Ordering::Relaxed);
            counts.updated.fetch_add(written.modified_count as u64, Ordering::Relaxed);
            counts.deleted.fetch_add(written.deleted_count as u64, Ordering::Relaxed);
            due += ROUND;
            sleep_until(due).await;
        }
    }

    /// Inserts new documents, updates old ones, deletes some of both.
    fn next_round(&mut self) -> Vec<WriteModel> {
        let namespace: Namespace = self.documents.namespace();
        let delete = |id: i64| -> WriteModel {
            DeleteOneModel::builder().namespace(namespace.clone()).filter(doc! { "_id": id }).build().into()
        };
        let mut models: Vec<WriteModel> = vec![delete(self.own(self.round * 31))];
        let oldest = self.inserted.len().saturating_sub(INSERTS as usize).min(DELETES);
        models.extend(self.inserted.drain(..oldest).map(delete));
        for step in 0..INSERTS {
            let id = self.held + self.number + WRITERS * (self.round * INSERTS + step);
            let document = doc! { "_id": id, "n": 0 };
            models.push(InsertOneModel::builder().namespace(namespace.clone()).document(document).build().into());
            self.inserted.push_back(id);
        }
        for step in 0..UPDATES {
            let id = self.own((self.round * UPDATES + step) * 7);
            let change = UpdateOneModel::builder().namespace(namespace.clone()).filter(doc! { "_id": id });
            models.push(change.update(doc! { "$inc": { "n": 1 } }).build().into());
        }
        self.round += 1;
        models
    }

    /// One of the initial documents of this writer.
    fn own(&self, step: i64) -> i64 {
        (step * WRITERS + self.number) % self.held
    }
}
