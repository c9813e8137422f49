//! A witness of the coordination database: who took the lease and who saved the checkpoint, in the order of commits.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use futures_util::StreamExt;
use mongodb::bson::{Bson, Document, doc};
use mongodb::{Database, change_stream::event::ResumeToken};
use tokio::task::JoinHandle;

use super::{Error, House, LEASES, blueprint::PIPELINE};
use crate::checker::FenceBook;
use crate::mongo;

const CHECKPOINTS: &str = "checkpoints";

/// Watches until it is asked.
#[derive(Debug)]
pub struct Witness {
    book: Arc<Mutex<FenceBook>>,
    task: JoinHandle<()>,
}

impl Witness {
    /// Sees everything that happens from now on.
    pub async fn of(house: &House) -> Result<Self, Error> {
        let database = house.coordination();
        let opened = open(&database, None).await;
        let stream = opened.map_err(mongo::Error::driver("watch the coordination database"))?;
        let book = Arc::<Mutex<FenceBook>>::default();
        let task = tokio::spawn(watch(database, stream, Arc::clone(&book)));
        Ok(Self { book, task })
    }

    /// What was seen so far.
    pub fn book(&self) -> FenceBook {
        self.read(Clone::clone)
    }

    /// A look at what was seen so far.
    pub fn read<T>(&self, look: impl FnOnce(&FenceBook) -> T) -> T {
        look(&self.book.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Drop for Witness {
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

async fn watch(database: Database, mut stream: Changes, book: Arc<Mutex<FenceBook>>) {
    let mut last = stream.resume_token();
    loop {
        while let Some(Ok(change)) = stream.next().await {
            note(&change, &mut book.lock().unwrap_or_else(PoisonError::into_inner));
            last = stream.resume_token();
        }
        // The driver resumes what it can; a primary that stays away for longer is waited for here.
        stream = loop {
            match open(&database, last.clone()).await {
                Ok(stream) => break stream,
                Err(_) => tokio::time::sleep(std::time::Duration::from_millis(200)).await,
            }
        };
    }
}

/// Reads one change; what has another shape is none of ours.
fn note(change: &Document, book: &mut FenceBook) {
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
            // A pod that takes its own lease again changes the term and not the name.
            if let Some(term) = number("term") {
                book.taken(term, fields.get_str("leaderId").ok(), Instant::now());
            }
        }
        CHECKPOINTS => {
            if let Some(term) = number("term") {
                book.claimed(term);
            }
            let by = fields.get_str("savedBy").ok();
            if fields.contains_key("savedAt") || fields.contains_key("position") {
                book.saved(by, number("savedIn"));
            }
        }
        _ => {}
    }
}
