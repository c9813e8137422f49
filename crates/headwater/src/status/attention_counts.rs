//! Counts what needs operator action: parked aggregates and rejected events.

use std::time::Duration;

use admin::status::{ParkedCount, RejectedCount};
use mongodb::Database;
use mongodb::bson::{Document, doc};
use pipeline::publish::rejected;
use pipeline::view::PARKED_EVENTS;
use tokio::time::timeout;

use super::{READ_TIMEOUT, StatusCollector};
use crate::coordination_store::of_pipeline;
use crate::pods::{read_u64, to_seconds};

/// A count that takes the server longer is unknown.
const MAX_SERVER_TIME: Duration = Duration::from_secs(2);

/// `None` means unknown.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct AttentionCounts {
    pub(super) parked: Option<Vec<ParkedCount>>,
    pub(super) rejected: Option<Vec<RejectedCount>>,
}

impl StatusCollector {
    pub(super) async fn count_attention(&self) -> AttentionCounts {
        let (parked, rejected) = tokio::join!(
            aggregate(&self.views, PARKED_EVENTS, self.parked_stages()),
            aggregate(&self.coordination, rejected::COLLECTION, self.rejected_stages()),
        );
        AttentionCounts {
            parked: parked.map(|list| list.iter().filter_map(read_parked).collect()),
            rejected: rejected.map(|list| list.iter().filter_map(read_rejected).collect()),
        }
    }

    fn parked_stages(&self) -> Vec<Document> {
        let parked_aggregate =
            doc! { "model": "$_id.model", "aggregate": "$_id.aggregate", "collection": "$_id.collection" };
        vec![
            doc! { "$match": { "$and": [of_pipeline(&self.pipeline), { "state": "waiting" }] } },
            doc! { "$group": { "_id": parked_aggregate, "events": { "$sum": 1_i64 }, "oldest": { "$min": "$parkedAt" } } },
            doc! { "$group": {
                "_id": "$_id.model", "aggregates": { "$sum": 1_i64 }, "events": { "$sum": "$events" }, "oldest": { "$min": "$oldest" },
            } },
            doc! { "$set": { "oldest": { "$subtract": ["$$NOW", "$oldest"] } } },
            doc! { "$sort": { "_id": 1 } },
        ]
    }

    /// Documents without a reason are further chunks of a large event.
    fn rejected_stages(&self) -> Vec<Document> {
        vec![
            doc! { "$match": { "$and": [of_pipeline(&self.pipeline), { "reason": { "$exists": true }, "discardedAt": { "$exists": false } }] } },
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

fn read_parked(count: &Document) -> Option<ParkedCount> {
    Some(ParkedCount {
        read_model: count.get_str("_id").ok()?.to_owned(),
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
