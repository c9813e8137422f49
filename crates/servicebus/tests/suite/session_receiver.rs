//! Sessions: accepted, locked, renewed, released, lost.

use std::time::{Duration, Instant};

use servicebus::{BusErrorKind, Settlement};

use crate::fixture::*;

#[tokio::test]
async fn accept_without_a_session_waits_as_long_as_asked() {
    let fixture = ClientFixture::start().await;
    let started = Instant::now();
    let none = fixture.client.accept_next_session(ORDERS, Duration::from_millis(300)).await.unwrap();
    assert!(none.is_none());
    assert!(started.elapsed() >= Duration::from_millis(300));
}

#[tokio::test]
async fn a_waiting_accept_gets_the_next_session() {
    let fixture = ClientFixture::start().await;
    let client = fixture.client.clone();
    let waiting = tokio::spawn(async move { client.accept_next_session(ORDERS, SOON).await });
    fixture.send(ORDERS, [in_session("late", "1")]).await;
    let mut session = waiting.await.unwrap().unwrap().unwrap();
    assert_eq!(session.session_id(), "late");
    assert_eq!(bodies(&session.receive(1, SOON).await.unwrap()), ["1"]);
}

#[tokio::test]
async fn a_session_has_one_holder_until_it_is_closed() {
    let fixture = ClientFixture::start().await;
    fixture.send(ORDERS, [in_session("s", "1")]).await;
    let held = fixture.client.accept_session(ORDERS, "s").await.unwrap();
    let error = fixture.client.accept_session(ORDERS, "s").await.map(drop).unwrap_err();
    assert_eq!(error.kind(), BusErrorKind::SessionHeldElsewhere);
    held.close().await.unwrap();
    fixture.client.accept_session(ORDERS, "s").await.unwrap();
}

#[tokio::test]
async fn a_dropped_receiver_releases_its_session() {
    let fixture = ClientFixture::start().await;
    fixture.send(ORDERS, [in_session("s", "1")]).await;
    drop(fixture.client.accept_session(ORDERS, "s").await.unwrap());
    let again = fixture.client.accept_next_session(ORDERS, SOON).await.unwrap();
    assert_eq!(again.unwrap().session_id(), "s");
}

#[tokio::test]
async fn a_cancelled_accept_locks_no_session() {
    let fixture = ClientFixture::start().await;
    fixture.client.connect().await.unwrap();
    let abandoned = tokio::time::timeout(MOMENT, fixture.client.accept_next_session(ORDERS, SOON)).await;
    assert!(abandoned.is_err());
    fixture.send(ORDERS, [in_session("s", "1")]).await;
    let mut session = fixture.client.accept_next_session(ORDERS, SOON).await.unwrap().unwrap();
    assert_eq!(bodies(&session.receive(1, SOON).await.unwrap()), ["1"]);
}

#[tokio::test]
async fn unsettled_messages_are_redelivered_with_the_same_count() {
    let fixture = ClientFixture::start().await;
    fixture.send(ORDERS, (0..5).map(|number| in_session("s", number.to_string()))).await;
    let mut session = fixture.client.accept_session(ORDERS, "s").await.unwrap();
    let messages = receive_all(&mut session, 5).await;
    session.settler().complete(&messages[..2]).await.unwrap();
    session.close().await.unwrap();
    let mut session = fixture.client.accept_session(ORDERS, "s").await.unwrap();
    let messages = receive_all(&mut session, 3).await;
    assert_eq!(bodies(&messages), ["2", "3", "4"]);
    assert!(messages.iter().all(|message| message.delivery_count() == 0));
}

#[tokio::test]
async fn an_abandoned_message_is_redelivered_with_a_higher_count() {
    let fixture = ClientFixture::start().await;
    fixture.send(ORDERS, [in_session("s", "1"), in_session("s", "2")]).await;
    let config = servicebus::Config { credit: 1, ..long_timeouts() };
    let client = ClientFixture::client_by(fixture.broker.address(), config);
    let mut session = client.accept_session(ORDERS, "s").await.unwrap();
    let first = session.receive(1, SOON).await.unwrap().remove(0);
    session.settler().abandon(&first).await.unwrap();
    let again = session.receive(1, SOON).await.unwrap();
    assert_eq!(bodies(&again), ["1"]);
    assert_eq!(again[0].delivery_count(), 1);
}

#[tokio::test]
async fn a_renewed_lock_is_kept_and_an_expired_one_is_lost() {
    let fixture = ClientFixture::start().await;
    fixture.send(ORDERS, [in_session("s", "1")]).await;
    let mut session = fixture.client.accept_session(ORDERS, "s").await.unwrap();
    let messages = receive_all(&mut session, 1).await;
    let first = session.session().locked_until();
    fixture.broker.advance_clock(Duration::from_secs(40));
    let renewed = session.session().renew_lock().await.unwrap();
    assert!(renewed > first + Duration::from_secs(30), "{first:?} {renewed:?}");
    assert_eq!(session.session().locked_until(), renewed);
    fixture.broker.advance_clock(Duration::from_secs(40));
    session.settler().complete(&messages).await.unwrap();

    fixture.broker.advance_clock(Duration::from_secs(61));
    let error = session.receive(1, SOON).await.unwrap_err();
    assert_eq!((error.kind(), error.is_retryable()), (BusErrorKind::SessionLockLost, false), "{error:?}");
    assert!(session.session().lost_reason().is_some());
    assert_eq!(session.session().renew_lock().await.unwrap_err().kind(), BusErrorKind::SessionLockLost);
}

#[tokio::test]
async fn a_settlement_after_the_lock_was_lost_fails() {
    let fixture = ClientFixture::start().await;
    fixture.send(ORDERS, [in_session("s", "1")]).await;
    let mut session = fixture.client.accept_session(ORDERS, "s").await.unwrap();
    let messages = receive_all(&mut session, 1).await;
    fixture.arm(r#"{"kind": "expire_session_lock", "session": "s", "entity": "orders"}"#).await;
    let error = session.settle(&messages, Settlement::Complete).await.unwrap_err();
    assert_eq!(error.kind(), BusErrorKind::SessionLockLost, "{error:?}");
}

#[tokio::test]
async fn session_state_is_stored_and_cleared() {
    let fixture = ClientFixture::start().await;
    let session = fixture.client.accept_session(ORDERS, "s").await.unwrap();
    assert_eq!(session.session().state().await.unwrap(), None);
    session.session().set_state(Some("where I was".into())).await.unwrap();
    session.close().await.unwrap();
    let session = fixture.client.accept_session(ORDERS, "s").await.unwrap();
    assert_eq!(session.session().state().await.unwrap().unwrap(), "where I was");
    session.session().set_state(None).await.unwrap();
    assert_eq!(session.session().state().await.unwrap(), None);
}

#[tokio::test]
async fn settling_and_renewing_work_while_a_receive_waits() {
    let fixture = ClientFixture::start().await;
    fixture.send(ORDERS, [in_session("s", "1")]).await;
    let mut receiver = fixture.client.accept_session(ORDERS, "s").await.unwrap();
    let messages = receive_all(&mut receiver, 1).await;
    let (session, settler) = (receiver.session().clone(), receiver.settler());
    let waiting = tokio::spawn(async move { receiver.receive(1, SOON).await.map(|messages| bodies(&messages)) });
    session.renew_lock().await.unwrap();
    settler.complete(&messages).await.unwrap();
    fixture.send(ORDERS, [in_session("s", "2")]).await;
    assert_eq!(waiting.await.unwrap().unwrap(), ["2"]);
}

#[tokio::test]
async fn a_session_filter_on_a_queue_without_sessions_is_not_allowed() {
    let fixture = ClientFixture::start().await;
    let error = fixture.client.accept_session(PLAIN, "s").await.map(drop).unwrap_err();
    assert_eq!(error.kind(), BusErrorKind::NotAllowed);
}

#[tokio::test]
async fn many_sessions_are_held_at_once_on_one_connection() {
    let fixture = ClientFixture::start().await;
    fixture.send(ORDERS, (0..300).map(|number| in_session(&format!("s{number}"), number.to_string()))).await;
    let mut held = Vec::new();
    for _ in 0..300 {
        held.push(fixture.client.accept_next_session(ORDERS, SOON).await.unwrap().unwrap());
    }
    for session in &mut held {
        let messages = receive_all(session, 1).await;
        assert_eq!(format!("s{}", bodies(&messages)[0]), session.session_id());
        session.settler().complete(&messages).await.unwrap();
    }
    for session in held {
        session.close().await.unwrap();
    }
}

#[tokio::test]
async fn a_client_with_its_own_connection_has_its_own_credit() {
    let fixture = ClientFixture::start().await;
    fixture.send(ORDERS, (0..10).map(|number| in_session("s", number.to_string()))).await;
    let other = fixture.client.with_own_connection(2);
    let mut session = other.accept_session(ORDERS, "s").await.unwrap();
    let first = receive_all(&mut session, 2).await;
    assert_eq!(bodies(&first), ["0", "1"]);
    assert!(session.receive(10, MOMENT).await.unwrap().is_empty(), "two may be held unsettled, and no more");
    session.session().set_credit(10).unwrap();
    assert_eq!(receive_all(&mut session, 8).await.len(), 8);
    other.close().await.unwrap();
    fixture.client.connect().await.expect("the first client has its own connection");
}
