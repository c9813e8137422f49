//! How much history the source's oplog holds, and how long the checkpoint could stand still.

use admin::status::Oplog;
use futures_util::TryFutureExt;
use mongodb::Collection;
use mongodb::bson::{Bson, Document, Timestamp, doc};
use tokio::time::timeout;

use super::{ANSWER_WITHIN, Observer};

/// The rate of writing says nothing while the oplog is younger.
const YOUNGEST: f64 = 60.0;

/// The oplog's two ends, in its own seconds, and how full it is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Ends {
    pub(super) oldest: u32,
    pub(super) newest: u32,
    /// Bytes used, and bytes it may grow to.
    pub(super) used: f64,
    pub(super) most: f64,
}

impl Ends {
    /// At the rate of the time it spans: once it is full, its tail moves as its head does; until then there is room to fill first.
    pub(super) fn told(&self, checkpoint: Option<u32>) -> Oplog {
        let window = f64::from(self.newest.saturating_sub(self.oldest));
        let grown = if self.used > 0.0 && self.used < self.most { window * self.most / self.used } else { window };
        let behind = checkpoint.map(|at| f64::from(self.newest.saturating_sub(at)));
        Oplog {
            headroom_seconds: behind.filter(|_| window >= YOUNGEST).map(|behind| grown - behind),
            window_seconds: Some(window),
        }
    }
}

impl Observer {
    /// `None` where it cannot be read: through mongos, or without the right to.
    pub(super) async fn oplog(&self) -> Option<Ends> {
        let oplog = self.source.database("local").collection::<Document>("oplog.rs");
        let read = async { tokio::try_join!(end(&oplog, 1), end(&oplog, -1), size(&oplog)) };
        let (oldest, newest, (used, most)) = timeout(ANSWER_WITHIN, read).await.ok()?.ok()?;
        Some(Ends { oldest: oldest?, newest: newest?, used, most })
    }
}

async fn end(oplog: &Collection<Document>, order: i32) -> Result<Option<u32>, mongodb::error::Error> {
    let first = oplog.find_one(doc! {}).sort(doc! { "$natural": order }).projection(doc! { "ts": 1 });
    first
        .into_future()
        .map_ok(|found| match found?.get("ts") {
            Some(Bson::Timestamp(Timestamp { time, .. })) => Some(*time),
            _ => None,
        })
        .await
}

async fn size(oplog: &Collection<Document>) -> Result<(f64, f64), mongodb::error::Error> {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn ends(used: f64) -> Ends {
        Ends { oldest: 1_000, newest: 1_000 + 36_000, used, most: 100.0 }
    }

    #[test]
    fn a_full_oplog_leaves_what_lies_between_its_tail_and_the_checkpoint() {
        assert_eq!(ends(100.0).told(Some(37_000)).headroom_seconds, Some(36_000.0));
        assert_eq!(ends(100.0).told(Some(30_000)).headroom_seconds, Some(29_000.0));
        // Already lost.
        assert_eq!(ends(100.0).told(Some(500)).headroom_seconds, Some(-500.0));
    }

    #[test]
    fn one_that_still_grows_leaves_more() {
        assert_eq!(ends(50.0).told(Some(37_000)).headroom_seconds, Some(72_000.0));
    }

    #[test]
    fn without_a_checkpoint_or_with_a_young_oplog_it_is_unknown() {
        assert_eq!(ends(100.0).told(None), Oplog { headroom_seconds: None, window_seconds: Some(36_000.0) });
        let young = Ends { newest: 1_059, ..ends(1.0) };
        assert_eq!(young.told(Some(1_059)).headroom_seconds, None);
    }
}
