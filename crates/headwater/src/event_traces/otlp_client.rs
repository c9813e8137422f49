//! The HTTP client for the collector. It opens a connection per request, because batches are seconds apart.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use anyhow::Context;
use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::header::{HOST, HeaderValue};
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use opentelemetry_http::{HttpClient, HttpError};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::runtime::Handle;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::{ClientConfig, RootCertStore, crypto};

/// A response holds the number of refused spans, and little more.
const MAX_RESPONSE: usize = 1 << 20;

/// Sends on the tokio runtime, whichever thread calls.
#[derive(Debug)]
pub(super) struct OtlpHttpClient {
    runtime: Handle,
    tls: OtlpTls,
    timeout: Duration,
    failing: AtomicBool,
}

#[derive(Clone)]
struct OtlpTls(TlsConnector);

impl std::fmt::Debug for OtlpTls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Tls")
    }
}

impl OtlpHttpClient {
    /// Must be called within the runtime.
    pub(super) fn new(timeout: Duration) -> anyhow::Result<Self> {
        let roots = RootCertStore { roots: webpki_roots::TLS_SERVER_ROOTS.to_vec() };
        let config = ClientConfig::builder_with_provider(Arc::new(crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .context("failed to set up TLS for the collector")?
            .with_root_certificates(roots)
            .with_no_client_auth();
        let tls = OtlpTls(TlsConnector::from(Arc::new(config)));
        Ok(Self { runtime: Handle::current(), tls, timeout, failing: AtomicBool::new(false) })
    }

    /// Logs once when the failure starts, and once when it ends.
    fn log_transition(&self, failed: Option<String>) {
        match (failed, self.failing.load(Relaxed)) {
            (Some(error), false) => {
                tracing::warn!(error, "failed to send spans to the collector; they are dropped until it responds")
            }
            (None, true) => tracing::info!("collector accepts spans again"),
            (Some(_), true) | (None, false) => return,
        }
        self.failing.fetch_xor(true, Relaxed);
    }
}

impl HttpClient for OtlpHttpClient {
    fn send_bytes<'post, 'sending>(&'post self, request: Request<Bytes>) -> ResponseFuture<'sending>
    where
        'post: 'sending,
    {
        Box::pin(self.post(request))
    }
}

/// The signature that the trait's macro generates.
type ResponseFuture<'a> = Pin<Box<dyn Future<Output = Result<Response<Bytes>, HttpError>> + Send + 'a>>;

impl OtlpHttpClient {
    async fn post(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let (tls, limit) = (self.tls.clone(), self.timeout);
        let sending = self.runtime.spawn(async move { timeout(limit, send(request, tls)).await });
        let response = sending
            .await
            .map_err(HttpError::from)?
            .unwrap_or_else(|_| Err("no response from the OTLP collector in time".into()));
        self.log_transition(match &response {
            Ok(response) if response.status().is_success() => None,
            Ok(response) => Some(response.status().to_string()),
            Err(error) => Some(error.to_string()),
        });
        response
    }
}

async fn send(request: Request<Bytes>, OtlpTls(tls): OtlpTls) -> Result<Response<Bytes>, HttpError> {
    let uri = request.uri();
    let secure = uri.scheme_str() == Some("https");
    let host = uri.host().ok_or("the collector address has no host")?.trim_matches(['[', ']']).to_owned();
    let port = uri.port_u16().unwrap_or(if secure { 443 } else { 80 });
    let stream = TcpStream::connect((host.as_str(), port)).await?;
    if secure {
        let name = ServerName::try_from(host).map_err(io::Error::other)?;
        exchange(tls.connect(name, stream).await?, request).await
    } else {
        exchange(stream, request).await
    }
}

async fn exchange<S>(stream: S, mut request: Request<Bytes>) -> Result<Response<Bytes>, HttpError>
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    // The connection task ends when the sender is dropped.
    tokio::spawn(connection);
    let uri = request.uri().clone();
    if let Some(authority) = uri.authority() {
        request.headers_mut().insert(HOST, HeaderValue::from_str(authority.as_str())?);
    }
    *request.uri_mut() = uri.path().parse()?;
    let (head, body) = sender.send_request(request.map(Full::new)).await?.into_parts();
    let body = Limited::new(body, MAX_RESPONSE).collect().await?.to_bytes();
    Ok(Response::from_parts(head, body))
}
