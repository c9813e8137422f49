//! An event that ends its pod is found by the marks that its attempts leave, and no other event is blamed.
//!
//! `headwater`'s test `an_event_that_ends_every_pod_is_parked_alone` does the same with processes that abort.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use mongodb::bson::{Document, doc};
use pipeline::consumer::ConsumerDependencies;
use pipeline::publish::message::{BodyLocation, EventMessageId};
use pipeline::session::{POD_RUNS, PodRun};
use pipeline::view::{DeliveredEvent, Projection, ProjectionError, ProjectionEvent, Statements};
use servicebus::{Client, Settlement};
use testkit::proxy::Proxy;
use testkit::wait::wait_for;
use tokio::runtime::Runtime;

use crate::fixture::*;

/// Earlier deliveries from which on an attempt is marked.
const DELIVERIES: u32 = 3;

/// The name that the pods in the trap share: each replaces the last one.
const POD: &str = "trapped";

/// A projection that never returns from the first event: the attempt ends only with its pod.
#[derive(Default)]
struct Trap {
    entered: AtomicUsize,
}

impl Projection for Trap {
    fn name(&self) -> &str {
        "trap"
    }

    fn handles(&self, event: &DeliveredEvent) -> bool {
        event.aggregate.value().as_str() == Some("order-0")
    }

    fn apply(&self, event: &ProjectionEvent<'_>, _writes: &mut Statements) -> Result<(), ProjectionError> {
        if event.document().get_i64("n").is_ok_and(|number| number == 2) {
            self.entered.fetch_add(1, SeqCst);
            loop {
                std::thread::park();
            }
        }
        Ok(())
    }
}

struct TrapFixture {
    fixture: SessionFixture,
    trap: Arc<Trap>,
}

impl TrapFixture {
    async fn start() -> Self {
        Self { fixture: SessionFixture::start().await, trap: Arc::default() }
    }

    fn with_trap(&self, bus: Client) -> ConsumerDependencies {
        let mut dependencies = self.fixture.dependencies(bus);
        dependencies.projections.push(Arc::clone(&self.trap) as Arc<dyn Projection>);
        dependencies.pod_run = PodRun::new(POD);
        dependencies
    }

    /// Runs a pod until it is in the trap, and ends it there: nothing is settled, closed or cleared.
    async fn end_pod_in_trap(&self) {
        let (runtime, before) = (Runtime::new().unwrap(), self.trap.entered.load(SeqCst));
        let proxy = Proxy::start(self.fixture.broker.address()).await.unwrap();
        let _consumer = {
            // Its tasks belong to this runtime and end with it.
            let _entered = runtime.enter();
            RunningConsumer::start(sessions(2), self.with_trap(client_at(&self.fixture.broker, proxy.address())))
        };
        wait_for("the attempt", SOON, async || {
            let entered = self.trap.entered.load(SeqCst);
            if entered > before { Ok(()) } else { Err(entered) }
        })
        .await;
        runtime.shutdown_background();
        // The thread in the trap keeps the runtime alive: the operating system would close its connections.
        proxy.stop().await;
    }

    /// Ends pods in the trap until the event has been tried alone so often. The first mark covers all messages that were received together,
    /// which may be this one only.
    async fn end_pods_in_trap(&self, attempts_alone: u64) {
        for ended in 0.. {
            assert!(ended <= attempts_alone, "at most one attempt is for more than this event");
            self.end_pod_in_trap().await;
            let state = self.state("order-0").await.expect("the mark is left over");
            let mark: serde_json::Value = serde_json::from_slice(&state).unwrap();
            if mark["first"] == mark["last"] && mark["attempts"] == attempts_alone {
                return;
            }
        }
    }

    /// Waits until the session is free again.
    async fn state(&self, session: &str) -> Option<bytes::Bytes> {
        let held = wait_for("the session", SOON, async || {
            self.fixture.bus.accept_session(SUBSCRIPTION_PATH, session).await.map_err(|error| error.to_string())
        })
        .await;
        let state = held.session().state().await.unwrap();
        held.close().await.unwrap();
        state
    }
}

async fn abandon(fixture: &SessionFixture, session: &str) {
    for _ in 0..DELIVERIES {
        let mut held = fixture.bus.accept_session(SUBSCRIPTION_PATH, session).await.unwrap();
        let messages = held.receive(10, SOON).await.unwrap();
        held.settle(&messages, Settlement::Abandon { properties: servicebus::Map::new() }).await.unwrap();
        held.close().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_that_ends_its_pods_is_parked_alone() {
    let TrapFixture { fixture, trap } = TrapFixture::start().await;
    let events = events(6, 2);
    fixture.publish(&events).await;
    abandon(&fixture, "order-0").await;
    abandon(&fixture, "order-1").await;
    let pods = TrapFixture { fixture, trap };
    pods.end_pods_in_trap(3).await;
    let tried = pods.trap.entered.load(SeqCst);
    let consumer = RunningConsumer::start(sessions(2), pods.with_trap(client(&pods.fixture.broker)));
    let TrapFixture { fixture, trap } = &pods;
    wait_for("the event to be parked", SOON, async || match fixture.parked("order-0").await {
        Some((reason, 3)) if reason == "delivery_count" => Ok(()),
        other => Err(other),
    })
    .await;
    fixture.wait_until_settled().await;
    consumer.stop().await.unwrap();
    assert_eq!(trap.entered.load(SeqCst), tried, "it is parked untried");
    assert_eq!(fixture.parked("order-1").await, None);
    assert_eq!(fixture.applied_numbers().await["order-1"], [1, 3, 5]);
    assert_eq!((pods.state("order-0").await, pods.state("order-1").await), (None, None));
    fixture.end_orphaned_transactions().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_that_is_applied_at_last_is_not_blamed() {
    let pods = TrapFixture::start().await;
    let events = events(6, 2);
    pods.fixture.publish(&events).await;
    abandon(&pods.fixture, "order-0").await;
    pods.end_pods_in_trap(2).await;
    // This pod has no trap.
    let mut without_trap = pods.fixture.dependencies(client(&pods.fixture.broker));
    without_trap.pod_run = PodRun::new(POD);
    let consumer = RunningConsumer::start(sessions(2), without_trap);
    pods.fixture.assert_applied(&events).await;
    pods.fixture.wait_until_settled().await;
    consumer.stop().await.unwrap();
    assert_eq!((pods.fixture.parked("order-0").await, pods.state("order-0").await), (None, None));
    pods.fixture.end_orphaned_transactions().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_delivery_that_was_not_counted_is_found_too() {
    let pods = TrapFixture::start().await;
    let events = events(6, 2);
    pods.fixture.publish(&events).await;
    // Nothing has been delivered before: this pod makes no mark.
    pods.end_pod_in_trap().await;
    assert_eq!(pods.state("order-0").await, None);
    pods.end_pods_in_trap(3).await;
    let consumer = RunningConsumer::start(sessions(2), pods.with_trap(client(&pods.fixture.broker)));
    wait_for("the event to be parked", SOON, async || match pods.fixture.parked("order-0").await {
        Some((reason, 3)) if reason == "delivery_count" => Ok(()),
        other => Err(other),
    })
    .await;
    pods.fixture.wait_until_settled().await;
    consumer.stop().await.unwrap();
    assert_eq!(pods.fixture.parked("order-1").await, None);
    assert_eq!(pods.fixture.applied_numbers().await["order-1"], [1, 3, 5]);
    pods.fixture.end_orphaned_transactions().await;
}

/// What is known about the run of the pod that left a mark.
#[derive(Clone, Copy, Debug)]
enum MarkingRun {
    Crashed,
    Stopped,
    /// Shows that it lives: the pod only lost its lock.
    Alive,
    Unknown,
}

/// Leaves a mark on the first messages of the session, as the run `marking`.
async fn leave_mark(fixture: &SessionFixture, messages: usize, attempts: u32) -> (i64, i64) {
    abandon(fixture, "order-0").await;
    let mut held = fixture.bus.accept_session(SUBSCRIPTION_PATH, "order-0").await.unwrap();
    let mut marked = vec![];
    while marked.len() < messages {
        marked.extend(held.receive(messages - marked.len(), SOON).await.unwrap());
    }
    let (first, last) = (marked[0].sequence_number(), marked[messages - 1].sequence_number());
    let mark = serde_json::json!({ "format": 2, "run": "marking", "first": first, "last": last, "attempts": attempts });
    held.session().set_state(Some(mark.to_string().into())).await.unwrap();
    held.close().await.unwrap();
    (first, last)
}

/// Whether the event behind three left-over marks of its own is parked.
async fn is_blamed(run: MarkingRun) -> bool {
    let fixture = SessionFixture::start().await;
    let events = events(2, 1);
    fixture.publish(&events).await;
    leave_mark(&fixture, 1, 3).await;

    let runs = fixture.coordination.collection::<Document>(POD_RUNS);
    let pipeline = fixture.dependencies(client(&fixture.broker)).pipeline;
    let id = doc! { "pipeline": pipeline, "run": "marking" };
    let state = match run {
        MarkingRun::Crashed => Some("crashed"),
        MarkingRun::Stopped => Some("stopped"),
        MarkingRun::Alive => Some("running"),
        MarkingRun::Unknown => None,
    };
    if let Some(state) = state {
        let started = mongodb::bson::DateTime::now();
        let document = doc! { "_id": &id, "pod": "other", "state": state, "beats": 1_i64, "startedAt": started, "seenAt": started };
        runs.insert_one(document).await.unwrap();
    }
    let consumer = fixture.consume(sessions(2));
    let settle = fixture.wait_until_settled();
    let beat = async {
        loop {
            runs.update_one(doc! { "_id": &id }, doc! { "$inc": { "beats": 1_i64 } }).await.unwrap();
            tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        }
    };
    tokio::select! {
        () = settle => {}
        () = beat => {}
    }
    consumer.stop().await.unwrap();
    fixture.parked("order-0").await.is_some()
}

#[tokio::test(flavor = "multi_thread")]
async fn only_marks_of_crashed_runs_blame_an_event() {
    for (run, expected) in [
        (MarkingRun::Crashed, true),
        (MarkingRun::Unknown, true),
        (MarkingRun::Stopped, false),
        (MarkingRun::Alive, false),
    ] {
        assert_eq!(is_blamed(run).await, expected, "{run:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_rest_of_a_mark_outlives_its_holder() {
    let fixture = SessionFixture::start().await;
    fixture.publish(&events(4, 1)).await;
    let (first, last) = leave_mark(&fixture, 4, 0).await;
    // Nothing is known about the run: it counts as crashed. The session is released after one event.
    let mut config = sessions(1);
    config.session.max_session_events = 1.try_into().unwrap();
    // The mark makes this run cautious: it stays so for its next consumer.
    let run = PodRun::new(POD);
    let dependencies =
        || ConsumerDependencies { pod_run: run.clone(), ..fixture.dependencies(client(&fixture.broker)) };
    let consumer = RunningConsumer::start(config, dependencies());
    wait_for("the first event to be applied", SOON, async || match fixture.applied_numbers().await.get("order-0") {
        Some(applied) if !applied.is_empty() => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .await;
    consumer.stop().await.unwrap();
    let applied = fixture.applied_numbers().await["order-0"].len();
    if applied < 4 {
        let held = fixture.bus.accept_session(SUBSCRIPTION_PATH, "order-0").await.unwrap();
        let state = held.session().state().await.unwrap().expect("the others are still marked");
        let mark: serde_json::Value = serde_json::from_slice(&state).unwrap();
        let (left, run) = ((mark["first"].as_i64(), mark["last"].as_i64()), mark["run"].as_str());
        assert_eq!((left, run), ((Some(first + applied as i64), Some(last)), Some("marking")));
        held.close().await.unwrap();
    }
    let consumer = RunningConsumer::start(sessions(1), dependencies());
    fixture.wait_until_settled().await;
    consumer.stop().await.unwrap();
    let held = fixture.bus.accept_session(SUBSCRIPTION_PATH, "order-0").await.unwrap();
    assert_eq!(held.session().state().await.unwrap(), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_suspect_oversize_body_is_parked_unread() {
    let fixture = SessionFixture::start().await;
    let (order, mut encoder) = (event("order-0", 1), encoder());
    let id = EventMessageId::for_event(&order, None);
    fixture.oversize().store(id.as_str(), order.document.as_bytes()).await.unwrap();
    fixture.send(vec![encode(&mut encoder, &order, BodyLocation::ClaimCheck)]).await;
    leave_mark(&fixture, 1, 3).await;
    let consumer = fixture.consume(sessions(1));
    fixture.wait_until_settled().await;
    consumer.stop().await.unwrap();
    assert_eq!(fixture.parked("order-0").await, Some(("no_body".to_owned(), 1)));
}
