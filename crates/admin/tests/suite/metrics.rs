//! Every metric changes with its source, and is read over HTTP.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use admin::metrics::{self, Metric};
use admin::status::{
    AuditRound, AuditState, AuditStatus, CheckpointStatus, IncompleteReadModel, ParkedCount, PodRole, PodStatus,
    ReadModelStatus, RejectedCount,
};
use admin::{
    LatencyBuckets, LatencyHistogram, LoopActivity, LoopLiveness, PipelineStatus, PodSample, PodServiceHealth,
    Readiness, WallTime,
};

use crate::fixture::{AdminFixture, status};

type Case<T> = (&'static str, fn(&mut T), &'static str);

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
    (
        "headwater_read_model_incomplete",
        |status| {
            let incomplete = Some(IncompleteReadModel { reason: "added".into(), since: WallTime::default() });
            status.read_models = vec![ReadModelStatus { incomplete, ..read_model() }];
        },
        "{read_model=\"orders\"} 1",
    ),
    ("headwater_audit_age_seconds", |status| status.audit = Some(audit()), " 90000"),
    ("headwater_audit_overdue", |status| status.audit = Some(audit()), " 1"),
    ("headwater_audit_found_aggregates", |status| status.audit = Some(audit()), " 3"),
    ("headwater_audit_missing_aggregates", |status| status.audit = Some(audit()), " 2"),
    ("headwater_problems", |status| status.leader = None, "{severity=\"critical\"} 1"),
];

/// Covered by tests of their own below.
const OTHER_METRICS: &[&str] = &[
    "headwater_insert_to_read_model_seconds",
    "headwater_status_age_seconds",
    "headwater_service_ready",
    "headwater_loop_stalled",
];

#[tokio::test]
async fn every_metric_changes_with_its_source() {
    let fixture = AdminFixture::start();
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
    let tested: BTreeSet<_> =
        PIPELINE_CASES.iter().map(|(metric, ..)| *metric).chain(OTHER_METRICS.iter().copied()).collect();
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

#[tokio::test]
async fn samples_of_the_pod_are_grouped_by_name() {
    let fixture = AdminFixture::start();
    let sample = |name, help, labels: &[(&'static str, &str)], value| {
        let labels = labels.iter().map(|(label, value)| (*label, (*value).to_owned())).collect();
        PodSample { name, help, labels, value }
    };
    let samples = vec![
        sample("a_total", "By reason.", &[("reason", "busy")], 3),
        sample("a_total", "Busy or not.", &[("reason", "other")], 4),
        sample("b", "Now.", &[], 5),
    ];
    fixture.set(|state| state.samples = samples);
    let page = fixture.get("/metrics").await.body;
    let expected = "# HELP a_total By reason.\n# TYPE a_total counter\na_total{reason=\"busy\"} 3\na_total{reason=\"other\"} 4\n\
                    # HELP b Now.\n# TYPE b gauge\nb 5\n";
    assert!(page.contains(expected), "{page}");
    fixture.stop().await;
}

#[tokio::test]
async fn latencies_are_a_histogram_in_seconds() {
    let fixture = AdminFixture::start();
    fixture.set(|state| state.latency = one_of_40_ms());
    let page = fixture.get("/metrics").await.body;
    for line in ["_bucket{le=\"0.05\"} 1", "_sum 0.04", "_count 1"] {
        let line = format!("headwater_insert_to_read_model_seconds{line}");
        assert!(page.lines().any(|found| found == line), "`{line}` is not in\n{page}");
    }
    fixture.stop().await;
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
        "headwater_rejected_events{reason=\"no_sequence\"} 0",
        "headwater_rejected_events{reason=\"refused\"} 2",
        "headwater_rejected_events{reason=\"too_large\"} 0",
    ] {
        assert_eq!(page.lines().filter(|found| *found == line).count(), 1, "{line} in\n{page}");
    }
    assert_eq!(page.lines().filter(|line| line.starts_with("headwater_rejected_events{")).count(), 4);
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
        vec![PodServiceHealth { name: "producer", role: "leader", readiness, loops }]
    };
    let has = async |line: &str| fixture.get("/metrics").await.body.lines().any(|found| found == line);
    fixture.set(|readings| readings.health.services = service(Readiness::Ready, LoopActivity::Idle));
    assert!(has("headwater_service_ready{service=\"producer\"} 1").await);
    assert!(has("headwater_loop_stalled{service=\"producer\",loop=\"capture\"} 0").await);
    let late = LoopActivity::Active { at: Instant::now() };
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

/// Overdue by an hour: three aggregates found in the last round, two of this one not healed yet.
fn audit() -> AuditStatus {
    AuditStatus {
        period_seconds: Some(86_400.0),
        age_seconds: Some(90_000.0),
        missing: 2,
        last: Some(AuditRound { found: 3, ..AuditRound::default() }),
        ..AuditStatus::new(AuditState::Walking)
    }
}

fn read_model() -> ReadModelStatus {
    let (name, documents) = ("orders".into(), Some(1_000));
    ReadModelStatus { name, documents, applied_seconds_ago: Some(2.5), ..ReadModelStatus::default() }
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
        unverified: None,
        published_per_second: None,
        applied_per_second: None,
        latency: None,
    }
}
