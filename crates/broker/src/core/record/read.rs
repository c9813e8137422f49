//! Decodes records. Strings are borrowed: recovery decodes millions of records.

use super::codec::{DecodeResult, RecordDecoder};
use super::write::kind;
use super::*;

/// Bytes that are not a valid record. The store verifies checksums, so this is a bug or another version, not a torn
/// write.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("malformed record: {0}")]
pub struct MalformedRecord(pub(crate) &'static str);

impl<'a> JournalRecord<'a> {
    pub(crate) fn decode(meta: &'a [u8]) -> DecodeResult<Self> {
        let r = &mut RecordDecoder(meta);
        Ok(match r.read_byte()? {
            kind::ENTITY => Self::Entity(read_entity(r)?),
            kind::ENTITY_DELETED => Self::EntityDeleted { id: r.read_entity()? },
            kind::ENQUEUED => Self::EnqueuedRecord(read_enqueued(r)?),
            kind::ACTIVATED => Self::ActivatedRecord(read_activated(r)?),
            kind::CANCELLED => Self::Cancelled { entity: r.read_entity()?, counters: r.read_rising()? },
            kind::SETTLED => {
                Self::Settled { queue: r.read_queue()?, session: r.read_option_text()?, counters: r.read_rising()? }
            }
            kind::DEAD_LETTERED => Self::DeadLettered(read_dead_lettered(r)?),
            kind::FORWARDED => Self::Forwarded(read_forwarded(r)?),
            kind::OVERRIDDEN => Self::MessageUpdated(read_message_updated(r)?),
            kind::SESSION_STATE => Self::SessionStateRecord(read_session_state(r)?),
            kind::BODY_MOVED => Self::BodyMoved(read_moved(r)?),
            kind::RULE => Self::Rule(RuleRecord {
                subscription: r.read_entity()?,
                created_at: r.read_timestamp()?,
                description: r.read_bytes()?,
            }),
            kind::RULE_REMOVED => Self::RuleRemoved { subscription: r.read_entity()?, name: r.read_text()? },
            kind::BACKLOG => Self::Backlog(read_backlog(r)?),
            kind::SCHEDULED => Self::Scheduled(read_scheduled(r)?),
            kind::DUPLICATE_IDS => Self::DuplicateIds { entity: r.read_entity()?, ids: read_duplicate_ids(r)? },
            _ => return Err(MalformedRecord("unknown kind")),
        })
    }
}

fn read_entity<'a>(r: &mut RecordDecoder<'a>) -> DecodeResult<EntityRecord<'a>> {
    Ok(EntityRecord {
        id: r.read_entity()?,
        topic: read_optional_entity(r)?,
        path: r.read_text()?,
        description: r.read_bytes()?,
        created_at: r.read_timestamp()?,
        updated_at: r.read_timestamp()?,
        counter: r.read_int()?,
        dead_letter_counter: r.read_int()?,
        // Absent from records of version 1.
        transfer_dead_letter_counter: if r.0.is_empty() { 0 } else { r.read_int()? },
    })
}

fn read_optional_entity(r: &mut RecordDecoder<'_>) -> DecodeResult<Option<EntityId>> {
    let id = r.read_option()?.map(u32::try_from).transpose();
    id.map(|id| id.map(EntityId)).map_err(|_| MalformedRecord("an entity is out of range"))
}

fn read_enqueued<'a>(r: &mut RecordDecoder<'a>) -> DecodeResult<EnqueuedRecord<'a>> {
    Ok(EnqueuedRecord {
        entity: r.read_entity()?,
        sequence: SequenceNumber(r.read_int()?),
        enqueued_at: r.read_timestamp()?,
        time_to_live: r.read_option()?,
        due_at: r.read_option()?.map(Timestamp),
        fingerprint: read_optional_fingerprint(r)?,
        session: r.read_option_text()?,
        targets: read_targets(r)?,
        hops: if r.0.is_empty() { 0 } else { r.read_byte()? },
    })
}

fn read_forwarded<'a>(r: &mut RecordDecoder<'a>) -> DecodeResult<ForwardedRecord<'a>> {
    Ok(ForwardedRecord {
        from: r.read_queue()?,
        counter: r.read_int()?,
        entity: read_optional_entity(r)?,
        sequence: SequenceNumber(r.read_int()?),
        at: r.read_timestamp()?,
        time_to_live: r.read_option()?,
        fingerprint: read_optional_fingerprint(r)?,
        session: r.read_option_text()?,
        location: r.read_location()?,
        hops: r.read_byte()?,
        targets: read_targets(r)?,
    })
}

fn read_activated<'a>(r: &mut RecordDecoder<'a>) -> DecodeResult<ActivatedRecord<'a>> {
    Ok(ActivatedRecord {
        entity: r.read_entity()?,
        scheduled_counter: r.read_int()?,
        sequence: SequenceNumber(r.read_int()?),
        at: r.read_timestamp()?,
        time_to_live: r.read_option()?,
        session: r.read_option_text()?,
        location: r.read_location()?,
        targets: read_targets(r)?,
    })
}

fn read_targets(r: &mut RecordDecoder<'_>) -> DecodeResult<Vec<EnqueueTarget>> {
    let target = |r: &mut RecordDecoder<'_>| {
        let (queue, counter, time_to_live) = (r.read_queue()?, r.read_option()?, r.read_option()?);
        Ok(EnqueueTarget { queue, counter, time_to_live, overrides: read_overrides(r)? })
    };
    (0..r.read_length()?).map(|_| target(r)).collect()
}

fn read_dead_lettered<'a>(r: &mut RecordDecoder<'a>) -> DecodeResult<DeadLetteredRecord<'a>> {
    Ok(DeadLetteredRecord {
        queue: r.read_queue()?,
        session: r.read_option_text()?,
        sequence: SequenceNumber(r.read_int()?),
        counter: r.read_int()?,
        delivery_count: r.read_small()?,
        location: r.read_location()?,
        overrides: read_overrides(r)?.ok_or(MalformedRecord("a dead letter without alterations"))?,
    })
}

fn read_message_updated<'a>(r: &mut RecordDecoder<'a>) -> DecodeResult<MessageUpdatedRecord<'a>> {
    Ok(MessageUpdatedRecord {
        queue: r.read_queue()?,
        session: r.read_option_text()?,
        counter: r.read_int()?,
        delivery_count: r.read_small()?,
        deferred: read_flag(r)?,
        overrides: read_overrides(r)?,
    })
}

fn read_overrides(r: &mut RecordDecoder<'_>) -> DecodeResult<Option<Arc<PropertyOverrides>>> {
    let dead_letter_source = match r.read_byte()? {
        0 => return Ok(None),
        2 => Some(r.read_text()?.into()),
        _ => None,
    };
    let reason = r.read_option_text()?.map(Into::into);
    let description = r.read_option_text()?.map(Into::into);
    let enqueued_sequence = r.read_option()?.map(SequenceNumber);
    let properties = (0..r.read_length()?)
        .map(|_| Ok((r.read_text()?.into(), Bytes::copy_from_slice(r.read_bytes()?))))
        .collect::<DecodeResult<Vec<_>>>()?;
    Ok(Some(Arc::new(PropertyOverrides { reason, description, enqueued_sequence, dead_letter_source, properties })))
}

fn read_session_state<'a>(r: &mut RecordDecoder<'a>) -> DecodeResult<SessionStateRecord<'a>> {
    let (queue, session, at) = (r.read_queue()?, r.read_text()?, r.read_timestamp()?);
    let state = match r.read_byte()? {
        0 => SessionStateLocation::Cleared,
        1 => SessionStateLocation::Body,
        2 => SessionStateLocation::At(r.read_location()?),
        _ => return Err(MalformedRecord("unknown place of a session state")),
    };
    Ok(SessionStateRecord { queue, session, at, state })
}

fn read_moved<'a>(r: &mut RecordDecoder<'a>) -> DecodeResult<BodyMovedRecord<'a>> {
    let from = r.read_location()?;
    let owners = (0..r.read_length()?).map(|_| read_owner(r)).collect::<DecodeResult<Vec<_>>>()?;
    Ok(BodyMovedRecord { from, owners, original: r.read_bytes()? })
}

fn read_owner<'a>(r: &mut RecordDecoder<'a>) -> DecodeResult<BodyOwner<'a>> {
    Ok(match r.read_byte()? {
        0 => BodyOwner::Message { queue: r.read_queue()?, session: r.read_option_text()?, counter: r.read_int()? },
        1 => BodyOwner::State { queue: r.read_queue()?, session: r.read_text()? },
        2 => BodyOwner::Scheduled { entity: r.read_entity()?, counter: r.read_int()? },
        _ => return Err(MalformedRecord("unknown holder of a body")),
    })
}

fn read_backlog<'a>(r: &mut RecordDecoder<'a>) -> DecodeResult<BacklogRecord<'a>> {
    let (queue, session) = (r.read_queue()?, r.read_option_text()?);
    let mut counter: u64 = 0;
    let messages = (0..r.read_length()?)
        .map(|_| {
            counter = counter.checked_add(r.read_int()?).ok_or(MalformedRecord("a counter is out of range"))?;
            Ok(BacklogEntry {
                counter,
                location: r.read_location()?,
                expires: r.read_small::<u32>()?.wrapping_sub(1),
                delivery_count: r.read_small()?,
                flags: r.read_small()?,
            })
        })
        .collect::<DecodeResult<Vec<_>>>()?;
    Ok(BacklogRecord { queue, session, messages })
}

fn read_scheduled<'a>(r: &mut RecordDecoder<'a>) -> DecodeResult<ScheduledRecord<'a>> {
    Ok(ScheduledRecord {
        entity: r.read_entity()?,
        sequence: SequenceNumber(r.read_int()?),
        due_at: r.read_timestamp()?,
        time_to_live: r.read_option()?,
        session: r.read_option_text()?,
        location: r.read_location()?,
    })
}

fn read_duplicate_ids(r: &mut RecordDecoder<'_>) -> DecodeResult<Vec<(Fingerprint, Timestamp)>> {
    (0..r.read_length()?).map(|_| Ok((read_fingerprint(r)?, r.read_timestamp()?))).collect()
}

fn read_optional_fingerprint(r: &mut RecordDecoder<'_>) -> DecodeResult<Option<Fingerprint>> {
    if read_flag(r)? { read_fingerprint(r).map(Some) } else { Ok(None) }
}

fn read_fingerprint(r: &mut RecordDecoder<'_>) -> DecodeResult<Fingerprint> {
    let bytes = r.take(Fingerprint::BYTES)?;
    Ok(Fingerprint::from_bytes(bytes.try_into().expect("take() returns the requested length")))
}

fn read_flag(r: &mut RecordDecoder<'_>) -> DecodeResult<bool> {
    Ok(r.read_byte()? != 0)
}
