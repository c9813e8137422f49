//! Loads the broker's certificate from the configured files.

use std::path::PathBuf;
use std::sync::Arc;

use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::pki_types::pem::{self, PemObject};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{self, ServerConfig, crypto};

/// PEM files: the certificate chain and its private key.
#[derive(Debug, Clone)]
pub struct TlsFiles {
    pub certificate: PathBuf,
    pub key: PathBuf,
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("failed to read `{}`", path.display())]
    Read {
        path: PathBuf,
        #[source]
        source: pem::Error,
    },
    #[error("`{}` contains no certificate", path.display())]
    NoCertificate { path: PathBuf },
    #[error("certificate and private key do not match")]
    Unfit(#[source] rustls::Error),
}

impl TlsFiles {
    pub(crate) fn acceptor(&self) -> Result<TlsAcceptor, Error> {
        let unread = |path: &PathBuf| {
            let path = path.clone();
            move |source| Error::Read { path, source }
        };
        let chain = CertificateDer::pem_file_iter(&self.certificate)
            .and_then(|certificates| certificates.collect::<Result<Vec<_>, _>>())
            .map_err(unread(&self.certificate))?;
        if chain.is_empty() {
            return Err(Error::NoCertificate { path: self.certificate.clone() });
        }
        let key = PrivateKeyDer::from_pem_file(&self.key).map_err(unread(&self.key))?;
        let config = ServerConfig::builder_with_provider(Arc::new(crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .and_then(|builder| builder.with_no_client_auth().with_single_cert(chain, key))
            .map_err(Error::Unfit)?;
        Ok(TlsAcceptor::from(Arc::new(config)))
    }
}
