//! One HTTP/1.1 exchange on a connection of its own, with or without TLS, through a proxy if one is configured.
//!
//! Only administration and token requests use it, a few per minute at most. Never retries, and never logs.

use std::io;
use std::sync::Arc;

use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;

use crate::proxy::ProxySettings;

#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    #[error("failed to connect")]
    Connect(#[source] Arc<io::Error>),
    #[error("TLS handshake failed")]
    Tls(#[source] Arc<io::Error>),
    #[error("HTTP exchange failed")]
    Http(#[source] Arc<dyn std::error::Error + Send + Sync>),
}

/// Where a request goes.
#[derive(Clone)]
pub(crate) struct HttpEndpoint {
    pub(crate) authority: String,
    pub(crate) tls: Option<(TlsConnector, ServerName<'static>)>,
    pub(crate) proxies: ProxySettings,
}

impl HttpEndpoint {
    /// Status and body, which may have `max_bytes`. The request must say `connection: close`.
    pub(crate) async fn exchange(
        &self,
        request: Request<Full<Bytes>>,
        max_bytes: usize,
    ) -> Result<(StatusCode, Bytes), Error> {
        let connect = |error| Error::Connect(Arc::new(error));
        let stream = self.proxies.connect(&self.authority).await.map_err(connect)?;
        match &self.tls {
            None => send(stream, request, max_bytes).await,
            Some((connector, name)) => {
                let shaken = connector.connect(name.clone(), stream).await;
                send(shaken.map_err(|error| Error::Tls(Arc::new(error)))?, request, max_bytes).await
            }
        }
    }
}

async fn send<S>(stream: S, request: Request<Full<Bytes>>, max_bytes: usize) -> Result<(StatusCode, Bytes), Error>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(http_error)?;
    // The connection task ends with this exchange: the sender is dropped, and `connection: close` was sent.
    tokio::spawn(connection);
    let answer = sender.send_request(request).await.map_err(http_error)?;
    let status = answer.status();
    let body = Limited::new(answer.into_body(), max_bytes).collect().await.map_err(http_error)?;
    Ok((status, body.to_bytes()))
}

fn http_error(source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
    Error::Http(source.into().into())
}
