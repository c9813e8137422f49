//! Every fault of the proxy: operations in flight fail in time, and the next use reconnects.

use std::time::{Duration, Instant};

use servicebus::{BusErrorKind, Client, Error, Message};
use testkit::proxy::Direction::{ToClient, ToTarget};
use testkit::proxy::{NetworkFault, Proxy};

use crate::fixture::*;

struct FaultyConnection {
    _fixture: ClientFixture,
    proxy: Proxy,
    client: Client,
}

async fn through_proxy(config: servicebus::Config) -> FaultyConnection {
    let fixture = ClientFixture::start().await;
    let proxy = Proxy::start(fixture.broker.address()).await.unwrap();
    let client = ClientFixture::client_by(proxy.address(), config);
    FaultyConnection { _fixture: fixture, proxy, client }
}

/// Injects a fault while a send, a settlement, a receive and a renewal are in flight; each must fail before `limit`.
async fn all_fail(config: servicebus::Config, fault: NetworkFault, limit: Duration) -> Vec<Error> {
    let FaultyConnection { _fixture, proxy, client } = through_proxy(config).await;
    let sender = client.sender(ORDERS);
    sender.send_message(&in_session("s", "1")).await.unwrap();
    let mut receiver = client.accept_session(ORDERS, "s").await.unwrap();
    let messages = receive_all(&mut receiver, 1).await;
    let (session, settler) = (receiver.session().clone(), receiver.settler());
    session.renew_lock().await.unwrap();
    let waiting = tokio::spawn(async move { receiver.receive(1, SOON * 10).await.map(drop) });

    proxy.inject(fault).await;
    let started = Instant::now();
    let second = in_session("s", "2");
    let send = sender.send_message(&second);
    let (sent, settled, renewed) = tokio::join!(send, settler.complete(&messages), session.renew_lock());
    let received = waiting.await.unwrap();
    let took = started.elapsed();
    assert!(took < limit, "{fault:?} took {took:?}");
    let errors = [sent.err(), settled.err(), renewed.map(drop).err(), received.err()];
    let errors = errors.map(|error| error.unwrap_or_else(|| panic!("something went through {fault:?}")));

    proxy.heal().await;
    send_again(&sender).await;
    errors.into()
}

/// The next use reconnects; the backoff is short here.
async fn send_again(sender: &servicebus::Sender) {
    testkit::wait::wait_for("a send that goes through", SOON, async || {
        sender.send_message(&in_session("s", "3")).await.map_err(|error| format!("{error:?}"))
    })
    .await;
}

fn retryable(errors: &[Error]) {
    for error in errors {
        assert!(error.is_retryable(), "{error:?}");
        assert!(matches!(error.kind(), BusErrorKind::ConnectionLost | BusErrorKind::Timeout), "{error:?}");
    }
}

#[tokio::test]
async fn a_cut_is_noticed_at_once() {
    // Long deadlines: the closed socket ends the calls, not a timeout.
    let config = servicebus::Config { operation_timeout: SOON * 3, ..short_timeouts() };
    retryable(&all_fail(config, NetworkFault::Cut, SOON).await);
}

#[tokio::test]
async fn a_reset_is_noticed_at_once() {
    let config = servicebus::Config { operation_timeout: SOON * 3, ..short_timeouts() };
    retryable(&all_fail(config, NetworkFault::Reset, SOON).await);
}

#[tokio::test]
async fn a_black_hole_fails_all_calls_within_one_deadline() {
    retryable(&all_fail(short_timeouts(), NetworkFault::BlackHole, BRIEF + SOON / 2).await);
}

#[tokio::test]
async fn a_freeze_fails_all_calls_within_one_deadline() {
    retryable(&all_fail(short_timeouts(), NetworkFault::Freeze, BRIEF + SOON / 2).await);
}

#[tokio::test]
async fn requests_that_never_arrive_fail_in_time() {
    retryable(&all_fail(short_timeouts(), NetworkFault::HalfOpen { dead: ToTarget }, BRIEF + SOON / 2).await);
}

#[tokio::test]
async fn answers_that_never_arrive_fail_in_time() {
    retryable(&all_fail(short_timeouts(), NetworkFault::HalfOpen { dead: ToClient }, BRIEF + SOON / 2).await);
}

#[tokio::test]
async fn answers_that_are_withheld_fail_in_time() {
    retryable(&all_fail(short_timeouts(), NetworkFault::Withhold(ToClient), BRIEF + SOON / 2).await);
}

#[tokio::test]
async fn a_delay_shorter_than_the_deadline_is_only_slow() {
    let FaultyConnection { _fixture, proxy, client } = through_proxy(long_timeouts()).await;
    let late = Duration::from_millis(100);
    proxy.inject(NetworkFault::Delay(ToClient, late)).await;
    let started = Instant::now();
    client.sender(PLAIN).send_message(&Message::new("x")).await.unwrap();
    assert!(started.elapsed() >= late * 4, "header, open, token, attach and outcome each came late");
}

#[tokio::test]
async fn an_idle_frozen_peer_is_detected_by_its_silence() {
    let config = servicebus::Config { idle_timeout: BRIEF, operation_timeout: SOON * 3, ..short_timeouts() };
    let FaultyConnection { _fixture, proxy, client } = through_proxy(config).await;
    let mut receiver = client.receiver(PLAIN);
    // Heartbeats keep a quiet connection alive for longer than the idle time-out.
    assert!(receiver.receive(1, BRIEF * 2).await.unwrap().is_empty());
    assert_eq!(proxy.counters().accepted, 1);
    proxy.inject(NetworkFault::Freeze).await;
    let started = Instant::now();
    let error = receiver.receive(1, SOON * 3).await.unwrap_err();
    assert!(matches!(error, Error::ConnectionLost { .. }), "{error:?}");
    assert!(started.elapsed() < SOON, "{:?}", started.elapsed());
}

#[tokio::test]
async fn a_peer_that_does_not_read_cannot_hold_a_large_send() {
    let FaultyConnection { _fixture, proxy, client } = through_proxy(short_timeouts()).await;
    let sender = client.sender(PLAIN);
    sender.send_message(&Message::new("x")).await.unwrap();
    proxy.inject(NetworkFault::Withhold(ToTarget)).await;
    let started = Instant::now();
    let large = Message::new(vec![0; 200_000]).encode();
    let mut under_way = Vec::new();
    for _ in 0..200 {
        match sender.enqueue(&large).await {
            Ok(outcome) => under_way.push(outcome),
            Err(error) => assert!(error.is_retryable(), "{error:?}"),
        }
    }
    for outcome in under_way {
        assert!(outcome.await.unwrap_err().is_retryable());
    }
    assert!(started.elapsed() < SOON, "{:?}", started.elapsed());
}

#[tokio::test]
async fn an_unreachable_server_is_a_retryable_error() {
    let proxy = Proxy::start("127.0.0.1:1").await.unwrap();
    proxy.inject(NetworkFault::Cut).await;
    let client = ClientFixture::client_by(proxy.address(), short_timeouts());
    let error = client.connect().await.unwrap_err();
    assert!(matches!(error, Error::Connect { .. }) && error.is_retryable(), "{error:?}");
    proxy.inject(NetworkFault::BlackHole).await;
    let started = Instant::now();
    let error = client.connect().await.unwrap_err();
    assert!(error.is_retryable(), "{error:?}");
    assert!(started.elapsed() < BRIEF + SOON / 2);
}

#[tokio::test]
async fn failed_connects_back_off_for_all_callers() {
    let proxy = Proxy::start("127.0.0.1:1").await.unwrap();
    proxy.inject(NetworkFault::Reset).await;
    let pause = Duration::from_millis(200);
    let config = servicebus::Config { initial_backoff: pause, max_backoff: pause, ..short_timeouts() };
    let client = ClientFixture::client_by(proxy.address(), config);
    let callers: Vec<_> = (0..10)
        .map(|_| {
            let client = client.clone();
            tokio::spawn(async move {
                let until = Instant::now() + Duration::from_secs(2);
                while Instant::now() < until {
                    client.connect().await.unwrap_err();
                }
            })
        })
        .collect();
    for caller in callers {
        caller.await.unwrap();
    }
    // At most one dial per half pause in the two seconds and the callers' last second.
    let dials = proxy.counters().accepted;
    assert!((2..=32).contains(&dials), "{dials} dials");
}

#[tokio::test]
async fn a_stopping_broker_and_a_closed_client_are_reported() {
    let fixture = ClientFixture::start().await;
    let mut receiver = fixture.client.receiver(PLAIN);
    receiver.receive(1, MOMENT).await.unwrap();
    let waiting = tokio::spawn(async move { receiver.receive(1, SOON).await.map(drop).unwrap_err() });
    fixture.broker.stop().await;
    let error = waiting.await.unwrap();
    assert_eq!((error.kind(), error.condition()), (BusErrorKind::ConnectionLost, Some("amqp:connection:forced")));
    fixture.client.close().await.unwrap_or_else(|error| assert!(error.is_retryable()));
    assert_eq!(fixture.client.connect().await.unwrap_err().kind(), BusErrorKind::Closed);
}
