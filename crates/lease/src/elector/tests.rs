mod logs;

use super::*;
use std::sync::Mutex;

use tokio::task::LocalSet;
use tokio::time::timeout;

use crate::handle::Handle;
use crate::memory::{Fault, MemoryLease};
use crate::record::{ServerTime, Version};
use crate::timing::Timing;

fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn timing() -> Timing {
    Timing::new(secs(15), secs(10), secs(5)).unwrap()
}

/// One lease and its pods, in paused time.
struct House {
    lease: MemoryLease,
    clock: Clock,
    watch: bool,
}

struct Pod {
    handle: Handle,
    line: MemoryLease,
    shutdown: CancellationToken,
    elector: JoinHandle<Result<(), Error>>,
    /// How every term began and ended, as the work saw it.
    story: Arc<Mutex<Vec<String>>>,
}

/// What a pod's work does.
#[derive(Clone, Default)]
struct Script {
    drains_for: Duration,
    drains_until_lost: bool,
    ends_by_itself: Option<Outcome>,
    panics: bool,
    panics_at_once: bool,
    guards: Option<Term>,
}

impl House {
    fn new() -> Self {
        let clock = Clock::Runtime { started: tokio::time::Instant::now() };
        Self { lease: MemoryLease::new(timing().ttl()), clock, watch: true }
    }

    fn pod(&self, name: &str) -> Pod {
        self.pod_with(name, Script::default())
    }

    fn pod_with(&self, name: &str, script: Script) -> Pod {
        let line = self.lease.another_line();
        let (handle, desk) = Handle::new();
        let rules = Rules {
            key: "shop".into(),
            pod_id: name.into(),
            contest: Contest { timing: timing(), max_clock_skew: None },
            poll: secs(1),
            watch: self.watch,
        };
        let story = Arc::<Mutex<Vec<String>>>::default();
        let told = Arc::clone(&story);
        let work: Work = Arc::new(move |leadership| {
            assert!(!script.panics_at_once, "the work panics before there is any, as it was told to");
            Box::pin(perform(script.clone(), leadership, Arc::clone(&told)))
        });
        let shutdown = CancellationToken::new();
        let runtime = runtime::Handle::current();
        let elector = Elector::new(line.clone(), rules, self.clock, desk, work, runtime, shutdown.clone());
        let elector = tokio::task::spawn_local(elector.run());
        Pod { handle, line, shutdown, elector, story }
    }

    fn now(&self) -> u64 {
        self.clock.now().as_duration().as_secs()
    }
}

async fn perform(script: Script, leadership: Leadership, story: Arc<Mutex<Vec<String>>>) -> Outcome {
    let tell = |what: String| story.lock().unwrap().push(what);
    tell(format!("+{}", leadership.term()));
    assert!(!script.panics, "the work panics, as it was told to");
    if let Some(seen) = script.guards.filter(|seen| leadership.term() <= *seen) {
        return Outcome::TermBehind { seen };
    }
    if let Some(outcome) = script.ends_by_itself {
        return outcome;
    }
    let stop = leadership.stopping().await;
    let open = if leadership.gate().is_open() { "open" } else { "shut" };
    tell(format!("{stop:?} {open}"));
    sleep(script.drains_for).await;
    if script.drains_until_lost {
        leadership.lost().await;
    }
    tell(format!("-{}", leadership.term()));
    Outcome::Done
}

impl Pod {
    async fn leads(&self) -> Term {
        let mut changes = self.handle.changes();
        let leading = async {
            while self.handle.term().is_none() {
                changes.changed().await.unwrap();
            }
            self.handle.term().unwrap()
        };
        timeout(secs(600), leading).await.expect("the pod should lead")
    }

    async fn loses(&self) {
        let mut changes = self.handle.changes();
        let lost = changes.wait_for(|status| !matches!(status, Status::Leading { .. }));
        timeout(secs(600), lost).await.expect("the pod should lose its term").unwrap();
    }

    async fn stops(self) {
        self.shutdown.cancel();
        timeout(secs(600), self.elector).await.expect("the elector should end").unwrap().unwrap();
    }

    /// As `kill -9`: nothing is given back.
    fn dies(&self) {
        self.elector.abort();
    }

    fn story(&self) -> String {
        self.story.lock().unwrap().join(", ")
    }
}

async fn inside<T>(test: impl Future<Output = T>) -> T {
    LocalSet::new().run_until(test).await
}

#[tokio::test(start_paused = true)]
async fn one_pod_leads_and_keeps_its_term() {
    inside(async {
        let house = House::new();
        let pod = house.pod("a");
        assert_eq!(pod.leads().await, Term::new(1));
        sleep(secs(3600)).await;
        assert_eq!(pod.handle.term(), Some(Term::new(1)));
        assert_eq!(pod.story(), "+1");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn work_that_drains_learns_that_its_term_is_lost() {
    inside(async {
        let house = House::new();
        let pod = house.pod_with("a", Script { drains_until_lost: true, ..Script::default() });
        pod.leads().await;
        pod.handle.step_down();
        sleep(secs(1)).await;
        pod.line.fail(Some(Fault::Silence));
        pod.loses().await;
        sleep(secs(1)).await;
        assert_eq!(pod.story(), "+1, Drain open, -1");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_dead_leader_is_followed_after_ttl_and_not_before() {
    inside(async {
        let house = House::new();
        let first = house.pod("a");
        first.leads().await;
        let second = house.pod("b");
        sleep(secs(60)).await;
        assert!(!second.handle.is_leader());
        first.dies();
        let died = house.now();
        let last_beat = 15; // a heartbeat may have been sent up to five seconds before
        assert_eq!(second.leads().await, Term::new(2));
        let took = house.now() - died;
        assert!((last_beat - 5..=last_beat + 1).contains(&took), "{took} s");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_release_is_followed_at_once() {
    inside(async {
        let house = House::new();
        let first = house.pod("a");
        first.leads().await;
        let second = house.pod("b");
        sleep(secs(7)).await;
        let released = house.clock.now();
        first.stops().await;
        assert_eq!(second.leads().await, Term::new(2));
        assert!(house.clock.now().since(released) < Duration::from_millis(50));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn without_the_watch_a_release_is_followed_at_the_next_poll() {
    inside(async {
        let house = House { watch: false, ..House::new() };
        let first = house.pod("a");
        first.leads().await;
        let second = house.pod("b");
        sleep(secs(7)).await;
        let released = house.clock.now();
        first.stops().await;
        assert_eq!(second.leads().await, Term::new(2));
        assert!(house.clock.now().since(released) <= Duration::from_millis(1300));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_renewal_whose_answer_is_lost_does_not_end_the_term() {
    inside(async {
        let house = House::new();
        let pod = house.pod("a");
        pod.leads().await;
        pod.line.fail(Some(Fault::DoThenFail));
        sleep(secs(9)).await;
        pod.line.fail(None);
        sleep(secs(60)).await;
        assert_eq!(pod.handle.term(), Some(Term::new(1)));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn renewals_without_an_answer_do_not_prolong_the_term() {
    inside(async {
        let house = House::new();
        let pod = house.pod("a");
        pod.leads().await;
        let deadline = pod.handle.valid_until().unwrap();
        pod.line.fail(Some(Fault::DoThenFail));
        pod.loses().await;
        assert!(house.clock.now() >= deadline);
        assert!(house.clock.now().since(deadline) < Duration::from_millis(10));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_leader_cut_off_stops_at_its_deadline_and_comes_back_in_a_higher_term() {
    for fault in [Fault::Refuse, Fault::Silence] {
        inside(async {
            let house = House::new();
            let pod = house.pod("a");
            pod.leads().await;
            let deadline = pod.handle.valid_until().unwrap();
            pod.line.fail(Some(fault));
            pod.loses().await;
            assert!(house.clock.now().since(deadline) < Duration::from_millis(10), "{fault:?}");
            pod.line.fail(None);
            assert_eq!(pod.leads().await, Term::new(2));
            assert_eq!(pod.story(), "+1, Lost shut, -1, +2");
        })
        .await;
    }
}

#[tokio::test(start_paused = true)]
async fn one_failed_renewal_is_not_the_end() {
    inside(async {
        let house = House::new();
        let pod = house.pod("a");
        pod.leads().await;
        pod.line.fail(Some(Fault::Refuse));
        sleep(secs(9)).await;
        pod.line.fail(None);
        sleep(secs(30)).await;
        assert_eq!(pod.story(), "+1");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_takeover_whose_answer_is_lost_is_taken_anew() {
    inside(async {
        let house = House::new();
        let pod = house.pod("a");
        pod.line.fail(Some(Fault::DoThenFail));
        sleep(secs(5)).await;
        assert!(!pod.handle.is_leader());
        pod.line.fail(None);
        let term = pod.leads().await;
        let terms: Vec<_> = house.lease.history().iter().map(|record| record.version.term).collect();
        assert!(terms.is_sorted(), "{terms:?}");
        assert_eq!(Some(&term), terms.last());
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn the_lease_goes_back_only_after_the_work_has_drained() {
    inside(async {
        let house = House::new();
        let slow = Script { drains_for: secs(60), ..Script::default() };
        let first = house.pod_with("a", slow);
        first.leads().await;
        let second = house.pod("b");
        sleep(secs(2)).await;
        first.shutdown.cancel();
        let asked = house.now();
        assert_eq!(second.leads().await, Term::new(2));
        assert_eq!(house.now() - asked, 60);
        assert_eq!(first.story(), "+1, Drain open, -1");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn who_steps_down_does_not_win_again_at_once() {
    inside(async {
        let house = House { watch: false, ..House::new() };
        let first = house.pod("a");
        first.leads().await;
        let second = house.pod("b");
        sleep(secs(3)).await;
        assert_eq!(first.handle.step_down(), Some(Term::new(1)));
        assert_eq!(second.leads().await, Term::new(2));
        assert_eq!(second.handle.step_down(), Some(Term::new(2)));
        assert_eq!(first.leads().await, Term::new(3));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_term_does_not_end_because_nobody_holds_a_handle() {
    inside(async {
        let house = House::new();
        let pod = house.pod("a");
        pod.leads().await;
        drop(pod.handle);
        sleep(secs(60)).await;
        assert_eq!(pod.story.lock().unwrap().join(", "), "+1");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn who_steps_down_alone_leads_again_after_ttl() {
    inside(async {
        let house = House::new();
        let pod = house.pod("a");
        pod.leads().await;
        let asked = house.now();
        pod.handle.step_down();
        pod.loses().await;
        assert_eq!(pod.leads().await, Term::new(2));
        assert_eq!(house.now() - asked, 15);
        assert_eq!(pod.story(), "+1, Drain open, -1, +2");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn work_that_cannot_go_on_hands_the_term_to_another_pod() {
    let gives_up = Script { ends_by_itself: Some(Outcome::StepDown("no disk".into())), ..Script::default() };
    let panics = Script { panics: true, ..Script::default() };
    let panics_at_once = Script { panics_at_once: true, ..Script::default() };
    for script in [gives_up, panics, panics_at_once] {
        inside(async {
            let house = House::new();
            let first = house.pod_with("a", script);
            first.loses_after_leading().await;
            let second = house.pod("b");
            assert_eq!(second.leads().await, Term::new(2));
        })
        .await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_term_that_fell_behind_what_it_guards_is_raised() {
    inside(async {
        let house = House::new();
        let pod = house.pod_with("a", Script { guards: Some(Term::new(41)), ..Script::default() });
        sleep(secs(1)).await;
        assert_eq!(pod.handle.term(), Some(Term::new(42)));
        assert_eq!(pod.story(), "+1, +42");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_lost_term_s_work_must_end_before_the_pod_leads_again() {
    inside(async {
        let house = House::new();
        let pod = house.pod_with("a", Script { drains_for: secs(100), ..Script::default() });
        pod.leads().await;
        pod.line.fail(Some(Fault::Silence));
        pod.loses().await;
        let lost = house.now();
        pod.line.fail(None);
        assert_eq!(pod.leads().await, Term::new(2));
        assert_eq!(house.now() - lost, 100);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_deleted_lease_is_made_again_in_a_higher_term_after_its_holder_s_time() {
    inside(async {
        let house = House::new();
        let first = house.pod("a");
        first.leads().await;
        let second = house.pod("b");
        sleep(secs(7)).await;
        let last_valid = first.handle.valid_until().unwrap();
        house.lease.set(None);
        let deleted = house.now();
        let next = tokio::select! { term = second.leads() => term, term = async { first.loses().await; first.leads().await } => term };
        assert_eq!(next, Term::new(2));
        assert!(house.clock.now() > last_valid);
        assert!(house.now() - deleted >= 15);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_deposed_leader_shuts_its_gate_and_tells_its_work() {
    inside(async {
        let house = House::new();
        let pod = house.pod("a");
        pod.leads().await;
        let thief = Version { holder: Some(Contender::new(9)), term: Term::new(8), heartbeat: 1 };
        house.lease.set(Some(Record { version: thief, ttl: secs(15), expires_at: ServerTime::default() }));
        pod.loses().await;
        tokio::task::yield_now().await;
        assert!(!pod.handle.is_leader());
        assert_eq!(pod.leads().await, Term::new(9));
        assert_eq!(pod.story(), "+1, Lost shut, -1, +9");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn eight_pods_and_one_leader_at_any_time() {
    inside(async {
        let house = House::new();
        let pods: Vec<_> = (0..8).map(|n| house.pod(&n.to_string())).collect();
        for round in 1..=20 {
            sleep(secs(30)).await;
            let leaders: Vec<_> = pods.iter().filter(|pod| pod.handle.is_leader()).collect();
            assert_eq!(leaders.len(), 1, "round {round}");
            assert_eq!(leaders[0].handle.step_down(), Some(Term::new(round)));
        }
        let written: Vec<_> = house.lease.history().iter().map(|record| record.version).collect();
        let mut distinct = written.clone();
        distinct.sort();
        distinct.dedup();
        assert_eq!(distinct.len(), written.len(), "a version was written twice");
    })
    .await;
}

impl Pod {
    async fn loses_after_leading(&self) {
        let mut changes = self.handle.changes();
        let led = changes.wait_for(|status| matches!(status, Status::Leading { .. }));
        drop(timeout(secs(600), led).await.expect("the pod should lead").unwrap());
        self.loses().await;
        tokio::task::yield_now().await;
    }
}
