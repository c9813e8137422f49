//! A group until every submission has its reply.

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::sync::oneshot;

use super::event_results::{EventResult, EventResults};
use super::group_commit_queue::Submission;
use super::group_runner::TransactionGroupRunner;
use super::sub_group::group_by_aggregate;
use crate::view::plan::PendingEvent;

/// The events of several submissions, with the replies that are still due.
pub(in crate::view) struct OpenGroup {
    events: Vec<PendingEvent>,
    results: EventResults,
    /// In the order of the events.
    submissions: Vec<OpenSubmission>,
}

struct OpenSubmission {
    events: usize,
    /// `None` once it is sent.
    reply: Option<oneshot::Sender<Vec<EventResult>>>,
}

impl OpenGroup {
    pub(in crate::view) fn new(group: Vec<Submission>) -> Self {
        let mut events = Vec::with_capacity(group.iter().map(|submission| submission.events.len()).sum());
        let mut submissions = Vec::with_capacity(group.len());
        for Submission { events: submitted, reply, .. } in group {
            submissions.push(OpenSubmission { events: submitted.len(), reply: Some(reply) });
            events.extend(submitted);
        }
        let results = EventResults::unresolved(events.len());
        Self { events, results, submissions }
    }

    /// Runs the group. Only events of blocked aggregates stay unresolved.
    pub(in crate::view) async fn resolve(&mut self, runner: &TransactionGroupRunner) {
        runner.resolve(&self.events, &mut self.results).await;
    }

    /// Resolves blocked aggregates side by side, as each may wait for another document, and replies as soon as possible.
    pub(in crate::view) async fn resolve_blocked(mut self, runner: &TransactionGroupRunner) {
        let events = std::mem::take(&mut self.events);
        let aggregates = group_by_aggregate(&events, &self.results.unresolved_indices()).into_iter();
        let mut waits: FuturesUnordered<_> =
            aggregates.map(|indices| runner.resolve_blocked(&events, indices)).collect();
        while let Some(results) = waits.next().await {
            for (index, result) in results {
                self.results.set(index, result);
            }
            self.reply_resolved();
        }
    }

    fn reply_resolved(&mut self) {
        let mut start = 0;
        for OpenSubmission { events, reply } in &mut self.submissions {
            if reply.is_some()
                && let Some(results) = self.results.resolved_range(start, *events)
                && let Some(reply) = reply.take()
            {
                // A session that was closed meanwhile needs no reply.
                let _ = reply.send(results);
            }
            start += *events;
        }
    }

    /// Replies where possible and keeps only the unresolved submissions, so that their wait holds no other events in memory.
    pub(in crate::view) fn into_unresolved(mut self) -> Option<Self> {
        self.reply_resolved();
        let (mut events, mut results) = (self.events.into_iter(), self.results.into_iter());
        let mut rest = Self { events: vec![], results: EventResults::unresolved(0), submissions: vec![] };
        for submission in self.submissions {
            let (events, results) = (events.by_ref().take(submission.events), results.by_ref().take(submission.events));
            if submission.reply.is_some() {
                rest.events.extend(events);
                rest.results.extend(results);
                rest.submissions.push(submission);
            } else {
                // The iterators are lazy: these events must still be skipped.
                events.zip(results).for_each(drop);
            }
        }
        (!rest.submissions.is_empty()).then_some(rest)
    }
}
