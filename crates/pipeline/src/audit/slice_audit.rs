//! One slice from its comparison to the last healed suspect.
//!
//! Suspects of one session are handled together, a few sessions at a time. If none of a batch of sessions is empty, there is a backlog: the rest is not
//! tried, so that the audit does not compete with consumers that are behind.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream;
use mongodb::bson::Timestamp;
use servicebus::Client;
use tokio::time::sleep;
use tracing::warn;

use super::compare::{AggregateState, SkipReason, compare};
use super::error::Error;
use super::monitor::Handle;
use super::record::AuditTotals;
use super::session_backlog::{SessionBacklog, accept_if_empty};
use super::store::AuditStore;
use crate::checkpoint::{CheckpointPhase, CheckpointStore, MongoCheckpointStore};
use crate::error_chain::error_chain;
use crate::event::{AggregateId, ResumeToken};
use crate::publish::SessionMapping;
use crate::source_walk::{Feed, SourceHead, SourceSlice};
use crate::stored::Identity;
use crate::view::{Cursor, CursorReader, PipelineStart};

/// Sessions that are looked into at a time.
const CONCURRENT_SESSIONS: usize = 32;
/// Cursors read in one query.
const CURSORS_PER_QUERY: usize = 1_000;
/// An aggregate whose healing was interrupted this often is left to an operator: its event may end one pod after the other.
const MAX_INTERRUPTED_HEALINGS: u64 = 2;
const CHECKPOINT_POLL: Duration = Duration::from_millis(250);

/// What one slice is compared with, and how its suspects are healed.
pub(super) struct SliceAuditor {
    pub(super) cursors: CursorReader,
    pub(super) checkpoints: MongoCheckpointStore,
    pub(super) feed: Feed,
    pub(super) bus: Client,
    /// The path of the subscription.
    pub(super) entity: String,
    pub(super) sessions: SessionMapping,
    pub(super) start: PipelineStart,
    pub(super) store: AuditStore,
    pub(super) monitor: Handle,
}

/// How suspects are treated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HealingMode {
    /// Healed, unless that has ended pods before.
    Background,
    /// Healed, whatever happened before: an operator has asked for it.
    OnRequest,
    /// Only counted.
    DryRun,
}

/// An aggregate whose cursor is behind the source.
#[derive(Clone, Debug)]
pub(super) struct Suspect {
    pub(super) head: SourceHead,
    pub(super) cursor: Option<i64>,
}

/// The result of one pass over the suspects of a slice.
#[derive(Debug, Default)]
pub(super) struct SuspectPass {
    /// Their sessions are not empty.
    pub(super) waiting: Vec<Suspect>,
    /// They miss events, and healing failed.
    pub(super) unhealed: Vec<Suspect>,
}

impl SliceAuditor {
    /// The aggregates of the slice that are behind now. Their messages may be on the way.
    pub(super) async fn compare_slice(
        &self,
        slice: &SourceSlice,
        totals: &mut AuditTotals,
    ) -> Result<Vec<Suspect>, Error> {
        let mut behind = Vec::new();
        let mut current = 0;
        for heads in slice.heads.chunks(CURSORS_PER_QUERY) {
            let cursors = self.read_cursors(heads.iter().map(|head| &head.aggregate)).await?;
            for head in heads {
                if self.feed.is_erased(&head.aggregate) {
                    current += 1;
                    continue;
                }
                match compare(head, self.cursor_of(&cursors, &head.aggregate), self.start) {
                    AggregateState::Current => current += 1,
                    AggregateState::Behind { cursor } => behind.push(Suspect { head: head.clone(), cursor }),
                    AggregateState::Skipped(reason) => self.skip(reason, totals),
                }
            }
        }
        totals.compared += (slice.heads.len() as u64) + slice.unusable;
        totals.unusable += slice.unusable;
        self.monitor.record_current(current);
        Ok(behind)
    }

    /// Waits until the checkpoint is beyond this time: Service Bus has then acknowledged every event committed until then. Returns its token.
    pub(super) async fn wait_for_checkpoint(&self, time: Timestamp) -> Result<ResumeToken, Error> {
        loop {
            if let Some(token) = self.checkpoint_beyond(time).await? {
                return Ok(token);
            }
            sleep(CHECKPOINT_POLL).await;
        }
    }

    async fn checkpoint_beyond(&self, time: Timestamp) -> Result<Option<ResumeToken>, Error> {
        let checkpoint = self.checkpoints.load().await?;
        // While a snapshot runs, events of the source have not been published yet.
        let Some(CheckpointPhase::Stream { token }) = checkpoint.map(|checkpoint| checkpoint.phase) else {
            return Ok(None);
        };
        // A token at the time itself may lie before an event of that time.
        Ok(token.cluster_time().is_some_and(|at| at > time).then_some(token))
    }

    /// Looks at the suspects once more: drops those that caught up, heals those whose sessions are empty, and returns the others. In a dry
    /// run nothing is healed, and what is missing is only counted.
    pub(super) async fn resolve(
        &self,
        suspects: Vec<Suspect>,
        token: &ResumeToken,
        mode: HealingMode,
        totals: &mut AuditTotals,
    ) -> Result<SuspectPass, Error> {
        let suspects = self.still_behind(suspects, token, totals).await?;
        let mut pass = SuspectPass::default();
        if suspects.is_empty() {
            return Ok(pass);
        }
        let mut by_session: BTreeMap<String, Vec<Suspect>> = BTreeMap::new();
        for suspect in suspects {
            by_session.entry(self.sessions.session_id(&suspect.head.aggregate)).or_default().push(suspect);
        }
        // Its own connection: one message of credit, and no consumer waits behind it.
        let client = self.bus.with_own_connection(1);
        let resolved = self.resolve_sessions(&client, by_session, token, mode, totals, &mut pass).await;
        let _ = client.close().await;
        resolved.map(|()| pass)
    }

    async fn resolve_sessions(
        &self,
        client: &Client,
        by_session: BTreeMap<String, Vec<Suspect>>,
        token: &ResumeToken,
        mode: HealingMode,
        totals: &mut AuditTotals,
        pass: &mut SuspectPass,
    ) -> Result<(), Error> {
        let mut sessions: Vec<(String, Vec<Suspect>)> = by_session.into_iter().collect();
        while !sessions.is_empty() {
            let rest = sessions.split_off(sessions.len().min(CONCURRENT_SESSIONS));
            let batch = std::mem::replace(&mut sessions, rest);
            let tried = batch.len();
            let resolve = |(session, suspects): (String, Vec<Suspect>)| async move {
                self.resolve_session(client, &session, suspects, token, mode).await
            };
            let mut results = stream::iter(batch).map(resolve).buffer_unordered(CONCURRENT_SESSIONS);
            let mut busy = 0;
            while let Some(result) = results.next().await {
                match result? {
                    SessionResult::Waiting(suspects) => {
                        busy += 1;
                        pass.waiting.extend(suspects);
                    }
                    SessionResult::Resolved { counts, unhealed } => {
                        counts.add_to(totals);
                        pass.unhealed.extend(unhealed);
                    }
                }
            }
            if busy == tried {
                pass.waiting.extend(sessions.drain(..).flat_map(|(_, suspects)| suspects));
            }
        }
        Ok(())
    }

    async fn resolve_session(
        &self,
        client: &Client,
        session: &str,
        suspects: Vec<Suspect>,
        token: &ResumeToken,
        mode: HealingMode,
    ) -> Result<SessionResult, Error> {
        let receiver = match accept_if_empty(client, &self.entity, session).await? {
            SessionBacklog::Empty(receiver) => receiver,
            SessionBacklog::Waiting => return Ok(SessionResult::Waiting(suspects)),
        };
        let resolved = self.resolve_locked(suspects, token, mode).await;
        // Closed whatever happened, so that messages that arrived meanwhile do not wait for the lock to expire.
        let _ = receiver.close().await;
        resolved
    }

    /// With the session locked and empty: what is still behind is missing.
    async fn resolve_locked(
        &self,
        suspects: Vec<Suspect>,
        token: &ResumeToken,
        mode: HealingMode,
    ) -> Result<SessionResult, Error> {
        let mut skipped = AuditTotals::default();
        // Once more: a consumer may have applied the last message and released the session just now.
        let suspects = self.still_behind(suspects, token, &mut skipped).await?;
        let (mut counts, mut unhealed) = (SuspectCounts { skipped, ..SuspectCounts::default() }, Vec::new());
        for suspect in suspects {
            if !self.may_heal(&suspect, mode).await? {
                counts.found += 1;
                continue;
            }
            let healed = self.feed.apply(&suspect.head.aggregate, suspect.cursor, suspect.head.sequence, token).await;
            self.store.end_healing(&suspect.head.aggregate).await?;
            match healed {
                // A live event closed the gap in the same moment.
                Ok(fed) if fed.changed() == 0 => self.monitor.record_late(1),
                Ok(fed) => {
                    counts.found += 1;
                    counts.healed += 1;
                    counts.healed_events += fed.changed();
                    self.monitor.record_found(fed.changed());
                    warn!(
                        aggregate = ?suspect.head.aggregate, after = suspect.cursor, to = suspect.head.sequence,
                        applied = fed.applied, parked = fed.parked,
                        "audit found missing events and healed them from the source"
                    );
                }
                Err(error) => {
                    warn!(
                        aggregate = ?suspect.head.aggregate, error = error_chain(&error),
                        "audit found missing events and failed to heal them; retrying"
                    );
                    unhealed.push(suspect);
                }
            }
        }
        Ok(SessionResult::Resolved { counts, unhealed })
    }

    async fn may_heal(&self, suspect: &Suspect, mode: HealingMode) -> Result<bool, Error> {
        if mode == HealingMode::DryRun {
            return Ok(false);
        }
        let interrupted = self.store.begin_healing(&suspect.head.aggregate).await?;
        let may_heal = mode == HealingMode::OnRequest || interrupted < MAX_INTERRUPTED_HEALINGS;
        if !may_heal {
            warn!(
                aggregate = ?suspect.head.aggregate, interrupted_healings = interrupted,
                "audit found missing events and leaves them to an operator: pods ended while healing them; run `headwater audit --all`"
            );
        }
        Ok(may_heal)
    }

    /// Reads the cursors again, and asks the filter whether anything was to be published at all.
    pub(super) async fn still_behind(
        &self,
        suspects: Vec<Suspect>,
        token: &ResumeToken,
        totals: &mut AuditTotals,
    ) -> Result<Vec<Suspect>, Error> {
        let mut behind = Vec::with_capacity(suspects.len());
        for suspects in suspects.chunks(CURSORS_PER_QUERY) {
            let cursors = self.read_cursors(suspects.iter().map(|suspect| &suspect.head.aggregate)).await?;
            for Suspect { head, .. } in suspects {
                match compare(head, self.cursor_of(&cursors, &head.aggregate), self.start) {
                    AggregateState::Current => self.monitor.record_late(1),
                    AggregateState::Skipped(reason) => self.skip(reason, totals),
                    AggregateState::Behind { cursor } if !self.should_have(head, cursor, token).await? => {
                        self.monitor.record_current(1);
                    }
                    AggregateState::Behind { cursor } => behind.push(Suspect { head: head.clone(), cursor }),
                }
            }
        }
        Ok(behind)
    }

    /// Whether an event above the cursor passes the capture filter.
    async fn should_have(&self, head: &SourceHead, cursor: Option<i64>, token: &ResumeToken) -> Result<bool, Error> {
        if !self.feed.is_filtered() {
            return Ok(true);
        }
        Ok(self.feed.has_events(&head.aggregate, cursor, head.sequence, token).await?)
    }

    async fn read_cursors(
        &self,
        aggregates: impl Iterator<Item = &AggregateId>,
    ) -> Result<HashMap<Identity, Cursor>, Error> {
        self.cursors.read(aggregates).await.map_err(|error| Error::Cursors(Box::new(error)))
    }

    fn cursor_of<'a>(&self, cursors: &'a HashMap<Identity, Cursor>, aggregate: &AggregateId) -> Option<&'a Cursor> {
        cursors.get(&self.cursors.identity(aggregate))
    }

    fn skip(&self, reason: SkipReason, totals: &mut AuditTotals) {
        self.monitor.record_skipped(reason);
        match reason {
            SkipReason::Parked => totals.parked += 1,
            SkipReason::Regressed => totals.regressed += 1,
            SkipReason::BeforeStart => totals.before_start += 1,
            SkipReason::NoSequence => totals.unusable += 1,
        }
    }
}

enum SessionResult {
    Waiting(Vec<Suspect>),
    Resolved { counts: SuspectCounts, unhealed: Vec<Suspect> },
}

#[derive(Default)]
struct SuspectCounts {
    found: u64,
    healed: u64,
    healed_events: u64,
    skipped: AuditTotals,
}

impl SuspectCounts {
    fn add_to(&self, totals: &mut AuditTotals) {
        totals.found += self.found;
        totals.healed += self.healed;
        totals.healed_events += self.healed_events;
        totals.parked += self.skipped.parked;
        totals.regressed += self.skipped.regressed;
        totals.before_start += self.skipped.before_start;
        totals.unusable += self.skipped.unusable;
    }
}
