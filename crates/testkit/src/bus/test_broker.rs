//! A broker in the process of the test.

use std::net::SocketAddr;
use std::ops::Deref;

use broker::access::AccessKeys;
use broker::profile::ProfileName;
use broker::{Broker, Config, ServiceProfile, TlsFiles};
use local_cluster::{BrokerAccess, BrokerEndpoint};
use servicebus::Client;
use servicebus::administration::AdministrationClient;
use tempfile::TempDir;

use super::{access, administration, client, is_secured, profile};

/// A broker that requires TLS and keys if the [test run](is_secured) does, with its [profile].
pub struct TestBroker {
    broker: Broker,
    endpoint: BrokerEndpoint,
    _files: Option<TempDir>,
}

impl TestBroker {
    /// # Panics
    /// When it cannot start.
    pub async fn start(mut config: Config) -> Self {
        let files = is_secured().then(|| tempfile::tempdir().expect("a temporary folder"));
        let access = files.as_ref().map(|folder| access::create_access(folder.path()).expect("the folder is writable"));
        if let Some(access) = &access {
            require(&mut config, access);
        }
        if let Some((name, scale)) = profile().filter(|_| config.profile == ServiceProfile::default()) {
            let name = match name.as_str() {
                "azure-standard" => ProfileName::AzureStandard,
                "azure-premium" => ProfileName::AzurePremium,
                "harsh" => ProfileName::Harsh,
                other => panic!("there is no profile `{other}`"),
            };
            config.set_tier(name.tier());
            config.profile = name.profile(scale, 1);
        }
        let broker = Broker::start(config).await.expect("the broker starts");
        let endpoint = BrokerEndpoint { address: broker.address(), access };
        Self { broker, endpoint, _files: files }
    }

    pub fn endpoint(&self) -> &BrokerEndpoint {
        &self.endpoint
    }

    /// A client with full rights.
    pub fn client(&self, config: servicebus::Config) -> Client {
        client(&self.endpoint, config)
    }

    /// The same by another address, such as a proxy.
    pub fn client_at(&self, address: SocketAddr, config: servicebus::Config) -> Client {
        client(&self.endpoint.at(address), config)
    }

    pub fn administration(&self) -> AdministrationClient {
        administration(&self.endpoint)
    }

    /// Sends an administration request that must succeed. `headers` are whole lines.
    ///
    /// # Panics
    /// When the broker refuses it.
    pub async fn administer(&self, method: &str, path: &str, headers: &str, body: &str) {
        let (head, _) = self.endpoint.request(method, path, headers, body).await.expect("the broker responds");
        assert!(head.starts_with("HTTP/1.1 20"), "{method} {path}: {head}");
    }

    pub async fn stop(self) {
        self.broker.stop().await;
    }
}

fn require(config: &mut Config, access: &BrokerAccess) {
    let keys = std::fs::read_to_string(&access.keys).expect("a file of keys");
    config.keys = Some(AccessKeys::parse(&keys).expect("valid keys"));
    config.tls =
        access.certificate.clone().map(|files| TlsFiles { certificate: files.certificate, key: files.private_key });
    config.require_tls = config.tls.is_some();
}

impl Deref for TestBroker {
    type Target = Broker;

    fn deref(&self) -> &Broker {
        &self.broker
    }
}
