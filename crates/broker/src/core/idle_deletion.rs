//! `AutoDeleteOnIdle`: deletes entities that nobody has used for a time.
//!
//! | entity | what counts as use |
//! | --- | --- |
//! | queue | sends, receives, peeks and other requests; an update; a receiver that is attached; `ForwardTo`; messages that are forwarded to it; scheduled messages |
//! | topic | sends; messages that are forwarded to it; an update; scheduled messages; every use of a subscription |
//! | subscription | receives, peeks and other requests; an update; a change of its rules; a receiver that is attached; `ForwardTo`. A message to the topic does not count |
//!
//! The time of the last use is not stored: after a restart it begins again, so an entity never goes early.

use super::Core;
use super::call_context::CallContext;
use super::entity::Entity;
use super::id::{EntityId, Timestamp};
use super::queue_context::RETRY;
use super::timers::Timer;

impl Core {
    /// Records that a client uses an entity.
    pub(super) fn record_use(&mut self, id: EntityId, now: Timestamp) {
        if let Some(entity) = self.entities.get_mut(&id) {
            entity.used_at = now;
        }
    }

    /// Sets the timer of an entity that is deleted when idle.
    pub(super) fn set_idle_timer(&mut self, id: EntityId) {
        if let Some(due) = self.entities.get(&id).and_then(|entity| self.idle_deadline(entity)) {
            self.state.timers.set(Timer::Idle(id), due);
        }
    }

    /// Deletes the entity if nobody has used it, or sets the timer again.
    pub(super) fn delete_if_idle(&mut self, call: &mut CallContext<'_>, id: EntityId) {
        let Some(entity) = self.entities.get(&id) else { return };
        if self.is_in_use(entity) {
            self.record_use(id, call.now);
        }
        match self.idle_deadline(&self.entities[&id]) {
            Some(due) if due <= call.now => {
                if self.delete_entity(call, id).is_err() {
                    self.state.timers.set(Timer::Idle(id), call.now.after(RETRY));
                }
            }
            _ => self.set_idle_timer(id),
        }
    }

    /// `None`: it is never deleted.
    fn idle_deadline(&self, entity: &Entity) -> Option<Timestamp> {
        let idle = entity.description.common().auto_delete_on_idle?;
        let uses = self.subscriptions_of(entity).map(|subscription| subscription.used_at);
        Some(uses.chain([entity.used_at]).max()?.after(idle))
    }

    fn is_in_use(&self, entity: &Entity) -> bool {
        self.subscriptions_of(entity).chain([entity]).any(Entity::is_in_use)
    }

    fn subscriptions_of<'a>(&'a self, entity: &'a Entity) -> impl Iterator<Item = &'a Entity> {
        entity.subscriptions.iter().filter_map(|id| self.entities.get(id))
    }
}

impl Entity {
    /// Without a request: a receiver waits, messages are forwarded, or one is due later.
    fn is_in_use(&self) -> bool {
        let is_scheduled = self.ingress.as_ref().is_some_and(|ingress| ingress.schedule.len() > 0);
        let has_receiver = |queue: &super::queue::MessageQueue| queue.receivers.len() > 0 || !queue.waiting.is_empty();
        let Some(egress) = &self.egress else { return is_scheduled };
        let is_forwarding = egress.main.policy.forward_to.is_some();
        is_scheduled || is_forwarding || egress.queues().into_iter().any(has_receiver)
    }
}
