//! Topics and subscriptions: made, read and changed over the administration API, which is Atom over HTTP/1.1.
//!
//! One connection a request: whoever asks is a command, not the pipeline. Retries nothing, and shows no token.

mod description;

use std::io;
use std::time::Duration;

use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;

pub use description::{Description, Rule};

use crate::{Config, ConnectionString, ConnectionStringError, cbs, tls};

const VERSION: &str = "2021-05";
/// AMQP over TLS and HTTPS have ports of their own at the service; the broker of this house serves both on one.
const AMQPS: u16 = 5671;
const HTTPS: u16 = 443;
const LONGEST_ANSWER: usize = 4 << 20;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("read the connection string")]
    ConnectionString(#[from] ConnectionStringError),
    #[error("set up TLS")]
    Tls(#[from] tls::Error),
    #[error("reach {authority}")]
    Unreachable {
        authority: String,
        #[source]
        source: io::Error,
    },
    #[error("{authority} did not answer within {within:?}")]
    TooLate { authority: String, within: Duration },
    #[error("talk HTTP with {authority}")]
    Http {
        authority: String,
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    #[error("the bus refused it with status {status}: {detail}")]
    Refused { status: u16, detail: String },
    #[error("the bus answered with something that is not a description")]
    Unreadable,
}

impl Error {
    /// Whether what was asked for is not allowed with this key.
    pub fn is_unauthorized(&self) -> bool {
        matches!(self, Self::Refused { status: 401 | 403, .. })
    }
}

/// A path whose names cannot leave their places in it.
fn encoded(path: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~/$".contains(&byte);
    path.bytes().map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") }).collect()
}

/// Administers one namespace.
pub struct Administration {
    at: ConnectionString,
    tls: Option<(TlsConnector, ServerName<'static>)>,
    within: Duration,
    token_lifetime: Duration,
}

impl Administration {
    pub fn new(connection_string: &str, config: &Config) -> Result<Self, Error> {
        let mut at = ConnectionString::parse(connection_string)?;
        if at.port == AMQPS {
            at.port = HTTPS;
        }
        let tls = if at.emulator {
            None
        } else {
            let host = at.host.clone();
            let name = ServerName::try_from(host.to_string()).map_err(|_| tls::Error::Name { host })?;
            Some((tls::connector(config)?, name))
        };
        Ok(Self { at, tls, within: config.connect_timeout, token_lifetime: config.token_lifetime })
    }

    /// What is at this path; `None` if nothing is.
    pub async fn get(&self, path: &str) -> Result<Option<Description>, Error> {
        match self.ask(Method::GET, path, false, String::new()).await {
            Err(Error::Refused { status: 404, .. }) => Ok(None),
            // The service answers for a topic that is not there with a list of nothing.
            answer => Ok(Description::read(&answer?)),
        }
    }

    pub async fn create(&self, path: &str, description: &Description) -> Result<Description, Error> {
        let answer = self.ask(Method::PUT, path, false, description.entry()).await?;
        Description::read(&answer).ok_or(Error::Unreadable)
    }

    /// Replaces what is there: begin with what [`Self::get`] gave.
    pub async fn update(&self, path: &str, description: &Description) -> Result<Description, Error> {
        let answer = self.ask(Method::PUT, path, true, description.entry()).await?;
        Description::read(&answer).ok_or(Error::Unreadable)
    }

    /// The rules of a subscription: which messages it takes.
    pub async fn rules(&self, subscription: &str) -> Result<Vec<Rule>, Error> {
        let answer = self.ask(Method::GET, &format!("{subscription}/Rules"), false, String::new()).await?;
        Ok(Rule::read_all(&answer))
    }

    async fn ask(&self, method: Method, path: &str, replace: bool, body: String) -> Result<String, Error> {
        let (authority, within) = (self.at.authority(), self.within);
        let asked = timeout(within, self.exchange(method, path, replace, body)).await;
        asked.map_err(|_| Error::TooLate { authority, within })?
    }

    async fn exchange(&self, method: Method, path: &str, replace: bool, body: String) -> Result<String, Error> {
        let authority = self.at.authority();
        let unreachable = |source| Error::Unreachable { authority: authority.clone(), source };
        let stream = TcpStream::connect(&authority).await.map_err(unreachable)?;
        let request = self.request(method, path, replace, body)?;
        match &self.tls {
            None => self.send(stream, request).await,
            Some((connector, name)) => {
                let stream = connector.connect(name.clone(), stream).await.map_err(unreachable)?;
                self.send(stream, request).await
            }
        }
    }

    fn request(&self, method: Method, path: &str, replace: bool, body: String) -> Result<Request<Full<Bytes>>, Error> {
        let mut request = Request::builder()
            .method(method)
            .uri(format!("/{}?api-version={VERSION}", encoded(path.trim_start_matches('/'))))
            .header("host", self.at.authority())
            .header("content-type", "application/atom+xml;type=entry;charset=utf-8")
            .header("connection", "close");
        let audience = format!("http://{}/{path}", self.at.host);
        if let Some(token) = cbs::authorization(&self.at.credential, &audience, self.token_lifetime) {
            request = request.header("authorization", token);
        }
        if replace {
            request = request.header("if-match", "*");
        }
        request.body(Full::new(Bytes::from(body))).map_err(|source| self.http(source))
    }

    async fn send<S>(&self, stream: S, request: Request<Full<Bytes>>) -> Result<String, Error>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let shaken = http1::handshake(TokioIo::new(stream)).await;
        let (mut sender, connection) = shaken.map_err(|source| self.http(source))?;
        // Ends with the exchange: the sender is dropped, and the peer was asked to close.
        tokio::spawn(connection);
        let answer = sender.send_request(request).await.map_err(|source| self.http(source))?;
        let status = answer.status();
        let body = Limited::new(answer.into_body(), LONGEST_ANSWER).collect().await;
        let body = body.map_err(|source| self.http(source))?.to_bytes();
        let text = String::from_utf8_lossy(&body).into_owned();
        if status == StatusCode::OK || status == StatusCode::CREATED {
            return Ok(text);
        }
        Err(Error::Refused { status: status.as_u16(), detail: description::detail(&text) })
    }

    fn http(&self, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
        Error::Http { authority: self.at.authority(), source: source.into() }
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_name_cannot_leave_its_place_in_the_path() {
        assert_eq!(super::encoded("a/b/Subscriptions/c d?e\r\n"), "a/b/Subscriptions/c%20d%3Fe%0D%0A");
    }
}
