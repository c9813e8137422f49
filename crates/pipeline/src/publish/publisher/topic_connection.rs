//! The sender link to the topic: opens it, reopens it after a failure, pauses it, and drops it when outcomes are overdue.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::BoxFuture;
use servicebus::{EncodedMessage, SendOutcome};

use super::window::SendWindow;
use crate::publish::monitor::PauseReason;
use crate::publish::topic::{LinkLimits, PublishTopic, SenderLink};
use crate::retry::backoff;

/// Pause of all lanes when Service Bus throttles; it asks for two seconds itself.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const MAX_BUSY_PAUSE: Duration = Duration::from_secs(2);
/// Longest pause for a missing topic or missing permissions, which an operator must fix.
const MAX_PAUSE: Duration = Duration::from_secs(5);
/// Backoff between attempts to open a link; the client has its own backoff between connections.
const FIRST_REOPEN_BACKOFF: Duration = Duration::from_millis(20);
/// An outcome later than this will not come.
const OUTCOME_TIMEOUT: Duration = Duration::from_secs(30);

type OpenFuture<T> = BoxFuture<'static, Result<<T as PublishTopic>::TopicLink, servicebus::Error>>;

pub(super) struct TopicConnection<T: PublishTopic> {
    topic: Arc<T>,
    link: Option<T::TopicLink>,
    opening: Option<OpenFuture<T>>,
    /// Of the last link; kept while it is reopened.
    limits: Option<LinkLimits>,
    paused_until: Option<Instant>,
    /// Pauses and failed opens in a row.
    failures: u32,
    /// The link is lost; its transfers still get their outcomes one by one.
    is_broken: bool,
    /// A message in flight made Service Bus detach this link.
    is_detached: bool,
    /// Send times, oldest first; finished transfers are removed lazily.
    sent: VecDeque<(Instant, u64)>,
}

/// What happened on the connection.
pub(super) enum TopicConnectionEvent {
    /// Outcomes were appended.
    Outcomes,
    Opened(LinkLimits),
    /// The connection retries by itself.
    OpenFailed(servicebus::Error),
}

impl<T: PublishTopic> TopicConnection<T> {
    pub(super) fn new(topic: Arc<T>) -> Self {
        let opening = Some(open(Arc::clone(&topic), Duration::ZERO));
        Self {
            topic,
            link: None,
            opening,
            limits: None,
            paused_until: None,
            failures: 0,
            is_broken: false,
            is_detached: false,
            sent: VecDeque::new(),
        }
    }

    pub(super) fn is_open(&self, now: Instant) -> bool {
        self.link.is_some() && !self.is_broken && !self.is_paused(now)
    }

    /// `None` before the first link is open.
    pub(super) fn limits(&self) -> Option<LinkLimits> {
        self.limits
    }

    /// Cancel-safe: the link keeps outcomes that it did not return, and the next call continues an open.
    pub(super) async fn next(&mut self, outcomes: &mut Vec<SendOutcome>) -> TopicConnectionEvent {
        if let Some(link) = &mut self.link {
            link.outcomes(outcomes).await;
            return TopicConnectionEvent::Outcomes;
        }
        let Some(opening) = &mut self.opening else { return std::future::pending().await };
        match opening.await {
            Ok(link) => {
                let limits = link.limits();
                (self.link, self.opening, self.limits) = (Some(link), None, Some(limits));
                TopicConnectionEvent::Opened(limits)
            }
            Err(error) => {
                self.reopen();
                self.failures = self.failures.saturating_add(1);
                TopicConnectionEvent::OpenFailed(error)
            }
        }
    }

    /// Drops a link whose outcomes are overdue, and reopens a lost link once every transfer on it has its outcome.
    pub(super) fn check_timers(&mut self, window: &SendWindow, now: Instant) {
        self.paused_until = self.paused_until.filter(|until| now < *until);
        while self.sent.front().is_some_and(|(_, token)| window.attempts(*token).is_none()) {
            self.sent.pop_front();
        }
        if let (Some((sent_at, _)), Some(link)) = (self.sent.front(), &self.link)
            && now >= *sent_at + OUTCOME_TIMEOUT
            && !self.is_broken
        {
            tracing::warn!("service bus connection dropped: no send outcome within {OUTCOME_TIMEOUT:?}; reopening");
            link.abandon();
            self.is_broken = true;
        }
        self.is_broken |= self.link.as_ref().is_some_and(SenderLink::is_closed);
        if self.is_broken && window.transfers() == 0 && self.opening.is_none() {
            self.link = None;
            (self.is_broken, self.is_detached) = (false, false);
            self.reopen();
        }
    }

    pub(super) fn next_timer(&self) -> Option<Instant> {
        let overdue = self.sent.front().map(|(sent_at, _)| *sent_at + OUTCOME_TIMEOUT).filter(|_| !self.is_broken);
        self.paused_until.into_iter().chain(overdue).min()
    }

    pub(super) fn submit(&mut self, transfers: Vec<(u64, EncodedMessage)>, now: Instant) {
        if transfers.is_empty() {
            return;
        }
        self.sent.extend(transfers.iter().map(|(token, _)| (now, *token)));
        if let Some(link) = &mut self.link {
            link.submit(transfers);
        }
    }

    /// Sends nothing for a while.
    pub(super) fn pause(&mut self, reason: PauseReason, now: Instant) {
        // Transfers in flight together are refused together: that is one failure.
        if !self.is_paused(now) {
            let max = if reason == PauseReason::Busy { MAX_BUSY_PAUSE } else { MAX_PAUSE };
            self.paused_until = Some(now + backoff(self.failures, FIRST_PAUSE, max));
            self.failures = self.failures.saturating_add(1);
        }
    }

    /// A transfer was acknowledged: resets the backoff, unless a pause still lasts. `true` if none does.
    pub(super) fn end_pause(&mut self, now: Instant) -> bool {
        if self.is_paused(now) {
            return false;
        }
        self.failures = 0;
        self.paused_until = None;
        true
    }

    /// The link is lost: it is reopened when every transfer on it has its outcome.
    pub(super) fn mark_broken(&mut self) {
        self.is_broken = true;
    }

    /// A message in flight made Service Bus detach the link. `true` for the first outcome that says so: the others are of the same detach.
    pub(super) fn mark_detached(&mut self) -> bool {
        self.is_broken = true;
        !std::mem::replace(&mut self.is_detached, true)
    }

    fn is_paused(&self, now: Instant) -> bool {
        self.paused_until.is_some_and(|until| now < until)
    }

    fn reopen(&mut self) {
        let delay = backoff(self.failures, FIRST_REOPEN_BACKOFF, MAX_PAUSE);
        self.opening = Some(open(Arc::clone(&self.topic), delay));
    }
}

fn open<T: PublishTopic>(topic: Arc<T>, delay: Duration) -> OpenFuture<T> {
    Box::pin(async move {
        tokio::time::sleep(delay).await;
        topic.open().await
    })
}
