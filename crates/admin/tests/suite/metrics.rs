//! Every metric changes with its source, and is read over HTTP.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use admin::metrics::{self, Metric};
use admin::status::{CheckpointStatus, ParkedCount, PodRole, PodStatus, ReadModelStatus, RejectedCount};
use admin::{
    Activity, LatencyBuckets, LatencyHistogram, LoopLiveness, PipelineStatus, PodCounters, Readiness, ServiceHealth,
    WallTime,
};

use crate::fixture::{AdminFixture, status};

type Case<T> = (&'static str, fn(&mut T), &'static str);

/// Metrics of this pod.
const POD_CASES: &[Case<PodCounters>] = &[
    ("headwater_build_info", |counters| counters.pod = "pod-7".into(), "{pod=\"pod-7\",version=\"\"} 1"),
    ("headwater_is_leader", |counters| counters.leads = true, " 1"),
    ("headwater_terms_total", |counters| counters.terms = 2, " 2"),
    ("headwater_events_captured_total", |counters| counters.captured = 3, " 3"),
    ("headwater_changes_ignored_total", |counters| counters.foreign = 4, " 4"),
    ("headwater_capture_reopened_total", |counters| counters.reopened = 5, " 5"),
    ("headwater_events_published_total", |counters| counters.published = 6, " 6"),
    ("headwater_transfers_total", |counters| counters.transfers = 7, " 7"),
    ("headwater_events_republished_total", |counters| counters.uncertain = 8, "{reason=\"unacknowledged\"} 8"),
    ("headwater_events_republished_total", |counters| counters.retried = 9, "{reason=\"refused\"} 9"),
    ("headwater_events_rejected_total", |counters| counters.rejected = 10, " 10"),
    ("headwater_events_oversize_total", |counters| counters.oversize = 11, " 11"),
    ("headwater_in_flight_events", |counters| counters.in_flight_events = 12, " 12"),
    ("headwater_in_flight_bytes", |counters| counters.in_flight_bytes = 13, " 13"),
    ("headwater_checkpoint_saves_total", |counters| counters.saves = 14, " 14"),
    ("headwater_store_errors_total", |counters| counters.store_errors = 15, " 15"),
    ("headwater_sessions_held", |counters| counters.sessions_held = 16, " 16"),
    ("headwater_sessions_accepted_total", |counters| counters.sessions_accepted = 17, " 17"),
    ("headwater_sessions_dropped_total", |counters| counters.sessions_dropped = 18, " 18"),
    ("headwater_session_locks_lost_total", |counters| counters.locks_lost = 19, " 19"),
    ("headwater_messages_received_total", |counters| counters.received = 20, " 20"),
    ("headwater_messages_redelivered_total", |counters| counters.redelivered = 21, " 21"),
    ("headwater_messages_settled_total", |counters| counters.settled = 22, " 22"),
    ("headwater_dead_letters_read_total", |counters| counters.dead_letters_parked = 23, "{action=\"parked\"} 23"),
    ("headwater_dead_letters_read_total", |counters| counters.dead_letters_left = 24, "{action=\"left\"} 24"),
    ("headwater_events_applied_total", |counters| counters.applied = 25, " 25"),
    (
        "headwater_read_model_events_total",
        |counters| counters.applied_in = vec![("orders".into(), 33)],
        "{read_model=\"orders\"} 33",
    ),
    ("headwater_events_duplicate_total", |counters| counters.duplicates = 26, " 26"),
    ("headwater_events_regressed_total", |counters| counters.regressed = 27, " 27"),
    ("headwater_events_parked_total", |counters| counters.parked = 28, " 28"),
    ("headwater_gaps_healed_total", |counters| counters.gaps_healed = 29, " 29"),
    ("headwater_transactions_total", |counters| counters.transactions = 30, "{outcome=\"committed\"} 30"),
    ("headwater_transactions_total", |counters| counters.conflicts = 31, "{outcome=\"conflict\"} 31"),
    ("headwater_transactions_total", |counters| counters.unknown_commits = 32, "{outcome=\"unknown\"} 32"),
    ("headwater_insert_to_read_model_seconds", |counters| counters.latency = one_of_40_ms(), "_bucket{le=\"0.05\"} 1"),
    ("headwater_insert_to_read_model_seconds", |counters| counters.latency = one_of_40_ms(), "_sum 0.04"),
];

/// Metrics of the whole pipeline.
const PIPELINE_CASES: &[Case<PipelineStatus>] = &[
    ("headwater_leader_present", |status| status.leader = None, " 0"),
    ("headwater_term", |status| status.leader.as_mut().unwrap().term = 9, " 9"),
    ("headwater_lag_seconds", |status| status.lag.seconds = Some(1.5), " 1.5"),
    (
        "headwater_lag_events",
        |status| (status.lag.events, status.subscription.active_messages) = (Some(12), Some(7)),
        " 12",
    ),
    ("headwater_oplog_headroom_seconds", |status| status.oplog.headroom_seconds = Some(7200.0), " 7200"),
    ("headwater_checkpoint_age_seconds", |status| status.checkpoint = Some(checkpoint()), " 4"),
    ("headwater_pods", |status| status.pods = vec![pod(false), pod(true)], " 1"),
    ("headwater_pods_silent", |status| status.pods = vec![pod(true), pod(true)], " 2"),
    ("headwater_parked_aggregates", |status| status.parked = Some(vec![parked()]), "{read_model=\"orders\"} 2"),
    ("headwater_parked_events", |status| status.parked = Some(vec![parked()]), "{read_model=\"orders\"} 5"),
    (
        "headwater_rejected_events",
        |status| status.rejected = Some(vec![RejectedCount { reason: "too_large".into(), events: 3 }]),
        "{reason=\"too_large\"} 3",
    ),
    ("headwater_subscription_messages", |status| status.subscription.active_messages = Some(11), " 11"),
    ("headwater_dead_letters", |status| status.subscription.dead_letters = Some(4), " 4"),
    (
        "headwater_read_model_documents",
        |status| status.read_models = vec![read_model()],
        "{read_model=\"orders\"} 1000",
    ),
    (
        "headwater_read_model_age_seconds",
        |status| status.read_models = vec![read_model()],
        "{read_model=\"orders\"} 2.5",
    ),
    ("headwater_problems", |status| status.leader = None, "{severity=\"critical\"} 1"),
];

/// Covered by tests of their own below.
const OTHER_METRICS: &[&str] = &["headwater_status_age_seconds", "headwater_service_ready", "headwater_loop_stalled"];

#[tokio::test]
async fn every_metric_changes_with_its_source() {
    let fixture = AdminFixture::start();
    for (metric, change, expected) in POD_CASES {
        fixture.set(|readings| readings.counters = PodCounters::default());
        let before = fixture.get("/metrics").await.body;
        fixture.set(|readings| change(&mut readings.counters));
        assert_changed(metric, expected, &before, &fixture.get("/metrics").await.body);
    }
    for (metric, change, expected) in PIPELINE_CASES {
        fixture.status_cache.store(status().evaluated(), Instant::now());
        let before = fixture.get("/metrics").await.body;
        let mut changed = status();
        change(&mut changed);
        fixture.status_cache.store(changed.evaluated(), Instant::now());
        assert_changed(metric, expected, &before, &fixture.get("/metrics").await.body);
    }
    fixture.stop().await;
}

fn assert_changed(metric: &str, expected: &str, before: &str, after: &str) {
    let line = format!("{metric}{expected}");
    assert!(!before.lines().any(|found| found == line), "`{line}` was there before");
    assert!(after.lines().any(|found| found == line), "`{line}` is not in\n{after}");
}

#[test]
fn every_metric_has_a_test_that_changes_it() {
    let pod = POD_CASES.iter().map(|(metric, ..)| *metric);
    let tested: BTreeSet<_> =
        pod.chain(PIPELINE_CASES.iter().map(|(metric, ..)| *metric)).chain(OTHER_METRICS.iter().copied()).collect();
    let all: BTreeSet<_> = metrics::METRICS.iter().map(|metric| metric.name).collect();
    assert_eq!(tested, all);
}

#[tokio::test]
async fn every_metric_is_described_once_with_its_kind() {
    let fixture = AdminFixture::start();
    let page = fixture.get("/metrics").await;
    assert!(page.head.contains("content-type: text/plain; version=0.0.4"));
    for Metric { name, kind, .. } in metrics::METRICS {
        let line = format!("# TYPE {name} {}", format!("{kind:?}").to_lowercase());
        assert_eq!(page.body.lines().filter(|found| *found == line).count(), 1, "{line}");
    }
    fixture.stop().await;
}

/// The page for operators lists all metrics and alerts.
const RUNBOOK: &str = include_str!("../../../../docs/operations.md");

#[tokio::test]
async fn the_runbook_lists_exactly_the_exposed_metrics() {
    let fixture = AdminFixture::start();
    let page = fixture.get("/metrics").await.body;
    let exposed: BTreeSet<_> =
        page.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next().map(str::to_owned)).collect();
    let rows = RUNBOOK.lines().filter_map(|line| line.strip_prefix("| `headwater_")?.split('`').next());
    let documented: BTreeSet<_> = rows.map(|rest| format!("headwater_{rest}")).collect();
    assert_eq!(documented, exposed);
    fixture.stop().await;
}

#[test]
fn runbook_alerts_use_known_metrics_and_have_advice() {
    let known: BTreeSet<_> = metrics::METRICS.iter().map(|metric| metric.name).collect();
    let words = RUNBOOK.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_');
    let used = words.filter(|word| word.starts_with("headwater_")).map(|word| word.trim_end_matches("_bucket"));
    for name in used {
        assert!(known.contains(name), "`{name}` is not a metric");
    }
    let alerts: Vec<_> =
        RUNBOOK.lines().filter_map(|line| line.strip_prefix("| `Headwater")?.split('`').next()).collect();
    assert!(alerts.len() >= 10, "{alerts:?}");
    for alert in alerts {
        assert!(RUNBOOK.contains(&format!("**Headwater{alert}")), "advice for Headwater{alert}");
    }
}

#[tokio::test]
async fn an_unknown_value_has_no_sample() {
    let fixture = AdminFixture::start();
    let samples = |page: &str, metric: &str| page.lines().filter(|line| line.starts_with(metric)).count();
    let unknown = [
        "headwater_lag_seconds",
        "headwater_lag_events",
        "headwater_oplog_headroom_seconds",
        "headwater_checkpoint_age_seconds",
        "headwater_parked_aggregates",
        "headwater_rejected_events",
        "headwater_subscription_messages",
    ];
    fixture.status_cache.store(status(), Instant::now());
    let page = fixture.get("/metrics").await.body;
    for metric in unknown {
        assert_eq!(samples(&page, metric), 0, "{metric}");
    }
    assert_eq!(samples(&page, "headwater_leader_present"), 1);
    let mut away = status();
    // The events in flight are known, the active messages are not.
    (away.lag.events, away.lag.is_lower_bound) = (Some(4), true);
    fixture.status_cache.store(away, Instant::now());
    assert_eq!(
        samples(&fixture.get("/metrics").await.body, "headwater_lag_events"),
        0,
        "a part of the sum is not the sum"
    );
    let mut unread = status();
    unread.leader = None;
    unread.collected.unavailable = vec!["the lease".into()];
    fixture.status_cache.store(unread, Instant::now());
    let page = fixture.get("/metrics").await.body;
    assert_eq!(samples(&page, "headwater_leader_present"), 0, "the leader is unknown");
    fixture.stop().await;
}

#[tokio::test]
async fn a_known_absence_is_a_zero() {
    let fixture = AdminFixture::start();
    let mut healthy = status();
    healthy.read_models = vec![read_model()];
    (healthy.parked, healthy.rejected) =
        (Some(vec![]), Some(vec![RejectedCount { reason: "refused".into(), events: 2 }]));
    fixture.status_cache.store(healthy, Instant::now());
    let page = fixture.get("/metrics").await.body;
    for line in [
        "headwater_parked_aggregates{read_model=\"orders\"} 0",
        "headwater_parked_events{read_model=\"orders\"} 0",
        "headwater_rejected_events{reason=\"no_aggregate_id\"} 0",
        "headwater_rejected_events{reason=\"refused\"} 2",
        "headwater_rejected_events{reason=\"too_large\"} 0",
    ] {
        assert_eq!(page.lines().filter(|found| *found == line).count(), 1, "{line} in\n{page}");
    }
    assert_eq!(page.lines().filter(|line| line.starts_with("headwater_rejected_events{")).count(), 3);
    fixture.stop().await;
}

#[tokio::test]
async fn a_status_that_is_not_refreshed_grows_old() {
    let fixture = AdminFixture::start();
    fixture.status_cache.store(status(), Instant::now());
    let age = async || {
        let page = fixture.get("/metrics").await.body;
        let age = page.lines().find_map(|line| line.strip_prefix("headwater_status_age_seconds ")).expect("an age");
        age.parse::<f64>().expect("a number")
    };
    // Every request is later than the one before.
    let (first, second) = (age().await, age().await);
    assert!(0.0 < first && first < second, "{first}, then {second}");
    fixture.stop().await;
}

#[tokio::test]
async fn a_stalled_loop_and_an_unready_service_are_reported() {
    let fixture = AdminFixture::start();
    let service = |readiness, activity| {
        let loops = vec![LoopLiveness { name: "capture", activity, limit: Duration::ZERO }];
        vec![ServiceHealth { name: "producer", role: "leader", readiness, loops }]
    };
    let has = async |line: &str| fixture.get("/metrics").await.body.lines().any(|found| found == line);
    fixture.set(|readings| readings.health.services = service(Readiness::Ready, Activity::Idle));
    assert!(has("headwater_service_ready{service=\"producer\"} 1").await);
    assert!(has("headwater_loop_stalled{service=\"producer\",loop=\"capture\"} 0").await);
    let late = Activity::Active { at: Instant::now() };
    fixture.set(|readings| readings.health.services = service(Readiness::NotReady("halted".into()), late));
    assert!(has("headwater_service_ready{service=\"producer\"} 0").await);
    assert!(has("headwater_loop_stalled{service=\"producer\",loop=\"capture\"} 1").await);
    fixture.stop().await;
}

fn one_of_40_ms() -> LatencyBuckets {
    let latency = LatencyHistogram::default();
    latency.record(Duration::from_millis(40));
    latency.snapshot()
}

fn checkpoint() -> CheckpointStatus {
    CheckpointStatus {
        ahead_seconds: None,
        phase: "stream".into(),
        scanned: None,
        term: 3,
        epoch: 1,
        saved: None,
        saved_seconds_ago: Some(4.0),
        saved_by: "pod-0".into(),
    }
}

fn parked() -> ParkedCount {
    ParkedCount { read_model: "orders".into(), aggregates: 2, events: 5, oldest_seconds: Some(60.0) }
}

fn read_model() -> ReadModelStatus {
    let (name, documents) = ("orders".into(), Some(1_000));
    ReadModelStatus { name, documents, applied: None, applied_seconds_ago: Some(2.5), parked_aggregates: None }
}

fn pod(silent: bool) -> PodStatus {
    PodStatus {
        id: "pod-1".into(),
        version: "0.1.0".into(),
        generation: None,
        address: None,
        role: PodRole::Standby,
        started: None,
        last_seen: WallTime::default(),
        last_seen_seconds_ago: 1.0,
        silent,
        producer: "standby".into(),
        consumer: "consuming".into(),
        problems: vec![],
        sessions: None,
        published_per_second: None,
        applied_per_second: None,
        latency: None,
    }
}
