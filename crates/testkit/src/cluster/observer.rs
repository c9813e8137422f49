//! Observes the coordination database: who took the lease and who saved the checkpoint, in commit order.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use futures_util::StreamExt;
use mongodb::bson::{Bson, Document, doc};
use mongodb::{Database, change_stream::event::ResumeToken};
use tokio::task::JoinHandle;

use super::{Error, LEASES, TestCluster, config::PIPELINE};
use crate::checker::FencingHistory;
use crate::mongo;

const CHECKPOINTS: &str = "checkpoints";

/// Watches until it is dropped.
#[derive(Debug)]
pub struct CoordinationObserver {
    history: Arc<Mutex<FencingHistory>>,
    task: JoinHandle<()>,
}

impl CoordinationObserver {
    /// Records every change from now on.
    pub async fn start(cluster: &TestCluster) -> Result<Self, Error> {
        let database = cluster.coordination();
        let opened = open(&database, None).await;
        let stream = opened.map_err(mongo::Error::driver("watch the coordination database"))?;
        let history = Arc::<Mutex<FencingHistory>>::default();
        let task = tokio::spawn(watch(database, stream, Arc::clone(&history)));
        Ok(Self { history, task })
    }

    /// A copy of the changes recorded so far.
    pub fn history(&self) -> FencingHistory {
        self.read(Clone::clone)
    }

    /// Reads the changes recorded so far.
    pub fn read<T>(&self, read: impl FnOnce(&FencingHistory) -> T) -> T {
        read(&self.history.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Drop for CoordinationObserver {
    fn drop(&mut self) {
        self.task.abort();
    }
}

type Changes = mongodb::change_stream::ChangeStream<Document>;

async fn open(database: &Database, after: Option<ResumeToken>) -> mongodb::error::Result<Changes> {
    let ours = doc! { "$match": { "ns.coll": { "$in": [LEASES, CHECKPOINTS] }, "documentKey._id": PIPELINE } };
    let watch = database.watch().pipeline([ours]);
    let opened = match after {
        Some(token) => watch.start_after(token).await?,
        None => watch.await?,
    };
    Ok(opened.with_type())
}

async fn watch(database: Database, mut stream: Changes, history: Arc<Mutex<FencingHistory>>) {
    let mut last = stream.resume_token();
    loop {
        while let Some(Ok(change)) = stream.next().await {
            record_change(&change, &mut history.lock().unwrap_or_else(PoisonError::into_inner));
            last = stream.resume_token();
        }
        // The driver resumes short interruptions itself; this covers a longer time without a primary.
        stream = loop {
            match open(&database, last.clone()).await {
                Ok(stream) => break stream,
                Err(_) => tokio::time::sleep(std::time::Duration::from_millis(200)).await,
            }
        };
    }
}

/// Records one change; ignores changes of another shape.
fn record_change(change: &Document, history: &mut FencingHistory) {
    let collection = change.get_document("ns").and_then(|ns| ns.get_str("coll")).unwrap_or_default();
    let updated = change.get_document("updateDescription").and_then(|update| update.get_document("updatedFields"));
    let Ok(fields) = updated.or_else(|_| change.get_document("fullDocument")) else { return };
    let number = |name: &str| match fields.get(name) {
        Some(Bson::Int64(number)) => Some(*number),
        Some(Bson::Int32(number)) => Some(i64::from(*number)),
        _ => None,
    };
    match collection {
        LEASES => {
            // A pod that takes its own lease again changes the term but not the holder's name.
            if let Some(term) = number("term") {
                history.record_lease_taken(term, fields.get_str("leaderId").ok(), Instant::now());
            }
        }
        CHECKPOINTS => {
            if let Some(term) = number("term") {
                history.record_claim(term);
            }
            history.record_position(number("epoch"), fields.get_str("position").ok());
            let by = fields.get_str("savedBy").ok();
            if fields.contains_key("savedAt") || fields.contains_key("position") {
                history.record_save(by, number("savedIn"));
            }
        }
        _ => {}
    }
}
