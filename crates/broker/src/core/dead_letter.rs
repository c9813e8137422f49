//! Moving messages to the dead-letter queue: the body stays where it is, the message gets a new number and a reason.
//!
//! A dead letter has no session and no time to live, whatever it had before.

use std::sync::Arc;

use super::alterations::Alterations;
use super::backlog::Message;
use super::desk::Desk;
use super::error::Error;
use super::expires::Expires;
use super::id::LockToken;
use super::queue::Queue;
use super::record::{DeadLettered, Record};
use super::sessions::Slot;
use super::settle::Properties;

pub(super) const MAX_DELIVERY_COUNT: &str = "MaxDeliveryCountExceeded";
pub(super) const EXPIRED: &str = "TTLExpiredException";
pub(super) const EXPIRED_TEXT: &str = "The message expired and was dead lettered.";
pub(super) const NO_SESSION: &str = "Session id is null";
pub(super) const NO_SESSION_TEXT: &str =
    "Session enabled entity doesn't allow a message whose session identifier is null.";

pub(super) fn too_many_attempts(count: u16) -> String {
    format!("Message could not be consumed after {count} delivery attempts.")
}

/// Why a message is dead-lettered.
pub(super) struct Burial<'a> {
    pub(super) reason: Option<&'a str>,
    pub(super) description: Option<&'a str>,
    pub(super) properties: &'a Properties,
}

impl<'a> Burial<'a> {
    pub(super) fn by_broker(reason: &'a str, description: &'a str) -> Self {
        const NOTHING: &Properties = &Vec::new();
        Self { reason: Some(reason), description: Some(description), properties: NOTHING }
    }

    pub(super) fn alterations(&self, earlier: Option<&Arc<Alterations>>) -> Alterations {
        let mut new = Alterations::with(earlier, self.properties);
        new.reason = self.reason.map(Into::into);
        new.description = self.description.map(Into::into);
        new
    }
}

/// One message about to move.
struct Grave {
    slot: Slot,
    counter: u64,
    /// In the dead-letter queue.
    new_counter: u64,
    message: Message,
    alterations: Arc<Alterations>,
}

impl Desk<'_, '_> {
    /// Dead-letters what its receivers hold.
    pub(super) fn bury_held(&mut self, tokens: &[LockToken], burial: &Burial<'_>) -> Result<(), Error> {
        let places: Vec<_> = tokens.iter().map(|token| self.queue.locks[token]).collect();
        let places: Vec<_> = places.iter().map(|lock| (lock.slot, lock.counter)).collect();
        let graves = self.dig(&places, burial);
        self.note_graves(&graves)?;
        for token in tokens {
            self.queue.drop_lock(*token);
        }
        let mut slots: Vec<Slot> = graves.iter().map(|grave| grave.slot).collect();
        graves.into_iter().for_each(|grave| self.fill(grave));
        slots.sort_unstable();
        slots.dedup();
        self.resume(slots.into_iter());
        Ok(())
    }

    /// Dead-letters a message nobody holds. The caller serves its session afterwards.
    pub(super) fn bury_one(&mut self, slot: Slot, counter: u64, burial: &Burial<'_>) -> Result<(), Error> {
        let graves = self.dig(&[(slot, counter)], burial);
        self.note_graves(&graves)?;
        graves.into_iter().for_each(|grave| self.fill(grave));
        Ok(())
    }

    fn dig(&self, places: &[(Slot, u64)], burial: &Burial<'_>) -> Vec<Grave> {
        let last = self.dead_letters.as_ref().map_or(0, |queue| queue.counter);
        let dig = |((slot, counter), new_counter): (&(Slot, u64), u64)| {
            let message = self.queue.sessions.get(*slot).backlog.get(*counter)?;
            let mut alterations = burial.alterations(self.queue.alterations(*counter, message).as_ref());
            alterations.enqueued_sequence = Some(Queue::sequence(*counter, message));
            Some(Grave { slot: *slot, counter: *counter, new_counter, message, alterations: Arc::new(alterations) })
        };
        places.iter().zip(last + 1..).filter_map(dig).collect()
    }

    fn note_graves(&mut self, graves: &[Grave]) -> Result<(), Error> {
        let ids: Vec<_> = graves.iter().map(|grave| self.queue.sessions.get(grave.slot).id.clone()).collect();
        let records = graves.iter().zip(&ids).map(|(grave, id)| {
            Record::DeadLettered(DeadLettered {
                queue: self.queue.id,
                session: id.as_deref(),
                sequence: Queue::sequence(grave.counter, grave.message),
                counter: grave.new_counter,
                delivery_count: grave.message.delivery_count,
                location: grave.message.location,
                alterations: grave.alterations.clone(),
            })
        });
        let records: Vec<_> = records.collect();
        Ok(self.tools.note_all(self.turn, &records)?)
    }

    fn fill(&mut self, grave: Grave) {
        let (message, _) = self.queue.take_out(grave.slot, grave.counter).expect("looked up by dig()");
        let mut buried = Message::new(message.location, message.partition(), Expires::NEVER);
        buried.delivery_count = message.delivery_count;
        let mut desk = self.dead_letter_desk().expect("only a main queue buries");
        desk.arrive(None, grave.new_counter, buried, Some(grave.alterations));
    }
}
