mod logs;

use super::*;
use std::sync::Mutex;

use tokio::task::LocalSet;
use tokio::time::timeout;

use crate::handle::Handle;
use crate::memory::{MemoryLeaseStore, StoreFault};
use crate::record::{LeaseVersion, ServerTime};
use crate::timing::Timing;

fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn timing() -> Timing {
    Timing::new(secs(15), secs(10), secs(5)).unwrap()
}

/// One lease and its pods, in paused time.
struct ElectorFixture {
    lease: MemoryLeaseStore,
    clock: Clock,
    watch: bool,
}

struct TestPod {
    handle: Handle,
    store: MemoryLeaseStore,
    shutdown: CancellationToken,
    elector: JoinHandle<Result<(), Error>>,
    /// How every term began and ended, as the work saw it.
    history: Arc<Mutex<Vec<String>>>,
}

/// What a pod's work does.
#[derive(Clone, Default)]
struct WorkScript {
    drain_time: Duration,
    drains_until_lost: bool,
    ends_early: Option<TermOutcome>,
    panics: bool,
    panics_without_future: bool,
    seen_term: Option<Term>,
}

impl ElectorFixture {
    fn new() -> Self {
        let clock = Clock::Runtime { started: tokio::time::Instant::now() };
        Self { lease: MemoryLeaseStore::new(timing().ttl()), clock, watch: true }
    }

    fn pod(&self, name: &str) -> TestPod {
        self.pod_with(name, WorkScript::default())
    }

    fn pod_with(&self, name: &str, script: WorkScript) -> TestPod {
        self.pod_of_process(name, script, LeaseSpread::default())
    }

    fn pod_of_process(&self, name: &str, script: WorkScript, spread: LeaseSpread) -> TestPod {
        let store = self.lease.for_another_pod();
        let (handle, channels) = Handle::new();
        let config = ElectorConfig {
            key: "shop".into(),
            pod_id: name.into(),
            election: ElectionRules { timing: timing(), max_clock_skew: None },
            poll: secs(1),
            watch: self.watch,
        };
        let history = Arc::<Mutex<Vec<String>>>::default();
        let recorded = Arc::clone(&history);
        let work: LeaderTask = Arc::new(move |leadership| {
            assert!(!script.panics_without_future, "the script panics before it returns a future");
            Box::pin(run_script(script.clone(), leadership, Arc::clone(&recorded)))
        });
        let shutdown = CancellationToken::new();
        let runtime = runtime::Handle::current();
        let elector = Elector::new(store.clone(), config, self.clock, channels, work, runtime, shutdown.clone());
        let elector = tokio::task::spawn_local(elector.with_spread(spread).run());
        TestPod { handle, store, shutdown, elector, history }
    }

    fn now(&self) -> u64 {
        self.clock.now().as_duration().as_secs()
    }
}

async fn run_script(script: WorkScript, leadership: Leadership, history: Arc<Mutex<Vec<String>>>) -> TermOutcome {
    let record = |what: String| history.lock().unwrap().push(what);
    record(format!("+{}", leadership.term()));
    assert!(!script.panics, "the script panics");
    if let Some(seen) = script.seen_term.filter(|seen| leadership.term() <= *seen) {
        return TermOutcome::TermBehind { seen };
    }
    if let Some(outcome) = script.ends_early {
        return outcome;
    }
    let stop = leadership.wait_for_stop().await;
    let open = if leadership.gate().is_open() { "open" } else { "closed" };
    record(format!("{stop:?} {open}"));
    sleep(script.drain_time).await;
    if script.drains_until_lost {
        leadership.wait_for_loss().await;
    }
    record(format!("-{}", leadership.term()));
    TermOutcome::Done
}

impl TestPod {
    async fn wait_until_leading(&self) -> Term {
        let mut changes = self.handle.subscribe();
        let leading = async {
            while self.handle.term().is_none() {
                changes.changed().await.unwrap();
            }
            self.handle.term().unwrap()
        };
        timeout(secs(600), leading).await.expect("the pod should lead")
    }

    async fn wait_until_lost(&self) {
        let mut changes = self.handle.subscribe();
        let lost = changes.wait_for(|status| !matches!(status, LeaseStatus::Leading { .. }));
        timeout(secs(600), lost).await.expect("the pod should lose its term").unwrap();
    }

    async fn stop(self) {
        self.shutdown.cancel();
        timeout(secs(600), self.elector).await.expect("the elector ends").unwrap().unwrap();
    }

    /// Like `kill -9`: nothing is released.
    fn crash(&self) {
        self.elector.abort();
    }

    fn history(&self) -> String {
        self.history.lock().unwrap().join(", ")
    }
}

async fn run_local<T>(test: impl Future<Output = T>) -> T {
    LocalSet::new().run_until(test).await
}

#[tokio::test(start_paused = true)]
async fn one_pod_leads_and_keeps_its_term() {
    run_local(async {
        let fixture = ElectorFixture::new();
        let pod = fixture.pod("a");
        assert_eq!(pod.wait_until_leading().await, Term::new(1));
        sleep(secs(3600)).await;
        assert_eq!(pod.handle.term(), Some(Term::new(1)));
        assert_eq!(pod.history(), "+1");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_process_with_fewer_leases_takes_a_free_one_first() {
    run_local(async {
        let fixture = ElectorFixture::new();
        let leader = fixture.pod("leader");
        leader.wait_until_leading().await;
        let spread = LeaseSpread::default();
        let others = [(); 9].map(|()| {
            let mut taken = spread.attempt();
            taken.set_led();
            taken
        });
        // Asks first whenever the lease changes: it started before.
        let busy = fixture.pod_of_process("busy", WorkScript::default(), spread.clone());
        sleep(secs(1)).await;
        let idle = fixture.pod("idle");
        sleep(secs(5)).await;
        leader.stop().await;
        idle.wait_until_leading().await;
        assert_eq!((busy.handle.term(), spread.led()), (None, 9));
        sleep(secs(1)).await;
        // Without another pod it takes the lease all the same, within 100 ms.
        idle.stop().await;
        let released = tokio::time::Instant::now();
        busy.wait_until_leading().await;
        assert!(released.elapsed() <= Duration::from_millis(100), "{:?}", released.elapsed());
        assert_eq!(spread.led(), 10);
        busy.stop().await;
        drop(others);
        assert_eq!(spread.led(), 0);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn draining_work_is_told_when_its_term_is_lost() {
    run_local(async {
        let fixture = ElectorFixture::new();
        let pod = fixture.pod_with("a", WorkScript { drains_until_lost: true, ..WorkScript::default() });
        pod.wait_until_leading().await;
        pod.handle.step_down();
        sleep(secs(1)).await;
        pod.store.inject(Some(StoreFault::Silence));
        pod.wait_until_lost().await;
        sleep(secs(1)).await;
        assert_eq!(pod.history(), "+1, Drain open, -1");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_crashed_leader_is_replaced_after_ttl_and_not_before() {
    run_local(async {
        let fixture = ElectorFixture::new();
        let first = fixture.pod("a");
        first.wait_until_leading().await;
        let second = fixture.pod("b");
        sleep(secs(60)).await;
        assert!(!second.handle.is_leader());
        first.crash();
        let died = fixture.now();
        let last_beat = 15; // a heartbeat may have been sent up to five seconds before
        assert_eq!(second.wait_until_leading().await, Term::new(2));
        let took = fixture.now() - died;
        assert!((last_beat - 5..=last_beat + 1).contains(&took), "{took} s");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_released_lease_is_taken_at_once() {
    run_local(async {
        let fixture = ElectorFixture::new();
        let first = fixture.pod("a");
        first.wait_until_leading().await;
        let second = fixture.pod("b");
        sleep(secs(7)).await;
        let released = fixture.clock.now();
        first.stop().await;
        assert_eq!(second.wait_until_leading().await, Term::new(2));
        assert!(fixture.clock.now().since(released) < Duration::from_millis(50));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn without_watch_a_released_lease_is_taken_at_the_next_poll() {
    run_local(async {
        let fixture = ElectorFixture { watch: false, ..ElectorFixture::new() };
        let first = fixture.pod("a");
        first.wait_until_leading().await;
        let second = fixture.pod("b");
        sleep(secs(7)).await;
        let released = fixture.clock.now();
        first.stop().await;
        assert_eq!(second.wait_until_leading().await, Term::new(2));
        assert!(fixture.clock.now().since(released) <= Duration::from_millis(1300));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_renewal_without_a_reply_does_not_end_the_term() {
    run_local(async {
        let fixture = ElectorFixture::new();
        let pod = fixture.pod("a");
        pod.wait_until_leading().await;
        pod.store.inject(Some(StoreFault::DoThenFail));
        sleep(secs(9)).await;
        pod.store.inject(None);
        sleep(secs(60)).await;
        assert_eq!(pod.handle.term(), Some(Term::new(1)));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn renewals_without_a_reply_do_not_extend_the_term() {
    run_local(async {
        let fixture = ElectorFixture::new();
        let pod = fixture.pod("a");
        pod.wait_until_leading().await;
        let deadline = pod.handle.valid_until().unwrap();
        pod.store.inject(Some(StoreFault::DoThenFail));
        pod.wait_until_lost().await;
        assert!(fixture.clock.now() >= deadline);
        assert!(fixture.clock.now().since(deadline) < Duration::from_millis(10));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn an_isolated_leader_stops_at_its_deadline_and_returns_later() {
    for fault in [StoreFault::Refuse, StoreFault::Silence] {
        run_local(async {
            let fixture = ElectorFixture::new();
            let pod = fixture.pod("a");
            pod.wait_until_leading().await;
            let deadline = pod.handle.valid_until().unwrap();
            pod.store.inject(Some(fault));
            pod.wait_until_lost().await;
            assert!(fixture.clock.now().since(deadline) < Duration::from_millis(10), "{fault:?}");
            pod.store.inject(None);
            assert_eq!(pod.wait_until_leading().await, Term::new(2));
            assert_eq!(pod.history(), "+1, Lost closed, -1, +2");
        })
        .await;
    }
}

#[tokio::test(start_paused = true)]
async fn one_failed_renewal_does_not_end_the_term() {
    run_local(async {
        let fixture = ElectorFixture::new();
        let pod = fixture.pod("a");
        pod.wait_until_leading().await;
        pod.store.inject(Some(StoreFault::Refuse));
        sleep(secs(9)).await;
        pod.store.inject(None);
        sleep(secs(30)).await;
        assert_eq!(pod.history(), "+1");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_takeover_without_a_reply_is_retried_in_a_new_term() {
    run_local(async {
        let fixture = ElectorFixture::new();
        let pod = fixture.pod("a");
        pod.store.inject(Some(StoreFault::DoThenFail));
        sleep(secs(5)).await;
        assert!(!pod.handle.is_leader());
        pod.store.inject(None);
        let term = pod.wait_until_leading().await;
        let terms: Vec<_> = fixture.lease.history().iter().map(|record| record.version.term).collect();
        assert!(terms.is_sorted(), "{terms:?}");
        assert_eq!(Some(&term), terms.last());
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn the_lease_is_released_only_after_the_work_has_drained() {
    run_local(async {
        let fixture = ElectorFixture::new();
        let slow = WorkScript { drain_time: secs(60), ..WorkScript::default() };
        let first = fixture.pod_with("a", slow);
        first.wait_until_leading().await;
        let second = fixture.pod("b");
        sleep(secs(2)).await;
        first.shutdown.cancel();
        let asked = fixture.now();
        assert_eq!(second.wait_until_leading().await, Term::new(2));
        assert_eq!(fixture.now() - asked, 60);
        assert_eq!(first.history(), "+1, Drain open, -1");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_steps_down_does_not_win_again_at_once() {
    run_local(async {
        let fixture = ElectorFixture { watch: false, ..ElectorFixture::new() };
        let first = fixture.pod("a");
        first.wait_until_leading().await;
        let second = fixture.pod("b");
        sleep(secs(3)).await;
        assert_eq!(first.handle.step_down(), Some(Term::new(1)));
        assert_eq!(second.wait_until_leading().await, Term::new(2));
        assert_eq!(second.handle.step_down(), Some(Term::new(2)));
        assert_eq!(first.wait_until_leading().await, Term::new(3));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn dropping_every_handle_does_not_end_the_term() {
    run_local(async {
        let fixture = ElectorFixture::new();
        let pod = fixture.pod("a");
        pod.wait_until_leading().await;
        drop(pod.handle);
        sleep(secs(60)).await;
        assert_eq!(pod.history.lock().unwrap().join(", "), "+1");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_lone_pod_that_steps_down_leads_again_after_ttl() {
    run_local(async {
        let fixture = ElectorFixture::new();
        let pod = fixture.pod("a");
        pod.wait_until_leading().await;
        let asked = fixture.now();
        pod.handle.step_down();
        pod.wait_until_lost().await;
        assert_eq!(pod.wait_until_leading().await, Term::new(2));
        assert_eq!(fixture.now() - asked, 15);
        assert_eq!(pod.history(), "+1, Drain open, -1, +2");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn work_that_fails_hands_the_lease_to_another_pod() {
    let gives_up = WorkScript { ends_early: Some(TermOutcome::StepDown("no disk".into())), ..WorkScript::default() };
    let panics = WorkScript { panics: true, ..WorkScript::default() };
    let panics_without_future = WorkScript { panics_without_future: true, ..WorkScript::default() };
    for script in [gives_up, panics, panics_without_future] {
        run_local(async {
            let fixture = ElectorFixture::new();
            let first = fixture.pod_with("a", script);
            first.wait_until_led_and_lost().await;
            let second = fixture.pod("b");
            assert_eq!(second.wait_until_leading().await, Term::new(2));
        })
        .await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_term_that_fell_behind_is_raised() {
    run_local(async {
        let fixture = ElectorFixture::new();
        let pod = fixture.pod_with("a", WorkScript { seen_term: Some(Term::new(41)), ..WorkScript::default() });
        sleep(secs(1)).await;
        assert_eq!(pod.handle.term(), Some(Term::new(42)));
        assert_eq!(pod.history(), "+1, +42");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn the_work_of_a_lost_term_ends_before_the_pod_leads_again() {
    run_local(async {
        let fixture = ElectorFixture::new();
        let pod = fixture.pod_with("a", WorkScript { drain_time: secs(100), ..WorkScript::default() });
        pod.wait_until_leading().await;
        pod.store.inject(Some(StoreFault::Silence));
        pod.wait_until_lost().await;
        let lost = fixture.now();
        pod.store.inject(None);
        assert_eq!(pod.wait_until_leading().await, Term::new(2));
        assert_eq!(fixture.now() - lost, 100);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_deleted_lease_is_created_again_after_the_holders_ttl() {
    run_local(async {
        let fixture = ElectorFixture::new();
        let first = fixture.pod("a");
        first.wait_until_leading().await;
        let second = fixture.pod("b");
        sleep(secs(7)).await;
        let last_valid = first.handle.valid_until().unwrap();
        fixture.lease.set(None);
        let deleted = fixture.now();
        let next = tokio::select! { term = second.wait_until_leading() => term, term = async { first.wait_until_lost().await; first.wait_until_leading().await } => term };
        assert_eq!(next, Term::new(2));
        assert!(fixture.clock.now() > last_valid);
        assert!(fixture.now() - deleted >= 15);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_deposed_leader_closes_its_gate_and_stops_its_work() {
    run_local(async {
        let fixture = ElectorFixture::new();
        let pod = fixture.pod("a");
        pod.wait_until_leading().await;
        let usurper = LeaseVersion { holder: Some(CandidateId::new(9)), term: Term::new(8), heartbeat: 1 };
        fixture.lease.set(Some(LeaseRecord { version: usurper, ttl: secs(15), expires_at: ServerTime::default() }));
        pod.wait_until_lost().await;
        tokio::task::yield_now().await;
        assert!(!pod.handle.is_leader());
        assert_eq!(pod.wait_until_leading().await, Term::new(9));
        assert_eq!(pod.history(), "+1, Lost closed, -1, +9");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn eight_pods_have_one_leader_at_any_time() {
    run_local(async {
        let fixture = ElectorFixture::new();
        let pods: Vec<_> = (0..8).map(|n| fixture.pod(&n.to_string())).collect();
        for round in 1..=20 {
            sleep(secs(30)).await;
            let leaders: Vec<_> = pods.iter().filter(|pod| pod.handle.is_leader()).collect();
            assert_eq!(leaders.len(), 1, "round {round}");
            assert_eq!(leaders[0].handle.step_down(), Some(Term::new(round)));
        }
        let written: Vec<_> = fixture.lease.history().iter().map(|record| record.version).collect();
        let mut distinct = written.clone();
        distinct.sort();
        distinct.dedup();
        assert_eq!(distinct.len(), written.len(), "a version was written twice");
    })
    .await;
}

impl TestPod {
    async fn wait_until_led_and_lost(&self) {
        let mut changes = self.handle.subscribe();
        let led = changes.wait_for(|status| matches!(status, LeaseStatus::Leading { .. }));
        drop(timeout(secs(600), led).await.expect("the pod should lead").unwrap());
        self.wait_until_lost().await;
        tokio::task::yield_now().await;
    }
}
