//! For every metric: something makes it change, and its value is read over HTTP.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use admin::metrics::{self, Metric};
use admin::status::{Checkpoint, Parked, Pod, ReadModel, Rejected, Role};
use admin::{Buckets, Counters, Latency, Loop, Pulse, Readiness, Service, Status, Time};

use crate::house::{House, status};

type Case<T> = (Metric, fn(&mut T), &'static str);

/// What this pod counts.
const OF_THE_POD: &[Case<Counters>] = &[
    (metrics::BUILD_INFO, |counters| counters.pod = "pod-7".into(), "{pod=\"pod-7\",version=\"\"} 1"),
    (metrics::LEADS, |counters| counters.leads = true, " 1"),
    (metrics::TERMS_TOTAL, |counters| counters.terms = 2, " 2"),
    (metrics::EVENTS_CAPTURED_TOTAL, |counters| counters.captured = 3, " 3"),
    (metrics::EVENTS_FOREIGN_TOTAL, |counters| counters.foreign = 4, " 4"),
    (metrics::CAPTURE_REOPENED_TOTAL, |counters| counters.reopened = 5, " 5"),
    (metrics::EVENTS_PUBLISHED_TOTAL, |counters| counters.published = 6, " 6"),
    (metrics::TRANSFERS_TOTAL, |counters| counters.transfers = 7, " 7"),
    (metrics::EVENTS_RESENT_TOTAL, |counters| counters.uncertain = 8, "{why=\"uncertain\"} 8"),
    (metrics::EVENTS_RESENT_TOTAL, |counters| counters.retried = 9, "{why=\"refused\"} 9"),
    (metrics::EVENTS_REJECTED_TOTAL, |counters| counters.rejected = 10, " 10"),
    (metrics::EVENTS_OVERSIZE_TOTAL, |counters| counters.oversize = 11, " 11"),
    (metrics::IN_FLIGHT_EVENTS, |counters| counters.in_flight_events = 12, " 12"),
    (metrics::IN_FLIGHT_BYTES, |counters| counters.in_flight_bytes = 13, " 13"),
    (metrics::CHECKPOINT_SAVES_TOTAL, |counters| counters.saves = 14, " 14"),
    (metrics::STORE_ERRORS_TOTAL, |counters| counters.store_errors = 15, " 15"),
    (metrics::SESSIONS_HELD, |counters| counters.sessions_held = 16, " 16"),
    (metrics::SESSIONS_ACCEPTED_TOTAL, |counters| counters.sessions_accepted = 17, " 17"),
    (metrics::SESSIONS_DROPPED_TOTAL, |counters| counters.sessions_dropped = 18, " 18"),
    (metrics::SESSION_LOCKS_LOST_TOTAL, |counters| counters.locks_lost = 19, " 19"),
    (metrics::MESSAGES_RECEIVED_TOTAL, |counters| counters.received = 20, " 20"),
    (metrics::MESSAGES_REDELIVERED_TOTAL, |counters| counters.redelivered = 21, " 21"),
    (metrics::MESSAGES_SETTLED_TOTAL, |counters| counters.settled = 22, " 22"),
    (metrics::DEAD_LETTERS_READ_TOTAL, |counters| counters.dead_letters_parked = 23, "{fate=\"parked\"} 23"),
    (metrics::DEAD_LETTERS_READ_TOTAL, |counters| counters.dead_letters_left = 24, "{fate=\"left\"} 24"),
    (metrics::EVENTS_APPLIED_TOTAL, |counters| counters.applied = 25, " 25"),
    (metrics::EVENTS_DUPLICATE_TOTAL, |counters| counters.duplicates = 26, " 26"),
    (metrics::EVENTS_REGRESSED_TOTAL, |counters| counters.regressed = 27, " 27"),
    (metrics::EVENTS_PARKED_TOTAL, |counters| counters.parked = 28, " 28"),
    (metrics::GAPS_HEALED_TOTAL, |counters| counters.gaps_healed = 29, " 29"),
    (metrics::TRANSACTIONS_TOTAL, |counters| counters.transactions = 30, "{outcome=\"committed\"} 30"),
    (metrics::TRANSACTIONS_TOTAL, |counters| counters.conflicts = 31, "{outcome=\"conflict\"} 31"),
    (metrics::TRANSACTIONS_TOTAL, |counters| counters.unknown_commits = 32, "{outcome=\"unknown\"} 32"),
    (metrics::INSERT_TO_READ_MODEL_SECONDS, |counters| counters.latency = one_of_40_ms(), "_bucket{le=\"0.05\"} 1"),
    (metrics::INSERT_TO_READ_MODEL_SECONDS, |counters| counters.latency = one_of_40_ms(), "_sum 0.04"),
];

/// What was gathered of the pipeline.
const OF_THE_PIPELINE: &[Case<Status>] = &[
    (metrics::LEADER_PRESENT, |status| status.leader = None, " 0"),
    (metrics::TERM, |status| status.leader.as_mut().unwrap().term = 9, " 9"),
    (metrics::LAG_SECONDS, |status| status.lag.seconds = Some(1.5), " 1.5"),
    (metrics::LAG_EVENTS, |status| status.lag.events = Some(12), " 12"),
    (metrics::OPLOG_HEADROOM_SECONDS, |status| status.oplog.headroom_seconds = Some(7200.0), " 7200"),
    (metrics::CHECKPOINT_AGE_SECONDS, |status| status.checkpoint = Some(checkpoint()), " 4"),
    (metrics::PODS, |status| status.pods = vec![pod(false), pod(true)], " 1"),
    (metrics::PODS_SILENT, |status| status.pods = vec![pod(true), pod(true)], " 2"),
    (metrics::PARKED_AGGREGATES, |status| status.parked = Some(vec![parked()]), "{read_model=\"orders\"} 2"),
    (metrics::PARKED_EVENTS, |status| status.parked = Some(vec![parked()]), "{read_model=\"orders\"} 5"),
    (
        metrics::REJECTED_EVENTS,
        |status| status.rejected = Some(vec![Rejected { reason: "too_large".into(), events: 3 }]),
        "{reason=\"too_large\"} 3",
    ),
    (metrics::SUBSCRIPTION_MESSAGES, |status| status.bus.waiting = Some(11), " 11"),
    (metrics::DEAD_LETTERS, |status| status.bus.dead_letters = Some(4), " 4"),
    (metrics::READ_MODEL_DOCUMENTS, |status| status.read_models = vec![read_model()], "{read_model=\"orders\"} 1000"),
    (metrics::PROBLEMS, |status| status.leader = None, "{severity=\"critical\"} 1"),
];

/// Changed by tests of their own, below.
const OTHERS: &[Metric] = &[metrics::STATUS_AGE_SECONDS, metrics::SERVICE_READY, metrics::LOOP_WEDGED];

#[tokio::test]
async fn every_metric_changes_when_what_it_tells_of_does() {
    let house = House::start();
    for (metric, change, expected) in OF_THE_POD {
        house.set(|readings| readings.counters = Counters::default());
        let before = house.get("/metrics").await.body;
        house.set(|readings| change(&mut readings.counters));
        changes(metric, expected, &before, &house.get("/metrics").await.body);
    }
    for (metric, change, expected) in OF_THE_PIPELINE {
        house.board.post(status().judged(), Instant::now());
        let before = house.get("/metrics").await.body;
        let mut changed = status();
        change(&mut changed);
        house.board.post(changed.judged(), Instant::now());
        changes(metric, expected, &before, &house.get("/metrics").await.body);
    }
    house.stop().await;
}

fn changes(metric: &Metric, expected: &str, before: &str, after: &str) {
    let line = format!("{}{expected}", metric.name);
    assert!(!before.lines().any(|found| found == line), "`{line}` was there before");
    assert!(after.lines().any(|found| found == line), "`{line}` is not in\n{after}");
}

#[test]
fn no_metric_is_without_a_test_that_changes_it() {
    let pod = OF_THE_POD.iter().map(|(metric, ..)| metric.name);
    let tested: BTreeSet<_> = pod
        .chain(OF_THE_PIPELINE.iter().map(|(metric, ..)| metric.name))
        .chain(OTHERS.iter().map(|metric| metric.name))
        .collect();
    let all: BTreeSet<_> = metrics::ALL.iter().map(|metric| metric.name).collect();
    assert_eq!(tested, all);
}

#[tokio::test]
async fn every_metric_is_described_on_the_page_once_and_with_its_kind() {
    let house = House::start();
    let page = house.get("/metrics").await;
    assert!(page.head.contains("content-type: text/plain; version=0.0.4"));
    for Metric { name, kind, .. } in metrics::ALL {
        let line = format!("# TYPE {name} {}", format!("{kind:?}").to_lowercase());
        assert_eq!(page.body.lines().filter(|found| *found == line).count(), 1, "{line}");
    }
    house.stop().await;
}

/// The page for operators.
const RUNBOOK: &str = include_str!("../../../../docs/operations.md");

#[tokio::test]
async fn the_runbook_has_every_metric_of_the_page_and_no_other() {
    let house = House::start();
    let page = house.get("/metrics").await.body;
    let exposed: BTreeSet<_> =
        page.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next().map(str::to_owned)).collect();
    let rows = RUNBOOK.lines().filter_map(|line| line.strip_prefix("| `headwater_")?.split('`').next());
    let documented: BTreeSet<_> = rows.map(|rest| format!("headwater_{rest}")).collect();
    assert_eq!(documented, exposed);
    house.stop().await;
}

#[test]
fn the_runbook_s_alerts_ask_for_metrics_that_exist_and_each_has_its_advice() {
    let known: BTreeSet<_> = metrics::ALL.iter().map(|metric| metric.name).collect();
    let words = RUNBOOK.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_');
    let asked = words.filter(|word| word.starts_with("headwater_")).map(|word| word.trim_end_matches("_bucket"));
    for name in asked {
        assert!(known.contains(name), "`{name}` is no metric");
    }
    let alerts: Vec<_> =
        RUNBOOK.lines().filter_map(|line| line.strip_prefix("| `Headwater")?.split('`').next()).collect();
    assert!(alerts.len() >= 10, "{alerts:?}");
    for alert in alerts {
        assert!(RUNBOOK.contains(&format!("**Headwater{alert}")), "what to do about Headwater{alert}");
    }
}

#[tokio::test]
async fn what_is_unknown_has_no_sample() {
    let house = House::start();
    let samples = |page: &str, metric: &Metric| {
        page.lines().filter(|line| line.starts_with(metric.name) && line.contains(' ')).count()
    };
    let unknown = [
        metrics::LAG_SECONDS,
        metrics::LAG_EVENTS,
        metrics::OPLOG_HEADROOM_SECONDS,
        metrics::CHECKPOINT_AGE_SECONDS,
        metrics::PARKED_AGGREGATES,
        metrics::REJECTED_EVENTS,
        metrics::SUBSCRIPTION_MESSAGES,
    ];
    house.board.post(status(), Instant::now());
    let page = house.get("/metrics").await.body;
    for metric in &unknown {
        assert_eq!(samples(&page, metric), 0, "{}", metric.name);
    }
    assert_eq!(samples(&page, &metrics::LEADER_PRESENT), 1);
    let mut unread = status();
    unread.leader = None;
    unread.gathered.missing = vec!["the lease".into()];
    house.board.post(unread, Instant::now());
    let page = house.get("/metrics").await.body;
    assert_eq!(samples(&page, &metrics::LEADER_PRESENT), 0, "nobody can say who leads");
    house.stop().await;
}

#[tokio::test]
async fn figures_that_are_no_longer_gathered_grow_old() {
    let house = House::start();
    house.board.post(status(), Instant::now());
    let age = async || {
        let page = house.get("/metrics").await.body;
        let age = page.lines().find_map(|line| line.strip_prefix("headwater_status_age_seconds ")).expect("an age");
        age.parse::<f64>().expect("a number")
    };
    // Every look is later than the one before.
    let (first, second) = (age().await, age().await);
    assert!(0.0 < first && first < second, "{first}, then {second}");
    house.stop().await;
}

#[tokio::test]
async fn a_wedged_loop_and_a_service_that_is_not_ready_are_seen() {
    let house = House::start();
    let service = |readiness, pulse| {
        let loops = vec![Loop { name: "capture", pulse, limit: Duration::ZERO }];
        vec![Service { name: "producer", role: "leader", readiness, loops }]
    };
    let has = async |line: &str| house.get("/metrics").await.body.lines().any(|found| found == line);
    house.set(|readings| readings.health.services = service(Readiness::Ready, Pulse::Resting));
    assert!(has("headwater_service_ready{service=\"producer\"} 1").await);
    assert!(has("headwater_loop_wedged{service=\"producer\",loop=\"capture\"} 0").await);
    let late = Pulse::Alive { at: Instant::now() };
    house.set(|readings| readings.health.services = service(Readiness::Not("halted".into()), late));
    assert!(has("headwater_service_ready{service=\"producer\"} 0").await);
    assert!(has("headwater_loop_wedged{service=\"producer\",loop=\"capture\"} 1").await);
    house.stop().await;
}

fn one_of_40_ms() -> Buckets {
    let latency = Latency::default();
    latency.record(Duration::from_millis(40));
    latency.read()
}

fn checkpoint() -> Checkpoint {
    Checkpoint {
        phase: "stream".into(),
        scanned: None,
        term: 3,
        epoch: 1,
        saved: None,
        saved_seconds_ago: Some(4.0),
        saved_by: "pod-0".into(),
    }
}

fn parked() -> Parked {
    Parked { read_model: "orders".into(), aggregates: 2, events: 5, oldest_seconds: Some(60.0) }
}

fn read_model() -> ReadModel {
    ReadModel { name: "orders".into(), documents: Some(1_000), applied_seconds_ago: None, parked_aggregates: None }
}

fn pod(silent: bool) -> Pod {
    Pod {
        id: "pod-1".into(),
        version: "0.1.0".into(),
        generation: None,
        address: None,
        role: Role::Standby,
        started: None,
        seen: Time::default(),
        seen_seconds_ago: 1.0,
        silent,
        producer: "standby".into(),
        consumer: "consuming".into(),
        troubles: vec![],
        sessions: None,
        published_per_second: None,
        applied_per_second: None,
        latency: None,
    }
}
