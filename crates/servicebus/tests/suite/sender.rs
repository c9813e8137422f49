//! Sends, windows, batches and outcomes.

use std::time::Duration;

use servicebus::{BusErrorKind, Error, Message};

use crate::fixture::*;

#[tokio::test]
async fn many_sends_in_flight_arrive_in_order() {
    let fixture = ClientFixture::start().await;
    let sender = fixture.client.sender(ORDERS);
    let mut outcomes = Vec::new();
    for number in 0..5_000 {
        outcomes.push(sender.enqueue(&in_session("s", number.to_string()).encode()).await.unwrap());
        // Taken off as the window demands, long after they were sent.
        if outcomes.len() == 1_500 {
            for outcome in outcomes.drain(..) {
                outcome.await.unwrap();
            }
        }
    }
    for outcome in outcomes {
        outcome.await.unwrap();
    }
    let mut session = fixture.client.accept_session(ORDERS, "s").await.unwrap();
    let mut next = 0;
    while next < 5_000 {
        let messages = session.receive(500, SOON).await.unwrap();
        for message in &messages {
            assert_eq!(message.body(), next.to_string());
            next += 1;
        }
        session.settler().complete(&messages).await.unwrap();
    }
    session.close().await.unwrap();
}

#[tokio::test]
async fn a_message_arrives_as_it_was_sent() {
    let fixture = ClientFixture::start().await;
    let mut message = Message::new("body")
        .with_id("id-1")
        .with_session("s")
        .with_partition_key("s")
        .with_subject("OrderPlaced")
        .with_property("term", 7i64)
        .with_property("traceparent", "00-abc");
    message.content_type = Some("application/bson".into());
    message.correlation_id = Some("c".into());
    fixture.send(ORDERS, [message]).await;

    let mut session = fixture.client.accept_next_session(ORDERS, SOON).await.unwrap().unwrap();
    assert_eq!(session.session_id(), "s");
    let received = session.receive(10, SOON).await.unwrap().remove(0);
    assert_eq!(received.message_id().as_deref(), Some("id-1"));
    assert_eq!(received.session_id(), Some("s"));
    assert_eq!(received.partition_key(), Some("s"));
    assert_eq!(received.subject(), Some("OrderPlaced"));
    assert_eq!(received.content_type(), Some("application/bson"));
    assert_eq!(received.correlation_id().as_deref(), Some("c"));
    assert_eq!(received.application_property("term").unwrap().as_long(), Some(7));
    assert_eq!(received.application_property("traceparent").unwrap().as_str(), Some("00-abc"));
    assert_eq!(received.body(), "body");
    assert_eq!((received.sequence_number(), received.delivery_count()), (1, 0));
    assert!(!received.lock_token().is_nil());
    assert!(received.enqueued_time().is_some());
}

#[tokio::test]
async fn a_batch_is_one_delivery_and_many_messages() {
    let fixture = ClientFixture::start().await;
    let sender = fixture.client.sender(ORDERS);
    let mut batch = sender.batch().await.unwrap();
    assert!(batch.limit() >= 200_000, "as the broker announces: {}", batch.limit());
    for number in 0..100 {
        assert!(batch.try_add(&in_session("s", number.to_string()).encode()));
    }
    let large = in_session("s", "x".repeat(batch.limit())).encode();
    assert!(!batch.try_add(&large), "there is no room for it");
    assert_eq!(batch.len(), 100);
    sender.send(&batch.finish()).await.unwrap();
    let mut session = fixture.client.accept_session(ORDERS, "s").await.unwrap();
    let messages = receive_all(&mut session, 100).await;
    assert_eq!(bodies(&messages), (0..100).map(|number| number.to_string()).collect::<Vec<_>>());
}

#[tokio::test]
async fn an_oversized_message_fails_before_it_is_sent() {
    let fixture = ClientFixture::start().await;
    let sender = fixture.client.sender(PLAIN);
    let error = sender.send_message(&Message::new(vec![0; 64 << 20])).await.unwrap_err();
    assert!(matches!(error, Error::MessageTooLarge { .. }), "{error:?}");
    assert_eq!((error.kind(), error.is_retryable()), (BusErrorKind::MessageTooLarge, false));
    // And the link is as good as before.
    sender.send_message(&Message::new("small")).await.unwrap();
}

#[tokio::test]
async fn a_rejected_send_does_not_affect_the_others() {
    let fixture = ClientFixture::start().await;
    let sender = fixture.client.sender(ORDERS);
    let good = sender.enqueue(&in_session("s", "1").encode()).await.unwrap();
    let bad = sender.enqueue(&Message::new("no session").encode()).await.unwrap();
    let last = sender.enqueue(&in_session("s", "2").encode()).await.unwrap();
    good.await.unwrap();
    let error = bad.await.unwrap_err();
    assert_eq!((error.kind(), error.condition()), (BusErrorKind::NotAllowed, Some("amqp:not-allowed")));
    last.await.unwrap();
}

#[tokio::test]
async fn an_entity_that_does_not_exist_is_not_found() {
    let fixture = ClientFixture::start().await;
    let error = fixture.client.sender("nowhere").send_message(&Message::new("x")).await.unwrap_err();
    assert_eq!((error.kind(), error.condition()), (BusErrorKind::NotFound, Some("amqp:not-found")));
    let error = fixture.client.receiver("nowhere").receive(1, SOON).await.unwrap_err();
    assert_eq!(error.kind(), BusErrorKind::NotFound);
}

#[tokio::test]
async fn a_throttled_send_is_retryable() {
    let fixture = ClientFixture::start().await;
    fixture.arm(r#"{"kind": "server_busy"}"#).await;
    let sender = fixture.client.sender(PLAIN);
    let error = sender.send_message(&Message::new("x")).await.unwrap_err();
    assert_eq!((error.kind(), error.is_retryable()), (BusErrorKind::Busy, true));
    sender.send_message(&Message::new("x")).await.unwrap();
}

#[tokio::test]
async fn a_detached_link_is_reopened_at_the_next_use() {
    let fixture = ClientFixture::start().await;
    let sender = fixture.client.sender(PLAIN);
    sender.send_message(&Message::new("1")).await.unwrap();
    fixture.arm(r#"{"kind": "detach_link"}"#).await;
    let error = sender.send_message(&Message::new("2")).await.unwrap_err();
    assert_eq!((error.kind(), error.is_retryable()), (BusErrorKind::Detached, true));
    sender.send_message(&Message::new("3")).await.unwrap();
}

#[tokio::test]
async fn a_retry_after_a_lost_acknowledgement_is_deduplicated() {
    let fixture = ClientFixture::start().await;
    let sender = fixture.client.sender(ONCE);
    fixture.arm(r#"{"kind": "lose_acknowledgement"}"#).await;
    let message = Message::new("x").with_id("same").encode();
    let error = sender.send(&message).await.unwrap_err();
    assert!(matches!(error, Error::ConnectionLost { .. }), "{error:?}");
    assert_eq!((error.kind(), error.is_retryable()), (BusErrorKind::ConnectionLost, true));
    sender.send(&message).await.unwrap();
    let mut receiver = fixture.client.receiver(ONCE);
    let messages = receiver.receive(10, SOON).await.unwrap();
    assert_eq!(messages.len(), 1);
    assert!(receiver.receive(10, MOMENT).await.unwrap().is_empty());
}

#[tokio::test]
async fn a_partitioned_topic_keeps_order_and_refuses_mixed_batches() {
    let fixture = ClientFixture::start().await;
    let sender = fixture.client.sender(EVENTS);
    for number in 0..30 {
        let session = format!("s{}", number % 3);
        sender.send_message(&in_session(&session, number.to_string())).await.unwrap();
    }
    let mut mixed = sender.batch().await.unwrap();
    assert!(mixed.try_add(&in_session("s0", "a").encode()) && mixed.try_add(&in_session("s1", "b").encode()));
    let error = sender.send(&mixed.finish()).await.unwrap_err();
    assert_eq!(error.kind(), BusErrorKind::NotAllowed);

    for _ in 0..3 {
        let mut session = fixture.client.accept_next_session(READ_MODELS, SOON).await.unwrap().unwrap();
        let messages = receive_all(&mut session, 10).await;
        let first: i64 = session.session_id()[1..].parse().unwrap();
        let expected: Vec<_> = (0..10).map(|operation| (first + 3 * operation).to_string()).collect();
        assert_eq!(bodies(&messages), expected);
        assert!(messages.iter().all(|message| message.sequence_number() >> 48 == messages[0].sequence_number() >> 48));
        session.settler().complete(&messages).await.unwrap();
        session.close().await.unwrap();
    }
    assert!(fixture.client.accept_next_session(READ_MODELS, MOMENT).await.unwrap().is_none());
}

#[tokio::test]
async fn dropping_a_send_future_frees_its_place_in_the_window() {
    let fixture = ClientFixture::start().await;
    let config = servicebus::Config { send_window: 1, ..long_timeouts() };
    let client = ClientFixture::client_by(fixture.broker.address(), config);
    let sender = client.sender(PLAIN);
    for _ in 0..10 {
        drop(sender.enqueue(&Message::new("x").encode()).await.unwrap());
    }
    sender.send_message(&Message::new("last")).await.unwrap();
}

#[tokio::test]
async fn tokens_are_renewed_before_they_expire() {
    let fixture = ClientFixture::start().await;
    let proxy = testkit::proxy::Proxy::start(fixture.broker.address()).await.unwrap();
    let config = servicebus::Config { token_lifetime: Duration::from_millis(200), ..long_timeouts() };
    let client = ClientFixture::client_by(proxy.address(), config);
    client.sender(PLAIN).send_message(&Message::new("x")).await.unwrap();
    let before = proxy.counters().to_target.delivered;
    testkit::wait::wait_for("two more tokens on their way", SOON, async || {
        let sent = proxy.counters().to_target.delivered - before;
        // A put-token request takes about 400 bytes; nothing else is sent on this connection.
        if sent > 700 { Ok(()) } else { Err(sent) }
    })
    .await;
}
