//! The cheap reads: lease, checkpoint, announcements and terms from the coordination database, the newest operation of the source, and the
//! message counts of Service Bus.

use std::future::Future;

use admin::WallTime;
use admin::status::{AuditStatus, CheckpointStatus, LeaderStatus, SubscriptionStatus, TermState, TermStatus};
use lease::mongo::COLLECTION as LEASES;
use mongodb::bson::{Bson, DateTime, Document, Timestamp, doc};
use pipeline::checkpoint::COLLECTION as CHECKPOINTS;
use pipeline::generation::Generation;
use tokio::time::timeout;

use super::{READ_TIMEOUT, StatusCollector, THE_LEASE};
use crate::coordination_store::of_pipeline;
use crate::pauses::Pauses;
use crate::pods::{AnnouncedPod, PODS, TERMS, read_u64, to_seconds};

const MAX_TERMS_READ: i64 = 20;
/// Holds the server's time in every document that is read. No document of ours has a field of this name.
const NOW: &str = "_now";

/// Read together. A part that could not be read is empty, and named in `unavailable`.
#[derive(Debug, Default)]
pub(super) struct CoordinationSnapshot {
    pub(super) leader: Option<LeaderStatus>,
    /// With the cluster time of its position, in seconds.
    pub(super) checkpoint: Option<(CheckpointStatus, Option<u32>)>,
    pub(super) pods: Vec<AnnouncedPod>,
    pub(super) terms: Vec<TermStatus>,
    /// Cluster time of the source's newest operation, in seconds; `None` also for a server without a cluster time.
    pub(super) newest: Option<u32>,
    pub(super) subscription: SubscriptionStatus,
    pub(super) audit: Option<AuditStatus>,
    /// `None` also before the first pod.
    pub(super) generation: Option<Generation>,
    pub(super) pauses: Option<Pauses>,
    pub(super) unavailable: Vec<String>,
}

impl StatusCollector {
    pub(super) async fn read_coordination(&self) -> CoordinationSnapshot {
        let by_name = doc! { "$match": { "_id": &self.pipeline } };
        let pipeline_only = doc! { "$match": of_pipeline(&self.pipeline) };
        let newest_terms =
            vec![pipeline_only.clone(), doc! { "$sort": { "_id": -1 } }, doc! { "$limit": MAX_TERMS_READ }];
        let (lease, checkpoint, pods, terms, newest, subscription, audit, generation, pauses) = tokio::join!(
            read_in_time(self.read(LEASES, vec![by_name.clone()])),
            read_in_time(self.read(CHECKPOINTS, vec![by_name])),
            read_in_time(self.read(PODS, vec![pipeline_only, doc! { "$sort": { "_id": 1 } }])),
            read_in_time(self.read(TERMS, newest_terms)),
            read_in_time(self.newest_operation()),
            self.subscription.read_counts(),
            self.audit.read(),
            self.read_generation(),
            timeout(READ_TIMEOUT, self.pauses.load()),
        );
        let mut unavailable = Vec::new();
        let mut or_unavailable = |part: &str, documents: Option<Vec<Document>>| {
            documents.unwrap_or_else(|| {
                unavailable.push(part.to_owned());
                Vec::new()
            })
        };
        let lease_known = lease.is_some();
        let leader = or_unavailable(THE_LEASE, lease).first().and_then(read_leader);
        let checkpoint = or_unavailable("the checkpoint", checkpoint).first().and_then(read_checkpoint);
        let pods = or_unavailable("the pods", pods);
        let mut terms: Vec<_> = or_unavailable("the terms", terms).iter().filter_map(read_term).collect();
        set_term_states(&mut terms, leader.as_ref(), lease_known);
        if newest.is_none() {
            unavailable.push("the source".to_owned());
        }
        let leader_id = leader.as_ref().map(|leader| leader.pod.as_str());
        let pods = pods.iter().filter_map(|pod| AnnouncedPod::read(pod, leader_id, server_time(pod))).collect();
        if audit.is_none() {
            unavailable.push("the audit".to_owned());
        }
        if generation.is_none() {
            unavailable.push("the generation of the read models".to_owned());
        }
        let pauses = pauses.ok().and_then(Result::ok);
        if pauses.is_none() {
            unavailable.push("the pauses".to_owned());
        }
        let newest = newest.flatten();
        CoordinationSnapshot {
            leader,
            checkpoint,
            pods,
            terms,
            newest,
            subscription,
            audit,
            generation: generation.flatten(),
            pauses,
            unavailable,
        }
    }

    /// Adds the server's time to each document, so that ages need no second clock.
    async fn read(&self, collection: &str, mut stages: Vec<Document>) -> Result<Vec<Document>, mongodb::error::Error> {
        stages.push(doc! { "$set": { NOW: "$$NOW" } });
        let mut cursor = self.coordination.collection::<Document>(collection).aggregate(stages).await?;
        let mut documents = Vec::new();
        while cursor.advance().await? {
            documents.push(cursor.deserialize_current()?);
        }
        Ok(documents)
    }

    /// Every reply of a replica set or a mongos carries its cluster time; a ping is the cheapest.
    pub(super) async fn newest_operation(&self) -> Result<Option<u32>, mongodb::error::Error> {
        let reply = self.source.database("admin").run_command(doc! { "ping": 1 }).await?;
        let operation_time = reply.get_timestamp("operationTime").ok();
        let cluster_time = || reply.get_document("$clusterTime").ok()?.get_timestamp("clusterTime").ok();
        Ok(operation_time.or_else(cluster_time).map(|Timestamp { time, .. }| time))
    }
}

async fn read_in_time<T>(reading: impl Future<Output = Result<T, mongodb::error::Error>>) -> Option<T> {
    match timeout(READ_TIMEOUT, reading).await {
        Ok(Ok(read)) => Some(read),
        Ok(Err(error)) => {
            tracing::debug!(error = %mongo_error::DriverError::from(error), "failed to read a part of the status");
            None
        }
        Err(_) => None,
    }
}

fn server_time(document: &Document) -> i64 {
    document.get_datetime(NOW).map_or(0, |now| now.timestamp_millis())
}

pub(super) fn to_wall_time(time: DateTime) -> WallTime {
    WallTime::from_millis(time.timestamp_millis())
}

/// `None` for a released lease, and for one that is expired by the clock of the server that stores it.
fn read_leader(document: &Document) -> Option<LeaderStatus> {
    let (now, date) = (server_time(document), |field| document.get_datetime(field).ok().copied());
    let since = date("acquiredAt");
    (date("expiresAt")?.timestamp_millis() >= now).then_some(())?;
    Some(LeaderStatus {
        pod: document.get_str("leaderId").ok()?.to_owned(),
        term: read_u64(document.get("term"))?,
        since: since.map(to_wall_time),
        for_seconds: since.map(|since| to_seconds(now - since.timestamp_millis())),
        heartbeat_seconds_ago: to_seconds(now - date("heartbeatAt")?.timestamp_millis()),
    })
}

fn read_checkpoint(document: &Document) -> Option<(CheckpointStatus, Option<u32>)> {
    let saved = document.get_datetime("savedAt").ok().copied();
    let scanned = document.get_document("snapshot").ok().and_then(|snapshot| read_u64(snapshot.get("scanned")));
    let at = document.get_str("position").ok().and_then(token_seconds);
    let checkpoint = CheckpointStatus {
        phase: document.get_str("phase").ok()?.to_owned(),
        scanned,
        term: read_u64(document.get("term"))?,
        epoch: read_u64(document.get("epoch"))?,
        saved: saved.map(to_wall_time),
        saved_seconds_ago: saved.map(|saved| to_seconds(server_time(document) - saved.timestamp_millis())),
        saved_by: document.get_str("savedBy").unwrap_or_default().to_owned(),
        ahead_seconds: None,
    };
    Some((checkpoint, at))
}

/// A resume token begins with its type (0x82 for a timestamp) and the seconds of its cluster time, big-endian and in hexadecimal, so that tokens sort
/// as text. `None` for any other form.
fn token_seconds(position: &str) -> Option<u32> {
    let digits = position.strip_prefix("82")?.get(..8)?;
    digits.bytes().all(|digit| digit.is_ascii_hexdigit()).then(|| u32::from_str_radix(digits, 16).ok()).flatten()
}

/// The state is set by [`set_term_states`].
fn read_term(document: &Document) -> Option<TermStatus> {
    let Bson::Document(id) = document.get("_id")? else { return None };
    Some(TermStatus {
        term: read_u64(id.get("term"))?,
        pod: document.get_str("pod").ok()?.to_owned(),
        started: to_wall_time(*document.get_datetime("began").ok()?),
        ended: document.get_datetime("ended").ok().copied().map(to_wall_time),
        state: TermState::Unknown,
        next_started: None,
    })
}

/// `terms`: the newest first. A leader records the end of its term unless it crashes or loses contact with MongoDB. So a term without an end is
/// either current, or lost.
fn set_term_states(terms: &mut [TermStatus], leader: Option<&LeaderStatus>, lease_known: bool) {
    let mut next_started = None;
    for term in terms {
        let is_current = leader.is_some_and(|leader| leader.term == term.term);
        term.next_started = next_started;
        term.state = match term.ended {
            Some(_) => TermState::Ended,
            None if is_current => TermState::Current,
            // A newer term proves that this one is over, whatever the lease says.
            None if lease_known || next_started.is_some() => TermState::Lost,
            None => TermState::Unknown,
        };
        next_started = Some(term.started);
    }
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
    fn the_leader_holds_a_lease_that_is_not_expired() {
        let found = read_leader(&lease(21_000)).unwrap();
        assert_eq!((found.pod.as_str(), found.term, found.for_seconds), ("pod-1", 4, Some(11.0)));
        assert_eq!(found.heartbeat_seconds_ago, 1.0);
        assert!(read_leader(&lease(35_000)).is_some());
        assert_eq!(read_leader(&lease(35_001)), None);
        let mut released = lease(21_000);
        released.remove("leaderId");
        assert_eq!(read_leader(&released), None);
    }

    #[test]
    fn a_resume_token_holds_the_second_of_its_position() {
        assert_eq!(token_seconds("826918A5B7000000012B042C0100296E"), Some(0x6918_A5B7));
        for other in ["", "82", "826918A5", "82+918A5B7", "996918A5B7000000", "82äöüß"] {
            assert_eq!(token_seconds(other), None, "{other}");
        }
    }

    #[test]
    fn a_term_without_an_end_is_current_lost_or_unknown() {
        let at = WallTime::from_millis;
        let term = |term, started, ended| TermStatus {
            term,
            pod: "pod-1".into(),
            started: at(started),
            ended,
            state: TermState::Unknown,
            next_started: None,
        };
        let leader = read_leader(&lease(21_000));
        let states = |leader: Option<&LeaderStatus>, lease_known| {
            let mut terms = [term(4, 10_000, None), term(3, 5_000, None), term(2, 1_000, Some(at(2_000)))];
            set_term_states(&mut terms, leader, lease_known);
            assert_eq!(terms.each_ref().map(|term| term.next_started), [None, Some(at(10_000)), Some(at(5_000))]);
            terms.map(|term| term.state)
        };
        assert_eq!(states(leader.as_ref(), true), [TermState::Current, TermState::Lost, TermState::Ended]);
        assert_eq!(states(None, true), [TermState::Lost, TermState::Lost, TermState::Ended]);
        assert_eq!(states(None, false), [TermState::Unknown, TermState::Lost, TermState::Ended]);
    }
}
