//! What waits for a person: parked aggregates and rejected events, counted.

use std::time::Duration;

use admin::status::{ParkedCount, RejectedCount};
use mongodb::Database;
use mongodb::bson::{Document, doc};
use pipeline::publish::rejected;
use pipeline::view::PARKED_EVENTS;
use tokio::time::timeout;

use super::{RESPONSE_TIMEOUT, StatusCollector};
use crate::pods::{natural, seconds};

/// A count that would cost the server more than this is unknown.
const SERVER_WITHIN: Duration = Duration::from_secs(2);

/// `None`: not known.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct AttentionCounts {
    pub(super) parked: Option<Vec<ParkedCount>>,
    pub(super) rejected: Option<Vec<RejectedCount>>,
}

impl StatusCollector {
    pub(super) async fn waiting(&self) -> AttentionCounts {
        let (parked, rejected) = tokio::join!(
            counted(&self.views, PARKED_EVENTS, self.parked_stages()),
            counted(&self.coordination, rejected::COLLECTION, self.rejected_stages()),
        );
        AttentionCounts {
            parked: parked.map(|list| list.iter().filter_map(parked_in).collect()),
            rejected: rejected.map(|list| list.iter().filter_map(rejected_for).collect()),
        }
    }

    fn parked_stages(&self) -> Vec<Document> {
        let whose = doc! { "model": "$_id.model", "aggregate": "$_id.aggregate", "collection": "$_id.collection" };
        vec![
            doc! { "$match": { "$and": [self.of_this_pipeline(), { "state": "waiting" }] } },
            doc! { "$group": { "_id": whose, "events": { "$sum": 1_i64 }, "oldest": { "$min": "$parkedAt" } } },
            doc! { "$group": {
                "_id": "$_id.model", "aggregates": { "$sum": 1_i64 }, "events": { "$sum": "$events" }, "oldest": { "$min": "$oldest" },
            } },
            doc! { "$set": { "oldest": { "$subtract": ["$$NOW", "$oldest"] } } },
            doc! { "$sort": { "_id": 1 } },
        ]
    }

    /// Documents without a reason are the rest of one that has.
    fn rejected_stages(&self) -> Vec<Document> {
        vec![
            doc! { "$match": { "$and": [self.of_this_pipeline(), { "reason": { "$exists": true } }] } },
            doc! { "$group": { "_id": "$reason", "events": { "$sum": 1_i64 } } },
            doc! { "$sort": { "_id": 1 } },
        ]
    }
}

async fn counted(database: &Database, collection: &str, stages: Vec<Document>) -> Option<Vec<Document>> {
    let count = async {
        let collection = database.collection::<Document>(collection);
        let mut cursor = collection.aggregate(stages).max_time(SERVER_WITHIN).await?;
        let mut counts = Vec::new();
        while cursor.advance().await? {
            counts.push(cursor.deserialize_current()?);
        }
        Ok::<_, mongodb::error::Error>(counts)
    };
    timeout(RESPONSE_TIMEOUT, count).await.ok()?.ok()
}

fn parked_in(count: &Document) -> Option<ParkedCount> {
    Some(ParkedCount {
        read_model: count.get_str("_id").ok()?.to_owned(),
        aggregates: natural(count.get("aggregates"))?,
        events: natural(count.get("events"))?,
        oldest_seconds: count.get_i64("oldest").ok().map(seconds),
    })
}

fn rejected_for(count: &Document) -> Option<RejectedCount> {
    Some(RejectedCount { reason: count.get_str("_id").ok()?.to_owned(), events: natural(count.get("events"))? })
}

#[cfg(test)]
mod tests {
    use admin::status::REASONS;
    use pipeline::publish::rejected::RejectReason;

    #[test]
    fn every_reason_to_reject_an_event_is_told_of_by_its_code() {
        let all = [RejectReason::NoAggregateId, RejectReason::Refused(String::new()), RejectReason::TooLarge];
        // A new one does not compile here: give it a place above, and its code one in `REASONS`.
        for reason in &all {
            match reason {
                RejectReason::NoAggregateId | RejectReason::Refused(_) | RejectReason::TooLarge => {}
            }
        }
        assert_eq!(all.each_ref().map(RejectReason::code), REASONS);
    }
}
