//! Creates, reads and updates topics and subscriptions over the administration API (Atom over HTTP/1.1).
//!
//! Opens one connection per request, because only commands use it and not the pipeline. Never retries, and never logs a token.

mod description;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::Full;
use hyper::body::Bytes;
use hyper::{Method, Request, StatusCode};
use tokio::time::timeout;
use tokio_rustls::rustls::pki_types::ServerName;

pub use atom_xml::duration;
pub use description::{EntityDescription, RuleSummary};

use crate::http_client::{self, HttpEndpoint};
use crate::{Config, ConnectionString, ConnectionStringError, ProxySettings, cbs, entra, tls};

const VERSION: &str = "2021-05";
const MAX_RESPONSE_BYTES: usize = 4 << 20;
/// The service uses separate ports for AMQP over TLS and for HTTPS. Our broker serves both on one port.
const AMQPS: u16 = 5671;
const HTTPS: u16 = 443;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("invalid connection string")]
    ConnectionString(#[from] ConnectionStringError),
    #[error("failed to set up TLS")]
    Tls(#[from] tls::Error),
    #[error("failed to connect to {authority}")]
    Unreachable {
        authority: String,
        #[source]
        source: Arc<io::Error>,
    },
    #[error("failed to obtain a token for {authority}")]
    Token {
        authority: String,
        #[source]
        source: entra::Error,
    },
    #[error("no reply from {authority} within {within:?}")]
    Timeout { authority: String, within: Duration },
    #[error("HTTP request to {authority} failed")]
    Http {
        authority: String,
        #[source]
        source: http_client::Error,
    },
    #[error("invalid request")]
    Request(#[source] hyper::http::Error),
    #[error("Service Bus refused the request with status {status}: {detail}")]
    Refused { status: u16, detail: String },
    #[error("Service Bus replied without an entity description")]
    Unreadable,
}

impl Error {
    /// True if the key does not have the right to do this.
    pub fn is_unauthorized(&self) -> bool {
        matches!(self, Self::Refused { status: 401 | 403, .. })
    }
}

/// Percent-encodes a path, so that a name cannot change the URL around it.
fn percent_encode_path(path: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~/$".contains(&byte);
    path.bytes().map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") }).collect()
}

/// Administers one namespace.
pub struct AdministrationClient {
    connection_string: ConnectionString,
    endpoint: HttpEndpoint,
    timeout: Duration,
    token_lifetime: Duration,
}

impl AdministrationClient {
    pub fn new(text: &str, config: &Config) -> Result<Self, Error> {
        Self::for_endpoint(ConnectionString::parse(text)?, config)
    }

    /// Administers the namespace of a parsed connection string, or one with tokens of Entra ID.
    pub fn for_endpoint(mut connection_string: ConnectionString, config: &Config) -> Result<Self, Error> {
        if connection_string.port == AMQPS {
            connection_string.port = HTTPS;
        }
        let tls = if connection_string.emulator {
            None
        } else {
            let host = connection_string.host.clone();
            let name = ServerName::try_from(host.to_string()).map_err(|_| tls::Error::Name { host })?;
            Some((tls::connector(config)?, name))
        };
        // Without TLS a proxy could read the token.
        let proxies = if tls.is_some() { config.proxies.clone() } else { ProxySettings::default() };
        let endpoint = HttpEndpoint { authority: connection_string.authority(), tls, proxies };
        Ok(Self { connection_string, endpoint, timeout: config.connect_timeout, token_lifetime: config.token_lifetime })
    }

    /// Reads the entity at this path; `None` if there is none.
    pub async fn get(&self, path: &str) -> Result<Option<EntityDescription>, Error> {
        match self.request(Method::GET, path, false, String::new()).await {
            Err(Error::Refused { status: 404, .. }) => Ok(None),
            // For a missing topic the service replies with an empty feed instead of 404.
            answer => Ok(EntityDescription::read(&answer?)),
        }
    }

    pub async fn create(&self, path: &str, description: &EntityDescription) -> Result<EntityDescription, Error> {
        let answer = self.request(Method::PUT, path, false, description.entry()).await?;
        EntityDescription::read(&answer).ok_or(Error::Unreadable)
    }

    /// Replaces the whole description: change the one that [`Self::get`] returned.
    pub async fn update(&self, path: &str, description: &EntityDescription) -> Result<EntityDescription, Error> {
        let answer = self.request(Method::PUT, path, true, description.entry()).await?;
        EntityDescription::read(&answer).ok_or(Error::Unreadable)
    }

    /// Lists the rules of a subscription.
    pub async fn rules(&self, subscription: &str) -> Result<Vec<RuleSummary>, Error> {
        let answer = self.request(Method::GET, &format!("{subscription}/Rules"), false, String::new()).await?;
        Ok(RuleSummary::read_all(&answer))
    }

    async fn request(&self, method: Method, path: &str, replace: bool, body: String) -> Result<String, Error> {
        let (authority, within) = (self.connection_string.authority(), self.timeout);
        let asked = timeout(within, self.exchange(method, path, replace, body)).await;
        asked.map_err(|_| Error::Timeout { authority, within })?
    }

    async fn exchange(&self, method: Method, path: &str, replace: bool, body: String) -> Result<String, Error> {
        let request = self.build_request(method, path, replace, body).await?;
        let authority = self.connection_string.authority();
        let failed = |error| match error {
            http_client::Error::Connect(source) | http_client::Error::Tls(source) => {
                Error::Unreachable { authority, source }
            }
            error => Error::Http { authority, source: error },
        };
        let (status, body) = self.endpoint.exchange(request, MAX_RESPONSE_BYTES).await.map_err(failed)?;
        let text = String::from_utf8_lossy(&body).into_owned();
        if status == StatusCode::OK || status == StatusCode::CREATED {
            return Ok(text);
        }
        Err(Error::Refused { status: status.as_u16(), detail: description::detail(&text) })
    }

    async fn build_request(
        &self,
        method: Method,
        path: &str,
        replace: bool,
        body: String,
    ) -> Result<Request<Full<Bytes>>, Error> {
        let mut request = Request::builder()
            .method(method)
            .uri(format!("/{}?api-version={VERSION}", percent_encode_path(path.trim_start_matches('/'))))
            .header("host", self.connection_string.authority())
            .header("content-type", "application/atom+xml;type=entry;charset=utf-8")
            .header("connection", "close");
        let audience = format!("http://{}/{path}", self.connection_string.host);
        let token = cbs::authorization(&self.connection_string.credential, &audience, self.token_lifetime).await;
        let token = token.map_err(|source| Error::Token { authority: self.connection_string.authority(), source })?;
        if let Some(token) = token {
            request = request.header("authorization", token);
        }
        if replace {
            request = request.header("if-match", "*");
        }
        request.body(Full::new(Bytes::from(body))).map_err(Error::Request)
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn names_are_percent_encoded_in_the_path() {
        assert_eq!(super::percent_encode_path("a/b/Subscriptions/c d?e\r\n"), "a/b/Subscriptions/c%20d%3Fe%0D%0A");
    }
}
