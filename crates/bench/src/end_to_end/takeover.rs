//! How long no event is published when the leader ends.

use std::time::{Duration, Instant};

use local_cluster::{BrokerProcess, SubscriptionEntity, TopicEntity};
use mongodb::bson::RawDocumentBuf;
use testkit::wait::wait_for;
use tokio::time::{interval, sleep};
use tokio_util::sync::CancellationToken;

use super::{BenchCluster, BenchPod, BenchSystem, EventShape, PipelineNames};
use crate::source_events::events_collection;

const OBSERVER: &str = "observer";
const SHAPE: EventShape = EventShape { aggregates: 100, bytes: 1024 };
const WRITE_EVERY: Duration = Duration::from_millis(10);
const POLL: Duration = Duration::from_millis(5);
/// Longer than any takeover by a lease of 15 s that is polled every five.
const OBSERVED: Duration = Duration::from_secs(32);
/// The gap is over when events have flowed again for this long.
const STEADY: Duration = Duration::from_secs(2);
const TIMEOUT: Duration = Duration::from_secs(60);

/// How the leader ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PodExit {
    /// SIGKILL.
    Crash,
    /// SIGTERM, as in a rolling update.
    Graceful,
}

/// Adds a subscription without sessions that nobody reads: its count is the number of published messages.
pub fn with_observer(mut topic: TopicEntity) -> TopicEntity {
    topic.subscriptions.push(SubscriptionEntity {
        name: OBSERVER.into(),
        session_lock: None,
        dead_letter_on_expiration: false,
    });
    topic
}

/// Ends the leader of two pods while events are written. Returns the longest time without a published event.
///
/// # Panics
/// When no pod leads, or nothing is published afterwards.
pub async fn measure_takeover(
    cluster: &BenchCluster,
    system: &BenchSystem,
    names: &PipelineNames,
    exit: PodExit,
) -> Duration {
    let mut pods = system.start(cluster, names, 2).await;
    let stop = CancellationToken::new();
    let writer = tokio::spawn(write(names.clone(), stop.clone()));
    wait_for("published events", TIMEOUT, async || {
        let published = published(&cluster.broker, &names.topic).await;
        if published > 100 { Ok(()) } else { Err(published) }
    })
    .await;
    let leader = wait_for("a leader", TIMEOUT, async || {
        let leader = system.leader(names).await;
        leader.filter(|leader| pods.iter().any(|pod| pod.id == *leader)).ok_or("none")
    })
    .await;
    let leader = pods.swap_remove(pods.iter().position(|pod| pod.id == leader).expect("one of the pods"));
    let gap = watch_takeover(&cluster.broker, &names.topic, leader, exit).await;
    stop.cancel();
    writer.await.expect("the writer ends");
    for pod in pods {
        pod.kill().await;
    }
    gap
}

async fn watch_takeover(broker: &BrokerProcess, topic: &str, leader: BenchPod, exit: PodExit) -> Duration {
    let began = Instant::now();
    let mut ending = None;
    match exit {
        PodExit::Crash => leader.kill().await,
        PodExit::Graceful => {
            leader.terminate();
            ending = Some(leader);
        }
    }
    let (mut count, mut since, mut longest) = (published(broker, topic).await, began, Duration::ZERO);
    // A graceful stop has no gap that could be waited for.
    let least = if exit == PodExit::Crash { OBSERVED } else { OBSERVED / 2 };
    while began.elapsed() < least || since.elapsed() > STEADY {
        assert!(began.elapsed() < 2 * OBSERVED, "nothing is published after a takeover");
        sleep(POLL).await;
        let now = published(broker, topic).await;
        if now > count {
            longest = longest.max(since.elapsed());
            (count, since) = (now, Instant::now());
        }
    }
    // Kills it if it has not ended.
    drop(ending);
    longest
}

async fn published(broker: &BrokerProcess, topic: &str) -> u64 {
    broker.active_messages(&format!("{topic}/Subscriptions/{OBSERVER}")).await.expect("the broker responds")
}

async fn write(names: PipelineNames, stop: CancellationToken) {
    let events = events_collection(&names.source).clone_with_type::<RawDocumentBuf>();
    let mut ticks = interval(WRITE_EVERY);
    for number in 0.. {
        if stop.is_cancelled() {
            return;
        }
        ticks.tick().await;
        events.insert_one(SHAPE.document(number)).await.expect("an event is written");
    }
}
