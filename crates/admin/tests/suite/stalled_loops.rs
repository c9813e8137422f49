//! `/healthz` and `/readyz` name a stalled loop.

use std::time::{Duration, Instant};

use admin::{Heartbeat, LoopActivity, LoopLiveness, PodHealth, PodServiceHealth, Readiness};

use crate::fixture::AdminFixture;

const LOOPS: [(&str, &str); 6] = [
    ("lease", "elector"),
    ("producer", "capture"),
    ("producer", "publish"),
    ("consumer", "sessions"),
    ("consumer", "applier"),
    ("status", "status-collector"),
];

/// All loops beat now; the stalled one has a limit of zero.
fn health(stalled: &str) -> PodHealth {
    let now = Instant::now();
    let services = LOOPS.map(|(service, name)| {
        let heartbeat = Heartbeat::new(now);
        heartbeat.beat(now);
        let limit = if name == stalled { Duration::ZERO } else { Duration::from_secs(600) };
        let one = LoopLiveness { name, activity: heartbeat.activity(), limit };
        PodServiceHealth { name: service, role: "leader", readiness: Readiness::Ready, loops: vec![one] }
    });
    PodHealth { services: services.into(), stopping: false }
}

#[tokio::test]
async fn a_stalled_loop_fails_both_probes_and_is_named() {
    let fixture = AdminFixture::start();
    fixture.set(|readings| readings.health = health("none"));
    for path in ["/healthz", "/readyz"] {
        assert_eq!(fixture.get(path).await.status, 200, "{path}");
    }
    for (_, name) in LOOPS {
        fixture.set(|readings| readings.health = health(name));
        for path in ["/healthz", "/readyz"] {
            let reply = fixture.get(path).await;
            assert_eq!(reply.status, 503, "{path} with {name} stalled");
            let report: serde_json::Value = serde_json::from_str(&reply.body).unwrap();
            let loops =
                report["services"].as_array().unwrap().iter().flat_map(|service| service["loops"].as_array().unwrap());
            let stalled: Vec<_> =
                loops.filter(|one| one["state"] == "stalled").map(|one| one["name"].as_str().unwrap()).collect();
            assert_eq!(stalled, [name]);
        }
    }
    fixture.stop().await;
}

#[tokio::test]
async fn a_halted_service_leaves_the_pod_live_but_not_ready() {
    let fixture = AdminFixture::start();
    let halted = PodServiceHealth {
        name: "producer",
        role: "leader",
        readiness: Readiness::NotReady("operator action required: E0001".into()),
        loops: vec![LoopLiveness { name: "capture", activity: LoopActivity::Idle, limit: Duration::from_secs(30) }],
    };
    fixture.set(|readings| readings.health.services = vec![halted]);
    assert_eq!(fixture.get("/healthz").await.status, 200);
    let ready = fixture.get("/readyz").await;
    assert_eq!(ready.status, 503);
    assert!(ready.body.contains("operator action required: E0001"));
    fixture.stop().await;
}

#[tokio::test]
async fn a_stopping_pod_is_not_ready() {
    let fixture = AdminFixture::start();
    fixture.set(|readings| readings.health.stopping = true);
    assert_eq!(fixture.get("/healthz").await.status, 200);
    assert_eq!(fixture.get("/readyz").await.status, 503);
    fixture.stop().await;
}
