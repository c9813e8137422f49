use broker::core::*;

use crate::rig::*;

fn create(rig: &mut Rig, path: &str, description: Description) -> Result<EntityId, Error> {
    rig.turn(|core, turn| core.create(turn, path, description))
}

fn queue() -> Description {
    Description::Queue(QueueDescription::default())
}

fn subscription() -> Description {
    Description::Subscription(SubscriptionDescription::default())
}

#[test]
fn names_are_taken_once_whatever_their_case() {
    let mut rig = Rig::new();
    rig.topic("Orders", |_| {});
    let again = create(&mut rig, "oRDERS", queue()).unwrap_err();
    assert_eq!((again.condition(), again.status()), ("com.microsoft:entity-already-exists", 409));
    rig.subscription("orders", "Audit", |_| {});
    assert!(create(&mut rig, "ORDERS/subscriptions/AUDIT", subscription()).is_err());
    assert_eq!(rig.core.entity("orders/subscriptions/audit").unwrap().path, "Orders/Subscriptions/Audit");
}

#[test]
fn what_cannot_be_is_not_created() {
    let mut rig = Rig::new();
    rig.queue("q", |_| {});
    let cases = [
        ("a b", queue(), "com.microsoft:argument-error"),
        ("q/Subscriptions/s", subscription(), "amqp:not-allowed"),
        ("missing/Subscriptions/s", subscription(), "amqp:not-found"),
        ("no-topic", subscription(), "com.microsoft:argument-error"),
        ("t/Subscriptions/s", queue(), "com.microsoft:argument-error"),
    ];
    for (path, description, condition) in cases {
        assert_eq!(create(&mut rig, path, description).unwrap_err().condition(), condition, "{path}");
    }
    let mut bad = QueueDescription::default();
    bad.outlet.max_delivery_count = 0;
    assert!(create(&mut rig, "bad", Description::Queue(bad)).is_err());
}

#[test]
fn forwarding_is_refused_rather_than_forgotten() {
    let mut rig = Rig::new();
    let mut forwards = QueueDescription::default();
    forwards.outlet.forward_to = Some("elsewhere".into());
    assert_eq!(create(&mut rig, "q", Description::Queue(forwards)).unwrap_err().condition(), "amqp:not-implemented");
}

#[test]
fn addresses_find_what_they_name() {
    let mut rig = Rig::new();
    let topic = rig.topic("T", |_| {});
    let subscription = rig.subscription("T", "S", |_| {});
    let queue = rig.queue("a/b", |_| {});
    let core = &rig.core;
    assert_eq!(core.resolve_inlet("/t").unwrap(), topic);
    assert_eq!(core.resolve_inlet("A/B").unwrap(), queue.entity);
    assert_eq!(core.resolve_outlet("t/Subscriptions/s").unwrap(), subscription);
    assert_eq!(core.resolve_outlet("a/b/$DeadLetterQueue").unwrap(), dead_letters(queue));
    assert_eq!(core.resolve_inlet("t/subscriptions/s").unwrap_err().condition(), "amqp:not-allowed");
    assert_eq!(core.resolve_outlet("t").unwrap_err().condition(), "amqp:not-allowed");
    assert_eq!(core.resolve_outlet("nothing").unwrap_err().condition(), "amqp:not-found");
}

#[test]
fn a_deleted_entity_closes_its_links_and_frees_its_messages() {
    let mut rig = Rig::new();
    let topic = rig.topic("t", |_| {});
    let one = rig.subscription("t", "one", |_| {});
    let waits = rig.subscription("t", "waits", |subscription| subscription.outlet.requires_session = true);
    let link = rig.receiver(one, 1);
    let waiting = rig.next_session(waits);
    rig.send_all(topic, &["a", "b"]);
    let delivery = rig.one(link);
    rig.turn(|core, turn| core.delete(turn, "T")).unwrap();
    assert_eq!(rig.inbox(link).detached.as_ref().unwrap().condition(), "amqp:not-found");
    assert_eq!(rig.inbox(waiting).refused.as_ref().unwrap().condition(), "amqp:not-found");
    assert!(rig.journal.references().all(|references| references == 0));
    assert!(rig.turn(|core, turn| core.settle(turn, one, &[delivery.token], &Outcome::Complete)).is_err());
    assert!(rig.core.entity("t/subscriptions/one").is_err());
    let again = rig.topic("t", |_| {});
    assert_ne!(again, topic, "an id is never used twice");
    rig.restart();
    assert!(rig.core.entity("t").is_ok() && rig.core.entity("t/subscriptions/one").is_err());
    assert_ne!(rig.topic("other", |_| {}), topic);
}

#[test]
fn who_looks_on_is_told_when_the_entity_goes() {
    let mut rig = Rig::new();
    rig.topic("t", |_| {});
    rig.subscription("t", "one", |_| {});
    rig.subscription("t", "two", |_| {});
    let looks = ["T", "t/subscriptions/ONE", "t/Subscriptions/one/$DeadLetterQueue", "t/Subscriptions/two"];
    for (link, address) in (100..).map(LinkId).zip(looks) {
        rig.turn(|core, turn| core.look_on(turn, link, address)).unwrap();
    }
    let nothing = rig.turn(|core, turn| core.look_on(turn, LinkId(9), "t/Subscriptions/three")).unwrap_err();
    assert_eq!(nothing.condition(), "amqp:not-found");
    let told = |rig: &mut Rig| {
        let told = |link| rig.inbox(LinkId(link)).detached.take().map(|error| error.condition());
        [100, 101, 102, 103].map(told)
    };
    // One subscription goes, then the topic with all that is left; who has left before is told nothing.
    rig.turn(|core, turn| core.delete(turn, "t/Subscriptions/one")).unwrap();
    assert_eq!(told(&mut rig), [None, Some("amqp:not-found"), Some("amqp:not-found"), None]);
    rig.turn(|core, turn| core.look_on(turn, LinkId(104), "t")).unwrap();
    rig.turn(|core, turn| core.detach(turn, LinkId(104)));
    rig.turn(|core, turn| core.delete(turn, "t")).unwrap();
    assert_eq!(told(&mut rig), [Some("amqp:not-found"), None, None, Some("amqp:not-found")]);
    assert!(rig.inbox(LinkId(104)).detached.is_none());
}

#[test]
fn a_disabled_entity_serves_no_one() {
    let mut rig = Rig::new();
    let queue = rig.queue("q", |_| {});
    rig.send_all(queue.entity, &["a"]);
    let link = rig.receiver(queue, 0);
    let mut description = QueueDescription::default();
    description.common.status = Status::ReceiveDisabled;
    rig.turn(|core, turn| core.update(turn, "q", Description::Queue(description))).unwrap();
    assert_eq!(rig.inbox(link).detached.as_ref().unwrap().condition(), "com.microsoft:entity-disabled");
    let refused = rig.try_attach(queue, Mode::PeekLock, SessionFilter::None).map(|_| ()).unwrap_err();
    assert_eq!(refused.condition(), "com.microsoft:entity-disabled");
    rig.send(queue.entity, message("sending goes on"));
    rig.turn(|core, turn| core.update(turn, "q", Description::Queue(QueueDescription::default()))).unwrap();
    assert_eq!(rig.receiver(queue, 9), LinkId(3));
    assert_eq!(rig.received(LinkId(3)).len(), 2);
}

#[test]
fn an_update_takes_effect_and_lasts() {
    let mut rig = Rig::new();
    let queue = rig.queue("q", |_| {});
    rig.pass(1_000);
    let mut description = QueueDescription::default();
    description.outlet.lock_duration = std::time::Duration::from_secs(5);
    rig.turn(|core, turn| core.update(turn, "Q", Description::Queue(description.clone()))).unwrap();
    rig.restart();
    rig.send_all(queue.entity, &["a"]);
    let link = rig.receiver(queue, 1);
    assert_eq!(rig.one(link).locked_until, Timestamp(rig.now.0 + 5_000));
    let view = rig.core.entity("q").unwrap();
    assert_eq!(view.description, &Description::Queue(description));
    assert_eq!((view.created_at, view.updated_at), (START, Timestamp(START.0 + 1_000)));
}

#[test]
fn entities_are_listed_by_name_and_subscriptions_by_topic() {
    let mut rig = Rig::new();
    rig.queue("b", |_| {});
    rig.topic("A", |_| {});
    rig.subscription("a", "z", |_| {});
    rig.subscription("a", "Y", |_| {});
    let paths: Vec<_> = rig.core.entities().map(|view| view.path.to_owned()).collect();
    assert_eq!(paths, ["A", "A/Subscriptions/Y", "A/Subscriptions/z", "b"]);
    let subscriptions: Vec<_> = rig.core.subscriptions("a").unwrap().map(|view| view.path.to_owned()).collect();
    assert_eq!(subscriptions, paths[1..3]);
    assert_eq!(rig.core.entity("a").unwrap().subscriptions, 2);
}
