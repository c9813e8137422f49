//! A broker that requires keys, and TLS if it has a certificate: its files, and what a client needs.

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
    /// With it, the broker requires TLS.
    pub certificate: Option<BrokerCertificate>,
    /// The broker's file of keys.
    pub keys: PathBuf,
    /// `SharedAccessKeyName=…;SharedAccessKey=…` of a key that may do everything.
    pub credential: String,
    /// A token of that key for the namespace.
    pub token: String,
}

/// The files of a certificate for `localhost` (PEM).
#[derive(Clone, Debug)]
pub struct BrokerCertificate {
    /// The authority that signed it.
    pub ca_file: PathBuf,
    pub certificate: PathBuf,
    pub private_key: PathBuf,
}

impl std::fmt::Debug for BrokerAccess {
    /// Without the secrets.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { certificate, keys, .. } = self;
        f.debug_struct("BrokerAccess").field("certificate", certificate).field("keys", keys).finish_non_exhaustive()
    }
}

impl BrokerAccess {
    /// A connection string of any key.
    pub fn connection_string(&self, address: SocketAddr, credential: &str) -> String {
        match &self.certificate {
            Some(_) => format!("Endpoint=sb://{HOST}:{};{credential}", address.port()),
            None => format!("Endpoint=sb://{address};{credential};UseDevelopmentEmulator=true"),
        }
    }
}

impl BrokerCertificate {
    pub(crate) async fn connect(&self, stream: TcpStream) -> io::Result<TlsStream<TcpStream>> {
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
        TlsConnector::from(Arc::new(config)).connect(name, stream).await
    }
}
