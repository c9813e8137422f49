//! The window of the source's oplog: its oldest and newest entry, and how full it is. Used by `status` and `check`.

use futures_util::TryFutureExt;
use mongodb::bson::{Bson, Document, Timestamp, doc};
use mongodb::{Client, Collection};

/// Times are seconds of the cluster time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct OplogWindow {
    pub(crate) oldest: u32,
    pub(crate) newest: u32,
    /// Bytes used, and the maximum size in bytes.
    pub(crate) used: f64,
    pub(crate) max: f64,
}

impl OplogWindow {
    /// `None` if the oplog is empty. Fails through mongos, or without the privilege to read `local`.
    pub(crate) async fn read(source: &Client) -> mongodb::error::Result<Option<Self>> {
        let oplog = source.database("local").collection::<Document>("oplog.rs");
        let (oldest, newest, (used, max)) =
            tokio::try_join!(read_end(&oplog, 1), read_end(&oplog, -1), read_size(&oplog))?;
        Ok(oldest.zip(newest).map(|(oldest, newest)| Self { oldest, newest, used, max }))
    }

    /// Seconds between the oldest and the newest entry.
    pub(crate) fn span(&self) -> f64 {
        f64::from(self.newest.saturating_sub(self.oldest))
    }

    /// Seconds that a full oplog would span, at the present rate of writes.
    pub(crate) fn span_when_full(&self) -> f64 {
        if self.used > 0.0 && self.used < self.max { self.span() * self.max / self.used } else { self.span() }
    }
}

async fn read_end(oplog: &Collection<Document>, order: i32) -> mongodb::error::Result<Option<u32>> {
    let first = oplog.find_one(doc! {}).sort(doc! { "$natural": order }).projection(doc! { "ts": 1 });
    first
        .into_future()
        .map_ok(|found| match found?.get("ts") {
            Some(Bson::Timestamp(Timestamp { time, .. })) => Some(*time),
            _ => None,
        })
        .await
}

async fn read_size(oplog: &Collection<Document>) -> mongodb::error::Result<(f64, f64)> {
    let stages = [
        doc! { "$collStats": { "storageStats": {} } },
        doc! { "$project": {
            "used": { "$toDouble": "$storageStats.size" }, "max": { "$toDouble": "$storageStats.maxSize" },
        } },
    ];
    let mut cursor = oplog.aggregate(stages).await?;
    let mut sizes = (0.0, 0.0);
    if cursor.advance().await? {
        let found = cursor.deserialize_current()?;
        sizes = (found.get_f64("used").unwrap_or(0.0), found.get_f64("max").unwrap_or(0.0));
    }
    Ok(sizes)
}
