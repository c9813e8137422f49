//! Records to bytes.

use super::codec::Writer;
use super::*;

pub(super) mod kind {
    pub(crate) const ENTITY: u8 = 1;
    pub(crate) const ENTITY_DELETED: u8 = 2;
    pub(crate) const ENQUEUED: u8 = 3;
    pub(crate) const ACTIVATED: u8 = 4;
    pub(crate) const CANCELLED: u8 = 5;
    pub(crate) const SETTLED: u8 = 6;
    pub(crate) const DEAD_LETTERED: u8 = 7;
    pub(crate) const ALTERED: u8 = 8;
    pub(crate) const SESSION_STATE: u8 = 9;
    pub(crate) const MOVED: u8 = 10;
    pub(crate) const BACKLOG: u8 = 32;
    pub(crate) const SCHEDULED: u8 = 33;
    pub(crate) const REMEMBERED: u8 = 34;
}

impl Record<'_> {
    /// Appends the encoded record to `out`.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        let mut w = Writer(out);
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
            Self::Altered(record) => altered(&mut w, record),
            Self::SessionState(record) => session_state(&mut w, record),
            Self::Moved(record) => moved(&mut w, record),
            Self::Backlog(part) => backlog(&mut w, part),
            Self::Scheduled(record) => scheduled(&mut w, record),
            Self::Remembered { entity, ids } => {
                w.byte(kind::REMEMBERED);
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

fn entity(w: &mut Writer<'_>, record: &EntityRecord<'_>) {
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
        enqueued(&mut Writer(out), self);
    }
}

fn enqueued(w: &mut Writer<'_>, record: &Enqueued<'_>) {
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

fn activated(w: &mut Writer<'_>, record: &Activated<'_>) {
    w.byte(kind::ACTIVATED);
    w.int(record.entity.0.into());
    w.int(record.was);
    w.int(record.sequence.0);
    w.int(record.at.0);
    w.option(record.time_to_live);
    w.option_text(record.session);
    w.location(record.location);
    targets(w, &record.targets);
}

fn targets(w: &mut Writer<'_>, targets: &[Target]) {
    w.int(targets.len() as u64);
    for target in targets {
        w.queue(target.queue);
        w.option(target.counter);
        w.option(target.time_to_live);
        alterations(w, target.alterations.as_deref());
    }
}

fn dead_lettered(w: &mut Writer<'_>, record: &DeadLettered<'_>) {
    w.byte(kind::DEAD_LETTERED);
    w.queue(record.queue);
    w.option_text(record.session);
    w.int(record.sequence.0);
    w.int(record.counter);
    w.int(record.delivery_count.into());
    w.location(record.location);
    alterations(w, Some(&record.alterations));
}

fn altered(w: &mut Writer<'_>, record: &Altered<'_>) {
    w.byte(kind::ALTERED);
    w.queue(record.queue);
    w.option_text(record.session);
    w.int(record.counter);
    w.int(record.delivery_count.into());
    w.byte(record.deferred.into());
    alterations(w, record.alterations.as_deref());
}

fn alterations(w: &mut Writer<'_>, alterations: Option<&Alterations>) {
    w.byte(alterations.is_some().into());
    let Some(alterations) = alterations else { return };
    w.option_text(alterations.reason.as_deref());
    w.option_text(alterations.description.as_deref());
    w.option(alterations.enqueued_sequence.map(|number| number.0));
    w.int(alterations.properties.len() as u64);
    for (name, value) in &alterations.properties {
        w.bytes(name.as_bytes());
        w.bytes(value);
    }
}

fn session_state(w: &mut Writer<'_>, record: &SessionState<'_>) {
    w.byte(kind::SESSION_STATE);
    w.queue(record.queue);
    w.bytes(record.session.as_bytes());
    w.int(record.at.0);
    match record.state {
        StatePlace::Cleared => w.byte(0),
        StatePlace::Body => w.byte(1),
        StatePlace::At(location) => {
            w.byte(2);
            w.location(location);
        }
    }
}

fn moved(w: &mut Writer<'_>, record: &Moved<'_>) {
    w.byte(kind::MOVED);
    w.location(record.from);
    w.int(record.holders.len() as u64);
    for holder in &record.holders {
        match holder {
            Holder::Message { queue, session, counter } => {
                w.byte(0);
                w.queue(*queue);
                w.option_text(*session);
                w.int(*counter);
            }
            Holder::State { queue, session } => {
                w.byte(1);
                w.queue(*queue);
                w.bytes(session.as_bytes());
            }
            Holder::Scheduled { entity, counter } => {
                w.byte(2);
                w.int(entity.0.into());
                w.int(*counter);
            }
        }
    }
    w.bytes(record.original);
}

fn backlog(w: &mut Writer<'_>, part: &BacklogPart<'_>) {
    w.byte(kind::BACKLOG);
    w.queue(part.queue);
    w.option_text(part.session);
    w.int(part.messages.len() as u64);
    let mut last = 0;
    for message in &part.messages {
        w.int(message.counter - last);
        last = message.counter;
        w.location(message.location);
        // 0 is "never", by far the most common.
        w.int(u64::from(message.expires.wrapping_add(1)));
        w.int(message.delivery_count.into());
        w.int(message.flags.into());
    }
}

fn scheduled(w: &mut Writer<'_>, record: &ScheduledRecord<'_>) {
    w.byte(kind::SCHEDULED);
    w.int(record.entity.0.into());
    w.int(record.sequence.0);
    w.int(record.due_at.0);
    w.option(record.time_to_live);
    w.option_text(record.session);
    w.location(record.location);
}
