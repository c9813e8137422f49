use broker::core::*;

use crate::fixture::*;

fn select(sequence: SequenceNumber, session: Option<&str>) -> MessageSelector {
    MessageSelector { sequence, session: session.map(Into::into) }
}

fn by_state(state: MessageState) -> MessageFilter {
    MessageFilter { state: Some(state), session: None }
}

impl CoreFixture {
    fn browse(&mut self, queue: QueueId, filter: &MessageFilter) -> Vec<(u64, MessageState)> {
        let found = self.call(|core, call| core.browse(call, queue, filter, SequenceNumber(0), 100)).unwrap();
        found.iter().map(|message| (message.sequence.0, message.state)).collect()
    }

    /// The memory that a restart must give back: counts, and one reference per body.
    fn assert_recoverable(&mut self, path: &str) {
        let (counts, references) = (self.counts(path), count_references(&self.core, &self.journal));
        let stored: Vec<i64> = self.journal.references().collect();
        assert_eq!(references, stored, "every body that is held, and no other, has a reference");
        self.restart();
        let recovered = self.counts(path);
        assert_eq!((recovered.active, recovered.dead_letter), (counts.active, counts.dead_letter));
        assert_eq!(count_references(&self.core, &self.journal), references);
    }
}

#[test]
fn messages_are_browsed_by_state_and_session() {
    let (mut fixture, queue) = CoreFixture::with_session_queue();
    fixture.send(queue.entity, in_session("a", "1"));
    fixture.send(queue.entity, in_session("b", "2"));
    let link = fixture.named_session(queue, "a").unwrap();
    fixture.credit(link, 1);
    let delivery = fixture.receive_one(link);
    fixture.settle(queue, &delivery, &defer());
    let due = fixture.now.after(std::time::Duration::from_secs(60));
    fixture.send(queue.entity, IncomingMessage { scheduled_for: Some(due), ..in_session("a", "3") });
    let all = [(1, MessageState::Deferred), (2, MessageState::Active), (3, MessageState::Scheduled)];
    assert_eq!(fixture.browse(queue, &MessageFilter::default()), all);
    for (sequence, state) in all {
        assert_eq!(fixture.browse(queue, &by_state(state)), [(sequence, state)]);
    }
    let of_a = MessageFilter { state: None, session: Some("a".into()) };
    assert_eq!(fixture.browse(queue, &of_a), [all[0], all[2]]);
}

#[test]
fn sessions_are_listed_with_lock_and_state() {
    let (mut fixture, queue) = CoreFixture::with_session_queue();
    fixture.send(queue.entity, in_session("a", "1"));
    fixture.send(queue.entity, in_session("b", "2"));
    fixture.named_session(queue, "a").unwrap();
    fixture.call(|core, call| core.set_session_state(call, queue, "a", Some("state".into()))).unwrap();
    let now = fixture.now;
    let views = fixture.call(|core, call| core.session_views(call, queue, 0, 10)).unwrap();
    let shown: Vec<_> = views.iter().map(|view| (&*view.id, view.messages, view.locked_until.is_some())).collect();
    assert_eq!(shown, [("a", 1, true), ("b", 1, false)]);
    assert_eq!(views[0].state, Some(SessionStateView { bytes: 5, updated_at: now }));
    assert_eq!(fixture.call(|core, call| core.session_views(call, queue, 1, 10)).unwrap().len(), 1);
    let state = fixture.call(|core, call| core.browse_session_state(call, queue, "a")).unwrap();
    assert_eq!(state.as_deref(), Some(&b"state"[..]), "also without its lock");
}

#[test]
fn locked_messages_are_left_to_their_receiver() {
    let (mut fixture, queue) = CoreFixture::with_queue(|_| {});
    fixture.send_all(queue.entity, &["a", "b", "c"]);
    let link = fixture.receiver(queue, 1);
    let held = fixture.receive_one(link);
    let all = [1, 2, 3, 9].map(|number| select(SequenceNumber(number), None));
    let moved =
        fixture.call(|core, call| core.dead_letter_selected(call, queue, &all[..2], Some("odd"), None)).unwrap();
    let deleted = fixture.call(|core, call| core.delete_selected(call, queue, &all)).unwrap();
    assert_eq!((moved, deleted), (1, 1), "not the locked one, nor one that does not exist");
    assert_eq!(fixture.call(|core, call| core.purge(call, queue, &MessageFilter::default())).unwrap(), 0);
    let found =
        fixture.call(|core, call| core.browse(call, queue, &MessageFilter::default(), SequenceNumber(0), 9)).unwrap();
    assert!(found.len() == 1 && found[0].is_locked);
    fixture.complete(queue, &held);
    assert_eq!((fixture.counts("q").active, fixture.counts("q").dead_letter), (0, 1));
    fixture.assert_recoverable("q");
}

#[test]
fn a_purge_takes_what_its_filter_selects() {
    let (mut fixture, queue) = CoreFixture::with_session_queue();
    for (session, body) in [("a", "1"), ("a", "2"), ("b", "3")] {
        fixture.send(queue.entity, in_session(session, body));
    }
    let due = fixture.now.after(std::time::Duration::from_secs(60));
    fixture.send(queue.entity, IncomingMessage { scheduled_for: Some(due), ..in_session("a", "4") });
    let mut purge = |state, session: Option<&str>| {
        let filter = MessageFilter { state, session: session.map(Into::into) };
        let purged = fixture.call(|core, call| core.purge(call, queue, &filter)).unwrap();
        (purged, fixture.counts("q").active, fixture.counts("q").scheduled)
    };
    assert_eq!(purge(Some(MessageState::Deferred), None), (0, 3, 1));
    assert_eq!(purge(Some(MessageState::Active), Some("b")), (1, 2, 1));
    assert_eq!(purge(Some(MessageState::Scheduled), None), (1, 2, 0));
    assert_eq!(purge(None, None), (2, 0, 0));
    assert_eq!(fixture.counts("q").sessions, 0);
    fixture.assert_recoverable("q");
}

#[test]
fn a_dead_letter_is_resubmitted_and_delivered_once() {
    let (mut fixture, queue) = CoreFixture::with_queue(|_| {});
    fixture.send_all(queue.entity, &["a"]);
    let link = fixture.receiver(queue, 5);
    let first = fixture.receive_one(link);
    fixture.settle(queue, &first, &dead_letter("bad"));
    let dead = dead_letters(queue);
    let groups = fixture.journal.groups().len();
    let one = select(SequenceNumber(1), None);
    let resubmit =
        |core: &mut Core, call: &mut CallContext<'_>| core.resubmit(call, dead, &one, queue.entity, message("edited"));
    assert_eq!(fixture.call(resubmit).unwrap(), SequenceNumber(2));
    assert_eq!(fixture.journal.groups().len(), groups + 1, "one group: a crash leaves all of it or nothing");
    assert!(matches!(fixture.call(resubmit), Err(Error::MessageNotFound(_))), "only once");
    assert_eq!(fixture.take_bodies(link), ["edited"]);
    assert_eq!((fixture.counts("q").active, fixture.counts("q").dead_letter), (1, 0));
    fixture.assert_recoverable("q");
}

#[test]
fn a_dead_letter_that_would_be_a_duplicate_stays() {
    let (mut fixture, queue) = CoreFixture::with_queue(|queue| queue.ingress.requires_duplicate_detection = true);
    fixture.send(queue.entity, with_id("m"));
    let link = fixture.receiver(queue, 1);
    let first = fixture.receive_one(link);
    fixture.settle(queue, &first, &dead_letter("bad"));
    let (dead, one) = (dead_letters(queue), select(SequenceNumber(1), None));
    let mut resubmit = |id| fixture.call(|core, call| core.resubmit(call, dead, &one, queue.entity, with_id(id)));
    assert!(resubmit("m").unwrap_err().to_string().contains("duplicate detection"));
    resubmit("other").unwrap();
    assert_eq!((fixture.counts("q").active, fixture.counts("q").dead_letter), (1, 0));
}

#[test]
fn dead_letters_of_a_subscription_go_to_its_topic() {
    let mut fixture = CoreFixture::new();
    let topic = fixture.topic("t", |_| {});
    let [one, _] = ["one", "two"].map(|name| fixture.subscription("t", name, |_| {}));
    fixture.send_all(topic, &["a"]);
    let selector = select(SequenceNumber(1), None);
    let moved = fixture
        .call(|core, call| core.dead_letter_selected(call, one, std::slice::from_ref(&selector), Some("r"), Some("d")));
    assert_eq!(moved.unwrap(), 1);
    let dead = dead_letters(one);
    let again =
        fixture.call(|core, call| core.dead_letter_selected(call, dead, std::slice::from_ref(&selector), None, None));
    assert!(again.is_err(), "dead letters stay dead letters");
    let peeked =
        fixture.call(|core, call| core.browse(call, dead, &MessageFilter::default(), SequenceNumber(0), 9)).unwrap();
    let overrides = peeked[0].overrides.as_ref().unwrap();
    assert_eq!((overrides.reason.as_deref(), overrides.description.as_deref()), (Some("r"), Some("d")));
    fixture.call(|core, call| core.resubmit(call, dead, &selector, topic, message("a"))).unwrap();
    let active = ["one", "two"].map(|name| fixture.counts(&format!("t/Subscriptions/{name}")).active);
    assert_eq!(active, [1, 2]);
    fixture.assert_recoverable("t/Subscriptions/one");
}

#[test]
fn scheduled_messages_of_a_topic_are_seen_and_cancelled() {
    let mut fixture = CoreFixture::new();
    let topic = fixture.topic("t", |_| {});
    let due = fixture.now.after(std::time::Duration::from_secs(60));
    let sequence = fixture.send(topic, IncomingMessage { scheduled_for: Some(due), ..message("later") });
    let queue = QueueId::main(topic);
    assert_eq!(fixture.browse(queue, &MessageFilter::default()), [(sequence.0, MessageState::Scheduled)]);
    let deleted = fixture.call(|core, call| core.delete_selected(call, queue, &[select(sequence, None)])).unwrap();
    assert_eq!((deleted, fixture.counts("t").scheduled), (1, 0));
}
