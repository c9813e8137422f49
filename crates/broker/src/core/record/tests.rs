use proptest::prelude::*;

use super::*;

fn round_trip(record: &JournalRecord<'_>) {
    let mut bytes = Vec::new();
    record.encode(&mut bytes);
    assert_eq!(JournalRecord::decode(&bytes).as_ref(), Ok(record));
    for cut in 0..bytes.len() {
        assert!(JournalRecord::decode(&bytes[..cut]).is_err(), "{record:?} reads when cut at {cut} of {}", bytes.len());
    }
}

const HERE: JournalLocation = JournalLocation { segment: 3, offset: u32::MAX, len: 1024 };

fn overridden() -> Arc<PropertyOverrides> {
    Arc::new(PropertyOverrides {
        reason: Some("why".into()),
        description: None,
        enqueued_sequence: Some(SequenceNumber::new(3, 9)),
        dead_letter_source: None,
        properties: vec![("name".into(), Bytes::from_static(b"\xa1\x01x"))],
    })
}

fn enqueued(session: SessionRef<'_>) -> EnqueuedRecord<'_> {
    EnqueuedRecord {
        entity: EntityId(7),
        sequence: SequenceNumber::new(15, 1 << 40),
        enqueued_at: Timestamp(1_800_000_000_000),
        time_to_live: Some(5_000),
        due_at: None,
        fingerprint: Some(Fingerprint::of("id", None)),
        session,
        targets: vec![
            EnqueueTarget { queue: QueueId::main(EntityId(8)), counter: None, time_to_live: Some(9), overrides: None },
            EnqueueTarget {
                queue: QueueId::dead_letter(EntityId(9)),
                counter: Some(4),
                time_to_live: None,
                overrides: Some(overridden()),
            },
        ],
        hops: 0,
    }
}

#[test]
fn every_record_decodes_and_no_prefix_does() {
    let (entity, at) = (EntityId(7), Timestamp(1_800_000_000_000));
    let queue = QueueId::main(entity);
    let message = BacklogEntry { counter: 5, location: HERE, expires: u32::MAX, delivery_count: 2, flags: 0x0F02 };
    let owners = vec![
        BodyOwner::Message { queue, session: Some("s"), counter: 1 },
        BodyOwner::State { queue, session: "" },
        BodyOwner::Scheduled { entity, counter: 9 },
    ];
    let records = [
        JournalRecord::Rule(RuleRecord { subscription: entity, created_at: at, description: b"{}" }),
        JournalRecord::RuleRemoved { subscription: entity, name: "$Default" },
        JournalRecord::Entity(EntityRecord {
            id: entity,
            topic: Some(EntityId(0)),
            path: "orders/Subscriptions/audit",
            description: b"{}",
            created_at: at,
            updated_at: at,
            counter: 12,
            dead_letter_counter: 3,
            transfer_dead_letter_counter: 0,
        }),
        JournalRecord::Forwarded(ForwardedRecord {
            from: QueueId::dead_letter(entity),
            counter: 3,
            entity: Some(EntityId(9)),
            sequence: SequenceNumber::new(1, 2),
            at,
            time_to_live: Some(7),
            fingerprint: Some(Fingerprint::of("id", None)),
            session: Some("s"),
            location: HERE,
            hops: 4,
            targets: vec![EnqueueTarget {
                queue: QueueId::transfer_dead_letter(EntityId(u32::MAX)),
                counter: Some(1),
                time_to_live: None,
                overrides: Some(Arc::new(PropertyOverrides {
                    dead_letter_source: Some("orders".into()),
                    ..PropertyOverrides::default()
                })),
            }],
        }),
        JournalRecord::EntityDeleted { id: entity },
        JournalRecord::EnqueuedRecord(enqueued(Some("order-1"))),
        JournalRecord::ActivatedRecord(ActivatedRecord {
            entity,
            scheduled_counter: 3,
            sequence: SequenceNumber::new(0, 4),
            at,
            time_to_live: None,
            session: None,
            location: HERE,
            targets: Vec::new(),
        }),
        JournalRecord::Cancelled { entity, counters: vec![1, 2, 700] },
        JournalRecord::Settled { queue, session: Some(""), counters: vec![9, 10, 11] },
        JournalRecord::DeadLettered(DeadLetteredRecord {
            queue,
            session: Some("s"),
            sequence: SequenceNumber::new(1, 2),
            counter: 3,
            delivery_count: 10,
            location: HERE,
            overrides: overridden(),
        }),
        JournalRecord::MessageUpdated(MessageUpdatedRecord {
            queue,
            session: None,
            counter: 4,
            delivery_count: 1,
            deferred: true,
            overrides: Some(overridden()),
        }),
        JournalRecord::SessionStateRecord(SessionStateRecord {
            queue,
            session: "s",
            at,
            state: SessionStateLocation::Cleared,
        }),
        JournalRecord::SessionStateRecord(SessionStateRecord {
            queue,
            session: "s",
            at,
            state: SessionStateLocation::Body,
        }),
        JournalRecord::SessionStateRecord(SessionStateRecord {
            queue,
            session: "s",
            at,
            state: SessionStateLocation::At(HERE),
        }),
        JournalRecord::BodyMoved(BodyMovedRecord { from: HERE, owners, original: b"meta" }),
        JournalRecord::Backlog(BacklogRecord {
            queue,
            session: Some("s"),
            messages: vec![message, BacklogEntry { counter: 6, expires: 0, ..message }],
        }),
        JournalRecord::Scheduled(ScheduledRecord {
            entity,
            sequence: SequenceNumber::new(2, 5),
            due_at: at,
            time_to_live: Some(0),
            session: Some("s"),
            location: HERE,
        }),
        JournalRecord::DuplicateIds {
            entity,
            ids: vec![(Fingerprint::of("a", None), at), (Fingerprint::of("b", None), at)],
        },
    ];
    records.iter().for_each(round_trip);
}

#[test]
fn fields_that_version_1_did_not_write_are_read_back() {
    let enqueued = JournalRecord::EnqueuedRecord(EnqueuedRecord { hops: 3, ..enqueued(None) });
    let entity = JournalRecord::Entity(EntityRecord {
        id: EntityId(7),
        topic: None,
        path: "orders",
        description: b"{}",
        created_at: Timestamp(1),
        updated_at: Timestamp(1),
        counter: 12,
        dead_letter_counter: 3,
        transfer_dead_letter_counter: 300,
    });
    for record in [enqueued, entity] {
        let mut bytes = Vec::new();
        record.encode(&mut bytes);
        assert_eq!(JournalRecord::decode(&bytes), Ok(record));
    }
}

#[test]
fn an_enqueued_record_adds_little_to_its_session_id() {
    let mut bytes = Vec::new();
    let targets = vec![EnqueueTarget {
        queue: QueueId::main(EntityId(8)),
        counter: None,
        time_to_live: Some(9),
        overrides: None,
    }];
    JournalRecord::EnqueuedRecord(EnqueuedRecord { targets, ..enqueued(Some(&"x".repeat(36))) }).encode(&mut bytes);
    assert!(bytes.len() <= 36 + 40, "{}", bytes.len());
}

#[test]
fn an_envelope_decodes_after_its_body_moved() {
    let mut original = Vec::new();
    JournalRecord::EnqueuedRecord(EnqueuedRecord { due_at: Some(Timestamp(1_900_000_000_000)), ..enqueued(Some("s")) })
        .encode(&mut original);
    let mut moved = Vec::new();
    JournalRecord::BodyMoved(BodyMovedRecord { from: HERE, owners: Vec::new(), original: &original })
        .encode(&mut moved);
    let direct = StoredEnvelope::decode(&original.into()).unwrap();
    assert_eq!(StoredEnvelope::decode(&moved.into()).unwrap(), direct);
    assert_eq!(direct.enqueued_at, Timestamp(1_900_000_000_000));
    assert_eq!(direct.session.as_deref(), Some("s"));
}

proptest! {
    #[test]
    fn damaged_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = JournalRecord::decode(&bytes);
    }
}
