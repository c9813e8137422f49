//! A message that Service Bus refuses permanently is stored as rejected and replaced by a marker.

use std::sync::Arc;

use mongodb::bson::{RawDocumentBuf, doc};
use pipeline::capture::CaptureItem;
use pipeline::envelope::property;
use pipeline::event::ChangeEvent;
use pipeline::publish::{Config, LinkLimits, PublishEnd, PublishTopic, SenderLink, ServiceBusTopic, rejected};
use servicebus::{EncodedMessage, SendOutcome};

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
