//! Fills the oplog until it holds little more than the time since the checkpoint.

use std::time::Duration;

use mongodb::bson::{Binary, Document, doc, spec::BinarySubtype};
use mongodb::options::{Acknowledgment, CollectionOptions, WriteConcern};
use tokio::time::timeout;

use super::{CHECKPOINTS, Error, RESPONSE_TIMEOUT, TestCluster, config};

const FILLER: &str = "filler";
const DOCUMENT: usize = 512 << 10;
/// Of the oplog. The rest is for what was written since the checkpoint, and for the fact that MongoDB truncates in chunks.
const SHARE_PERCENT: usize = 60;
const WRITE_TIMEOUT: Duration = Duration::from_secs(5);

impl TestCluster {
    /// Writes most of the oplog into another database. Only when the checkpoint has passed the last time, and every member runs: history must
    /// not be lost, neither for the pipeline nor for a member. Returns whether it wrote.
    pub(crate) async fn fill_oplog(&mut self) -> Result<bool, Error> {
        let Some(megabytes) = self.config.oplog_megabytes else { return Ok(false) };
        if !self.mongo.is_whole() || !self.has_checkpoint_passed_fill().await {
            return Ok(false);
        }
        let write_concern = WriteConcern::builder().w(Acknowledgment::Nodes(1)).build();
        let options = CollectionOptions::builder().write_concern(write_concern).build();
        let filler = self.mongo.client().database(FILLER).collection_with_options::<Document>(FILLER, options);
        let documents = ((megabytes as usize * SHARE_PERCENT / 100) << 20) / DOCUMENT;
        let bytes = Binary { subtype: BinarySubtype::Generic, bytes: vec![7; DOCUMENT] };
        let mut written = false;
        for _ in 0..documents {
            let insert = async { filler.insert_one(doc! { "bytes": &bytes }).await };
            if !matches!(timeout(WRITE_TIMEOUT, insert).await, Ok(Ok(_))) {
                break;
            }
            written = true;
        }
        let _ = timeout(WRITE_TIMEOUT, async { filler.drop().await }).await;
        // Unknown: assume that the oplog is full, and never fill it again.
        self.last_oplog_fill =
            Some(self.operation_time().await.unwrap_or(mongodb::bson::Timestamp { time: u32::MAX, increment: 0 }));
        Ok(written)
    }

    async fn has_checkpoint_passed_fill(&self) -> bool {
        let Some(last) = self.last_oplog_fill else { return true };
        let passed = doc! { "_id": config::PIPELINE, "clusterTime": { "$gte": last } };
        let checkpoints = self.coordination().collection::<Document>(CHECKPOINTS);
        let found = timeout(RESPONSE_TIMEOUT, async { checkpoints.find_one(passed).await }).await;
        matches!(found, Ok(Ok(Some(_))))
    }
}
