//! How long a session is held: while nobody waits for its place, and no longer than its turn.

use std::num::NonZeroUsize;
use std::time::{Duration, Instant};

use mongodb::bson::{RawDocumentBuf, doc};
use pipeline::event::ChangeEvent;

use crate::house::*;

#[tokio::test]
async fn a_session_is_held_while_nobody_waits_for_its_place() {
    let house = House::start().await;
    let mut config = sessions(4);
    config.session.session_idle_timeout = Duration::from_secs(60);
    config.session.max_session_duration = Duration::from_secs(60);
    let run = house.consume(config);
    let events = events(5, 1);
    for (event, settled) in events.iter().zip(1..) {
        house.publish(std::slice::from_ref(event)).await;
        run.until("it to be settled", |counts, _| counts.sessions.settled == settled).await;
    }
    assert_eq!((run.counts().sessions.accepted, run.counts().sessions.held), (1, 1));
    house.holds(&events).await;
    run.stop().await.unwrap();
}

#[tokio::test]
async fn an_idle_session_is_let_go_after_its_time() {
    let house = House::start().await;
    let mut config = sessions(4);
    config.session.session_idle_timeout = Duration::from_millis(200);
    let run = house.consume(config);
    house.publish(&events(1, 1)).await;
    run.until("it to be settled and let go", |counts, _| counts.sessions.settled == 1 && counts.sessions.held == 0)
        .await;
    assert_eq!(run.counts().sessions.bytes_in_flight, 0);
    run.stop().await.unwrap();
}

#[tokio::test]
async fn an_idle_session_is_let_go_at_once_when_others_wait() {
    let house = House::start().await;
    let mut config = sessions(1);
    // Nobody in this test waits so long.
    config.session.session_idle_timeout = Duration::from_secs(3_600);
    config.session.max_session_duration = Duration::from_secs(3_600);
    let run = house.consume(config);
    let events = events(30, 3);
    for (event, settled) in events.iter().zip(1..) {
        house.publish(std::slice::from_ref(event)).await;
        run.until("it to be settled", |counts, _| counts.sessions.settled == settled).await;
    }
    house.holds(&events).await;
    run.stop().await.unwrap();
}

#[tokio::test]
async fn a_session_is_let_go_after_so_many_events() {
    let house = House::start().await;
    let events = events(1_000, 1);
    house.publish(&events).await;
    let mut config = sessions(2);
    config.session.max_session_events = NonZeroUsize::new(100).unwrap();
    let run = house.consume(config);
    house.holds(&events).await;
    run.until("everything to be settled", |counts, _| counts.sessions.settled == 1_000).await;
    assert!(run.counts().sessions.accepted >= 10, "{:?}", run.counts());
    assert_eq!(run.counts().sessions.redelivered, 0, "what was not its turn comes again as if for the first time");
    run.stop().await.unwrap();
}

#[tokio::test]
async fn a_session_is_let_go_after_its_time_though_it_has_more() {
    let house = House::start().await;
    let mut config = sessions(2);
    config.session.max_session_duration = Duration::from_millis(100);
    config.session.session_idle_timeout = Duration::from_secs(60);
    let run = house.consume(config);
    let mut events = vec![];
    // Never idle for long, and yet it is accepted again and again.
    while run.counts().sessions.accepted < 4 {
        let next = event("order-0", events.len() as i64 + 1);
        house.publish(std::slice::from_ref(&next)).await;
        events.push(next);
        assert!(events.len() < 20_000, "{:?}", run.counts());
    }
    house.holds(&events).await;
    run.stop().await.unwrap();
}

#[tokio::test]
async fn large_messages_stay_within_the_budget() {
    let house = House::start().await;
    let large = |number: i64| {
        let document = doc! { "aggregateId": "x", "type": "Added", "n": number, "weight": "w".repeat(100 << 10) };
        ChangeEvent {
            document: RawDocumentBuf::try_from(&document).unwrap(),
            ..event(format!("order-{}", number % 8), number)
        }
    };
    let events: Vec<_> = (1..=240).map(large).collect();
    house.publish(&events).await;
    let mut config = sessions(8);
    let budget = 2 << 20;
    config.session.bytes_in_flight = NonZeroUsize::new(budget).unwrap();
    let run = house.consume(config);
    let (mut most, started) = (0, Instant::now());
    while run.counts().sessions.settled < 240 {
        most = most.max(run.counts().sessions.bytes_in_flight);
        assert!(started.elapsed() < SOON, "{:?}", run.counts());
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    // One message for each session may be over.
    assert!(most > 0 && most <= budget + 8 * (104 << 10), "{most}");
    house.holds(&events).await;
    run.stop().await.unwrap();
}
