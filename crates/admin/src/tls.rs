//! TLS of the server: certificate and key from files, read again when they change.
//!
//! Kubernetes replaces mounted secrets while a pod runs. Files that cannot be used are reported, and the last good pair stays in use.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{self, ServerConfig, crypto};
use tracing::{info, warn};

/// A certificate is renewed days before it expires; this only has to be well below.
const RELOAD_INTERVAL: Duration = Duration::from_secs(5);

/// PEM files: the certificate chain and its private key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdminTlsFiles {
    pub certificate: PathBuf,
    pub key: PathBuf,
}

#[derive(Debug, thiserror::Error)]
pub enum AdminTlsError {
    #[error("failed to read `{}`", path.display())]
    Read {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    /// Without the cause: it could quote the file.
    #[error("`{}` contains no {expected} in PEM format", path.display())]
    Unreadable { path: PathBuf, expected: &'static str },
    #[error("certificate `{}` and key `{}` cannot be used together", certificate.display(), key.display())]
    Unfit {
        certificate: PathBuf,
        key: PathBuf,
        #[source]
        source: rustls::Error,
    },
}

/// The acceptor of the newest usable files.
pub(crate) struct ReloadingAcceptor {
    files: AdminTlsFiles,
    current: Mutex<(PemFiles, TlsAcceptor)>,
}

/// The contents, to see a change.
#[derive(Clone, PartialEq, Eq)]
struct PemFiles {
    certificate: Vec<u8>,
    key: Vec<u8>,
}

impl ReloadingAcceptor {
    pub(crate) fn load(files: AdminTlsFiles) -> Result<Self, AdminTlsError> {
        let contents = files.read()?;
        let acceptor = files.acceptor(&contents)?;
        Ok(Self { files, current: Mutex::new((contents, acceptor)) })
    }

    pub(crate) fn acceptor(&self) -> TlsAcceptor {
        self.current.lock().unwrap_or_else(PoisonError::into_inner).1.clone()
    }

    /// Never returns.
    pub(crate) async fn reload_on_change(self: Arc<Self>) {
        loop {
            tokio::time::sleep(RELOAD_INTERVAL).await;
            let own = Arc::clone(&self);
            // On a thread of its own: a slow disk must not delay a probe.
            match tokio::task::spawn_blocking(move || own.reload()).await {
                Ok(Ok(false)) => {}
                Ok(Ok(true)) => info!("admin server uses the new certificate"),
                Ok(Err(error)) => {
                    warn!(error = %error, "admin server failed to read the new certificate; it keeps the old one and retries");
                }
                Err(_) => warn!("admin server failed to read its certificate; it retries"),
            }
        }
    }

    /// Whether there was a change.
    fn reload(&self) -> Result<bool, AdminTlsError> {
        let contents = self.files.read()?;
        if self.current.lock().unwrap_or_else(PoisonError::into_inner).0 == contents {
            return Ok(false);
        }
        let acceptor = self.files.acceptor(&contents)?;
        *self.current.lock().unwrap_or_else(PoisonError::into_inner) = (contents, acceptor);
        Ok(true)
    }
}

impl AdminTlsFiles {
    fn read(&self) -> Result<PemFiles, AdminTlsError> {
        let read =
            |path: &PathBuf| std::fs::read(path).map_err(|source| AdminTlsError::Read { path: path.clone(), source });
        Ok(PemFiles { certificate: read(&self.certificate)?, key: read(&self.key)? })
    }

    fn acceptor(&self, contents: &PemFiles) -> Result<TlsAcceptor, AdminTlsError> {
        let unreadable = |path: &PathBuf, expected| AdminTlsError::Unreadable { path: path.clone(), expected };
        let chain = CertificateDer::pem_slice_iter(&contents.certificate).collect::<Result<Vec<_>, _>>();
        let chain = chain.ok().filter(|chain| !chain.is_empty());
        let chain = chain.ok_or_else(|| unreadable(&self.certificate, "certificate"))?;
        let key = PrivateKeyDer::from_pem_slice(&contents.key).map_err(|_| unreadable(&self.key, "private key"))?;
        let mut config = ServerConfig::builder_with_provider(Arc::new(crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .and_then(|builder| builder.with_no_client_auth().with_single_cert(chain, key))
            .map_err(|source| AdminTlsError::Unfit {
                certificate: self.certificate.clone(),
                key: self.key.clone(),
                source,
            })?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(TlsAcceptor::from(Arc::new(config)))
    }
}

impl std::fmt::Debug for ReloadingAcceptor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ReloadingAcceptor").field("files", &self.files).finish_non_exhaustive()
    }
}
