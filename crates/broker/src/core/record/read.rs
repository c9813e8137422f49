//! Decodes records. Strings are borrowed: recovery decodes millions of records.

use super::codec::RecordReader;
use super::write::kind;
use super::*;

/// Bytes that are not a valid record. The store verifies checksums, so this is a bug or another version, not a torn
/// write.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("malformed record: {0}")]
pub struct MalformedRecord(pub(crate) &'static str);

type Read<T> = Result<T, MalformedRecord>;

impl<'a> JournalRecord<'a> {
    pub(crate) fn decode(meta: &'a [u8]) -> Read<Self> {
        let r = &mut RecordReader(meta);
        Ok(match r.byte()? {
            kind::ENTITY => Self::Entity(entity(r)?),
            kind::ENTITY_DELETED => Self::EntityDeleted { id: r.entity()? },
            kind::ENQUEUED => Self::Enqueued(enqueued(r)?),
            kind::ACTIVATED => Self::Activated(activated(r)?),
            kind::CANCELLED => Self::Cancelled { entity: r.entity()?, counters: r.rising()? },
            kind::SETTLED => Self::Settled { queue: r.queue()?, session: r.option_text()?, counters: r.rising()? },
            kind::DEAD_LETTERED => Self::DeadLettered(dead_lettered(r)?),
            kind::OVERRIDDEN => Self::MessageUpdated(overridden(r)?),
            kind::SESSION_STATE => Self::SessionStateRecord(session_state(r)?),
            kind::BODY_MOVED => Self::BodyMoved(moved(r)?),
            kind::BACKLOG => Self::Backlog(backlog(r)?),
            kind::SCHEDULED => Self::Scheduled(scheduled(r)?),
            kind::DUPLICATE_IDS => Self::DuplicateIds { entity: r.entity()?, ids: remembered(r)? },
            _ => return Err(MalformedRecord("unknown kind")),
        })
    }
}

fn entity<'a>(r: &mut RecordReader<'a>) -> Read<EntityRecord<'a>> {
    Ok(EntityRecord {
        id: r.entity()?,
        topic: option_entity(r)?,
        path: r.text()?,
        description: r.bytes()?,
        created_at: r.moment()?,
        updated_at: r.moment()?,
        counter: r.int()?,
        dead_letter_counter: r.int()?,
    })
}

fn option_entity(r: &mut RecordReader<'_>) -> Read<Option<EntityId>> {
    let id = r.option()?.map(u32::try_from).transpose();
    id.map(|id| id.map(EntityId)).map_err(|_| MalformedRecord("an entity is out of range"))
}

fn enqueued<'a>(r: &mut RecordReader<'a>) -> Read<Enqueued<'a>> {
    Ok(Enqueued {
        entity: r.entity()?,
        sequence: SequenceNumber(r.int()?),
        enqueued_at: r.moment()?,
        time_to_live: r.option()?,
        due_at: r.option()?.map(Timestamp),
        fingerprint: if flag(r)? { Some(fingerprint(r)?) } else { None },
        session: r.option_text()?,
        targets: targets(r)?,
    })
}

fn activated<'a>(r: &mut RecordReader<'a>) -> Read<Activated<'a>> {
    Ok(Activated {
        entity: r.entity()?,
        scheduled_counter: r.int()?,
        sequence: SequenceNumber(r.int()?),
        at: r.moment()?,
        time_to_live: r.option()?,
        session: r.option_text()?,
        location: r.location()?,
        targets: targets(r)?,
    })
}

fn targets(r: &mut RecordReader<'_>) -> Read<Vec<EnqueueTarget>> {
    let target = |r: &mut RecordReader<'_>| {
        let (queue, counter, time_to_live) = (r.queue()?, r.option()?, r.option()?);
        Ok(EnqueueTarget { queue, counter, time_to_live, overrides: overrides(r)? })
    };
    (0..r.count()?).map(|_| target(r)).collect()
}

fn dead_lettered<'a>(r: &mut RecordReader<'a>) -> Read<DeadLettered<'a>> {
    Ok(DeadLettered {
        queue: r.queue()?,
        session: r.option_text()?,
        sequence: SequenceNumber(r.int()?),
        counter: r.int()?,
        delivery_count: r.small()?,
        location: r.location()?,
        overrides: overrides(r)?.ok_or(MalformedRecord("a dead letter without alterations"))?,
    })
}

fn overridden<'a>(r: &mut RecordReader<'a>) -> Read<MessageUpdated<'a>> {
    Ok(MessageUpdated {
        queue: r.queue()?,
        session: r.option_text()?,
        counter: r.int()?,
        delivery_count: r.small()?,
        deferred: flag(r)?,
        overrides: overrides(r)?,
    })
}

fn overrides(r: &mut RecordReader<'_>) -> Read<Option<Arc<MessageOverrides>>> {
    if !flag(r)? {
        return Ok(None);
    }
    let reason = r.option_text()?.map(Into::into);
    let description = r.option_text()?.map(Into::into);
    let enqueued_sequence = r.option()?.map(SequenceNumber);
    let properties = (0..r.count()?)
        .map(|_| Ok((r.text()?.into(), Bytes::copy_from_slice(r.bytes()?))))
        .collect::<Read<Vec<_>>>()?;
    Ok(Some(Arc::new(MessageOverrides { reason, description, enqueued_sequence, properties })))
}

fn session_state<'a>(r: &mut RecordReader<'a>) -> Read<SessionStateRecord<'a>> {
    let (queue, session, at) = (r.queue()?, r.text()?, r.moment()?);
    let state = match r.byte()? {
        0 => SessionStateLocation::Cleared,
        1 => SessionStateLocation::Body,
        2 => SessionStateLocation::At(r.location()?),
        _ => return Err(MalformedRecord("unknown place of a session state")),
    };
    Ok(SessionStateRecord { queue, session, at, state })
}

fn moved<'a>(r: &mut RecordReader<'a>) -> Read<BodyMoved<'a>> {
    let from = r.location()?;
    let owners = (0..r.count()?).map(|_| owner(r)).collect::<Read<Vec<_>>>()?;
    Ok(BodyMoved { from, owners, original: r.bytes()? })
}

fn owner<'a>(r: &mut RecordReader<'a>) -> Read<BodyOwner<'a>> {
    Ok(match r.byte()? {
        0 => BodyOwner::Message { queue: r.queue()?, session: r.option_text()?, counter: r.int()? },
        1 => BodyOwner::State { queue: r.queue()?, session: r.text()? },
        2 => BodyOwner::Scheduled { entity: r.entity()?, counter: r.int()? },
        _ => return Err(MalformedRecord("unknown holder of a body")),
    })
}

fn backlog<'a>(r: &mut RecordReader<'a>) -> Read<BacklogRecord<'a>> {
    let (queue, session) = (r.queue()?, r.option_text()?);
    let mut counter: u64 = 0;
    let messages = (0..r.count()?)
        .map(|_| {
            counter = counter.checked_add(r.int()?).ok_or(MalformedRecord("a counter is out of range"))?;
            Ok(BacklogEntry {
                counter,
                location: r.location()?,
                expires: r.small::<u32>()?.wrapping_sub(1),
                delivery_count: r.small()?,
                flags: r.small()?,
            })
        })
        .collect::<Read<Vec<_>>>()?;
    Ok(BacklogRecord { queue, session, messages })
}

fn scheduled<'a>(r: &mut RecordReader<'a>) -> Read<ScheduledRecord<'a>> {
    Ok(ScheduledRecord {
        entity: r.entity()?,
        sequence: SequenceNumber(r.int()?),
        due_at: r.moment()?,
        time_to_live: r.option()?,
        session: r.option_text()?,
        location: r.location()?,
    })
}

fn remembered(r: &mut RecordReader<'_>) -> Read<Vec<(Fingerprint, Timestamp)>> {
    (0..r.count()?).map(|_| Ok((fingerprint(r)?, r.moment()?))).collect()
}

fn fingerprint(r: &mut RecordReader<'_>) -> Read<Fingerprint> {
    let bytes = r.take(Fingerprint::BYTES)?;
    Ok(Fingerprint::from_bytes(bytes.try_into().expect("take() returns the requested length")))
}

fn flag(r: &mut RecordReader<'_>) -> Read<bool> {
    Ok(r.byte()? != 0)
}
