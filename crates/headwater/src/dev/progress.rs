//! How far the shop's orders have come. Reads MongoDB and the broker as any operator could.

use std::fmt;
use std::time::Duration;

use anyhow::Context;
use lease::mongo::COLLECTION as LEASES;
use mongodb::bson::{Bson, Document, doc};
use mongodb::options::ReadConcern;
use mongodb::{Client, Collection, Database};
use pipeline::view::CURSORS;
use servicebus::administration::AdministrationClient;
use tokio::sync::watch;
use tokio::time::{Instant, timeout};

use super::settings::{COLLECTION, DevSettings, PIPELINE, SUBSCRIPTION, TOPIC};

/// Reads may take one part in this many of the time: the sum over all cursors grows with the shop.
const SHARE: u32 = 20;
/// The longest pause, so that one slow read does not delay the status line by twenty times its duration.
const LONGEST_PAUSE: Duration = Duration::from_secs(2);
/// For a read of one document, or of the broker.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(3);

/// Reads the progress of the shop's events.
pub(super) struct ProgressMonitor {
    pub(super) events: Collection<Document>,
    pub(super) views: Database,
    leases: Collection<Document>,
    bus: AdministrationClient,
    written: watch::Receiver<u64>,
    /// When it last read, and the number of applied events then.
    last: Option<(Instant, u64)>,
    took: Duration,
    leader: Option<LeaderInfo>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LeaderInfo {
    pub(super) leader: String,
    pub(super) term: i64,
}

/// One snapshot. `None` means unknown.
#[derive(Debug, Default)]
pub(super) struct DevProgress {
    written: u64,
    /// Active messages of the subscription.
    waiting: Option<u64>,
    applied: Option<u64>,
    parked: u64,
    per_second: Option<f64>,
    leader: Option<LeaderInfo>,
}

impl ProgressMonitor {
    pub(super) fn new(client: &Client, settings: &DevSettings, written: watch::Receiver<u64>) -> anyhow::Result<Self> {
        let bus = AdministrationClient::new(&settings.bus, &servicebus::Config::default());
        Ok(Self {
            events: client.database(&settings.database).collection(COLLECTION),
            views: client.database(&settings.views),
            leases: client.database(&settings.coordination).collection(LEASES),
            bus: bus.context("failed to connect to the broker")?,
            written,
            last: None,
            took: Duration::ZERO,
            leader: None,
        })
    }

    /// How long to wait before the next read.
    pub(super) fn pause(&self) -> Duration {
        pause_after(self.took)
    }

    /// A value that does not arrive in time is unknown. `within` limits the sum over all cursors.
    pub(super) async fn read(&mut self, within: Duration) -> DevProgress {
        let began = Instant::now();
        let written = *self.written.borrow();
        let (applied, waiting, leader) = tokio::join!(
            timeout(within, self.applied()),
            timeout(RESPONSE_TIMEOUT, self.waiting()),
            timeout(RESPONSE_TIMEOUT, self.leading())
        );
        let (applied, waiting, leader) = (applied.ok().flatten(), waiting.ok().flatten(), leader.ok().flatten());
        self.took = began.elapsed();
        let before = self.last.take();
        self.last = applied.map(|(applied, _)| (began, applied));
        let per_second = before.zip(self.last).map(|((then, before), (now, applied))| {
            applied.saturating_sub(before) as f64 / now.duration_since(then).as_secs_f64().max(0.001)
        });
        let parked = applied.map_or(0, |(_, parked)| parked);
        DevProgress { written, waiting, applied: applied.map(|(applied, _)| applied), parked, per_second, leader }
    }

    /// The leader, if it changed since the last call.
    pub(super) fn change_of_leader(&mut self, progress: &DevProgress) -> Option<LeaderInfo> {
        let now = progress.leader.clone()?;
        if self.leader.as_ref() == Some(&now) {
            return None;
        }
        self.leader = Some(now.clone());
        Some(now)
    }

    async fn waiting(&self) -> Option<u64> {
        let subscription = self.bus.get(&format!("{TOPIC}/Subscriptions/{SUBSCRIPTION}")).await;
        subscription.ok().flatten().and_then(|found| found.count("ActiveMessageCount"))
    }

    async fn leading(&self) -> Option<LeaderInfo> {
        let lease = self.leases.find_one(doc! { "_id": PIPELINE }).await.ok().flatten()?;
        Some(LeaderInfo { leader: lease.get_str("leaderId").ok()?.to_owned(), term: lease.get_i64("term").ok()? })
    }

    /// Applied events and parked orders. Every order numbers its events from 1, so its cursor holds the number of processed events.
    async fn applied(&self) -> Option<(u64, u64)> {
        let parked = doc! { "$cond": [{ "$eq": [{ "$type": "$parked" }, "object"] }, 1, 0] };
        let sum =
            doc! { "$group": { "_id": Bson::Null, "applied": { "$sum": "$sequence" }, "parked": { "$sum": parked } } };
        let pipeline = [doc! { "$match": { "_id.pipeline": PIPELINE } }, sum];
        // Read concern as in the final check: it must find what counts as applied here.
        let majority = ReadConcern::majority();
        let cursors = self.views.collection::<Document>(CURSORS);
        let mut found = cursors.aggregate(pipeline).read_concern(majority).await.ok()?;
        if !found.advance().await.ok()? {
            return Some((0, 0));
        }
        let total = found.deserialize_current().ok()?;
        let number = |name: &str| match total.get(name) {
            Some(Bson::Int32(number)) => u64::try_from(*number).ok(),
            Some(Bson::Int64(number)) => u64::try_from(*number).ok(),
            _ => None,
        };
        Some((number("applied")?, number("parked")?))
    }
}

fn pause_after(took: Duration) -> Duration {
    (took * SHARE).min(LONGEST_PAUSE)
}

impl DevProgress {
    /// Events written and not applied; `None` if unknown.
    pub(super) fn behind(&self) -> Option<u64> {
        self.applied.map(|applied| self.written.saturating_sub(applied))
    }

    /// Applied events plus the backlog of the subscription. A message is settled shortly after it is applied, so it may be in both.
    fn published(&self) -> Option<u64> {
        Some((self.applied? + self.waiting?).min(self.written))
    }
}

impl fmt::Display for DevProgress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let known = |number: Option<u64>| number.map_or("?".to_owned(), |number| number.to_string());
        let Self { written, applied, parked, leader, .. } = self;
        let (published, applied, behind) = (known(self.published()), known(*applied), known(self.behind()));
        write!(f, "written {written} | published {published} | applied {applied} | behind {behind}")?;
        if let Some(per_second) = self.per_second {
            write!(f, " | {per_second:.0}/s")?;
        }
        match leader {
            Some(LeaderInfo { leader, term }) => write!(f, " | leader {leader}, term {term}")?,
            None => f.write_str(" | no leader")?,
        }
        if *parked > 0 {
            write!(f, " | {parked} parked")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pause_after_a_slow_read_is_bounded() {
        assert_eq!(pause_after(Duration::from_millis(5)), Duration::from_millis(100));
        assert_eq!(pause_after(Duration::from_secs(30)), LONGEST_PAUSE);
    }

    #[test]
    fn unknown_values_are_shown_as_question_marks() {
        let blind = DevProgress { written: 7, ..DevProgress::default() };
        assert_eq!(blind.to_string(), "written 7 | published ? | applied ? | behind ? | no leader");
        let leader = Some(LeaderInfo { leader: "pod-2".into(), term: 3 });
        let seen =
            DevProgress { written: 9, waiting: Some(3), applied: Some(5), parked: 1, per_second: Some(19.6), leader };
        let line = "written 9 | published 8 | applied 5 | behind 4 | 20/s | leader pod-2, term 3 | 1 parked";
        assert_eq!(seen.to_string(), line);
        assert_eq!(DevProgress { waiting: Some(9), ..seen }.published(), Some(9), "a message in both counts once");
    }
}
