//! The state of queues, topics and subscriptions.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::description::{EntityDefinition, SendProperties};
use super::duplicate_history::DuplicateHistory;
use super::id::{EntityId, QueueId, Subqueue, Timestamp};
use super::queue::{MessageQueue, QueueSettings};
use super::record::EntityRecord;
use super::scheduled_messages::ScheduledMessages;
use crate::rules::{FilterCounts, RuleIndex, RuleSet};

#[derive(Debug)]
pub(super) struct Entity {
    pub(super) id: EntityId,
    pub(super) path: Box<str>,
    pub(super) description: EntityDefinition,
    pub(super) created_at: Timestamp,
    pub(super) updated_at: Timestamp,
    /// When a receiver last attached. Not stored.
    pub(super) attached_at: Option<Timestamp>,
    /// When a client last used it, for [`idle_deletion`](super::idle_deletion). Not stored.
    pub(super) used_at: Timestamp,
    /// The topic of a subscription.
    pub(super) topic: Option<EntityId>,
    /// The subscriptions of a topic.
    pub(super) subscriptions: Vec<EntityId>,
    /// The rules of a subscription; empty in other entities.
    pub(super) rules: RuleSet,
    /// The filters of all subscriptions of a topic.
    pub(super) filter_counts: FilterCounts,
    /// The rules of all subscriptions of a topic; `None` after a change, until the next message.
    pub(super) rule_index: Option<Arc<RuleIndex>>,
    /// The send side, of queues and topics.
    pub(super) ingress: Option<SendSide>,
    /// The receive side, of queues and subscriptions.
    pub(super) egress: Option<ReceiveSide>,
}

#[derive(Debug)]
pub(super) struct SendSide {
    /// The last counter assigned to a message.
    pub(super) counter: u64,
    /// When the last message was sent.
    pub(super) sent_at: Option<Timestamp>,
    pub(super) next_partition: u8,
    pub(super) history: Option<DuplicateHistory>,
    pub(super) schedule: ScheduledMessages,
}

#[derive(Debug)]
pub(super) struct ReceiveSide {
    pub(super) main: MessageQueue,
    pub(super) dead_letter: MessageQueue,
    /// Messages that could not be forwarded.
    pub(super) transfer_dead_letter: MessageQueue,
}

impl ReceiveSide {
    pub(super) fn queue(&self, subqueue: Subqueue) -> &MessageQueue {
        match subqueue {
            Subqueue::Main => &self.main,
            Subqueue::DeadLetter => &self.dead_letter,
            Subqueue::TransferDeadLetter => &self.transfer_dead_letter,
        }
    }

    pub(super) fn queue_mut(&mut self, subqueue: Subqueue) -> &mut MessageQueue {
        match subqueue {
            Subqueue::Main => &mut self.main,
            Subqueue::DeadLetter => &mut self.dead_letter,
            Subqueue::TransferDeadLetter => &mut self.transfer_dead_letter,
        }
    }

    pub(super) fn queues(&self) -> [&MessageQueue; 3] {
        [&self.main, &self.dead_letter, &self.transfer_dead_letter]
    }

    pub(super) fn queues_mut(&mut self) -> [&mut MessageQueue; 3] {
        [&mut self.main, &mut self.dead_letter, &mut self.transfer_dead_letter]
    }
}

pub(super) type Entities = BTreeMap<EntityId, Entity>;

/// An entity as the administration API shows it.
#[derive(Debug, Clone)]
pub struct EntityView<'a> {
    pub id: EntityId,
    pub path: &'a str,
    pub description: &'a EntityDefinition,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
    /// When a client last sent a message or attached a receiver.
    pub accessed_at: Option<Timestamp>,
    pub counts: EntityCounts,
    pub subscriptions: usize,
    pub filters: FilterCounts,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct EntityCounts {
    /// Active and deferred messages.
    pub active: u64,
    pub dead_letter: u64,
    pub scheduled: u64,
    /// Messages that wait to be forwarded.
    pub transfer: u64,
    /// Messages that could not be forwarded.
    pub transfer_dead_letter: u64,
    pub sessions: u64,
    pub receivers: u64,
    /// Bytes of all messages; a message counts once per subscription that holds it.
    pub bytes: u64,
}

impl Entity {
    pub(super) fn new(record: &EntityRecord<'_>, description: EntityDefinition) -> Self {
        let id = record.id;
        let ingress = description.ingress().map(|ingress| SendSide {
            counter: record.counter,
            sent_at: None,
            next_partition: 0,
            history: history(ingress),
            schedule: ScheduledMessages::default(),
        });
        let egress = description.egress().map(|egress| {
            let main = MessageQueue::new(QueueId::main(id), QueueSettings::main(description.common(), egress));
            let policy = QueueSettings::dead_letter(description.common(), egress);
            let mut dead_letter = MessageQueue::new(QueueId::dead_letter(id), policy);
            dead_letter.counter = record.dead_letter_counter;
            let policy = QueueSettings::transfer_dead_letter(description.common(), egress);
            let mut transfer_dead_letter = MessageQueue::new(QueueId::transfer_dead_letter(id), policy);
            transfer_dead_letter.counter = record.transfer_dead_letter_counter;
            ReceiveSide { main, dead_letter, transfer_dead_letter }
        });
        Self {
            id,
            path: record.path.into(),
            description,
            created_at: record.created_at,
            updated_at: record.updated_at,
            attached_at: None,
            used_at: record.updated_at,
            topic: record.topic,
            subscriptions: Vec::new(),
            rules: if record.topic.is_some() {
                RuleSet::with_default_rule(record.created_at)
            } else {
                RuleSet::default()
            },
            filter_counts: FilterCounts::default(),
            rule_index: None,
            ingress,
            egress,
        }
    }

    /// Applies a new description to the running entity.
    pub(super) fn apply_description(&mut self, description: EntityDefinition, now: Timestamp) {
        if let (Some(ingress), Some(new)) = (&mut self.ingress, description.ingress())
            && let Some(history) = &mut ingress.history
            && self
                .description
                .ingress()
                .is_some_and(|old| old.duplicate_detection_window != new.duplicate_detection_window)
        {
            *history = history.with_window(new.duplicate_detection_window, now);
        }
        if let (Some(egress), Some(new)) = (&mut self.egress, description.egress()) {
            egress.main.policy = QueueSettings::main(description.common(), new);
            egress.dead_letter.policy = QueueSettings::dead_letter(description.common(), new);
            egress.transfer_dead_letter.policy = QueueSettings::transfer_dead_letter(description.common(), new);
        }
        self.description = description;
        self.updated_at = now;
        self.used_at = self.used_at.max(now);
    }

    pub(super) fn counts(&self) -> EntityCounts {
        let mut counts = EntityCounts::default();
        if let Some(ingress) = &self.ingress {
            counts.scheduled = ingress.schedule.len() as u64;
            counts.bytes += ingress.schedule.bytes();
        }
        if let Some(egress) = &self.egress {
            match egress.main.policy.forward_to {
                Some(_) => counts.transfer = egress.main.messages,
                None => counts.active = egress.main.messages,
            }
            counts.dead_letter = egress.dead_letter.messages;
            counts.transfer_dead_letter = egress.transfer_dead_letter.messages;
            counts.sessions = egress.main.sessions.len() as u64;
            counts.receivers = egress.queues().iter().map(|queue| queue.receivers.len() as u64).sum();
            counts.bytes += egress.queues().iter().map(|queue| queue.bytes).sum::<u64>();
        }
        counts
    }

    pub(super) fn record<'a>(&'a self, description: &'a [u8]) -> EntityRecord<'a> {
        EntityRecord {
            id: self.id,
            topic: self.topic,
            path: &self.path,
            description,
            created_at: self.created_at,
            updated_at: self.updated_at,
            counter: self.ingress.as_ref().map_or(0, |ingress| ingress.counter),
            dead_letter_counter: self.egress.as_ref().map_or(0, |egress| egress.dead_letter.counter),
            transfer_dead_letter_counter: self.egress.as_ref().map_or(0, |egress| egress.transfer_dead_letter.counter),
        }
    }

    pub(super) fn view(&self) -> EntityView<'_> {
        EntityView {
            id: self.id,
            path: &self.path,
            description: &self.description,
            created_at: self.created_at,
            updated_at: self.updated_at,
            accessed_at: self.ingress.as_ref().and_then(|ingress| ingress.sent_at).max(self.attached_at),
            counts: self.counts(),
            subscriptions: self.subscriptions.len(),
            filters: self.filter_counts,
        }
    }
}

fn history(ingress: &SendProperties) -> Option<DuplicateHistory> {
    ingress.requires_duplicate_detection.then(|| DuplicateHistory::new(ingress.duplicate_detection_window))
}
