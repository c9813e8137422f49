//! Encodes records.

use super::codec::RecordWriter;
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
    pub(crate) const BACKLOG: u8 = 32;
    pub(crate) const SCHEDULED: u8 = 33;
    pub(crate) const DUPLICATE_IDS: u8 = 34;
}

impl JournalRecord<'_> {
    /// Appends the encoded record to `out`.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        let mut w = RecordWriter(out);
        match self {
            Self::Entity(record) => entity(&mut w, record),
            Self::EntityDeleted { id } => {
                w.byte(kind::ENTITY_DELETED);
                w.int(id.0.into());
            }
            Self::Enqueued(record) => record.encode(out),
            Self::Activated(record) => activated(&mut w, record),
            Self::Cancelled { entity, counters } => {
                w.byte(kind::CANCELLED);
                w.int(entity.0.into());
                w.rising(counters);
            }
            Self::Settled { queue, session, counters } => {
                w.byte(kind::SETTLED);
                w.queue(*queue);
                w.option_text(*session);
                w.rising(counters);
            }
            Self::DeadLettered(record) => dead_lettered(&mut w, record),
            Self::MessageUpdated(record) => overridden(&mut w, record),
            Self::SessionStateRecord(record) => session_state(&mut w, record),
            Self::BodyMoved(record) => moved(&mut w, record),
            Self::Backlog(part) => backlog(&mut w, part),
            Self::Scheduled(record) => scheduled(&mut w, record),
            Self::DuplicateIds { entity, ids } => {
                w.byte(kind::DUPLICATE_IDS);
                w.int(entity.0.into());
                w.int(ids.len() as u64);
                for (fingerprint, at) in ids {
                    w.0.extend_from_slice(&fingerprint.bytes());
                    w.int(at.0);
                }
            }
        }
    }
}

fn entity(w: &mut RecordWriter<'_>, record: &EntityRecord<'_>) {
    w.byte(kind::ENTITY);
    w.int(record.id.0.into());
    w.option(record.topic.map(|topic| topic.0.into()));
    w.bytes(record.path.as_bytes());
    w.bytes(record.description);
    w.int(record.created_at.0);
    w.int(record.updated_at.0);
    w.int(record.counter);
    w.int(record.dead_letter_counter);
}

impl Enqueued<'_> {
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        enqueued(&mut RecordWriter(out), self);
    }
}

fn enqueued(w: &mut RecordWriter<'_>, record: &Enqueued<'_>) {
    w.byte(kind::ENQUEUED);
    w.int(record.entity.0.into());
    w.int(record.sequence.0);
    w.int(record.enqueued_at.0);
    w.option(record.time_to_live);
    w.option(record.due_at.map(|due| due.0));
    w.byte(record.fingerprint.is_some().into());
    if let Some(fingerprint) = record.fingerprint {
        w.0.extend_from_slice(&fingerprint.bytes());
    }
    w.option_text(record.session);
    targets(w, &record.targets);
}

fn activated(w: &mut RecordWriter<'_>, record: &Activated<'_>) {
    w.byte(kind::ACTIVATED);
    w.int(record.entity.0.into());
    w.int(record.scheduled_counter);
    w.int(record.sequence.0);
    w.int(record.at.0);
    w.option(record.time_to_live);
    w.option_text(record.session);
    w.location(record.location);
    targets(w, &record.targets);
}

fn targets(w: &mut RecordWriter<'_>, targets: &[EnqueueTarget]) {
    w.int(targets.len() as u64);
    for target in targets {
        w.queue(target.queue);
        w.option(target.counter);
        w.option(target.time_to_live);
        overrides(w, target.overrides.as_deref());
    }
}

fn dead_lettered(w: &mut RecordWriter<'_>, record: &DeadLettered<'_>) {
    w.byte(kind::DEAD_LETTERED);
    w.queue(record.queue);
    w.option_text(record.session);
    w.int(record.sequence.0);
    w.int(record.counter);
    w.int(record.delivery_count.into());
    w.location(record.location);
    overrides(w, Some(&record.overrides));
}

fn overridden(w: &mut RecordWriter<'_>, record: &MessageUpdated<'_>) {
    w.byte(kind::OVERRIDDEN);
    w.queue(record.queue);
    w.option_text(record.session);
    w.int(record.counter);
    w.int(record.delivery_count.into());
    w.byte(record.deferred.into());
    overrides(w, record.overrides.as_deref());
}

fn overrides(w: &mut RecordWriter<'_>, overrides: Option<&MessageOverrides>) {
    w.byte(overrides.is_some().into());
    let Some(overrides) = overrides else { return };
    w.option_text(overrides.reason.as_deref());
    w.option_text(overrides.description.as_deref());
    w.option(overrides.enqueued_sequence.map(|number| number.0));
    w.int(overrides.properties.len() as u64);
    for (name, value) in &overrides.properties {
        w.bytes(name.as_bytes());
        w.bytes(value);
    }
}

fn session_state(w: &mut RecordWriter<'_>, record: &SessionStateRecord<'_>) {
    w.byte(kind::SESSION_STATE);
    w.queue(record.queue);
    w.bytes(record.session.as_bytes());
    w.int(record.at.0);
    match record.state {
        SessionStateLocation::Cleared => w.byte(0),
        SessionStateLocation::Body => w.byte(1),
        SessionStateLocation::At(location) => {
            w.byte(2);
            w.location(location);
        }
    }
}

fn moved(w: &mut RecordWriter<'_>, record: &BodyMoved<'_>) {
    w.byte(kind::BODY_MOVED);
    w.location(record.from);
    w.int(record.owners.len() as u64);
    for owner in &record.owners {
        match owner {
            BodyOwner::Message { queue, session, counter } => {
                w.byte(0);
                w.queue(*queue);
                w.option_text(*session);
                w.int(*counter);
            }
            BodyOwner::State { queue, session } => {
                w.byte(1);
                w.queue(*queue);
                w.bytes(session.as_bytes());
            }
            BodyOwner::Scheduled { entity, counter } => {
                w.byte(2);
                w.int(entity.0.into());
                w.int(*counter);
            }
        }
    }
    w.bytes(record.original);
}

fn backlog(w: &mut RecordWriter<'_>, part: &BacklogRecord<'_>) {
    w.byte(kind::BACKLOG);
    w.queue(part.queue);
    w.option_text(part.session);
    w.int(part.messages.len() as u64);
    let mut last = 0;
    for message in &part.messages {
        w.int(message.counter - last);
        last = message.counter;
        w.location(message.location);
        // 0 means "never", by far the most common value.
        w.int(u64::from(message.expires.wrapping_add(1)));
        w.int(message.delivery_count.into());
        w.int(message.flags.into());
    }
}

fn scheduled(w: &mut RecordWriter<'_>, record: &ScheduledRecord<'_>) {
    w.byte(kind::SCHEDULED);
    w.int(record.entity.0.into());
    w.int(record.sequence.0);
    w.int(record.due_at.0);
    w.option(record.time_to_live);
    w.option_text(record.session);
    w.location(record.location);
}
