//! Encodes records.

use super::codec::RecordEncoder;
use super::*;

pub(super) mod kind {
    pub(crate) const ENTITY: u8 = 1;
    pub(crate) const ENTITY_DELETED: u8 = 2;
    pub(crate) const ENQUEUED: u8 = 3;
    pub(crate) const ACTIVATED: u8 = 4;
    pub(crate) const CANCELLED: u8 = 5;
    pub(crate) const SETTLED: u8 = 6;
    pub(crate) const DEAD_LETTERED: u8 = 7;
    pub(crate) const OVERRIDDEN: u8 = 8;
    pub(crate) const SESSION_STATE: u8 = 9;
    pub(crate) const BODY_MOVED: u8 = 10;
    pub(crate) const RULE: u8 = 11;
    pub(crate) const RULE_REMOVED: u8 = 12;
    pub(crate) const FORWARDED: u8 = 13;
    pub(crate) const BACKLOG: u8 = 32;
    pub(crate) const SCHEDULED: u8 = 33;
    pub(crate) const DUPLICATE_IDS: u8 = 34;
}

impl JournalRecord<'_> {
    /// Appends the encoded record to `out`.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        let mut w = RecordEncoder(out);
        match self {
            Self::Entity(record) => write_entity(&mut w, record),
            Self::EntityDeleted { id } => {
                w.write_byte(kind::ENTITY_DELETED);
                w.write_int(id.0.into());
            }
            Self::EnqueuedRecord(record) => record.encode(out),
            Self::ActivatedRecord(record) => write_activated(&mut w, record),
            Self::Cancelled { entity, counters } => {
                w.write_byte(kind::CANCELLED);
                w.write_int(entity.0.into());
                w.write_rising(counters);
            }
            Self::Settled { queue, session, counters } => {
                w.write_byte(kind::SETTLED);
                w.write_queue(*queue);
                w.write_option_text(*session);
                w.write_rising(counters);
            }
            Self::DeadLettered(record) => write_dead_lettered(&mut w, record),
            Self::Forwarded(record) => write_forwarded(&mut w, record),
            Self::Rule(record) => {
                w.write_byte(kind::RULE);
                w.write_int(record.subscription.0.into());
                w.write_int(record.created_at.0);
                w.write_bytes(record.description);
            }
            Self::RuleRemoved { subscription, name } => {
                w.write_byte(kind::RULE_REMOVED);
                w.write_int(subscription.0.into());
                w.write_bytes(name.as_bytes());
            }
            Self::MessageUpdated(record) => write_message_updated(&mut w, record),
            Self::SessionStateRecord(record) => write_session_state(&mut w, record),
            Self::BodyMoved(record) => write_moved(&mut w, record),
            Self::Backlog(part) => write_backlog(&mut w, part),
            Self::Scheduled(record) => write_scheduled(&mut w, record),
            Self::DuplicateIds { entity, ids } => {
                w.write_byte(kind::DUPLICATE_IDS);
                w.write_int(entity.0.into());
                w.write_int(ids.len() as u64);
                for (fingerprint, at) in ids {
                    w.0.extend_from_slice(&fingerprint.bytes());
                    w.write_int(at.0);
                }
            }
        }
    }
}

fn write_entity(w: &mut RecordEncoder<'_>, record: &EntityRecord<'_>) {
    w.write_byte(kind::ENTITY);
    w.write_int(record.id.0.into());
    w.write_option(record.topic.map(|topic| topic.0.into()));
    w.write_bytes(record.path.as_bytes());
    w.write_bytes(record.description);
    w.write_int(record.created_at.0);
    w.write_int(record.updated_at.0);
    w.write_int(record.counter);
    w.write_int(record.dead_letter_counter);
    if record.transfer_dead_letter_counter > 0 {
        w.write_int(record.transfer_dead_letter_counter);
    }
}

impl EnqueuedRecord<'_> {
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        write_enqueued(&mut RecordEncoder(out), self);
    }
}

fn write_enqueued(w: &mut RecordEncoder<'_>, record: &EnqueuedRecord<'_>) {
    w.write_byte(kind::ENQUEUED);
    w.write_int(record.entity.0.into());
    w.write_int(record.sequence.0);
    w.write_int(record.enqueued_at.0);
    w.write_option(record.time_to_live);
    w.write_option(record.due_at.map(|due| due.0));
    write_fingerprint(w, record.fingerprint);
    w.write_option_text(record.session);
    write_targets(w, &record.targets);
    // Left out by most messages: this is the record that is written most often.
    if record.hops > 0 {
        w.write_byte(record.hops);
    }
}

fn write_forwarded(w: &mut RecordEncoder<'_>, record: &ForwardedRecord<'_>) {
    w.write_byte(kind::FORWARDED);
    w.write_queue(record.from);
    w.write_int(record.counter);
    w.write_option(record.entity.map(|entity| entity.0.into()));
    w.write_int(record.sequence.0);
    w.write_int(record.at.0);
    w.write_option(record.time_to_live);
    write_fingerprint(w, record.fingerprint);
    w.write_option_text(record.session);
    w.write_location(record.location);
    w.write_byte(record.hops);
    write_targets(w, &record.targets);
}

fn write_fingerprint(w: &mut RecordEncoder<'_>, fingerprint: Option<Fingerprint>) {
    w.write_byte(fingerprint.is_some().into());
    if let Some(fingerprint) = fingerprint {
        w.0.extend_from_slice(&fingerprint.bytes());
    }
}

fn write_activated(w: &mut RecordEncoder<'_>, record: &ActivatedRecord<'_>) {
    w.write_byte(kind::ACTIVATED);
    w.write_int(record.entity.0.into());
    w.write_int(record.scheduled_counter);
    w.write_int(record.sequence.0);
    w.write_int(record.at.0);
    w.write_option(record.time_to_live);
    w.write_option_text(record.session);
    w.write_location(record.location);
    write_targets(w, &record.targets);
}

fn write_targets(w: &mut RecordEncoder<'_>, targets: &[EnqueueTarget]) {
    w.write_int(targets.len() as u64);
    for target in targets {
        w.write_queue(target.queue);
        w.write_option(target.counter);
        w.write_option(target.time_to_live);
        write_overrides(w, target.overrides.as_deref());
    }
}

fn write_dead_lettered(w: &mut RecordEncoder<'_>, record: &DeadLetteredRecord<'_>) {
    w.write_byte(kind::DEAD_LETTERED);
    w.write_queue(record.queue);
    w.write_option_text(record.session);
    w.write_int(record.sequence.0);
    w.write_int(record.counter);
    w.write_int(record.delivery_count.into());
    w.write_location(record.location);
    write_overrides(w, Some(&record.overrides));
}

fn write_message_updated(w: &mut RecordEncoder<'_>, record: &MessageUpdatedRecord<'_>) {
    w.write_byte(kind::OVERRIDDEN);
    w.write_queue(record.queue);
    w.write_option_text(record.session);
    w.write_int(record.counter);
    w.write_int(record.delivery_count.into());
    w.write_byte(record.deferred.into());
    write_overrides(w, record.overrides.as_deref());
}

fn write_overrides(w: &mut RecordEncoder<'_>, overrides: Option<&PropertyOverrides>) {
    let Some(overrides) = overrides else { return w.write_byte(0) };
    // 2: with the entity that dead-lettered the message. Version 1 wrote only 0 and 1.
    w.write_byte(if overrides.dead_letter_source.is_some() { 2 } else { 1 });
    if let Some(source) = &overrides.dead_letter_source {
        w.write_bytes(source.as_bytes());
    }
    w.write_option_text(overrides.reason.as_deref());
    w.write_option_text(overrides.description.as_deref());
    w.write_option(overrides.enqueued_sequence.map(|number| number.0));
    w.write_int(overrides.properties.len() as u64);
    for (name, value) in &overrides.properties {
        w.write_bytes(name.as_bytes());
        w.write_bytes(value);
    }
}

fn write_session_state(w: &mut RecordEncoder<'_>, record: &SessionStateRecord<'_>) {
    w.write_byte(kind::SESSION_STATE);
    w.write_queue(record.queue);
    w.write_bytes(record.session.as_bytes());
    w.write_int(record.at.0);
    match record.state {
        SessionStateLocation::Cleared => w.write_byte(0),
        SessionStateLocation::Body => w.write_byte(1),
        SessionStateLocation::At(location) => {
            w.write_byte(2);
            w.write_location(location);
        }
    }
}

fn write_moved(w: &mut RecordEncoder<'_>, record: &BodyMovedRecord<'_>) {
    w.write_byte(kind::BODY_MOVED);
    w.write_location(record.from);
    w.write_int(record.owners.len() as u64);
    for owner in &record.owners {
        match owner {
            BodyOwner::Message { queue, session, counter } => {
                w.write_byte(0);
                w.write_queue(*queue);
                w.write_option_text(*session);
                w.write_int(*counter);
            }
            BodyOwner::State { queue, session } => {
                w.write_byte(1);
                w.write_queue(*queue);
                w.write_bytes(session.as_bytes());
            }
            BodyOwner::Scheduled { entity, counter } => {
                w.write_byte(2);
                w.write_int(entity.0.into());
                w.write_int(*counter);
            }
        }
    }
    w.write_bytes(record.original);
}

fn write_backlog(w: &mut RecordEncoder<'_>, part: &BacklogRecord<'_>) {
    w.write_byte(kind::BACKLOG);
    w.write_queue(part.queue);
    w.write_option_text(part.session);
    w.write_int(part.messages.len() as u64);
    let mut last = 0;
    for message in &part.messages {
        w.write_int(message.counter - last);
        last = message.counter;
        w.write_location(message.location);
        // 0 means "never", by far the most common value.
        w.write_int(u64::from(message.expires.wrapping_add(1)));
        w.write_int(message.delivery_count.into());
        w.write_int(message.flags.into());
    }
}

fn write_scheduled(w: &mut RecordEncoder<'_>, record: &ScheduledRecord<'_>) {
    w.write_byte(kind::SCHEDULED);
    w.write_int(record.entity.0.into());
    w.write_int(record.sequence.0);
    w.write_int(record.due_at.0);
    w.write_option(record.time_to_live);
    w.write_option_text(record.session);
    w.write_location(record.location);
}
