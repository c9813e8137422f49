//! What one look at a few documents tells: who leads, how far the checkpoint is, who is there.

use std::future::Future;

use admin::WallTime;
use admin::status::{CheckpointStatus, LeaderStatus, SubscriptionStatus, TermStatus};
use lease::mongo::COLLECTION as LEASES;
use mongodb::bson::{Bson, DateTime, Document, Timestamp, doc};
use pipeline::checkpoint::COLLECTION as CHECKPOINTS;
use tokio::time::timeout;

use super::{RESPONSE_TIMEOUT, StatusCollector, THE_LEASE};
use crate::pods::{AnnouncedPod, PODS, TERMS, natural, seconds};

/// How many terms are shown.
const TERMS_SHOWN: i64 = 20;

/// Read together. A part that could not be read is empty, and named in `unavailable`.
#[derive(Debug, Default)]
pub(super) struct CoordinationSnapshot {
    pub(super) leader: Option<LeaderStatus>,
    /// With the source's time it stands at, in seconds.
    pub(super) checkpoint: Option<(CheckpointStatus, Option<u32>)>,
    pub(super) pods: Vec<AnnouncedPod>,
    pub(super) terms: Vec<TermStatus>,
    /// The source's newest operation, in its own seconds; `None` also of a server that has no such time.
    pub(super) newest: Option<u32>,
    pub(super) subscription: SubscriptionStatus,
    pub(super) unavailable: Vec<String>,
}

impl StatusCollector {
    pub(super) async fn coordination(&self) -> CoordinationSnapshot {
        let coordination = |collection, filter| self.read(collection, filter);
        let by_name = doc! { "_id": &self.pipeline };
        let (lease, checkpoint, pods, terms, newest, subscription) = tokio::join!(
            in_time(coordination(LEASES, vec![doc! { "$match": by_name.clone() }])),
            in_time(coordination(CHECKPOINTS, vec![doc! { "$match": by_name }])),
            in_time(coordination(
                PODS,
                vec![doc! { "$match": self.of_this_pipeline() }, doc! { "$sort": { "_id": 1 } }]
            )),
            in_time(coordination(
                TERMS,
                vec![
                    doc! { "$match": self.of_this_pipeline() },
                    doc! { "$sort": { "_id": -1 } },
                    doc! { "$limit": TERMS_SHOWN },
                ]
            )),
            in_time(self.newest()),
            self.subscription.counts(),
        );
        let mut unavailable = Vec::new();
        let mut found = |what: &str, read: Option<Vec<Document>>| {
            read.unwrap_or_else(|| {
                unavailable.push(what.to_owned());
                Vec::new()
            })
        };
        let leader = found(THE_LEASE, lease).first().and_then(leader);
        let checkpoint = found("the checkpoint", checkpoint).first().and_then(checkpoint_of);
        let leads = leader.as_ref().map(|leader| leader.pod.clone());
        let pods = found("the pods", pods);
        let terms = found("the terms", terms).iter().filter_map(term).collect();
        if newest.is_none() {
            unavailable.push("the source".to_owned());
        }
        let pods = pods.iter().filter_map(|pod| AnnouncedPod::read(pod, leads.as_deref(), now_of(pod))).collect();
        CoordinationSnapshot { leader, checkpoint, pods, terms, newest: newest.flatten(), subscription, unavailable }
    }

    /// Documents with the server's time of the look, so that ages need no second clock.
    async fn read(&self, collection: &str, mut stages: Vec<Document>) -> Result<Vec<Document>, mongodb::error::Error> {
        stages.push(doc! { "$set": { NOW: "$$NOW" } });
        let mut cursor = self.coordination.collection::<Document>(collection).aggregate(stages).await?;
        let mut documents = Vec::new();
        while cursor.advance().await? {
            documents.push(cursor.deserialize_current()?);
        }
        Ok(documents)
    }

    /// Ids that begin with the pipeline's name, by the index every collection has.
    pub(super) fn of_this_pipeline(&self) -> Document {
        let above = format!("{}\0", self.pipeline);
        doc! { "_id": { "$gte": { "pipeline": &self.pipeline }, "$lt": { "pipeline": above } } }
    }

    /// Every answer of a replica set or a mongos says when it was; an answer to nothing is the cheapest.
    pub(super) async fn newest(&self) -> Result<Option<u32>, mongodb::error::Error> {
        let answer = self.source.database("admin").run_command(doc! { "ping": 1 }).await?;
        let time = answer.get_timestamp("operationTime").ok();
        let cluster = || answer.get_document("$clusterTime").ok()?.get_timestamp("clusterTime").ok();
        Ok(time.or_else(cluster).map(|Timestamp { time, .. }| time))
    }
}

/// A name no document of ours has.
const NOW: &str = "_now";

async fn in_time<T>(reading: impl Future<Output = Result<T, mongodb::error::Error>>) -> Option<T> {
    match timeout(RESPONSE_TIMEOUT, reading).await {
        Ok(Ok(read)) => Some(read),
        Ok(Err(error)) => {
            tracing::debug!(error = %mongo_error::DriverError::from(error), "gather the status");
            None
        }
        Err(_) => None,
    }
}

fn now_of(document: &Document) -> i64 {
    document.get_datetime(NOW).map_or(0, |now| now.timestamp_millis())
}

fn shown(time: DateTime) -> WallTime {
    WallTime::from_millis(time.timestamp_millis())
}

/// `None` when nobody holds it, and when it has run out by the clock of the server that keeps it.
fn leader(document: &Document) -> Option<LeaderStatus> {
    let (now, date) = (now_of(document), |field| document.get_datetime(field).ok().copied());
    let since = date("acquiredAt");
    (date("expiresAt")?.timestamp_millis() >= now).then_some(())?;
    Some(LeaderStatus {
        pod: document.get_str("leaderId").ok()?.to_owned(),
        term: natural(document.get("term"))?,
        since: since.map(shown),
        for_seconds: since.map(|since| seconds(now - since.timestamp_millis())),
        heartbeat_seconds_ago: seconds(now - date("heartbeatAt")?.timestamp_millis()),
    })
}

fn checkpoint_of(document: &Document) -> Option<(CheckpointStatus, Option<u32>)> {
    let saved = document.get_datetime("savedAt").ok().copied();
    let scanned = document.get_document("snapshot").ok().and_then(|snapshot| natural(snapshot.get("scanned")));
    let at = document.get_str("position").ok().and_then(seconds_of_token);
    let checkpoint = CheckpointStatus {
        phase: document.get_str("phase").ok()?.to_owned(),
        scanned,
        term: natural(document.get("term"))?,
        epoch: natural(document.get("epoch"))?,
        saved: saved.map(shown),
        saved_seconds_ago: saved.map(|saved| seconds(now_of(document) - saved.timestamp_millis())),
        saved_by: document.get_str("savedBy").unwrap_or_default().to_owned(),
        ahead_seconds: None,
    };
    Some((checkpoint, at))
}

/// A resume token begins with its type, 0x82 for a timestamp, and the seconds of its cluster time, big-endian, in hexadecimal: that makes
/// tokens comparable as text. A token that does not look so says nothing.
fn seconds_of_token(position: &str) -> Option<u32> {
    let digits = position.strip_prefix("82")?.get(..8)?;
    digits.bytes().all(|digit| digit.is_ascii_hexdigit()).then(|| u32::from_str_radix(digits, 16).ok()).flatten()
}

fn term(document: &Document) -> Option<TermStatus> {
    let Bson::Document(id) = document.get("_id")? else { return None };
    Some(TermStatus {
        term: natural(id.get("term"))?,
        pod: document.get_str("pod").ok()?.to_owned(),
        started: shown(*document.get_datetime("began").ok()?),
        ended: document.get_datetime("ended").ok().copied().map(shown),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lease(now: i64) -> Document {
        let at = |millis| DateTime::from_millis(millis);
        doc! {
            "_id": "shop", "leaderId": "pod-1", "term": 4_i64, "acquiredAt": at(10_000), "heartbeatAt": at(20_000),
            "expiresAt": at(35_000), NOW: at(now),
        }
    }

    #[test]
    fn a_leader_is_who_holds_a_lease_that_has_not_run_out() {
        let found = leader(&lease(21_000)).unwrap();
        assert_eq!((found.pod.as_str(), found.term, found.for_seconds), ("pod-1", 4, Some(11.0)));
        assert_eq!(found.heartbeat_seconds_ago, 1.0);
        assert!(leader(&lease(35_000)).is_some());
        assert_eq!(leader(&lease(35_001)), None);
        let mut released = lease(21_000);
        released.remove("leaderId");
        assert_eq!(leader(&released), None);
    }

    #[test]
    fn a_token_tells_the_second_it_stands_at_and_anything_else_tells_nothing() {
        assert_eq!(seconds_of_token("826918A5B7000000012B042C0100296E"), Some(0x6918_A5B7));
        for other in ["", "82", "826918A5", "82+918A5B7", "996918A5B7000000", "82äöüß"] {
            assert_eq!(seconds_of_token(other), None, "{other}");
        }
    }
}
