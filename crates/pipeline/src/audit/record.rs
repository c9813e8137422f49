//! The progress of the audit as stored: pure reading and writing of the document.

use std::time::Duration;

use mongodb::bson::{Bson, DateTime, Document, doc};

use super::error::Error;
use crate::source_walk::WalkPosition;

/// Format version in the document. A newer version of Headwater may write a higher one.
pub(super) const FORMAT: i64 = 1;
/// The time of the server, added to the document when it is read.
pub(super) const NOW: &str = "_now";

/// The stored state of the audit of one pipeline.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AuditRecord {
    /// Since the audit was first enabled.
    pub enabled_for: Duration,
    pub holder: Option<AuditHolder>,
    /// The unfinished round.
    pub round: Option<RoundRecord>,
    /// The last finished round.
    pub last: Option<RoundRecord>,
    /// What the round waits for: the name of a [`WaitReason`](super::WaitReason).
    pub waiting: Option<String>,
    /// Aggregates that are behind and wait, or could not be healed yet.
    pub suspects: u64,
    /// Aggregates that miss events and could not be healed yet.
    pub missing: u64,
    /// Aggregates found in all rounds.
    pub found_total: u64,
    /// Set instead of rounds if nothing can be proven: the code of an [`UnauditableReason`](super::UnauditableReason).
    pub unauditable: Option<String>,
}

/// The pod that audits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditHolder {
    pub pod: String,
    /// Distinguishes two processes with one pod id.
    pub id: String,
    pub beat: i64,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct RoundRecord {
    pub number: u64,
    pub started: Option<DateTime>,
    pub started_ago: Option<Duration>,
    pub ended: Option<DateTime>,
    pub ended_ago: Option<Duration>,
    /// The last aggregate that is done; `None` at the beginning.
    pub position: Option<WalkPosition>,
    pub totals: AuditTotals,
}

/// Counts of one round, in aggregates if not named otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AuditTotals {
    pub compared: u64,
    /// Events were missing.
    pub found: u64,
    pub healed: u64,
    pub healed_events: u64,
    pub parked: u64,
    pub regressed: u64,
    /// Without a cursor, in a pipeline that started at `now` or a time.
    pub before_start: u64,
    /// With a cursor without a sequence, or without a valid id or sequence in the source.
    pub unusable: u64,
}

impl AuditTotals {
    pub fn skipped(&self) -> u64 {
        self.parked + self.regressed + self.before_start + self.unusable
    }

    /// Adds what is counted at the end of a slice; what was found is counted at once, by [`Self::take_found`].
    pub(super) fn add_slice(&mut self, slice: &Self) {
        self.compared += slice.compared;
        self.parked += slice.parked;
        self.regressed += slice.regressed;
        self.before_start += slice.before_start;
        self.unusable += slice.unusable;
    }

    /// Moves what was found and healed from there to here.
    pub(super) fn take_found(&mut self, from: &mut Self) {
        self.found += std::mem::take(&mut from.found);
        self.healed += std::mem::take(&mut from.healed);
        self.healed_events += std::mem::take(&mut from.healed_events);
    }

    const FIELDS: [&'static str; 8] =
        ["compared", "found", "healed", "healedEvents", "parked", "regressed", "beforeStart", "unusable"];

    fn values(&mut self) -> [&mut u64; 8] {
        [
            &mut self.compared,
            &mut self.found,
            &mut self.healed,
            &mut self.healed_events,
            &mut self.parked,
            &mut self.regressed,
            &mut self.before_start,
            &mut self.unusable,
        ]
    }

    pub(super) fn to_document(mut self) -> Document {
        let values = self.values().map(|value| Bson::Int64(i64::try_from(*value).unwrap_or(i64::MAX)));
        Self::FIELDS.into_iter().map(str::to_owned).zip(values).collect()
    }

    fn parse(document: &Document) -> Self {
        let mut totals = Self::default();
        for (value, field) in totals.values().into_iter().zip(Self::FIELDS) {
            *value = number(document, field);
        }
        totals
    }
}

impl AuditRecord {
    pub(super) fn parse(document: &Document) -> Result<Self, Error> {
        let format = document.get_i64("format").unwrap_or_default();
        if format != FORMAT {
            return Err(Error::Format { found: format, known: FORMAT });
        }
        let now = document.get_datetime(NOW).ok().copied();
        let round = |name: &str| document.get_document(name).ok().map(|round| RoundRecord::parse(round, now));
        Ok(Self {
            enabled_for: age(document.get_datetime("enabledAt").ok().copied(), now).unwrap_or_default(),
            holder: document.get_document("holder").ok().and_then(AuditHolder::parse),
            round: round("round"),
            last: round("last"),
            waiting: document.get_str("waiting").ok().map(str::to_owned),
            suspects: number(document, "suspects"),
            missing: number(document, "missing"),
            found_total: number(document, "foundTotal"),
            unauditable: document.get_str("unauditable").ok().map(str::to_owned),
        })
    }

    /// Aggregates that are known to miss events: they could not be healed yet, or were left to an operator.
    pub fn known_missing(&self) -> u64 {
        let left = [&self.round, &self.last].into_iter().flatten().map(|round| round.totals);
        // The present round finds those of the last one again.
        let left = left.map(|totals| totals.found.saturating_sub(totals.healed)).max();
        self.missing + left.unwrap_or_default()
    }

    /// Since the last round ended, or since the audit was enabled if none did.
    pub fn since_last_round(&self) -> Duration {
        self.last.as_ref().and_then(|last| last.ended_ago).unwrap_or(self.enabled_for)
    }
}

impl AuditHolder {
    fn parse(document: &Document) -> Option<Self> {
        let text = |field: &str| document.get_str(field).ok().map(str::to_owned);
        Some(Self { pod: text("pod")?, id: text("id")?, beat: document.get_i64("beat").ok()? })
    }
}

impl RoundRecord {
    fn parse(document: &Document, now: Option<DateTime>) -> Self {
        let date = |field: &str| document.get_datetime(field).ok().copied();
        let (started, ended) = (date("startedAt"), date("endedAt"));
        Self {
            number: number(document, "number"),
            started,
            started_ago: age(started, now),
            ended,
            ended_ago: age(ended, now),
            position: document.get_document("position").ok().and_then(parse_position),
            totals: document.get_document("totals").map(AuditTotals::parse).unwrap_or_default(),
        }
    }
}

pub(super) fn position_document(position: &WalkPosition) -> Document {
    doc! { "collection": &position.collection, "aggregate": position.aggregate.clone() }
}

fn parse_position(document: &Document) -> Option<WalkPosition> {
    let collection = document.get_str("collection").ok()?.to_owned();
    Some(WalkPosition { collection, aggregate: document.get("aggregate")?.clone() })
}

fn number(document: &Document, field: &str) -> u64 {
    document.get_i64(field).ok().and_then(|number| u64::try_from(number).ok()).unwrap_or_default()
}

/// By the clock of the server alone.
fn age(time: Option<DateTime>, now: Option<DateTime>) -> Option<Duration> {
    let millis = now?.timestamp_millis().saturating_sub(time?.timestamp_millis());
    Some(Duration::from_millis(u64::try_from(millis).unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn totals_are_read_as_they_were_written() {
        let totals = AuditTotals {
            compared: 1,
            found: 2,
            healed: 3,
            healed_events: 4,
            parked: 5,
            regressed: 6,
            before_start: 7,
            unusable: 8,
        };
        assert_eq!(AuditTotals::parse(&totals.to_document()), totals);
        assert_eq!(totals.skipped(), 26);
    }

    #[test]
    fn ages_are_by_the_clock_of_the_server() {
        let at = |seconds: i64| DateTime::from_millis(seconds * 1_000);
        let mut document = doc! { "format": FORMAT, "enabledAt": at(100), NOW: at(160), "missing": 2_i64 };
        let record = AuditRecord::parse(&document).unwrap();
        assert_eq!((record.since_last_round(), record.missing), (Duration::from_secs(60), 2));
        document.insert("last", doc! { "number": 3_i64, "startedAt": at(110), "endedAt": at(150) });
        let record = AuditRecord::parse(&document).unwrap();
        assert_eq!(record.since_last_round(), Duration::from_secs(10));
        assert_eq!(record.last.unwrap().number, 3);
    }

    #[test]
    fn a_newer_format_is_an_error() {
        assert!(matches!(AuditRecord::parse(&doc! { "format": 2_i64 }), Err(Error::Format { found: 2, .. })));
    }
}
