use broker::core::*;

use crate::fixture::*;

fn create(fixture: &mut CoreFixture, path: &str, description: EntityDefinition) -> Result<EntityId, Error> {
    fixture.call(|core, call| core.create(call, path, description))
}

fn queue() -> EntityDefinition {
    EntityDefinition::Queue(QueueDescription::default())
}

fn subscription() -> EntityDefinition {
    EntityDefinition::Subscription(SubscriptionDescription::default())
}

#[test]
fn names_are_taken_once_whatever_their_case() {
    let mut fixture = CoreFixture::new();
    fixture.topic("Orders", |_| {});
    let again = create(&mut fixture, "oRDERS", queue()).unwrap_err();
    assert_eq!((again.condition(), again.status()), ("com.microsoft:entity-already-exists", 409));
    fixture.subscription("orders", "Audit", |_| {});
    assert!(create(&mut fixture, "ORDERS/subscriptions/AUDIT", subscription()).is_err());
    assert_eq!(fixture.core.entity("orders/subscriptions/audit").unwrap().path, "Orders/Subscriptions/Audit");
}

#[test]
fn invalid_entities_are_not_created() {
    let mut fixture = CoreFixture::new();
    fixture.queue("q", |_| {});
    let cases = [
        ("a b", queue(), "com.microsoft:argument-error"),
        ("q/Subscriptions/s", subscription(), "amqp:not-allowed"),
        ("missing/Subscriptions/s", subscription(), "amqp:not-found"),
        ("no-topic", subscription(), "com.microsoft:argument-error"),
        ("t/Subscriptions/s", queue(), "com.microsoft:argument-error"),
    ];
    for (path, description, condition) in cases {
        assert_eq!(create(&mut fixture, path, description).unwrap_err().condition(), condition, "{path}");
    }
    let mut bad = QueueDescription::default();
    bad.egress.max_delivery_count = 0;
    assert!(create(&mut fixture, "bad", EntityDefinition::Queue(bad)).is_err());
}

#[test]
fn too_many_entities_are_refused_until_one_is_deleted() {
    let mut fixture = CoreFixture::new();
    fixture.topic("t", |_| {});
    for number in 0..40 {
        create(&mut fixture, &format!("t/Subscriptions/s{number}"), subscription()).unwrap();
    }
    for number in 0..49 {
        create(&mut fixture, &format!("q{number}"), queue()).unwrap();
    }
    for (path, description, what) in [
        ("q49", queue(), "`Queue or Topic` has been reached or exceeded. Actual: 50, Max allowed: 50"),
        (
            "t/Subscriptions/s40",
            subscription(),
            "`Subscription` has been reached or exceeded. Actual: 40, Max allowed: 40",
        ),
    ] {
        let refused = create(&mut fixture, path, description).unwrap_err();
        assert_eq!((refused.condition(), refused.status()), ("amqp:resource-limit-exceeded", 403));
        assert!(refused.to_string().contains(what), "{refused}");
    }
    fixture.call(|core, call| core.delete(call, "q7")).unwrap();
    create(&mut fixture, "q49", queue()).unwrap();
}

#[test]
fn too_many_partitioned_entities_are_refused() {
    let mut fixture = CoreFixture::new();
    let partitioned = || {
        let mut queue = QueueDescription::default();
        queue.ingress.enable_partitioning = true;
        EntityDefinition::Queue(queue)
    };
    for number in 0..20 {
        create(&mut fixture, &format!("p{number}"), partitioned()).unwrap();
    }
    let refused = create(&mut fixture, "p20", partitioned()).unwrap_err();
    assert_eq!((refused.condition(), refused.status()), ("amqp:resource-limit-exceeded", 403));
    create(&mut fixture, "plain", queue()).unwrap();
}

#[test]
fn addresses_resolve_to_entities() {
    let mut fixture = CoreFixture::new();
    let topic = fixture.topic("T", |_| {});
    let subscription = fixture.subscription("T", "S", |_| {});
    let queue = fixture.queue("a/b", |_| {});
    let core = &fixture.core;
    assert_eq!(core.resolve_send_address("/t").unwrap(), topic);
    assert_eq!(core.resolve_send_address("A/B").unwrap(), queue.entity);
    assert_eq!(core.resolve_receive_address("t/Subscriptions/s").unwrap(), subscription);
    assert_eq!(core.resolve_receive_address("a/b/$DeadLetterQueue").unwrap(), dead_letters(queue));
    assert_eq!(core.resolve_send_address("t/subscriptions/s").unwrap_err().condition(), "amqp:not-allowed");
    assert_eq!(core.resolve_receive_address("t").unwrap_err().condition(), "amqp:not-allowed");
    assert_eq!(core.resolve_receive_address("nothing").unwrap_err().condition(), "amqp:not-found");
}

#[test]
fn a_deleted_entity_closes_its_links_and_frees_its_messages() {
    let mut fixture = CoreFixture::new();
    let topic = fixture.topic("t", |_| {});
    let one = fixture.subscription("t", "one", |_| {});
    let waits = fixture.subscription("t", "waits", |subscription| subscription.egress.requires_session = true);
    let link = fixture.receiver(one, 1);
    let waiting = fixture.next_session(waits);
    fixture.send_all(topic, &["a", "b"]);
    let delivery = fixture.receive_one(link);
    fixture.call(|core, call| core.delete(call, "T")).unwrap();
    assert_eq!(fixture.events(link).detached.as_ref().unwrap().condition(), "amqp:not-found");
    assert_eq!(fixture.events(waiting).refused.as_ref().unwrap().condition(), "amqp:not-found");
    assert!(fixture.journal.references().all(|references| references == 0));
    assert!(
        fixture.call(|core, call| core.settle(call, one, &[delivery.token], &SettlementOutcome::Complete)).is_err()
    );
    assert!(fixture.core.entity("t/subscriptions/one").is_err());
    let again = fixture.topic("t", |_| {});
    assert_ne!(again, topic, "an id is never used twice");
    fixture.restart();
    assert!(fixture.core.entity("t").is_ok() && fixture.core.entity("t/subscriptions/one").is_err());
    assert_ne!(fixture.topic("other", |_| {}), topic);
}

#[test]
fn management_links_detach_when_their_entity_is_deleted() {
    let mut fixture = CoreFixture::new();
    fixture.topic("t", |_| {});
    fixture.subscription("t", "one", |_| {});
    fixture.subscription("t", "two", |_| {});
    let looks = ["T", "t/subscriptions/ONE", "t/Subscriptions/one/$DeadLetterQueue", "t/Subscriptions/two"];
    for (link, address) in (100..).map(CoreLinkId).zip(looks) {
        fixture.call(|core, call| core.attach_management(call, link, address)).unwrap();
    }
    let nothing =
        fixture.call(|core, call| core.attach_management(call, CoreLinkId(9), "t/Subscriptions/three")).unwrap_err();
    assert_eq!(nothing.condition(), "amqp:not-found");
    let detach_conditions = |fixture: &mut CoreFixture| {
        let detach_condition = |link| fixture.events(CoreLinkId(link)).detached.take().map(|error| error.condition());
        [100, 101, 102, 103].map(detach_condition)
    };
    // One subscription is deleted, then the topic with the rest. A link that detached before gets nothing.
    fixture.call(|core, call| core.delete(call, "t/Subscriptions/one")).unwrap();
    assert_eq!(detach_conditions(&mut fixture), [None, Some("amqp:not-found"), Some("amqp:not-found"), None]);
    fixture.call(|core, call| core.attach_management(call, CoreLinkId(104), "t")).unwrap();
    fixture.call(|core, call| core.detach(call, CoreLinkId(104)));
    fixture.call(|core, call| core.delete(call, "t")).unwrap();
    assert_eq!(detach_conditions(&mut fixture), [Some("amqp:not-found"), None, None, Some("amqp:not-found")]);
    assert!(fixture.events(CoreLinkId(104)).detached.is_none());
}

#[test]
fn a_disabled_entity_delivers_nothing() {
    let (mut fixture, queue) = CoreFixture::with_queue(|_| {});
    fixture.send_all(queue.entity, &["a"]);
    let link = fixture.receiver(queue, 0);
    let mut description = QueueDescription::default();
    description.common.status = EntityStatus::ReceiveDisabled;
    fixture.call(|core, call| core.update(call, "q", EntityDefinition::Queue(description))).unwrap();
    assert_eq!(fixture.events(link).detached.as_ref().unwrap().condition(), "com.microsoft:entity-disabled");
    let refused = fixture.try_attach(queue, ReceiveMode::PeekLock, SessionFilter::None).map(|_| ()).unwrap_err();
    assert_eq!(refused.condition(), "com.microsoft:entity-disabled");
    fixture.send(queue.entity, message("sending goes on"));
    fixture.call(|core, call| core.update(call, "q", EntityDefinition::Queue(QueueDescription::default()))).unwrap();
    assert_eq!(fixture.receiver(queue, 9), CoreLinkId(3));
    assert_eq!(fixture.take_deliveries(CoreLinkId(3)).len(), 2);
}

#[test]
fn an_update_takes_effect_and_lasts() {
    let (mut fixture, queue) = CoreFixture::with_queue(|_| {});
    fixture.advance(1_000);
    let mut description = QueueDescription::default();
    description.egress.lock_duration = std::time::Duration::from_secs(5);
    fixture.call(|core, call| core.update(call, "Q", EntityDefinition::Queue(description.clone()))).unwrap();
    fixture.restart();
    fixture.send_all(queue.entity, &["a"]);
    let link = fixture.receiver(queue, 1);
    assert_eq!(fixture.receive_one(link).locked_until, Timestamp(fixture.now.0 + 5_000));
    let view = fixture.core.entity("q").unwrap();
    assert_eq!(view.description, &EntityDefinition::Queue(description));
    assert_eq!((view.created_at, view.updated_at), (START, Timestamp(START.0 + 1_000)));
}

#[test]
fn entities_are_listed_by_name_and_subscriptions_by_topic() {
    let mut fixture = CoreFixture::new();
    fixture.queue("b", |_| {});
    fixture.topic("A", |_| {});
    fixture.subscription("a", "z", |_| {});
    fixture.subscription("a", "Y", |_| {});
    let paths: Vec<_> = fixture.core.entities().map(|view| view.path.to_owned()).collect();
    assert_eq!(paths, ["A", "A/Subscriptions/Y", "A/Subscriptions/z", "b"]);
    let subscriptions: Vec<_> = fixture.core.subscriptions("a").unwrap().map(|view| view.path.to_owned()).collect();
    assert_eq!(subscriptions, paths[1..3]);
    assert_eq!(fixture.core.entity("a").unwrap().subscriptions, 2);
}
