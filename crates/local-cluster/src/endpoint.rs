//! Where a broker listens, and what its clients need.

use std::io;
use std::net::SocketAddr;
use std::path::Path;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

use crate::access::{BrokerAccess, BrokerCertificate};
use crate::http::exchange;

/// A TCP or TLS connection.
pub trait BrokerStream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> BrokerStream for S {}

#[derive(Clone, Debug)]
pub struct BrokerEndpoint {
    pub address: SocketAddr,
    /// If the broker requires TLS and keys.
    pub access: Option<BrokerAccess>,
}

impl BrokerEndpoint {
    /// The same broker by another address, such as a proxy.
    #[must_use]
    pub fn at(&self, address: SocketAddr) -> Self {
        Self { address, access: self.access.clone() }
    }

    /// With full rights.
    pub fn connection_string(&self) -> String {
        match &self.access {
            None => connection_string(self.address),
            Some(access) => access.connection_string(self.address, &access.credential),
        }
    }

    /// The authority to trust, if the broker requires TLS.
    pub fn ca_file(&self) -> Option<&Path> {
        self.certificate().map(|certificate| certificate.ca_file.as_path())
    }

    fn certificate(&self) -> Option<&BrokerCertificate> {
        self.access.as_ref()?.certificate.as_ref()
    }

    /// A new connection to it.
    pub async fn connect(&self) -> io::Result<Box<dyn BrokerStream>> {
        let stream = TcpStream::connect(self.address).await?;
        stream.set_nodelay(true)?;
        Ok(match self.certificate() {
            None => Box::new(stream),
            Some(certificate) => Box::new(Box::pin(certificate.connect(stream)).await?),
        })
    }

    /// Sends one HTTP request with full rights; returns head and body. `headers` are whole lines.
    pub async fn request(&self, method: &str, path: &str, headers: &str, body: &str) -> io::Result<(String, String)> {
        let content_type = if body.starts_with('<') { "application/atom+xml" } else { "application/json" };
        let authorization =
            self.access.as_ref().map_or(String::new(), |access| format!("authorization: {}\r\n", access.token));
        let request = format!(
            "{method} {path} HTTP/1.1\r\nhost: {}\r\n{authorization}{headers}content-type: {content_type}\r\n\
             content-length: {}\r\nconnection: close\r\n\r\n{body}",
            self.address,
            body.len()
        );
        exchange(self.connect().await?, &request).await
    }
}

/// The connection string of a broker without authentication.
pub fn connection_string(address: SocketAddr) -> String {
    format!("Endpoint=sb://{address};SharedAccessKeyName=any;SharedAccessKey=any;UseDevelopmentEmulator=true")
}
