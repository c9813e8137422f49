//! A pod that authenticates with tokens of Entra ID, from an issuer on loopback: what goes wrong is reported, and nothing is lost until it is corrected.

use std::time::Duration;

use serde_json::Value as Json;
use tempfile::TempDir;
use testkit::cluster::{MongoTopology, TestCluster, TestClusterConfig};
use testkit::issuer::{CLIENT, TENANT, TokenIssuer};
use testkit::wait::wait_for;

use crate::fixture::{PodFixture, SOON, cluster_config};
use crate::secured_bus::wait_for_sequence;

struct EntraPod {
    fixture: PodFixture,
    issuer: TokenIssuer,
    folder: TempDir,
}

impl EntraPod {
    /// A pod with the secret that the issuer knows. Tokens are valid for `lifetime`.
    async fn start(lifetime: Duration) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let files = testkit::bus::create_access(folder.path()).unwrap().certificate.unwrap();
        let issuer = TokenIssuer::start(folder.path(), &files).await;
        issuer.behave(|issuer| issuer.lifetime = lifetime);
        let config = TestClusterConfig {
            pods_key: Some("pods"),
            broker_arguments: vec!["--entra".into(), issuer.broker_file().to_str().unwrap().into()],
            ..cluster_config(MongoTopology::Shared)
        };
        let mut cluster = TestCluster::start(config).await.unwrap();
        std::fs::write(folder.path().join("secret"), "secret-1").unwrap();
        let authorities = cluster.broker().endpoint().ca_file().unwrap().to_owned();
        let both = [std::fs::read(&authorities).unwrap(), std::fs::read(&files.ca_file).unwrap()].concat();
        std::fs::write(&authorities, both).unwrap();
        use_entra(&cluster, &issuer, &folder);
        cluster.start_pods().unwrap();
        cluster.wait_for_leader(SOON).await.unwrap();
        Self { fixture: PodFixture(cluster), issuer, folder }
    }

    async fn wait_for_problem(&self, words: &[&str]) {
        wait_for(format!("a problem with {words:?}"), SOON, async || {
            let status = self.fixture.json("/api/status").await;
            let problems = status["problems"].as_array().cloned().unwrap_or_default();
            let matches =
                |problem: &Json| words.iter().all(|word| problem["text"].as_str().unwrap_or("").contains(word));
            if problems.iter().any(matches) { Ok(()) } else { Err(problems) }
        })
        .await;
    }

    async fn restart_broker_with(&mut self, rights: &[&str]) {
        self.issuer.assign(rights).unwrap();
        self.fixture.0.broker_mut().restart_with_keys(&["root"]).await.unwrap();
    }

    fn assert_no_secret_in_the_log(&self) {
        let leaked = self
            .fixture
            .pod()
            .lines()
            .into_iter()
            .find(|line| line.text.contains("secret-1") || line.text.contains("eyJ"));
        assert!(leaked.is_none(), "a secret in the log: {leaked:?}");
    }
}

/// Replaces the connection string in the pod's configuration by the namespace.
fn use_entra(cluster: &TestCluster, issuer: &TokenIssuer, folder: &TempDir) {
    let file = cluster.pod(0).config();
    let text = std::fs::read_to_string(file).unwrap();
    let (before, rest) = text.split_once("connection_string: \"Endpoint=sb://").unwrap();
    let (namespace, rest) = rest.split_once(';').unwrap();
    let (_, after) = rest.split_once('"').unwrap();
    let secret = folder.path().join("secret");
    let entra = format!(
        "fully_qualified_namespace: \"{namespace}\", entra: {{ credential: client_secret, tenant_id: {TENANT}, client_id: {CLIENT}, \
         client_secret_file: {}, authority: \"{}\" }}",
        secret.display(),
        issuer.authority()
    );
    std::fs::write(file, format!("{before}{entra}{after}")).unwrap();
}

#[tokio::test]
async fn a_revoked_role_loses_nothing_and_recovers_by_itself() {
    let mut pod = EntraPod::start(Duration::from_secs(3_600)).await;
    pod.fixture.insert("order-1", 1).await;
    wait_for_sequence(&pod.fixture, "order-1", 1).await;
    pod.restart_broker_with(&["Listen"]).await;
    pod.fixture.insert("order-1", 2).await;
    pod.wait_for_problem(&["producer", "the role Azure Service Bus Data Sender"]).await;
    pod.restart_broker_with(&["Send", "Listen"]).await;
    wait_for_sequence(&pod.fixture, "order-1", 2).await;
    pod.assert_no_secret_in_the_log();
    pod.fixture.stop().await;
}

#[tokio::test]
async fn an_issuer_that_is_away_is_reported_and_loses_nothing() {
    let pod = EntraPod::start(Duration::from_secs(20)).await;
    pod.fixture.insert("order-1", 1).await;
    wait_for_sequence(&pod.fixture, "order-1", 1).await;
    pod.issuer.behave(|issuer| issuer.away = true);
    pod.wait_for_problem(&["failed to obtain an Entra ID token", "is valid for another"]).await;
    let metrics = pod.fixture.get("/metrics").await.body;
    let value = |name: &str| metrics.lines().find_map(|line| line.strip_prefix(name)?.trim().parse::<f64>().ok());
    assert!(value("headwater_entra_tokens_total").is_some_and(|count| count >= 1.0), "{metrics}");
    assert!(value("headwater_entra_token_failures_total").is_some_and(|count| count >= 2.0), "{metrics}");
    assert!(value("headwater_entra_token_expires_in_seconds").is_some_and(|left| left > 0.0), "{metrics}");
    pod.wait_for_problem(&["failed to obtain an Entra ID token", "there is no valid token"]).await;
    pod.fixture.insert("order-1", 2).await;
    pod.issuer.behave(|issuer| issuer.away = false);
    wait_for_sequence(&pod.fixture, "order-1", 2).await;
    pod.assert_no_secret_in_the_log();
    pod.fixture.stop().await;
}

#[tokio::test]
async fn a_new_secret_needs_no_restart() {
    let pod = EntraPod::start(Duration::from_secs(20)).await;
    pod.fixture.insert("order-1", 1).await;
    wait_for_sequence(&pod.fixture, "order-1", 1).await;
    pod.issuer.behave(|issuer| issuer.secret = "secret-2".to_owned());
    pod.wait_for_problem(&["AADSTS7000215"]).await;
    std::fs::write(pod.folder.path().join("secret"), "secret-2").unwrap();
    pod.fixture.insert("order-1", 2).await;
    wait_for_sequence(&pod.fixture, "order-1", 2).await;
    pod.fixture.stop().await;
}
