//! HTTPS with certificates from files.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use admin::{AdminServer, AdminTlsFiles, Error};
use rcgen::{CertificateParams, KeyPair};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName, pem::PemObject};
use tokio_rustls::rustls::{ClientConfig, RootCertStore, crypto};

use crate::fixture::AdminFixture;

const SOON: Duration = Duration::from_secs(30);

/// Writes a self-signed certificate for localhost.
fn write_certificate(folder: &Path) {
    let key = KeyPair::generate().unwrap();
    let certificate = CertificateParams::new(vec!["localhost".to_owned()]).unwrap().self_signed(&key).unwrap();
    std::fs::write(folder.join("key.pem"), key.serialize_pem()).unwrap();
    std::fs::write(folder.join("cert.pem"), certificate.pem()).unwrap();
}

fn files(folder: &Path) -> AdminTlsFiles {
    AdminTlsFiles { certificate: folder.join("cert.pem"), key: folder.join("key.pem") }
}

fn bind() -> AdminServer {
    AdminServer::bind("127.0.0.1:0".parse().unwrap()).unwrap()
}

/// Asks for `/healthz` and trusts only the certificate that is in the folder now.
async fn get_health(fixture: &AdminFixture, folder: &Path) -> std::io::Result<String> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(folder.join("cert.pem")).unwrap()).unwrap();
    let config = ClientConfig::builder_with_provider(Arc::new(crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let stream = TcpStream::connect(fixture.address()).await?;
    let name = ServerName::try_from("localhost").unwrap();
    let mut stream = TlsConnector::from(Arc::new(config)).connect(name, stream).await?;
    stream.write_all(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n").await?;
    let mut text = String::new();
    // The server may close without the closing alert.
    stream.read_to_string(&mut text).await.ok();
    Ok(text)
}

#[tokio::test]
async fn a_replaced_certificate_is_used_without_a_restart() {
    let folder = TempDir::new().unwrap();
    write_certificate(folder.path());
    let fixture = AdminFixture::start_server(bind().with_tls(files(folder.path())).unwrap(), None);
    assert!(get_health(&fixture, folder.path()).await.unwrap().starts_with("HTTP/1.1 200"));

    let old = std::fs::read(folder.path().join("cert.pem")).unwrap();
    write_certificate(folder.path());
    assert_ne!(old, std::fs::read(folder.path().join("cert.pem")).unwrap());
    let replaced = async {
        while get_health(&fixture, folder.path()).await.is_err() {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    timeout(SOON, replaced).await.expect("the new certificate is served");
    fixture.stop().await;
}

#[tokio::test]
async fn broken_files_keep_the_old_certificate() {
    let folder = TempDir::new().unwrap();
    write_certificate(folder.path());
    let fixture = AdminFixture::start_server(bind().with_tls(files(folder.path())).unwrap(), None);
    std::fs::write(folder.path().join("key.pem"), "nonsense").unwrap();
    // Longer than the interval in which the files are read.
    let until = tokio::time::Instant::now() + Duration::from_secs(7);
    while tokio::time::Instant::now() < until {
        assert!(get_health(&fixture, folder.path()).await.unwrap().starts_with("HTTP/1.1 200"));
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    fixture.stop().await;
}

#[tokio::test]
async fn a_peer_without_tls_learns_nothing_and_delays_nobody() {
    let folder = TempDir::new().unwrap();
    write_certificate(folder.path());
    let fixture = AdminFixture::start_server(bind().with_tls(files(folder.path())).unwrap(), None);
    let mut silent = vec![];
    for _ in 0..300 {
        silent.push(TcpStream::connect(fixture.address()).await.unwrap());
    }
    let mut plain = TcpStream::connect(fixture.address()).await.unwrap();
    plain.write_all(b"GET /metrics HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
    let mut reply = vec![];
    timeout(SOON, plain.read_to_end(&mut reply)).await.expect("the connection is closed").ok();
    assert!(!reply.starts_with(b"HTTP"), "{reply:?}");
    let health = timeout(Duration::from_secs(1), get_health(&fixture, folder.path())).await;
    assert!(health.expect("in time").unwrap().starts_with("HTTP/1.1 200"));
    fixture.stop().await;
}

#[test]
fn unusable_files_are_refused_by_name_and_never_quoted() {
    let folder = TempDir::new().unwrap();
    let refusal = |files: AdminTlsFiles| {
        let error = bind().with_tls(files).unwrap_err();
        let Error::Tls(error) = error else { panic!("{error}") };
        error.to_string()
    };
    assert!(refusal(files(folder.path())).contains("cert.pem"));
    write_certificate(folder.path());
    std::fs::write(folder.path().join("key.pem"), "-----BEGIN PRIVATE KEY-----\nc2VjcmV0\n").unwrap();
    let text = refusal(files(folder.path()));
    assert!(text.contains("key.pem") && !text.contains("c2Vj"), "{text}");
    let other = TempDir::new().unwrap();
    write_certificate(other.path());
    write_certificate(folder.path());
    let mixed = AdminTlsFiles { certificate: folder.path().join("cert.pem"), key: other.path().join("key.pem") };
    assert!(refusal(mixed).contains("together"));
}
