//! What Azure Service Bus does to its clients, by the broker's profiles: the client sees it, and recovers at the next use.

use std::time::{Duration, Instant};

use broker::access::AccessKeys;
use broker::profile::Disturbances;
use broker::{Broker, ServiceProfile};
use servicebus::administration::{AdministrationClient, EntityDescription};
use servicebus::{BusErrorKind, Client, Config, Message};
use testkit::wait::wait_for;

use crate::fixture::*;

async fn start(profile: ServiceProfile) -> (Broker, Client) {
    let broker = start_broker_with(|config| config.profile = profile).await;
    let client = Client::new(&broker.connection_string(), long_timeouts()).unwrap();
    (broker, client)
}

#[tokio::test]
async fn idle_links_are_detached_and_then_the_connection_closed() {
    let (link_idle, connection_idle) = (Some(Duration::from_millis(300)), Some(Duration::from_millis(300)));
    let profile = ServiceProfile { link_idle, connection_idle, ..ServiceProfile::default() };
    let broker = start_broker_with(|config| config.profile = profile).await;
    let proxy = testkit::proxy::Proxy::start(broker.address()).await.unwrap();
    let client = ClientFixture::client_by(proxy.address(), long_timeouts());
    let sender = client.sender(PLAIN);
    sender.send_message(&Message::new("before")).await.unwrap();
    let link = sender.pipelined().await.unwrap();
    let reason = wait_for("the link to be detached", SOON, async || link.closed_reason().ok_or("open")).await;
    assert_eq!(reason.kind(), BusErrorKind::Detached, "{reason:?}");
    // The `$cbs` links are idle, too; then the connection has no link.
    let open = async || match proxy.counters().open {
        0 => Ok(()),
        open => Err(open),
    };
    wait_for("the connection to be closed", SOON, open).await;
    sender.send_message(&Message::new("after")).await.unwrap();
    let received = client.receiver(PLAIN).receive(2, SOON).await.unwrap();
    assert!(!received.is_empty());
}

/// A wait for a session is longer than the idle time, and no frame is sent meanwhile.
#[tokio::test]
async fn a_client_that_waits_for_a_session_is_not_idle() {
    let idle = Duration::from_millis(200);
    let profile = ServiceProfile { link_idle: Some(idle), connection_idle: Some(idle), ..ServiceProfile::default() };
    let (_broker, client) = start(profile).await;
    let accepted = client.accept_next_session(ORDERS, idle * 10).await;
    assert!(matches!(accepted, Ok(None)), "the wait ends without a session: {:?}", accepted.err());
}

#[tokio::test]
async fn a_refused_transfer_detaches_its_publisher() {
    let (_broker, client) = start(ServiceProfile { detaches_publishers: true, ..ServiceProfile::default() }).await;
    let sender = client.sender(ORDERS);
    // The queue needs a session id.
    let error = sender.send_message(&Message::new("no session")).await.unwrap_err();
    assert!(matches!(error, servicebus::Error::LinkDetached { .. }), "{error:?}");
    sender.send_message(&in_session("s", "good")).await.unwrap();
}

#[tokio::test]
async fn more_than_the_credits_is_refused_as_busy() {
    let profile = ServiceProfile {
        credits_per_second: Some(5),
        throttle_pause: Duration::from_millis(300),
        ..ServiceProfile::default()
    };
    let (_broker, client) = start(profile).await;
    let sender = client.sender(PLAIN);
    let busy = wait_for("a refusal", SOON, async || sender.send_message(&Message::new("x")).await.err().ok_or("sent"));
    assert_eq!(busy.await.kind(), BusErrorKind::Busy);
    wait_for("the end of the pause", SOON, async || sender.send_message(&Message::new("x")).await).await;
}

#[tokio::test]
async fn tokens_end_earlier_than_they_say() {
    let keys = r#"{"keys": [{"name": "Root", "key": "key", "rights": ["Send", "Listen"]}]}"#;
    let broker = start_broker_with(|config| {
        config.keys = Some(AccessKeys::parse(keys).unwrap());
        config.profile.max_token_lifetime = Some(Duration::from_millis(500));
    })
    .await;
    let client = ClientFixture::client_by(broker.address(), long_timeouts());
    let sender = client.sender(PLAIN);
    sender.send_message(&Message::new("before")).await.unwrap();
    let link = sender.pipelined().await.unwrap();
    let reason = wait_for("the link to be cut", SOON, async || link.closed_reason().ok_or("open")).await;
    assert_eq!(reason.kind(), BusErrorKind::Unauthorized);
    sender.send_message(&Message::new("after")).await.unwrap();
}

#[tokio::test]
async fn an_update_of_an_entity_takes_its_time() {
    let entity_update = Duration::from_millis(400);
    let (broker, _client) = start(ServiceProfile { entity_update, ..ServiceProfile::default() }).await;
    let administration = AdministrationClient::new(&broker.connection_string(), &long_timeouts()).unwrap();
    let queue: EntityDescription = administration.get(PLAIN).await.unwrap().unwrap();
    let began = Instant::now();
    administration.update(PLAIN, &queue).await.unwrap();
    assert!(began.elapsed() >= entity_update);
}

#[tokio::test]
async fn disturbances_lose_no_message() {
    let disturbances =
        Disturbances { seed: 3, interval: Duration::from_millis(200), failover: Duration::from_millis(100) };
    let profile = ServiceProfile { disturbances: Some(disturbances), ..ServiceProfile::default() };
    let broker = start_broker_with(|config| config.profile = profile).await;
    // Shorter than the time between two disturbances.
    let config = Config { max_backoff: Duration::from_millis(50), ..long_timeouts() };
    let client = ClientFixture::client_by(broker.address(), config);
    let sender = client.sender(ONCE);
    for number in 0..200 {
        // Resent under the same id until it is acknowledged; the queue drops duplicates.
        let message = Message::new("x").with_id(format!("m-{number}"));
        wait_for("an acknowledgement", SOON, async || sender.send_message(&message).await).await;
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let report = broker.test(broker::http::TestCommand::Report).await.unwrap();
    assert!(report.injected > 0, "the profile disturbed: {report:?}");
}
