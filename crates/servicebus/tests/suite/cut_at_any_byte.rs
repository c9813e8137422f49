//! No call hangs, wherever a connection is cut or frozen.
//!
//! One conversation with all operations of a pod is run once to count its bytes each way. Then it is run again for many
//! byte positions, each over a connection that fails there: every call must end by its deadline, successfully or with a
//! retryable error, and the client must recover.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use servicebus::{Client, Error};
use testkit::proxy::Direction::{self, ToClient, ToTarget};
use testkit::proxy::{NetworkFault, Proxy};
use tokio::sync::Semaphore;

use crate::fixture::*;

/// A call's own deadline, and room for a machine that is busy with a hundred other conversations.
const LIMIT: Duration = Duration::from_secs(8);

/// A conversation with all operations.
struct Conversation {
    client: Client,
    session: String,
}

impl Conversation {
    /// Every step: connect, SASL, open, token, attach, send, disposition, accept, receive, settle, renew, state, detach, close.
    async fn run(&self) -> Result<(), Error> {
        let sender = self.client.sender(ORDERS);
        timely("connect", self.client.connect()).await?;
        timely("send", sender.send_message(&in_session(&self.session, "1"))).await?;
        let mut batch = timely("batch", sender.batch()).await?;
        batch.try_add(&in_session(&self.session, "2").encode());
        timely("send a batch", sender.send(&batch.finish())).await?;
        let mut receiver = timely("accept", self.client.accept_session(ORDERS, &self.session)).await?;
        let mut messages = Vec::new();
        while messages.len() < 2 {
            let more = timely("receive", receiver.receive(2, BRIEF)).await?;
            // No message in time is not an error; the next operation fails.
            if more.is_empty() {
                break;
            }
            messages.extend(more);
        }
        if let [first, second] = &messages[..] {
            timely("complete", receiver.settler().complete([first])).await?;
            timely("dead-letter", receiver.settler().dead_letter(second, "r", "d")).await?;
        }
        timely("renew", receiver.session().renew_lock()).await?;
        timely("set state", receiver.session().set_state(Some("x".into()))).await?;
        timely("close the session", receiver.close()).await?;
        timely("close the sender", sender.close()).await?;
        timely("close", self.client.close()).await
    }
}

async fn timely<T>(what: &str, call: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
    let started = Instant::now();
    let result = tokio::time::timeout(LIMIT * 4, call).await;
    let took = started.elapsed();
    let result = result.unwrap_or_else(|_| panic!("{what} hangs"));
    assert!(took < LIMIT, "{what} took {took:?}");
    if let Err(error) = &result {
        assert!(error.is_retryable(), "{what}: {error:?}");
    }
    result
}

async fn conversation(
    fixture: &ClientFixture,
    number: usize,
    rule: Option<testkit::proxy::FaultRule>,
) -> (Proxy, Conversation) {
    let proxy = Proxy::start(fixture.broker.address()).await.unwrap();
    if let Some(rule) = rule {
        proxy.on_next_connection(rule).await;
    }
    let client = ClientFixture::client_by(proxy.address(), short_timeouts());
    // Names of one length, so that all conversations are as long.
    (proxy, Conversation { client, session: format!("session-{number:06}") })
}

/// `stride`: every so many bytes. A cut costs nothing and is tried at each; a freeze costs a deadline, and three bytes are less than any field that matters.
async fn sweep(fault: NetworkFault, direction: Direction, stride: usize) {
    let fixture = Arc::new(ClientFixture::start().await);
    let (proxy, whole) = conversation(&fixture, 0, None).await;
    whole.run().await.unwrap();
    let counters = proxy.counters();
    let length = match direction {
        ToTarget => counters.to_target.delivered,
        ToClient => counters.to_client.delivered,
    };
    assert!(length > 1_000, "{length}");
    let failed = Arc::new(AtomicUsize::new(0));
    let places = Arc::new(Semaphore::new(128));
    let mut tasks = tokio::task::JoinSet::new();
    let points: Vec<_> = (0..length as usize).step_by(stride).collect();
    for (index, point) in points.iter().copied().enumerate() {
        let place = Arc::clone(&places).acquire_owned().await.unwrap();
        let (fixture, failed) = (Arc::clone(&fixture), Arc::clone(&failed));
        tasks.spawn(async move {
            let _place = place;
            let (proxy, conversation) =
                conversation(&fixture, index + 1, Some(fault.after(point as u64, direction))).await;
            if conversation.run().await.is_err() {
                failed.fetch_add(1, Relaxed);
            }
            // Whatever happened, the client can be used again.
            let again = ClientFixture::client_by(proxy.address(), short_timeouts());
            let client = if point % 2 == 0 { again } else { conversation.client };
            comes_back(&client, &conversation.session).await;
        });
    }
    while let Some(task) = tasks.join_next().await {
        task.unwrap();
    }
    // Nearly every point is inside some call; those behind the last answer are not.
    let failed = failed.load(Relaxed);
    eprintln!("{fault:?} {direction:?}: {} points of {length} bytes, {failed} conversations failed", points.len());
    assert!(failed * 10 >= points.len() * 9, "{failed} of {} failed", points.len());
}

async fn comes_back(client: &Client, session: &str) {
    let sender = client.sender(ORDERS);
    let until = Instant::now() + SOON;
    loop {
        match tokio::time::timeout(LIMIT * 4, sender.send_message(&in_session(session, "again")))
            .await
            .expect("no hang")
        {
            Ok(()) => return,
            // Its conversation was complete.
            Err(Error::Closed { .. }) => return,
            Err(error) => assert!(Instant::now() < until, "{error:?}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_call_hangs_when_requests_are_cut_at_any_byte() {
    sweep(NetworkFault::Cut, ToTarget, 1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_call_hangs_when_answers_are_cut_at_any_byte() {
    sweep(NetworkFault::Cut, ToClient, 1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_call_hangs_when_requests_freeze_anywhere() {
    sweep(NetworkFault::Withhold(ToTarget), ToTarget, 3).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_call_hangs_when_answers_freeze_anywhere() {
    sweep(NetworkFault::Withhold(ToClient), ToClient, 3).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_call_hangs_when_the_network_becomes_a_black_hole() {
    sweep(NetworkFault::BlackHole, ToClient, 3).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_call_hangs_when_the_line_is_reset_at_any_byte() {
    sweep(NetworkFault::Reset, ToClient, 1).await;
}
