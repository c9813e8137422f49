//! A server with several pipelines: labels, selection, and health.

use std::sync::Arc;
use std::time::Instant;

use admin::{
    AdminServer, LatencyBuckets, OperatorSlot, PodHealth, PodSample, PodServiceHealth, PodTelemetry, Readiness,
    ServedPipeline, ServedPipelines, StatusCache,
};
use tokio_util::sync::CancellationToken;

use crate::fixture::{AdminReply, request_from, status};

struct FixedPod(Readiness);

impl PodTelemetry for FixedPod {
    fn health(&self, _: Instant) -> PodHealth {
        let service = PodServiceHealth { name: "producer", role: "leader", readiness: self.0.clone(), loops: vec![] };
        PodHealth { services: vec![service], stopping: false }
    }

    fn samples(&self) -> Vec<PodSample> {
        ["a_total", "b_total"]
            .map(|name| PodSample { name, help: "", labels: vec![("x", "y".into())], value: 7 })
            .into()
    }

    fn latency(&self) -> LatencyBuckets {
        LatencyBuckets::default()
    }
}

async fn get(pods: [Readiness; 2], path: &str) -> AdminReply {
    let list = ["orders", "crm"].into_iter().zip(pods).map(|(name, readiness)| {
        let status_cache = StatusCache::default();
        status_cache.store(admin::PipelineStatus { pipeline: name.into(), ..status() }, Instant::now());
        ServedPipeline {
            name: name.to_owned(),
            pod: Arc::new(FixedPod(readiness)),
            status_cache: Arc::new(status_cache),
            operator: Arc::new(OperatorSlot::new(true)),
        }
    });
    let server = AdminServer::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let (address, stop) = (server.address(), CancellationToken::new());
    let served = ServedPipelines { list: list.collect(), is_list: true };
    let _running = server.start(served, stop.clone()).unwrap();
    let _stop = stop.drop_guard();
    request_from(address, "GET", path).await
}

fn broken() -> Readiness {
    Readiness::NotReady("broken".into())
}

#[tokio::test]
async fn every_sample_has_the_label_of_its_pipeline() {
    let page = get([Readiness::Ready, broken()], "/metrics").await.body;
    let families = "a_total{pipeline=\"orders\",x=\"y\"} 7\na_total{pipeline=\"crm\",x=\"y\"} 7\n# HELP b_total";
    assert!(page.contains(families), "{page}");
    assert!(page.contains("\nheadwater_term{pipeline=\"crm\"} 3\n"), "{page}");
    assert!(page.contains("\nheadwater_service_ready{pipeline=\"crm\",service=\"producer\"} 0\n"), "{page}");
    let plain = page.lines().find(|line| line.starts_with("headwater_") && !line.contains("{pipeline="));
    assert_eq!(plain, None);
}

#[tokio::test]
async fn a_pod_is_ready_while_one_of_its_pipelines_works() {
    let reply = get([Readiness::Ready, broken()], "/readyz").await;
    assert_eq!(reply.status, 200);
    assert!(reply.body.contains("\"reason\": \"broken\""), "{}", reply.body);
    assert_eq!(get([broken(), broken()], "/readyz").await.status, 503);
    assert_eq!(get([broken(), broken()], "/healthz").await.status, 200);
}

#[tokio::test]
async fn a_request_names_its_pipeline() {
    for (path, code, word) in [
        ("/api/status?pipeline=crm", 200, "\"pipeline\": \"crm\""),
        ("/api/status", 200, "\"pipelines\": ["),
        ("/api/status?pipeline=none", 404, "this pod has `orders`, `crm`"),
        ("/api/history", 400, "add `?pipeline=` with one of `orders`, `crm`"),
        ("/api/history?pipeline=orders", 200, "["),
        ("/api/pipelines", 200, "\"leader\": \"pod-0\""),
        ("/api/parked", 400, "several pipelines"),
        ("/api/parked?pipeline=crm", 503, "does not run on this pod"),
    ] {
        let reply = get([Readiness::Ready, Readiness::Ready], path).await;
        assert_eq!(reply.status, code, "{path}: {}", reply.body);
        assert!(reply.body.contains(word), "{path}: {}", reply.body);
    }
}
