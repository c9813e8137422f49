//! What an operator sees of a queue: messages by state, sessions, session states. Locks nothing and changes nothing.

use std::sync::Arc;

use bytes::Bytes;

use super::Core;
use super::backlog::QueuedMessage;
use super::call_context::CallContext;
use super::error::Error;
use super::id::{QueueId, SequenceNumber, Timestamp};
use super::management::{MessageState, PeekedMessage};

/// Selects messages of a queue.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MessageFilter {
    /// `None`: in any state.
    pub state: Option<MessageState>,
    /// `None`: of any session.
    pub session: Option<Box<str>>,
}

impl MessageFilter {
    /// Whether it selects an active or deferred message by its state.
    pub(super) fn selects(&self, message: QueuedMessage) -> bool {
        match self.state {
            None => true,
            Some(MessageState::Active) => !message.is_deferred(),
            Some(MessageState::Deferred) => message.is_deferred(),
            Some(MessageState::Scheduled) => false,
        }
    }

    pub(super) fn selects_scheduled(&self, session: Option<&str>) -> bool {
        let by_state = self.state.is_none_or(|state| state == MessageState::Scheduled);
        by_state && self.session.as_deref().is_none_or(|wanted| session == Some(wanted))
    }
}

/// A session of a queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionView {
    pub id: Arc<str>,
    pub messages: u64,
    /// `None` if no receiver holds it.
    pub locked_until: Option<Timestamp>,
    pub state: Option<SessionStateView>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SessionStateView {
    pub bytes: u32,
    pub updated_at: Timestamp,
}

impl Core {
    /// Up to `max` messages from a sequence number on, in order. Of a topic: its scheduled messages.
    pub fn browse(
        &mut self,
        call: &mut CallContext<'_>,
        queue: QueueId,
        filter: &MessageFilter,
        from: SequenceNumber,
        max: usize,
    ) -> Result<Vec<PeekedMessage>, Error> {
        self.handle_due_timers(call);
        self.record_use(queue.entity, call.now);
        let entity = self.entities.get(&queue.entity).ok_or_else(super::deleted_error)?;
        let session = filter.session.as_deref();
        let mut found = match &entity.egress {
            Some(egress) => {
                egress.queue(queue.subqueue).peek(session, from.counter(), max, |message| filter.selects(message))
            }
            None => std::collections::BTreeMap::new(),
        };
        found.extend(self.peek_scheduled(queue, from.counter(), max, |session| filter.selects_scheduled(session)));
        Ok(found.into_values().take(max).collect())
    }

    /// The sequence number of the message that entered a queue last, without its partition.
    pub fn last_sequence(&self, queue: QueueId) -> Result<SequenceNumber, Error> {
        self.queue(queue).map(|queue| SequenceNumber(queue.counter))
    }

    /// Sessions that have messages, a state or a holder.
    pub fn session_views(
        &mut self,
        call: &mut CallContext<'_>,
        queue: QueueId,
        skip: usize,
        top: usize,
    ) -> Result<Vec<SessionView>, Error> {
        self.handle_due_timers(call);
        let sessions = self.queue(queue)?.sessions.iter_from(0);
        let views = sessions.filter_map(|(_, session)| {
            Some(SessionView {
                id: session.id.clone()?,
                messages: session.backlog.len().into(),
                locked_until: session.lock.as_ref().map(|lock| lock.until),
                state: session
                    .state
                    .as_ref()
                    .map(|state| SessionStateView { bytes: state.location.len, updated_at: state.updated_at }),
            })
        });
        Ok(views.skip(skip).take(top).collect())
    }

    /// The state of a session, whoever holds it.
    pub fn browse_session_state(
        &mut self,
        call: &mut CallContext<'_>,
        queue: QueueId,
        session: &str,
    ) -> Result<Option<Bytes>, Error> {
        self.handle_due_timers(call);
        let sessions = &self.queue(queue)?.sessions;
        let state = sessions.find(Some(session)).and_then(|slot| sessions.get(slot).state.as_ref());
        state.map(|state| Ok(call.journal.read(state.location)?.body)).transpose()
    }
}
