//! The audit as the coordination database has it.

use std::time::Duration;

use admin::WallTime;
use admin::status::{AuditRound, AuditState, AuditStatus};
use mongodb::bson::DateTime;
use pipeline::audit::{AuditRecord, AuditStore, RoundRecord, UnauditableReason};
use tokio::time::timeout;

use super::READ_TIMEOUT;

/// Reads the progress of the audit.
#[derive(Clone, Debug)]
pub(crate) struct AuditMonitor {
    pub(crate) store: AuditStore,
    /// `None`: the audit is off, or there is no read model.
    pub(crate) period: Option<Duration>,
    /// Known from the configuration.
    pub(crate) unauditable: Option<UnauditableReason>,
}

impl AuditMonitor {
    /// `None` if it cannot be read.
    pub(super) async fn read(&self) -> Option<AuditStatus> {
        let Some(period) = self.period else { return Some(AuditStatus::new(AuditState::Unaudited)) };
        if let Some(reason) = self.unauditable {
            return Some(unauditable(reason.to_string()));
        }
        match timeout(READ_TIMEOUT, self.store.load()).await {
            Ok(Ok(record)) => Some(to_status(record, period)),
            Ok(Err(error)) => {
                tracing::debug!(%error, "failed to read a part of the status");
                None
            }
            Err(_) => None,
        }
    }
}

fn unauditable(reason: String) -> AuditStatus {
    AuditStatus { reason: Some(reason), ..AuditStatus::new(AuditState::Unauditable) }
}

fn to_status(record: Option<AuditRecord>, period: Duration) -> AuditStatus {
    let period_seconds = Some(period.as_secs_f64());
    let Some(record) = record else {
        return AuditStatus { period_seconds, ..AuditStatus::new(AuditState::Pending) };
    };
    if record.unauditable.is_some() {
        // The configuration rules out all other reasons.
        return unauditable(UnauditableReason::NoIndex.to_string());
    }
    let state = match (&record.round, &record.waiting) {
        (Some(_), Some(_)) => AuditState::Waiting,
        (Some(_), None) => AuditState::Walking,
        (None, _) if record.last.is_some() => AuditState::Resting,
        (None, _) => AuditState::Pending,
    };
    AuditStatus {
        reason: record.waiting.clone(),
        pod: record.holder.as_ref().map(|holder| holder.pod.clone()),
        period_seconds,
        age_seconds: Some(record.since_last_round().as_secs_f64()),
        suspects: record.suspects,
        missing: record.known_missing(),
        found_total: record.found_total,
        round: record.round.as_ref().map(round_status),
        last: record.last.as_ref().map(round_status),
        ..AuditStatus::new(state)
    }
}

fn round_status(round: &RoundRecord) -> AuditRound {
    let wall_time = |time: DateTime| WallTime::from_millis(time.timestamp_millis());
    AuditRound {
        number: round.number,
        started: round.started.map(wall_time),
        ended: round.ended.map(wall_time),
        ended_seconds_ago: round.ended_ago.map(|ago| ago.as_secs_f64()),
        compared: round.totals.compared,
        found: round.totals.found,
        healed: round.totals.healed,
        healed_events: round.totals.healed_events,
        skipped: round.totals.skipped(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PERIOD: Duration = Duration::from_secs(86_400);

    #[test]
    fn the_state_follows_from_the_stored_progress() {
        let state = |record: AuditRecord| to_status(Some(record), PERIOD).state;
        let round = || Some(RoundRecord::default());
        assert_eq!(to_status(None, PERIOD).state, AuditState::Pending);
        assert_eq!(state(AuditRecord::default()), AuditState::Pending);
        assert_eq!(state(AuditRecord { round: round(), ..AuditRecord::default() }), AuditState::Walking);
        let waiting = AuditRecord { round: round(), waiting: Some("backlog".into()), ..AuditRecord::default() };
        assert_eq!(state(waiting), AuditState::Waiting);
        assert_eq!(state(AuditRecord { last: round(), ..AuditRecord::default() }), AuditState::Resting);
        let without_index = AuditRecord { unauditable: Some("no_index".into()), ..AuditRecord::default() };
        assert_eq!(state(without_index), AuditState::Unauditable);
    }
}
