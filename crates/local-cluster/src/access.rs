//! A broker that requires TLS and keys: its files, and what a client needs.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore, crypto};

/// The name in the broker's certificate.
const HOST: &str = "localhost";

#[derive(Clone)]
pub struct BrokerAccess {
    /// The authority that signed the certificate (PEM).
    pub ca_file: PathBuf,
    /// For `localhost` (PEM).
    pub certificate: PathBuf,
    pub private_key: PathBuf,
    /// The broker's file of keys.
    pub keys: PathBuf,
    /// `SharedAccessKeyName=…;SharedAccessKey=…` of a key that may do everything.
    pub credential: String,
    /// A token of that key for the namespace.
    pub token: String,
}

impl std::fmt::Debug for BrokerAccess {
    /// Without the secrets.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BrokerAccess").field("ca_file", &self.ca_file).field("keys", &self.keys).finish_non_exhaustive()
    }
}

impl BrokerAccess {
    /// A connection string of any key. The certificate has the name `localhost`.
    pub fn connection_string(address: SocketAddr, credential: &str) -> String {
        format!("Endpoint=sb://{HOST}:{};{credential}", address.port())
    }

    pub(crate) async fn connect(&self, address: SocketAddr) -> io::Result<TlsStream<TcpStream>> {
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_file_iter(&self.ca_file).map_err(io::Error::other)? {
            roots.add(certificate.map_err(io::Error::other)?).map_err(io::Error::other)?;
        }
        let config = ClientConfig::builder_with_provider(Arc::new(crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(io::Error::other)?
            .with_root_certificates(roots)
            .with_no_client_auth();
        let name = ServerName::try_from(HOST).map_err(io::Error::other)?;
        TlsConnector::from(Arc::new(config)).connect(name, TcpStream::connect(address).await?).await
    }
}
