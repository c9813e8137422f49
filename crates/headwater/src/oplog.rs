//! The source's oplog: its two ends, and how full it is. Looked at by `status` and by `check`, each with questions of its own.

use futures_util::TryFutureExt;
use mongodb::bson::{Bson, Document, Timestamp, doc};
use mongodb::{Client, Collection};

/// In the oplog's own seconds and bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct OplogWindow {
    pub(crate) oldest: u32,
    pub(crate) newest: u32,
    /// Bytes used, and bytes it may grow to.
    pub(crate) used: f64,
    pub(crate) most: f64,
}

impl OplogWindow {
    /// `None` where it is empty. Through mongos, or without the right to read `local`, an error.
    pub(crate) async fn read(source: &Client) -> mongodb::error::Result<Option<Self>> {
        let oplog = source.database("local").collection::<Document>("oplog.rs");
        let (oldest, newest, (used, most)) = tokio::try_join!(end(&oplog, 1), end(&oplog, -1), size(&oplog))?;
        Ok(oldest.zip(newest).map(|(oldest, newest)| Self { oldest, newest, used, most }))
    }

    /// Seconds between the two.
    pub(crate) fn span(&self) -> f64 {
        f64::from(self.newest.saturating_sub(self.oldest))
    }

    /// Seconds it would span when full, at the rate of the time it spans now.
    pub(crate) fn span_when_full(&self) -> f64 {
        if self.used > 0.0 && self.used < self.most { self.span() * self.most / self.used } else { self.span() }
    }
}

async fn end(oplog: &Collection<Document>, order: i32) -> mongodb::error::Result<Option<u32>> {
    let first = oplog.find_one(doc! {}).sort(doc! { "$natural": order }).projection(doc! { "ts": 1 });
    first
        .into_future()
        .map_ok(|found| match found?.get("ts") {
            Some(Bson::Timestamp(Timestamp { time, .. })) => Some(*time),
            _ => None,
        })
        .await
}

async fn size(oplog: &Collection<Document>) -> mongodb::error::Result<(f64, f64)> {
    let stages = [
        doc! { "$collStats": { "storageStats": {} } },
        doc! { "$project": {
            "used": { "$toDouble": "$storageStats.size" }, "most": { "$toDouble": "$storageStats.maxSize" },
        } },
    ];
    let mut cursor = oplog.aggregate(stages).await?;
    let mut sizes = (0.0, 0.0);
    if cursor.advance().await? {
        let found = cursor.deserialize_current()?;
        sizes = (found.get_f64("used").unwrap_or(0.0), found.get_f64("most").unwrap_or(0.0));
    }
    Ok(sizes)
}
