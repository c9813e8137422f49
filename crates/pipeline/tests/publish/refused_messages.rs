//! A message that Service Bus refuses permanently is stored as rejected and replaced by a marker, also if Service Bus detaches the link instead of
//! answering the message.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use mongodb::bson::{RawDocumentBuf, doc};
use pipeline::capture::CaptureItem;
use pipeline::envelope::property;
use pipeline::event::ChangeEvent;
use pipeline::publish::{
    Config, LinkLimits, PauseReason, PublishEnd, PublishState, PublishTopic, SenderLink, ServiceBusTopic, rejected,
};
use servicebus::{ClientOperation, EncodedMessage, SendOutcome, ServiceError};

use crate::fixture::*;

/// A message with this text is garbled before it is sent, so Service Bus refuses it.
const POISON: &str = "POISON";

struct GarblingTopic(ServiceBusTopic);

struct GarblingLink<L>(L);

impl PublishTopic for GarblingTopic {
    type TopicLink = GarblingLink<<ServiceBusTopic as PublishTopic>::TopicLink>;

    fn name(&self) -> &str {
        self.0.name()
    }

    fn subscription(&self) -> &str {
        self.0.subscription()
    }

    async fn open(&self) -> Result<Self::TopicLink, servicebus::Error> {
        Ok(GarblingLink(self.0.open().await?))
    }

    async fn subscription_exists(&self) -> Result<bool, servicebus::Error> {
        self.0.subscription_exists().await
    }

    async fn changed(&self) {
        self.0.changed().await;
    }
}

impl<L: SenderLink> SenderLink for GarblingLink<L> {
    fn limits(&self) -> LinkLimits {
        self.0.limits()
    }

    fn submit(&mut self, transfers: Vec<(u64, EncodedMessage)>) {
        let garble = |(token, message): (u64, EncodedMessage)| {
            let poisoned = message.bytes().windows(POISON.len()).any(|window| window == POISON.as_bytes());
            (token, if poisoned { EncodedMessage::message((&b"\x00\x53"[..]).into()) } else { message })
        };
        self.0.submit(transfers.into_iter().map(garble).collect());
    }

    async fn outcomes(&mut self, into: &mut Vec<SendOutcome>) {
        self.0.outcomes(into).await;
    }

    fn is_closed(&self) -> bool {
        self.0.is_closed()
    }

    fn abandon(&self) {
        self.0.abandon();
    }
}

fn poisoned(aggregate: &str, number: i64) -> CaptureItem {
    let document = doc! { "aggregateId": aggregate, "n": number, "text": POISON };
    CaptureItem::Change(ChangeEvent {
        document: RawDocumentBuf::try_from(&document).unwrap(),
        ..event(aggregate, number)
    })
}

#[tokio::test]
async fn a_refused_message_is_stored_and_replaced_by_a_marker() {
    let fixture = PublishFixture::with_default_topic().await;
    let gate = Arc::new(true.into());
    let topic = GarblingTopic(fixture.topic(fixture.bus.clone(), &gate));
    let run = fixture.publish_to(topic, gate, 1, Config::default()).await;
    // One alone in its lane, one in the middle of a batch.
    let mut events = vec![poisoned("b", 1)];
    events.extend((2..=20).map(|number| match number {
        10 => poisoned("a", number),
        _ => CaptureItem::Change(event("a", number)),
    }));
    run.send(&events).await;
    run.wait_until_published(20).await;
    assert_eq!(run.counts().rejected, 2);
    assert_eq!(run.drain().await.unwrap(), PublishEnd::Drained);
    assert_eq!(fixture.phase().await, stream(20));

    let mut received = fixture.receive_all(20).await;
    let lane = received.remove("a").unwrap();
    let marks: Vec<_> = lane.iter().map(|message| (!is_marker(message)).then(|| number(message))).collect();
    let expected: Vec<_> = (2..=20).map(|number| (number != 10).then_some(number)).collect();
    assert_eq!(marks, expected);
    let marker = lane.iter().find(|message| is_marker(message)).unwrap();
    assert_eq!(text(marker, property::TOKEN).as_deref(), Some(token(10).key()));
    assert_eq!(typed(marker, property::AGGREGATE), "a".into());
    assert!(marker.body().is_empty() && is_marker(&received.remove("b").unwrap()[0]));

    let kept = fixture.documents(rejected::COLLECTION).await;
    let id = marker.message_id().unwrap();
    let kept = kept.iter().find(|kept| kept.get_document("_id").unwrap().get_str("message").unwrap() == id).unwrap();
    assert_eq!(kept.get_str("reason").unwrap(), "refused");
    assert!(kept.get_str("detail").unwrap().contains("decode"), "{kept}");
    let document = RawDocumentBuf::from_bytes(kept.get_binary_generic("document").unwrap().clone()).unwrap();
    assert_eq!(document.get_i64("n").unwrap(), 10);
}

/// Detaches the link at some messages, as Service Bus does: every transfer in flight fails, and nobody knows which were stored.
struct DetachingTopic {
    inner: ServiceBusTopic,
    /// Also at markers.
    at_every_message: Arc<AtomicBool>,
}

struct DetachingLink<L> {
    inner: L,
    at_every_message: Arc<AtomicBool>,
    in_flight: BTreeSet<u64>,
    is_detached: bool,
}

impl PublishTopic for DetachingTopic {
    type TopicLink = DetachingLink<<ServiceBusTopic as PublishTopic>::TopicLink>;

    fn name(&self) -> &str {
        self.inner.name()
    }

    fn subscription(&self) -> &str {
        self.inner.subscription()
    }

    async fn open(&self) -> Result<Self::TopicLink, servicebus::Error> {
        let (inner, at_every_message) = (self.inner.open().await?, Arc::clone(&self.at_every_message));
        Ok(DetachingLink { inner, at_every_message, in_flight: BTreeSet::new(), is_detached: false })
    }

    async fn subscription_exists(&self) -> Result<bool, servicebus::Error> {
        self.inner.subscription_exists().await
    }

    async fn changed(&self) {
        self.inner.changed().await;
    }
}

fn detached() -> servicebus::Error {
    let condition = amqp::condition::NOT_ALLOWED;
    let source = Box::new(ServiceError { condition, description: "a bad message".into() });
    servicebus::Error::LinkDetached { operation: ClientOperation::Send, address: "events".into(), source }
}

impl<L: SenderLink> SenderLink for DetachingLink<L> {
    fn limits(&self) -> LinkLimits {
        self.inner.limits()
    }

    fn submit(&mut self, transfers: Vec<(u64, EncodedMessage)>) {
        self.in_flight.extend(transfers.iter().map(|(token, _)| *token));
        let is_poison = |message: &EncodedMessage| {
            self.at_every_message.load(SeqCst)
                || message.bytes().windows(POISON.len()).any(|window| window == POISON.as_bytes())
        };
        self.is_detached |= transfers.iter().any(|(_, message)| is_poison(message));
        let stored = transfers.into_iter().filter(|(_, message)| !is_poison(message));
        self.inner.submit(stored.collect());
    }

    async fn outcomes(&mut self, into: &mut Vec<SendOutcome>) {
        if self.is_detached && !self.in_flight.is_empty() {
            return into.extend(std::mem::take(&mut self.in_flight).into_iter().map(|token| (token, Err(detached()))));
        }
        let mut outcomes = Vec::new();
        loop {
            self.inner.outcomes(&mut outcomes).await;
            into.extend(outcomes.drain(..).filter(|(token, _)| self.in_flight.remove(token)));
            if !into.is_empty() {
                return;
            }
        }
    }

    fn is_closed(&self) -> bool {
        self.is_detached || self.inner.is_closed()
    }

    fn abandon(&self) {
        self.inner.abandon();
    }
}

#[tokio::test]
async fn a_detached_link_rejects_only_the_message_that_caused_it() {
    let fixture = PublishFixture::with_default_topic().await;
    let gate = Arc::new(true.into());
    let inner = fixture.topic(fixture.bus.clone(), &gate);
    let topic = DetachingTopic { inner, at_every_message: Arc::default() };
    let run = fixture.publish_to(topic, gate, 1, Config::default()).await;
    let mut all = events(2_000, 200);
    // Each is one of the events of its order, and most orders have none.
    let bad = [777, 778, 1_500];
    for number in bad {
        all[usize::try_from(number - 1).unwrap()] = poisoned(&format!("order-{}", number % 200), number);
    }
    run.send(&all).await;
    run.wait_until_published(2_000).await;
    assert_eq!(run.counts().rejected, 3);
    assert_eq!(run.drain().await.unwrap(), PublishEnd::Drained);
    assert_eq!(fixture.phase().await, stream(2_000));
    let mut markers = vec![];
    for (order, messages) in fixture.receive_all(2_000).await {
        let tokens: Vec<_> = messages.iter().map(|message| text(message, property::TOKEN).unwrap()).collect();
        assert!(tokens.is_sorted(), "{order}: {tokens:?}");
        markers.extend(messages.iter().filter(|it| is_marker(it)).map(|it| text(it, property::TOKEN).unwrap()));
    }
    markers.sort();
    assert_eq!(markers, bad.map(|number| token(number).key().to_owned()));
    assert_eq!(fixture.documents(rejected::COLLECTION).await.len(), 3);
}

#[tokio::test]
async fn a_link_detached_at_every_message_rejects_no_second_one() {
    let fixture = PublishFixture::with_default_topic().await;
    let gate = Arc::new(true.into());
    let at_every_message = Arc::new(AtomicBool::new(true));
    let inner = fixture.topic(fixture.bus.clone(), &gate);
    let topic = DetachingTopic { inner, at_every_message: Arc::clone(&at_every_message) };
    let run = fixture.publish_to(topic, gate, 1, Config::default()).await;
    run.send(&events(100, 10)).await;
    run.wait_for_state(PublishState::Paused(PauseReason::SendRefused)).await;
    assert_eq!(run.counts().rejected, 1);
    at_every_message.store(false, SeqCst);
    run.wait_until_published(100).await;
    assert_eq!(run.counts().rejected, 1);
    assert_eq!(run.drain().await.unwrap(), PublishEnd::Drained);
    fixture.receive_all(100).await;
}

#[tokio::test]
async fn a_detach_that_no_message_repeats_rejects_nothing() {
    for (condition, when) in [("amqp:not-allowed", "after"), ("amqp:link:message-size-exceeded", "before")] {
        let fixture = PublishFixture::with_default_topic().await;
        let fault = format!(
            r#"{{"kind": "detach_link", "condition": "{condition}", "at": "send", "skip": 300, "when": "{when}"}}"#
        );
        fixture.inject(&fault).await;
        let run = fixture.publish(1, Config::default()).await;
        let all = events(2_000, 500);
        run.send(&all).await;
        run.wait_until_published(2_000).await;
        let counts = run.counts();
        assert!(counts.rejected == 0 && counts.uncertain > 0, "{condition}: {counts:?}");
        assert_eq!(run.drain().await.unwrap(), PublishEnd::Drained);
        fixture.assert_received_in_order(&all).await;
    }
}
