//! Every loop of a pod, wedged: `/healthz` says so, by name.

use std::time::{Duration, Instant};

use admin::{Health, Heartbeat, Loop, Pulse, Readiness, Service};

use crate::house::House;

const LOOPS: [(&str, &str); 6] = [
    ("lease", "elector"),
    ("producer", "capture"),
    ("producer", "publish"),
    ("consumer", "sessions"),
    ("consumer", "applier"),
    ("status", "gather"),
];

/// All loops beat now, and all may take their time for the next beat, but one.
fn health(wedged: &str) -> Health {
    let now = Instant::now();
    let services = LOOPS.map(|(service, name)| {
        let heart = Heartbeat::new(now);
        heart.beat(now);
        let limit = if name == wedged { Duration::ZERO } else { Duration::from_secs(600) };
        let one = Loop { name, pulse: heart.pulse(), limit };
        Service { name: service, role: "leader", readiness: Readiness::Ready, loops: vec![one] }
    });
    Health { services: services.into(), stopping: false }
}

#[tokio::test]
async fn a_pod_with_a_wedged_loop_is_neither_live_nor_ready_and_says_which_one_it_is() {
    let house = House::start();
    house.set(|readings| readings.health = health("none"));
    for path in ["/healthz", "/readyz"] {
        assert_eq!(house.get(path).await.status, 200, "{path}");
    }
    for (_, name) in LOOPS {
        house.set(|readings| readings.health = health(name));
        for path in ["/healthz", "/readyz"] {
            let answer = house.get(path).await;
            assert_eq!(answer.status, 503, "{path} with {name} wedged");
            let report: serde_json::Value = serde_json::from_str(&answer.body).unwrap();
            let loops =
                report["services"].as_array().unwrap().iter().flat_map(|service| service["loops"].as_array().unwrap());
            let wedged: Vec<_> =
                loops.filter(|one| one["state"] == "wedged").map(|one| one["name"].as_str().unwrap()).collect();
            assert_eq!(wedged, [name]);
        }
    }
    house.stop().await;
}

#[tokio::test]
async fn a_service_that_waits_for_an_operator_makes_its_pod_live_but_not_ready() {
    let house = House::start();
    let halted = Service {
        name: "producer",
        role: "leader",
        readiness: Readiness::Not("waits for an operator: E0001".into()),
        loops: vec![Loop { name: "capture", pulse: Pulse::Resting, limit: Duration::from_secs(30) }],
    };
    house.set(|readings| readings.health.services = vec![halted]);
    assert_eq!(house.get("/healthz").await.status, 200);
    let ready = house.get("/readyz").await;
    assert_eq!(ready.status, 503);
    assert!(ready.body.contains("waits for an operator: E0001"));
    house.stop().await;
}

#[tokio::test]
async fn a_pod_that_stops_is_no_longer_ready() {
    let house = House::start();
    house.set(|readings| readings.health.stopping = true);
    assert_eq!(house.get("/healthz").await.status, 200);
    assert_eq!(house.get("/readyz").await.status, 503);
    house.stop().await;
}
