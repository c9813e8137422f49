//! A pipeline that keeps every worker of its runtime busy.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use lease::mongo::LeaseName;
use lease::{Candidate, TermOutcome};
use mongodb::options::ClientOptions;
use testkit::mongo::shared;

use crate::{quick, secs};

const WORKERS: usize = 2;

/// The test's own thread observes: a task on the runtime would not run.
#[test]
fn heartbeats_continue_while_the_runtime_is_saturated() {
    let mongo = tokio::runtime::Runtime::new().unwrap();
    let shared = mongo.block_on(shared()).unwrap();
    let database = shared.database("busy_runtime");
    let client = mongo.block_on(async { ClientOptions::parse(shared.uri()).await }).unwrap();
    let name = LeaseName {
        database: database.name().into(),
        key: "shop".into(),
        pod_id: "pod".into(),
        fingerprint: "shop.events".into(),
    };

    let pipeline = tokio::runtime::Builder::new_multi_thread().worker_threads(WORKERS).enable_all().build().unwrap();
    let release = ReleaseWorkers(Arc::default());
    let ticks = Arc::new(AtomicU64::new(0));
    let running = pipeline.block_on(async {
        let candidate = Candidate { name, config: quick(), client };
        let work = |leadership: lease::Leadership| async move {
            leadership.wait_for_stop().await;
            TermOutcome::Done
        };
        candidate.start(work, std::future::pending()).unwrap()
    });
    let handle = running.handle();
    let started = Instant::now();
    while !handle.is_leader() {
        assert!(started.elapsed() < secs(30), "the pod does not lead");
        sleep(Duration::from_millis(5));
    }
    let term = handle.term();

    pipeline.spawn({
        let ticks = Arc::clone(&ticks);
        async move {
            loop {
                ticks.fetch_add(1, Ordering::Relaxed);
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        }
    });
    for _ in 0..WORKERS {
        let done = Arc::clone(&release.0);
        pipeline.spawn(async move { while !done.load(Ordering::Relaxed) {} });
    }
    sleep(Duration::from_millis(200));
    let (before, saturated) = (ticks.load(Ordering::Relaxed), Instant::now());
    while saturated.elapsed() < quick().ttl * 2 {
        assert!(handle.is_leader(), "the term was lost after {:?}", saturated.elapsed());
        sleep(Duration::from_millis(10));
    }
    assert_eq!(ticks.load(Ordering::Relaxed), before, "the runtime was not saturated, so the test shows nothing");
    assert_eq!(handle.term(), term);
    drop(release);
    pipeline.shutdown_timeout(secs(5));
}

/// The closure itself is slow: it returns its future only when the test allows it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn heartbeats_continue_while_the_work_is_slow_to_start() {
    let shared = shared().await.unwrap();
    let database = shared.database("slow_to_start");
    let name = LeaseName {
        database: database.name().into(),
        key: "shop".into(),
        pod_id: "pod".into(),
        fingerprint: "shop.events".into(),
    };
    let client = ClientOptions::parse(shared.uri()).await.unwrap();
    let release = ReleaseWorkers(Arc::default());
    let done = Arc::clone(&release.0);
    let work = move |leadership: lease::Leadership| {
        while !done.load(Ordering::Relaxed) {
            sleep(Duration::from_millis(5));
        }
        async move {
            leadership.wait_for_stop().await;
            TermOutcome::Done
        }
    };
    let running = Candidate { name, config: quick(), client }.start(work, std::future::pending()).unwrap();
    let handle = running.handle();
    let led =
        testkit::wait::wait_for("the pod to lead", secs(30), async || handle.term().ok_or("it does not lead")).await;
    let began = Instant::now();
    while began.elapsed() < quick().ttl * 2 {
        assert_eq!(handle.term(), Some(led), "the term was lost after {:?}", began.elapsed());
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    drop(release);
}

/// Releases the workers, also when the test fails: a runtime waits for them.
struct ReleaseWorkers(Arc<AtomicBool>);

impl Drop for ReleaseWorkers {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
