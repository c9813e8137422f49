//! How far the shop's orders have come: asked of MongoDB and of the bus, as any operator could.

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

use super::settings::{COLLECTION, PIPELINE, SUBSCRIPTION, Settings, TOPIC};

/// Looking may take this part of the time: the sum over all cursors grows with the shop.
const SHARE: u32 = 20;
/// And then no longer: what took long because it was stopped must not make a person wait twenty times as long again.
const LONGEST_PAUSE: Duration = Duration::from_secs(2);
/// A question about one document, or to the bus.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(3);

/// Where to look.
pub(super) struct Gauges {
    pub(super) events: Collection<Document>,
    pub(super) views: Database,
    leases: Collection<Document>,
    bus: AdministrationClient,
    written: watch::Receiver<u64>,
    /// When it was last looked, and what had been applied then.
    last: Option<(Instant, u64)>,
    took: Duration,
    leader: Option<Leader>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Leader {
    pub(super) leader: String,
    pub(super) term: i64,
}

/// One look. What could not be asked is `None`.
#[derive(Debug, Default)]
pub(super) struct Look {
    written: u64,
    /// Messages that wait in the subscription.
    waiting: Option<u64>,
    applied: Option<u64>,
    parked: u64,
    per_second: Option<f64>,
    leader: Option<Leader>,
}

impl Gauges {
    pub(super) fn new(client: &Client, settings: &Settings, written: watch::Receiver<u64>) -> anyhow::Result<Self> {
        let bus = AdministrationClient::new(&settings.bus, &servicebus::Config::default());
        Ok(Self {
            events: client.database(&settings.database).collection(COLLECTION),
            views: client.database(&settings.views),
            leases: client.database(&settings.coordination).collection(LEASES),
            bus: bus.context("look at the bus")?,
            written,
            last: None,
            took: Duration::ZERO,
            leader: None,
        })
    }

    /// How long to wait before the next look.
    pub(super) fn pause(&self) -> Duration {
        pause_after(self.took)
    }

    /// Whoever has not answered in time has not answered. `within`: what the sum over all cursors may take.
    pub(super) async fn look(&mut self, within: Duration) -> Look {
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
        Look { written, waiting, applied: applied.map(|(applied, _)| applied), parked, per_second, leader }
    }

    /// Who leads since the last time that was asked.
    pub(super) fn change_of_leader(&mut self, look: &Look) -> Option<Leader> {
        let now = look.leader.clone()?;
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

    async fn leading(&self) -> Option<Leader> {
        let lease = self.leases.find_one(doc! { "_id": PIPELINE }).await.ok().flatten()?;
        Some(Leader { leader: lease.get_str("leaderId").ok()?.to_owned(), term: lease.get_i64("term").ok()? })
    }

    /// Every order counts its events from 1, and its cursor says how many have been dealt with. And how many orders are parked.
    async fn applied(&self) -> Option<(u64, u64)> {
        let parked = doc! { "$cond": [{ "$eq": [{ "$type": "$parked" }, "object"] }, 1, 0] };
        let sum =
            doc! { "$group": { "_id": Bson::Null, "applied": { "$sum": "$sequence" }, "parked": { "$sum": parked } } };
        let pipeline = [doc! { "$match": { "_id.pipeline": PIPELINE } }, sum];
        // As the check reads: what is applied here must be there for it.
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

impl Look {
    /// Events written and not applied; `None` while that cannot be known.
    pub(super) fn behind(&self) -> Option<u64> {
        self.applied.map(|applied| self.written.saturating_sub(applied))
    }

    /// What is applied was published, and so was what waits. A message is settled a moment after it is applied, so that it may be in both.
    fn published(&self) -> Option<u64> {
        Some((self.applied? + self.waiting?).min(self.written))
    }
}

impl fmt::Display for Look {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let known = |number: Option<u64>| number.map_or("?".to_owned(), |number| number.to_string());
        let Self { written, applied, parked, leader, .. } = self;
        let (published, applied, behind) = (known(self.published()), known(*applied), known(self.behind()));
        write!(f, "written {written} | published {published} | applied {applied} | behind {behind}")?;
        if let Some(per_second) = self.per_second {
            write!(f, " | {per_second:.0}/s")?;
        }
        match leader {
            Some(Leader { leader, term }) => write!(f, " | leader {leader}, term {term}")?,
            None => f.write_str(" | nobody leads")?,
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
    fn a_look_that_took_long_is_not_paid_for_twenty_times() {
        assert_eq!(pause_after(Duration::from_millis(5)), Duration::from_millis(100));
        assert_eq!(pause_after(Duration::from_secs(30)), LONGEST_PAUSE);
    }

    #[test]
    fn what_is_not_known_is_not_shown_as_nothing() {
        let blind = Look { written: 7, ..Look::default() };
        assert_eq!(blind.to_string(), "written 7 | published ? | applied ? | behind ? | nobody leads");
        let leader = Some(Leader { leader: "pod-2".into(), term: 3 });
        let seen = Look { written: 9, waiting: Some(3), applied: Some(5), parked: 1, per_second: Some(19.6), leader };
        let line = "written 9 | published 8 | applied 5 | behind 4 | 20/s | leader pod-2, term 3 | 1 parked";
        assert_eq!(seen.to_string(), line);
        assert_eq!(Look { waiting: Some(9), ..seen }.published(), Some(9), "one that is in both counts once");
    }
}
