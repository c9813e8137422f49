//! Counts what needs operator action: parked aggregates and rejected events.

use std::time::Duration;

use admin::status::{ParkedCount, RejectedCount, StorageStatus};
use mongodb::Database;
use mongodb::bson::{Document, doc};
use pipeline::erasure::{self, ERASED, ErasureStore};
use pipeline::publish::rejected;
use pipeline::stored::claim_check;
use pipeline::view::{CURSORS, PARKED_EVENTS, ParkReason};
use tokio::time::timeout;

use super::{READ_TIMEOUT, StatusCollector};
use crate::coordination_store::of_pipeline;
use crate::operator_log;
use crate::pods::{read_u64, to_seconds};

/// A count that takes the server longer is unknown.
const MAX_SERVER_TIME: Duration = Duration::from_secs(2);

/// `None` means unknown.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct AttentionCounts {
    /// Without those that only a pause has parked.
    pub(super) parked: Option<Vec<ParkedCount>>,
    /// Those that only a pause has parked.
    pub(super) paused: Option<Vec<ParkedCount>>,
    pub(super) rejected: Option<Vec<RejectedCount>>,
    pub(super) storage: Vec<StorageStatus>,
    pub(super) erasure_key_lost: Option<bool>,
}

impl StatusCollector {
    pub(super) async fn count_attention(&self) -> AttentionCounts {
        let (parked, rejected, storage, erasure_key_lost) = tokio::join!(
            aggregate(&self.views, CURSORS, self.parked_stages()),
            aggregate(&self.coordination, rejected::COLLECTION, self.rejected_stages()),
            self.read_storage(),
            self.is_erasure_key_lost(),
        );
        AttentionCounts {
            parked: parked.as_ref().map(|list| read_counts(list, false)),
            paused: parked.as_ref().map(|list| read_counts(list, true)),
            rejected: rejected.map(|list| list.iter().filter_map(read_rejected).collect()),
            storage,
            erasure_key_lost,
        }
    }

    async fn is_erasure_key_lost(&self) -> Option<bool> {
        let store = ErasureStore::new(&self.views, &self.coordination, &self.pipeline);
        match timeout(READ_TIMEOUT, store.check_key()).await.ok()? {
            Ok(()) => Some(false),
            Err(erasure::Error::KeyLost) => Some(true),
            Err(_) => None,
        }
    }

    /// The sizes of what pods store besides read models, without collections that do not exist or cannot be read.
    async fn read_storage(&self) -> Vec<StorageStatus> {
        let of_views = [CURSORS, PARKED_EVENTS, ERASED].map(|name| (&self.views, name));
        let of_coordination = [rejected::COLLECTION, claim_check::COLLECTION, operator_log::COLLECTION];
        let of_coordination = of_coordination.map(|name| (&self.coordination, name));
        let read = |(database, name): (_, &'static str)| async move {
            let stages = vec![doc! { "$collStats": { "count": {}, "storageStats": {} } }];
            let found = aggregate(database, name, stages).await?;
            let sum = |read: &dyn Fn(&Document) -> Option<u64>| found.iter().filter_map(read).sum::<u64>();
            Some(StorageStatus {
                collection: name.to_owned(),
                documents: sum(&|it| read_u64(it.get("count"))),
                bytes: sum(&|it| read_u64(it.get_document("storageStats").ok()?.get("size"))),
            })
        };
        let all = of_views.into_iter().chain(of_coordination).map(read);
        futures_util::future::join_all(all).await.into_iter().flatten().collect()
    }

    fn parked_stages(&self) -> Vec<Document> {
        let is_paused = doc! { "$eq": ["$entry.v.reason", ParkReason::Paused.as_str()] };
        vec![
            // With the partial index: it has the parked cursors only.
            doc! { "$match": { "_id.pipeline": &self.pipeline, "parked": { "$exists": true } } },
            doc! { "$project": { "_id": 0, "entry": { "$objectToArray": "$parked" } } },
            doc! { "$unwind": "$entry" },
            doc! { "$group": {
                "_id": { "model": "$entry.k", "paused": is_paused }, "aggregates": { "$sum": 1_i64 },
                "events": { "$sum": { "$subtract": ["$entry.v.next", "$entry.v.head"] } },
                "oldest": { "$min": "$entry.v.since" },
            } },
            doc! { "$set": { "oldest": { "$subtract": ["$$NOW", "$oldest"] } } },
            doc! { "$sort": { "_id": 1 } },
        ]
    }

    /// Documents without a reason are further chunks of a large event.
    fn rejected_stages(&self) -> Vec<Document> {
        vec![
            doc! { "$match": { "$and": [of_pipeline(&self.pipeline), { "reason": { "$exists": true }, "discardedAt": { "$exists": false }, "resubmittedAt": { "$exists": false } }] } },
            doc! { "$group": { "_id": "$reason", "events": { "$sum": 1_i64 } } },
            doc! { "$sort": { "_id": 1 } },
        ]
    }
}

async fn aggregate(database: &Database, collection: &str, stages: Vec<Document>) -> Option<Vec<Document>> {
    let reading = async {
        let collection = database.collection::<Document>(collection);
        let mut cursor = collection.aggregate(stages).max_time(MAX_SERVER_TIME).await?;
        let mut counts = Vec::new();
        while cursor.advance().await? {
            counts.push(cursor.deserialize_current()?);
        }
        Ok::<_, mongodb::error::Error>(counts)
    };
    timeout(READ_TIMEOUT, reading).await.ok()?.ok()
}

fn read_counts(counts: &[Document], paused: bool) -> Vec<ParkedCount> {
    let is_wanted = |count: &&Document| {
        count.get_document("_id").and_then(|id| id.get_bool("paused")).is_ok_and(|is_paused| is_paused == paused)
    };
    counts.iter().filter(is_wanted).filter_map(read_parked).collect()
}

fn read_parked(count: &Document) -> Option<ParkedCount> {
    Some(ParkedCount {
        read_model: count.get_document("_id").ok()?.get_str("model").ok()?.to_owned(),
        aggregates: read_u64(count.get("aggregates"))?,
        events: read_u64(count.get("events"))?,
        oldest_seconds: count.get_i64("oldest").ok().map(to_seconds),
    })
}

fn read_rejected(count: &Document) -> Option<RejectedCount> {
    Some(RejectedCount { reason: count.get_str("_id").ok()?.to_owned(), events: read_u64(count.get("events"))? })
}

#[cfg(test)]
mod tests {
    use admin::status::REJECTION_REASONS;
    use pipeline::publish::rejected::RejectReason;

    #[test]
    fn every_rejection_reason_has_its_code_in_the_status() {
        let refused = RejectReason::Refused(String::new());
        let all = [RejectReason::NoAggregateId, RejectReason::NoSequence, refused, RejectReason::TooLarge];
        // A new reason does not compile here: add it above, and to `REJECTION_REASONS`.
        for reason in &all {
            match reason {
                RejectReason::NoAggregateId
                | RejectReason::NoSequence
                | RejectReason::Refused(_)
                | RejectReason::TooLarge => {}
            }
        }
        assert_eq!(all.each_ref().map(RejectReason::code), REJECTION_REASONS);
    }
}
