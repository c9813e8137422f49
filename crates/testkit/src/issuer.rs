//! An issuer of Entra ID tokens on loopback: OAuth 2 client credentials over HTTPS, with a secret, a certificate or a federated token; and the managed
//! identity endpoint of App Service. Its files are what a broker needs to accept its tokens.
//!
//! Keys are RSA, which only OpenSSL generates here.

mod server;
mod signing_key;

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use local_cluster::BrokerCertificate;
use tokio::task::JoinHandle;

pub use signing_key::{ClientCertificate, SigningKey};

pub const TENANT: &str = "test-tenant";
pub const CLIENT: &str = "test-client";
/// What a container of App Service must send.
pub const IDENTITY_HEADER: &str = "app-service";
pub const AUDIENCE: &str = "https://servicebus.azure.net";

/// What the issuer does; a test changes it while it runs.
#[derive(Clone, Debug)]
pub struct IssuerBehaviour {
    pub lifetime: Duration,
    /// Whether it replies at all.
    pub away: bool,
    /// Issues tokens whose time is over, although the reply promises a lifetime.
    pub issues_expired: bool,
    pub secret: String,
    /// The federated token of the workload.
    pub federated_token: String,
    /// The accepted certificate.
    pub certificate: Option<ClientCertificate>,
}

impl Default for IssuerBehaviour {
    fn default() -> Self {
        Self {
            lifetime: Duration::from_secs(3_600),
            away: false,
            issues_expired: false,
            secret: "secret-1".to_owned(),
            federated_token: "federated-1".to_owned(),
            certificate: None,
        }
    }
}

pub struct TokenIssuer {
    address: SocketAddr,
    folder: PathBuf,
    state: Arc<IssuerState>,
    server: JoinHandle<()>,
}

struct IssuerState {
    issuer: String,
    key: SigningKey,
    behaviour: Mutex<IssuerBehaviour>,
    requests: Mutex<u64>,
}

impl TokenIssuer {
    /// Starts it with a certificate for `localhost`; writes its files to the folder.
    ///
    /// # Panics
    /// When OpenSSL is missing, or no port is free.
    pub async fn start(folder: &Path, certificate: &BrokerCertificate) -> Self {
        let key = SigningKey::generate(folder, "issuer");
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("it is bound");
        let issuer = format!("https://localhost:{}/{TENANT}/v2.0", address.port());
        let (behaviour, requests) = (Mutex::default(), Mutex::default());
        let state = Arc::new(IssuerState { issuer, key, behaviour, requests });
        let acceptor = server::acceptor(certificate);
        let server = tokio::spawn(server::serve(listener, acceptor, Arc::clone(&state)));
        let issuer = Self { address, folder: folder.to_owned(), state, server };
        std::fs::write(folder.join("jwks.json"), issuer.state.key.jwks()).expect("the folder is writable");
        issuer.assign(&["Send", "Listen"]).expect("the folder is writable");
        issuer
    }

    /// `https://localhost:PORT`.
    pub fn authority(&self) -> String {
        format!("https://localhost:{}", self.address.port())
    }

    /// The file for `headwater broker --entra`.
    pub fn broker_file(&self) -> PathBuf {
        self.folder.join("entra.json")
    }

    /// The rights of the client. A broker reads them when it starts.
    pub fn assign(&self, rights: &[&str]) -> io::Result<()> {
        let rights = rights.iter().map(|right| format!("\"{right}\"")).collect::<Vec<_>>().join(", ");
        let text = format!(
            r#"{{"issuer": "{}", "jwks": "jwks.json", "assignments": [{{"principal": "{CLIENT}", "rights": [{rights}]}}]}}"#,
            self.state.issuer
        );
        std::fs::write(self.broker_file(), text)
    }

    pub fn behave(&self, change: impl FnOnce(&mut IssuerBehaviour)) {
        change(&mut self.state.behaviour());
    }

    /// Requests that it has received.
    pub fn requests(&self) -> u64 {
        *self.state.requests.lock().expect("no one panics while counting")
    }
}

impl Drop for TokenIssuer {
    fn drop(&mut self) {
        self.server.abort();
    }
}

impl IssuerState {
    fn behaviour(&self) -> MutexGuard<'_, IssuerBehaviour> {
        self.behaviour.lock().expect("no one panics while changing it")
    }

    fn count_request(&self) {
        *self.requests.lock().expect("no one panics while counting") += 1;
    }

    #[expect(clippy::disallowed_methods, reason = "a token names wall-clock times")]
    fn issue(&self) -> String {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let IssuerBehaviour { lifetime, issues_expired, .. } = self.behaviour().clone();
        let expires = if issues_expired { now - 60 } else { now + lifetime.as_secs() };
        let claims = format!(
            r#"{{"iss":"{}","aud":"{AUDIENCE}","oid":"{CLIENT}","nbf":{},"exp":{expires}}}"#,
            self.issuer,
            now - 120
        );
        let token = self.key.sign(&claims);
        format!(r#"{{"token_type":"Bearer","expires_in":{},"access_token":"{token}"}}"#, lifetime.as_secs())
    }
}
