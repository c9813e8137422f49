//! Client-side TLS: which certificates to trust.

use std::path::PathBuf;
use std::sync::Arc;

use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::CertificateDer;
use tokio_rustls::rustls::pki_types::pem::{self, PemObject};
use tokio_rustls::rustls::{self, ClientConfig, RootCertStore, crypto};

use crate::Config;

#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    #[error("failed to read `{}`", path.display())]
    Read {
        path: PathBuf,
        #[source]
        source: Arc<pem::Error>,
    },
    #[error("`{}` contains no certificate", path.display())]
    NoCertificate { path: PathBuf },
    #[error("invalid certificates")]
    Unfit(#[source] Arc<rustls::Error>),
    #[error("`{host}` is not a valid TLS server name")]
    Name { host: Arc<str> },
}

/// Trusts the authorities of the configured file, or else those of the system (`SSL_CERT_FILE`) and the public ones. The file excludes all others.
pub(crate) fn connector(config: &Config) -> Result<TlsConnector, Error> {
    let unfit = |error| Error::Unfit(Arc::new(error));
    let client = ClientConfig::builder_with_provider(Arc::new(crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(unfit)?
        .with_root_certificates(roots(config)?)
        .with_no_client_auth();
    Ok(TlsConnector::from(Arc::new(client)))
}

fn roots(config: &Config) -> Result<RootCertStore, Error> {
    let mut roots = RootCertStore::empty();
    let Some(path) = &config.ca_file else {
        roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned());
        // A container image may have no certificates at all, and a system may have some that cannot be parsed.
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        return Ok(roots);
    };
    let certificates = CertificateDer::pem_file_iter(path)
        .and_then(|certificates| certificates.collect::<Result<Vec<_>, _>>())
        .map_err(|source| Error::Read { path: path.clone(), source: Arc::new(source) })?;
    if certificates.is_empty() {
        return Err(Error::NoCertificate { path: path.clone() });
    }
    for certificate in certificates {
        roots.add(certificate).map_err(|error| Error::Unfit(Arc::new(error)))?;
    }
    Ok(roots)
}
