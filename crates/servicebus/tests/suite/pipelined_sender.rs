//! Many transfers with one channel of outcomes, and the write guard.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

use servicebus::{BusErrorKind, EncodedMessage, Error, Message, PipelinedSender};
use testkit::proxy::{Direction, NetworkFault, Proxy};

use crate::fixture::*;

async fn receive_outcomes(sender: &mut PipelinedSender, count: usize) -> HashMap<u64, Result<(), Error>> {
    let mut all = Vec::new();
    while all.len() < count {
        let more = tokio::time::timeout(SOON, sender.receive_outcomes(&mut all, 1_000)).await;
        more.unwrap_or_else(|_| panic!("{} of {count} outcomes came", all.len()));
    }
    assert_eq!(all.len(), count);
    all.into_iter().collect()
}

fn numbered(numbers: std::ops::Range<u64>) -> impl Iterator<Item = (u64, EncodedMessage)> {
    numbers.map(|number| (number, in_session("s", number.to_string()).encode()))
}

#[tokio::test]
async fn many_transfers_share_one_channel_and_arrive_in_order() {
    let fixture = ClientFixture::start().await;
    let mut sender = fixture.client.sender(ORDERS).pipelined().await.unwrap();
    assert!(sender.message_limit().is_some() && sender.batch_limit() > 0);
    // More than the credit: the rest waits for it.
    sender.submit(numbered(0..5_000));
    let outcomes_by_token = receive_outcomes(&mut sender, 5_000).await;
    assert!((0..5_000).all(|number| outcomes_by_token[&number].is_ok()));
    let mut session = fixture.client.accept_session(ORDERS, "s").await.unwrap();
    let mut next = 0;
    while next < 5_000 {
        let messages = session.receive(500, SOON).await.unwrap();
        messages.iter().for_each(|message| {
            assert_eq!(message.body(), next.to_string());
            next += 1;
        });
        session.settler().complete(&messages).await.unwrap();
    }
}

#[tokio::test]
async fn each_transfer_has_its_own_outcome() {
    let fixture = ClientFixture::start().await;
    let mut sender = fixture.client.sender(ORDERS).pipelined().await.unwrap();
    let bad = (1, Message::new("no session").encode());
    sender.submit(numbered(0..1).chain([bad]).chain(numbered(2..3)));
    let outcomes_by_token = receive_outcomes(&mut sender, 3).await;
    assert!(outcomes_by_token[&0].is_ok() && outcomes_by_token[&2].is_ok());
    assert_eq!(outcomes_by_token[&1].as_ref().unwrap_err().kind(), BusErrorKind::NotAllowed);
}

#[tokio::test]
async fn no_outcome_is_lost_with_the_connection() {
    let fixture = ClientFixture::start().await;
    let proxy = Proxy::start(fixture.broker.address()).await.unwrap();
    let client = ClientFixture::client_by(proxy.address(), long_timeouts());
    let mut sender = client.sender(ORDERS).pipelined().await.unwrap();
    proxy.inject(NetworkFault::Withhold(Direction::ToClient)).await;
    sender.submit(numbered(0..3_000));
    proxy.inject(NetworkFault::Reset).await;
    let outcomes_by_token = receive_outcomes(&mut sender, 3_000).await;
    assert!(
        outcomes_by_token.values().all(|outcome| outcome.as_ref().unwrap_err().kind() == BusErrorKind::ConnectionLost)
    );
    assert!(sender.closed_reason().is_some());
    sender.submit(numbered(0..10));
    let outcomes_by_token = receive_outcomes(&mut sender, 10).await;
    assert!(outcomes_by_token.values().all(|outcome| outcome.as_ref().unwrap_err().is_retryable()));
}

#[tokio::test]
async fn an_overdue_outcome_closes_the_connection() {
    let fixture = ClientFixture::start().await;
    let proxy = Proxy::start(fixture.broker.address()).await.unwrap();
    let client = ClientFixture::client_by(proxy.address(), long_timeouts());
    let mut sender = client.sender(ORDERS).pipelined().await.unwrap();
    proxy.inject(NetworkFault::Freeze).await;
    sender.submit(numbered(0..10));
    sender.abort_connection();
    let outcomes_by_token = receive_outcomes(&mut sender, 10).await;
    assert!(
        outcomes_by_token.values().all(|outcome| outcome.as_ref().unwrap_err().kind() == BusErrorKind::ConnectionLost)
    );
}

#[tokio::test]
async fn the_write_guard_also_refuses_transfers_without_credit() {
    let fixture = ClientFixture::start().await;
    let open = Arc::new(AtomicBool::new(true));
    let asked = Arc::new(AtomicU64::new(0));
    let guard = {
        let (open, asked) = (Arc::clone(&open), Arc::clone(&asked));
        // Refuses from the 700th transfer of one submission on.
        Arc::new(move || asked.fetch_add(1, SeqCst) < 700 && open.load(SeqCst))
    };
    let sender = fixture.client.sender(ORDERS).with_write_guard(guard);
    let mut pipelined = sender.pipelined().await.unwrap();
    pipelined.submit(numbered(0..3_000));
    let outcomes_by_token = receive_outcomes(&mut pipelined, 3_000).await;
    assert!((0..700).all(|number| outcomes_by_token[&number].is_ok()));
    assert!((700..3_000).all(|number| matches!(outcomes_by_token[&number], Err(Error::Fenced { .. }))));
    open.store(false, SeqCst);
    let error = sender.send_message(&in_session("s", "late")).await.unwrap_err();
    assert_eq!((error.kind(), error.is_retryable()), (BusErrorKind::Fenced, false));

    let mut session = fixture.client.accept_session(ORDERS, "s").await.unwrap();
    assert_eq!(receive_all(&mut session, 200).await.len(), 200);
    let messages = fixture.client.entity_exists(ORDERS).await.unwrap();
    assert!(messages);
    // A sender without the guard is not affected.
    fixture.client.sender(ORDERS).send_message(&in_session("t", "x")).await.unwrap();
}

#[tokio::test]
async fn entity_existence_is_checked_and_its_end_noticed() {
    let fixture = ClientFixture::start().await;
    assert!(fixture.client.entity_exists(READ_MODELS).await.unwrap());
    assert!(fixture.client.entity_exists(ORDERS).await.unwrap());
    assert!(!fixture.client.entity_exists("events/Subscriptions/nobody").await.unwrap());
    let client = fixture.client.clone();
    let disturbed = tokio::spawn(async move { client.management_link_closed(READ_MODELS).await });
    assert!(fixture.client.entity_exists(READ_MODELS).await.unwrap());
    fixture.broker.stop().await;
    let error = tokio::time::timeout(SOON, disturbed).await.unwrap().unwrap();
    assert_eq!(error.kind(), BusErrorKind::ConnectionLost);
}
