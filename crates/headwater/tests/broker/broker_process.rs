//! The broker process: killed under load, and its command line.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use amqp::frame::{Frame, ProtocolHeader, read_frame, write_sasl_frame};
use amqp::sasl::{SaslCode, SaslFrame};
use bytes::{Bytes, BytesMut};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use servicebus::{Client, Config, Message};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore, crypto};

use crate::fixture::{BINARY, BrokerFixture, SOON};

/// A short `cargo xtask soak broker-kills` with its own seed.
#[tokio::test]
async fn a_broker_killed_again_and_again_loses_nothing_it_accepted() {
    let report =
        bench::broker_kills::run(Path::new(BINARY), 12, 20_261_115, |_| {}).await.expect("the broker kept its word");
    assert!(report.accepted > 0 && report.completed == report.accepted, "{report:?}");
    assert!(report.sends_in_doubt > 0, "no kill hit while a send was in flight: {report:?}");
}

#[test]
fn a_problem_in_the_entities_file_has_its_position() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("config.json");
    std::fs::write(&file, "{\n  \"UserConfig\": { \"Namespaces\": [ { \"Name\": 7 } ] }\n}").expect("a file");
    let output = Command::new(BINARY)
        .args(["broker", "--ephemeral", "--listen", "127.0.0.1:0", "--config"])
        .arg(&file)
        .output()
        .expect("the binary runs");
    assert!(!output.status.success());
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("UserConfig.Namespaces[0].Name") && said.contains("2:"), "{said}");
}

#[test]
fn a_port_in_use_is_reported() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = taken.local_addr().expect("its address").to_string();
    let output =
        Command::new(BINARY).args(["broker", "--ephemeral", "--listen", &address]).output().expect("the binary runs");
    assert!(!output.status.success());
    assert!(String::from_utf8_lossy(&output.stderr).contains(&format!("listen on {address}")));
}

/// A test certificate authority and a certificate for `localhost`: the files `ca.pem`, `cert.pem` and `key.pem`.
pub(crate) fn certificates(folder: &Path) {
    let mut params = CertificateParams::new(Vec::new()).expect("parameters");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().expect("a key")).expect("an authority");
    let key = KeyPair::generate().expect("a key");
    let host = CertificateParams::new(vec!["localhost".to_owned()]).expect("parameters");
    let certificate = host.signed_by(&key, &issuer).expect("a certificate");
    for (name, text) in [("ca.pem", issuer.pem()), ("cert.pem", certificate.pem()), ("key.pem", key.serialize_pem())] {
        std::fs::write(folder.join(name), text).expect("a file");
    }
}

#[tokio::test]
async fn one_port_serves_amqp_and_administration_with_tls_and_without() {
    // GIVEN a broker with a certificate
    let folder = tempfile::tempdir().expect("a temporary folder");
    certificates(folder.path());
    let file = |name: &str| folder.path().join(name).display().to_string();
    let fixture = BrokerFixture::with(&["--tls-cert", &file("cert.pem"), "--tls-key", &file("key.pem")]).await;
    // THEN its one port speaks plain HTTP and plain AMQP
    fixture.queue("plain", "").await;
    fixture.client().sender("plain").send_message(&Message::new("a")).await.expect("a send in the clear");
    // AND both inside TLS
    let port = fixture.address.port();
    let secret = format!("Endpoint=sb://localhost:{port}/;SharedAccessKeyName=any;SharedAccessKey=any");
    let config = Config { ca_file: Some(folder.path().join("ca.pem")), ..Config::default() };
    let client = Client::new(&secret, config).expect("a client");
    let received = client.receiver("plain").receive(1, SOON).await.expect("a receive over TLS");
    assert_eq!(received[0].body(), "a");
    let health = request_over_tls(
        &fixture,
        &folder.path().join("ca.pem"),
        b"GET /health HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n",
    )
    .await;
    assert!(health.starts_with("HTTP/1.1 200") && health.contains("healthy"), "{health}");
    // AND another protocol is refused by closing the connection.
    let mut stream = TcpStream::connect(fixture.address).await.expect("the broker listens");
    stream.write_all(b"EHLO broker\r\n").await.expect("a write");
    let mut answer = Vec::new();
    assert!(matches!(stream.read_to_end(&mut answer).await, Ok(0) | Err(_)));
}

/// Sends a request over TLS and returns the response.
pub(crate) async fn request_over_tls(fixture: &BrokerFixture, ca: &Path, request: &[u8]) -> String {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(ca).expect("a certificate")).expect("an authority");
    let config = ClientConfig::builder_with_provider(Arc::new(crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_root_certificates(roots)
        .with_no_client_auth();
    let name = ServerName::try_from("localhost").expect("a name");
    let stream = TcpStream::connect(fixture.address).await.expect("the broker listens");
    let mut stream = TlsConnector::from(Arc::new(config)).connect(name, stream).await.expect("a handshake");
    stream.write_all(request).await.expect("a write");
    let mut answer = Vec::new();
    // The server may close without a TLS close_notify.
    let _ = stream.read_to_end(&mut answer).await;
    String::from_utf8_lossy(&answer).into_owned()
}

/// .NET uses the first mechanism; no client in these tests does.
#[tokio::test]
async fn only_offered_sasl_mechanisms_are_accepted() {
    let fixture = BrokerFixture::start().await;
    for (mechanism, expected) in [("MSSBCBS", SaslCode::Ok), ("ANONYMOUS", SaslCode::Ok), ("GSSAPI", SaslCode::Auth)] {
        let mut request = BytesMut::from(&ProtocolHeader::Sasl.bytes()[..]);
        let init =
            SaslFrame::Init { mechanism: mechanism.into(), initial_response: Some(Bytes::new()), hostname: None };
        write_sasl_frame(&mut request, &init);
        let mut stream = TcpStream::connect(fixture.address).await.expect("the broker listens");
        stream.write_all(&request).await.expect("a write");
        let mut answer = BytesMut::new();
        let code = loop {
            assert!(stream.read_buf(&mut answer).await.expect("a read") > 0, "{mechanism}: connection closed");
            let mut frames = Bytes::copy_from_slice(&answer).slice(ProtocolHeader::LENGTH.min(answer.len())..);
            let mut outcome = None;
            while let Some(frame) = read_frame(&mut frames, 512).expect("good frames") {
                if let Frame::Sasl(SaslFrame::Outcome { code, .. }) = frame {
                    outcome = Some(code);
                }
            }
            if let Some(code) = outcome {
                break code;
            }
        };
        assert_eq!(code, expected, "{mechanism}");
    }
}
