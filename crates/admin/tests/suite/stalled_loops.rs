//! Every loop of a pod, wedged: `/healthz` says so, by name.

use std::time::{Duration, Instant};

use admin::{Activity, Heartbeat, LoopLiveness, PodHealth, Readiness, ServiceHealth};

use crate::fixture::AdminFixture;

const LOOPS: [(&str, &str); 6] = [
    ("lease", "elector"),
    ("producer", "capture"),
    ("producer", "publish"),
    ("consumer", "sessions"),
    ("consumer", "applier"),
    ("status", "gather"),
];

/// All loops beat now, and all may take their time for the next beat, but one.
fn health(wedged: &str) -> PodHealth {
    let now = Instant::now();
    let services = LOOPS.map(|(service, name)| {
        let heartbeat = Heartbeat::new(now);
        heartbeat.beat(now);
        let limit = if name == wedged { Duration::ZERO } else { Duration::from_secs(600) };
        let one = LoopLiveness { name, activity: heartbeat.activity(), limit };
        ServiceHealth { name: service, role: "leader", readiness: Readiness::Ready, loops: vec![one] }
    });
    PodHealth { services: services.into(), stopping: false }
}

#[tokio::test]
async fn a_pod_with_a_wedged_loop_is_neither_live_nor_ready_and_says_which_one_it_is() {
    let fixture = AdminFixture::start();
    fixture.set(|readings| readings.health = health("none"));
    for path in ["/healthz", "/readyz"] {
        assert_eq!(fixture.get(path).await.status, 200, "{path}");
    }
    for (_, name) in LOOPS {
        fixture.set(|readings| readings.health = health(name));
        for path in ["/healthz", "/readyz"] {
            let answer = fixture.get(path).await;
            assert_eq!(answer.status, 503, "{path} with {name} wedged");
            let report: serde_json::Value = serde_json::from_str(&answer.body).unwrap();
            let loops =
                report["services"].as_array().unwrap().iter().flat_map(|service| service["loops"].as_array().unwrap());
            let wedged: Vec<_> =
                loops.filter(|one| one["state"] == "wedged").map(|one| one["name"].as_str().unwrap()).collect();
            assert_eq!(wedged, [name]);
        }
    }
    fixture.stop().await;
}

#[tokio::test]
async fn a_service_that_waits_for_an_operator_makes_its_pod_live_but_not_ready() {
    let fixture = AdminFixture::start();
    let halted = ServiceHealth {
        name: "producer",
        role: "leader",
        readiness: Readiness::NotReady("waits for an operator: E0001".into()),
        loops: vec![LoopLiveness { name: "capture", activity: Activity::Idle, limit: Duration::from_secs(30) }],
    };
    fixture.set(|readings| readings.health.services = vec![halted]);
    assert_eq!(fixture.get("/healthz").await.status, 200);
    let ready = fixture.get("/readyz").await;
    assert_eq!(ready.status, 503);
    assert!(ready.body.contains("waits for an operator: E0001"));
    fixture.stop().await;
}

#[tokio::test]
async fn a_pod_that_stops_is_no_longer_ready() {
    let fixture = AdminFixture::start();
    fixture.set(|readings| readings.health.stopping = true);
    assert_eq!(fixture.get("/healthz").await.status, 200);
    assert_eq!(fixture.get("/readyz").await.status, 503);
    fixture.stop().await;
}
