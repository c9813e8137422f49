//! `headwater topology apply`: creates, changes or refuses.

use std::net::SocketAddr;

use broker::{Broker, Config, StorageLocation, TlsFiles};
use mongodb::bson::{Document, doc};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use servicebus::administration::{AdministrationClient, EntityDescription};

use testkit::wait::wait_for;

use crate::fixture::{CliFixture, SOON};

const SUBSCRIPTION: &str = "events/Subscriptions/read-models";

#[tokio::test]
async fn topology_apply_creates_and_changes_entities() {
    let fixture = CliFixture::new("topology", "").await;
    let would = fixture.run(&["topology", "apply", "--dry-run"]).await.success();
    assert!(would.contains("events: would be created"), "{would}");
    assert!(fixture.administration().get("events").await.unwrap().is_none(), "nothing was changed");

    let created = fixture.run(&["topology", "apply"]).await.success();
    assert_eq!(created, format!("events: created\n{SUBSCRIPTION}: created\n"));
    let bus = fixture.administration();
    let topic = bus.get("events").await.unwrap().unwrap();
    let value = |description: &EntityDescription, name: &str| description.value(name).unwrap();
    assert_eq!(value(&topic, "RequiresDuplicateDetection"), "true");
    assert_eq!(value(&topic, "EnablePartitioning"), "true");
    let mut subscription = bus.get(SUBSCRIPTION).await.unwrap().unwrap();
    assert_eq!(value(&subscription, "RequiresSession"), "true");
    assert_eq!(value(&subscription, "MaxDeliveryCount"), "2000");
    assert_eq!(value(&subscription, "LockDuration"), "PT1M");
    let id = doc! { "pipeline": "shop", "subscription": SUBSCRIPTION };
    let stored =
        fixture.coordination.collection::<Document>("subscriptions").find_one(doc! { "_id": id }).await.unwrap();
    assert_eq!(stored.unwrap().get_i64("maxDeliveryCount").unwrap(), 2_000);
    let left = fixture.run(&["topology", "apply"]).await.success();
    assert_eq!(left, format!("events: unchanged\n{SUBSCRIPTION}: unchanged\n"));

    assert!(subscription.set("MaxDeliveryCount", "7"));
    bus.update(SUBSCRIPTION, &subscription).await.unwrap();
    let would = fixture.run(&["topology", "apply", "--dry-run", "--json"]).await.json();
    assert_eq!(
        (&would["entities"][0]["action"], &would["entities"][1]["action"]),
        (&"unchanged".into(), &"changed".into())
    );
    assert_eq!(would["entities"][1]["changes"][0]["from"], "7");
    let changed = fixture.run(&["topology", "apply"]).await.success();
    assert!(changed.contains("read-models: changed (MaxDeliveryCount from 7 to 2000)"), "{changed}");
    let now = bus.get(SUBSCRIPTION).await.unwrap().unwrap();
    assert_eq!(value(&now, "MaxDeliveryCount"), "2000");
}

#[tokio::test]
async fn immutable_differences_are_refused_and_nothing_changes() {
    let fixture = CliFixture::new("topology_fixed", "").await;
    let bus = fixture.administration();
    bus.create("events", &EntityDescription::topic(&[])).await.unwrap();
    let refused = fixture.run(&["topology", "apply"]).await.failure();
    assert!(refused.contains("nothing was changed"), "{refused}");
    assert!(
        refused.contains("RequiresDuplicateDetection must be true: set `service_bus.topic` to a new topic"),
        "{refused}"
    );
    assert!(bus.get(SUBSCRIPTION).await.unwrap().is_none());
}

/// Two pipelines whose subscriptions and read models are their own.
const TWO_PIPELINES: &str = "producer: { start: now }
pipelines:
  orders: { service_bus: { topic: orders }, read_models: { database: VIEWS, orders: { when: { Placed: { $set: { n: 1 } } } } } }
  bills: { service_bus: { topic: bills }, source: { collection: bills } }
";

async fn two_pipelines(purpose: &str) -> CliFixture {
    let fixture = CliFixture::new(purpose, TWO_PIPELINES).await;
    fixture.edit_config(|text| text.replacen("pipeline: shop\n", "", 1));
    fixture
}

#[tokio::test]
async fn topology_apply_serves_every_pipeline() {
    let fixture = two_pipelines("topology_pipelines").await;
    let created = fixture.run(&["topology", "apply"]).await.success();
    let paths = ["orders", "orders/Subscriptions/read-models", "bills", "bills/Subscriptions/read-models"];
    assert_eq!(created.lines().collect::<Vec<_>>(), paths.map(|path| format!("{path}: created")));
    let stored = fixture.coordination.collection::<Document>("subscriptions").count_documents(doc! {}).await.unwrap();
    assert_eq!(stored, 2, "the delivery limit of each");
    let left = fixture.run(&["topology", "apply", "--pipeline", "bills"]).await.success();
    assert_eq!(left, "bills: unchanged\nbills/Subscriptions/read-models: unchanged\n");
}

#[tokio::test]
async fn a_refused_pipeline_changes_no_entity_of_another() {
    let fixture = two_pipelines("topology_refused").await;
    let bus = fixture.administration();
    bus.create("bills", &EntityDescription::topic(&[])).await.unwrap();
    let refused = fixture.run(&["topology", "apply"]).await.failure();
    assert!(refused.contains("nothing was changed") && refused.contains("bills"), "{refused}");
    assert!(bus.get("orders").await.unwrap().is_none());
}

#[tokio::test]
async fn status_has_a_line_for_every_pipeline() {
    let fixture = two_pipelines("status_pipelines").await;
    fixture.run(&["topology", "apply"]).await.success();
    let stopped = fixture.run(&["status"]).await;
    assert_eq!(stopped.status.code(), Some(4), "{}", stopped.stdout);
    assert!(stopped.stderr.contains("2 of 2 pipelines are unhealthy: `orders`, `bills`"), "{}", stopped.stderr);

    let pod = fixture.start_pod("pod-1");
    let table = wait_for("both pipelines to be healthy", SOON, async || {
        let output = fixture.run(&["status"]).await;
        if output.status.success() { Ok(output.stdout) } else { Err(output.stdout + &output.stderr) }
    })
    .await;
    for pipeline in ["orders", "bills"] {
        let line = table.lines().find(|line| line.starts_with(pipeline)).unwrap_or_else(|| panic!("{table}"));
        assert!(line.contains("pod-1"), "{table}");
    }
    let json = fixture.run(&["status", "--json"]).await.json();
    let names: Vec<_> = json["pipelines"].as_array().unwrap().iter().map(|one| one["pipeline"].clone()).collect();
    assert_eq!(names, ["orders", "bills"]);
    // One of them alone, in full.
    let one = fixture.run(&["status", "--json", "--pipeline", "bills"]).await.json();
    assert_eq!(one["pipeline"], "bills");
    pod.terminate();
    assert!(pod.wait_for_exit(SOON).await.success());
}

#[tokio::test]
async fn administration_uses_tls_with_trusted_authorities_only() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name);
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    let key = KeyPair::generate().unwrap();
    let certificate = CertificateParams::new(vec!["localhost".to_owned()]).unwrap().signed_by(&key, &issuer).unwrap();
    for (name, text) in [("ca", issuer.pem()), ("cert", certificate.pem()), ("key", key.serialize_pem())] {
        std::fs::write(file(name), text).unwrap();
    }
    let mut config = Config::new(SocketAddr::from(([127, 0, 0, 1], 0)), StorageLocation::Ephemeral);
    config.tls = Some(TlsFiles { certificate: file("cert"), key: file("key") });
    let broker = Broker::start(config).await.unwrap();
    let port = broker.address().port();
    let at = format!("Endpoint=sb://localhost:{port}/;SharedAccessKeyName=Root;SharedAccessKey=key");
    let trusting = servicebus::Config { ca_file: Some(file("ca")), ..servicebus::Config::default() };
    let bus = AdministrationClient::new(&at, &trusting).unwrap();
    bus.create("events", &EntityDescription::topic(&[])).await.unwrap();
    assert!(bus.get("events").await.unwrap().is_some());
    let wary = AdministrationClient::new(&at, &servicebus::Config::default()).unwrap();
    let refused = wary.get("events").await.unwrap_err();
    assert!(matches!(refused, servicebus::administration::Error::Unreachable { .. }), "{refused}");
}
