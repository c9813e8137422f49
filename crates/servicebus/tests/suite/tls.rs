//! TLS: which certificates the client trusts.

use std::path::Path;

use broker::TlsFiles;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use servicebus::{Client, Config, DisconnectReason, Error, Message};
use tempfile::TempDir;

use crate::fixture::*;

/// A test certificate authority with one certificate.
struct Authority {
    folder: TempDir,
}

impl Authority {
    fn new(name: &str) -> Self {
        let folder = TempDir::new().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let key = KeyPair::generate().unwrap();
        let certificate = CertificateParams::new(vec![name.to_owned()]).unwrap().signed_by(&key, &issuer).unwrap();
        let write = |name: &str, text: String| std::fs::write(folder.path().join(name), text).unwrap();
        write("ca.pem", issuer.pem());
        write("cert.pem", certificate.pem());
        write("key.pem", key.serialize_pem());
        Self { folder }
    }

    fn file(&self, name: &str) -> std::path::PathBuf {
        self.folder.path().join(name)
    }

    fn server(&self) -> TlsFiles {
        TlsFiles { certificate: self.file("cert.pem"), key: self.file("key.pem") }
    }
}

fn client(host: &str, port: u16, ca: Option<&Path>) -> Client {
    let connection_string = format!("Endpoint=sb://{host}:{port}/;SharedAccessKeyName=Root;SharedAccessKey=key");
    Client::new(&connection_string, Config { ca_file: ca.map(Path::to_owned), ..long_timeouts() }).unwrap()
}

#[tokio::test]
async fn a_trusted_broker_is_used_over_tls() {
    let authority = Authority::new("localhost");
    let broker = start_broker(Some(authority.server())).await;
    let proxy = testkit::proxy::Proxy::start(broker.address()).await.unwrap();
    let client = client("localhost", proxy.address().port(), Some(&authority.file("ca.pem")));
    // Larger than a TLS record and than any buffer on the way, both ways.
    let body = "secret".repeat(40_000);
    client.sender(ORDERS).send_message(&in_session("s", body.clone())).await.unwrap();
    let mut session = client.accept_session(ORDERS, "s").await.unwrap();
    let messages = session.receive(1, SOON).await.unwrap();
    assert_eq!(bodies(&messages), [body]);
    session.settler().complete(&messages).await.unwrap();
    session.close().await.unwrap();
    client.close().await.unwrap();
    assert!(proxy.counters().to_target.delivered > 200_000, "and it went through here");
}

#[tokio::test]
async fn an_authority_that_is_not_trusted_is_refused() {
    let (authority, other) = (Authority::new("localhost"), Authority::new("localhost"));
    let broker = start_broker(Some(authority.server())).await;
    for ca in [Some(other.file("ca.pem")), None] {
        let client = client("localhost", broker.address().port(), ca.as_deref());
        let error = client.sender(PLAIN).send_message(&Message::new("x")).await.unwrap_err();
        assert!(matches!(error, Error::Connect { source: DisconnectReason::Tls(_), .. }), "{ca:?}: {error:?}");
    }
}

#[tokio::test]
async fn a_certificate_for_another_name_is_refused() {
    let authority = Authority::new("elsewhere.example");
    let broker = start_broker(Some(authority.server())).await;
    let client = client("localhost", broker.address().port(), Some(&authority.file("ca.pem")));
    let error = client.connect().await.unwrap_err();
    assert!(matches!(error, Error::Connect { source: DisconnectReason::Tls(_), .. }), "{error:?}");
}

#[tokio::test]
async fn tls_never_falls_back_to_plain_tcp() {
    let broker = start_broker(None).await;
    let authority = Authority::new("localhost");
    let config = Config { ca_file: Some(authority.file("ca.pem")), ..short_timeouts() };
    let connection_string = format!("Endpoint=sb://localhost:{}", broker.address().port());
    let error = Client::new(&connection_string, config).unwrap().connect().await.unwrap_err();
    assert!(matches!(error, Error::Connect { .. }), "{error:?}");
}

#[test]
fn a_file_without_certificates_is_an_error_at_once() {
    let authority = Authority::new("localhost");
    let config = |name| Config { ca_file: Some(authority.file(name)), ..long_timeouts() };
    let build = |name| Client::new("Endpoint=sb://localhost", config(name)).map(drop);
    assert!(matches!(build("key.pem"), Err(Error::Tls(_))));
    assert!(matches!(build("missing.pem"), Err(Error::Tls(_))));
    build("ca.pem").unwrap();
}
