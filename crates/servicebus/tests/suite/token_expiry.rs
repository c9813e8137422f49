//! A broker with keys that forgets a token: the client puts a new one when it attaches again.

use std::time::Duration;

use broker::Broker;
use broker::access::AccessKeys;
use servicebus::{BusErrorKind, Client, Config, Message};
use testkit::wait::wait_for;

use crate::fixture::*;

const KEYS: &str = r#"{"keys": [
    {"name": "Root", "key": "key", "rights": ["Send", "Listen"]},
    {"name": "Reader", "key": "key", "rights": ["Listen"]}
]}"#;

/// By the client's clock. The renewal is due long after the test.
const LIFETIME: Duration = Duration::from_secs(3_600);
/// How long a token is valid by the broker's clock, which is ahead: time enough for a few frames, and to wait for.
const VALID_FOR: Duration = Duration::from_secs(8);

async fn start_with_keys() -> Broker {
    start_broker_with(|config| config.keys = Some(AccessKeys::parse(KEYS).unwrap())).await
}

fn client(broker: &Broker) -> Client {
    ClientFixture::client_by(broker.address(), Config { token_lifetime: LIFETIME, ..long_timeouts() })
}

#[tokio::test]
async fn links_cut_with_their_token_are_opened_with_a_new_one() {
    let broker = start_with_keys().await;
    let client = client(&broker);
    client.sender(ORDERS).send_message(&in_session("s", "first")).await.unwrap();
    let held = client.accept_session(ORDERS, "s").await.unwrap();
    let sender = client.sender(PLAIN);
    sender.send_message(&Message::new("before")).await.unwrap();
    let link = sender.pipelined().await.unwrap();
    assert!(client.entity_exists(ONCE).await.unwrap());
    broker.advance_clock(LIFETIME - VALID_FOR);
    let reason = wait_for("the broker to cut the links", SOON, async || {
        // The broker looks at its clock when a frame comes.
        let _ = client.entity_exists(EVENTS).await;
        // The lock of the session expires with the clock, too.
        held.session().lost_reason().and(link.closed_reason()).ok_or("a link is open")
    });
    assert_eq!(reason.await.kind(), BusErrorKind::Unauthorized);
    // Each kind of link is opened at the first attempt.
    let mut held = client.accept_session(ORDERS, "s").await.unwrap();
    assert_eq!(bodies(&receive_all(&mut held, 1).await), ["first"]);
    sender.send_message(&Message::new("after")).await.unwrap();
    assert!(client.entity_exists(ONCE).await.unwrap());
}

#[tokio::test]
async fn a_key_without_the_right_is_refused_with_the_reason() {
    let broker = start_with_keys().await;
    let text = format!(
        "Endpoint=sb://{};SharedAccessKeyName=Reader;SharedAccessKey=key;UseDevelopmentEmulator=true",
        broker.address()
    );
    let client = Client::new(&text, long_timeouts()).unwrap();
    let sender = client.sender(PLAIN);
    for _ in 0..2 {
        let error = sender.send_message(&Message::new("x")).await.unwrap_err();
        assert_eq!(error.kind(), BusErrorKind::Unauthorized);
        let cause = std::error::Error::source(&error).unwrap().to_string();
        assert!(cause.contains("the right `Send` on 'plain'"), "{cause}");
    }
    assert!(client.receiver(PLAIN).receive(1, MOMENT).await.unwrap().is_empty(), "it may listen");
}
