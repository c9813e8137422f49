//! Who this process is, and the token request of each kind of credential.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use http_body_util::Full;
use hyper::body::Bytes;
use hyper::header::HeaderValue;
use hyper::{Request, Uri};
use tokio_rustls::rustls::pki_types::ServerName;

use super::reply::{IssuedToken, read_refusal, read_token};
use super::{Error, assertion, azure_cli};
use crate::cbs::percent_encode;
use crate::http_client::HttpEndpoint;
use crate::proxy::ProxySettings;
use crate::{Config, tls};

/// Error pages of proxies are longer than tokens. Only their status is used.
const MAX_REPLY_BYTES: usize = 64 << 10;
const ASSERTION_TYPE: &str = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer";

/// Who asks for tokens, and where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EntraConfig {
    pub credential: EntraCredential,
    /// `https://host[:port]`; the public one is [`super::PUBLIC_AUTHORITY`].
    pub authority: String,
    /// The resource that tokens are for: [`super::SERVICE_BUS_AUDIENCE`].
    pub audience: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EntraCredential {
    /// A token of Kubernetes in a file, exchanged for one of Entra ID.
    WorkloadIdentity {
        tenant: String,
        client: String,
        token_file: PathBuf,
    },
    /// The identity of the machine or the container. `client`: which one, if it has several.
    ManagedIdentity {
        client: Option<String>,
        endpoint: ManagedIdentityEndpoint,
    },
    ClientSecret {
        tenant: String,
        client: String,
        secret: SecretSource,
    },
    /// A PEM file with a certificate and its RSA key.
    ClientCertificate {
        tenant: String,
        client: String,
        file: PathBuf,
    },
    /// The login of a person, for development.
    AzureCli {
        tenant: Option<String>,
    },
}

#[derive(Clone, PartialEq, Eq)]
pub enum ManagedIdentityEndpoint {
    /// The metadata service of a virtual machine; `http://169.254.169.254` unless a test says otherwise.
    MetadataService { host: String },
    /// App Service, Functions and Container Apps (`IDENTITY_ENDPOINT`, `IDENTITY_HEADER`).
    AppService { url: String, header: String },
}

/// A secret, or the file it is in, which is read for every request.
#[derive(Clone, PartialEq, Eq)]
pub enum SecretSource {
    Text(String),
    File(PathBuf),
}

impl fmt::Debug for SecretSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(_) => f.write_str("***"),
            Self::File(path) => path.fmt(f),
        }
    }
}

impl fmt::Debug for ManagedIdentityEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::MetadataService { host } => write!(f, "MetadataService({host})"),
            Self::AppService { url, .. } => write!(f, "AppService({url}, ***)"),
        }
    }
}

impl EntraConfig {
    /// Requests a new token. `now`: time since the Unix epoch.
    pub(super) async fn request_token(&self, config: &Config, now: Duration) -> Result<IssuedToken, Error> {
        match &self.credential {
            EntraCredential::WorkloadIdentity { tenant, client, token_file } => {
                let assertion = read_text(token_file)?;
                self.request_with_assertion(config, tenant, client, &assertion, now).await
            }
            EntraCredential::ClientCertificate { tenant, client, file } => {
                let assertion = assertion::sign(file, client, &self.token_url(tenant), now)?;
                self.request_with_assertion(config, tenant, client, &assertion, now).await
            }
            EntraCredential::ClientSecret { tenant, client, secret } => {
                let secret = match secret {
                    SecretSource::Text(text) => text.clone(),
                    SecretSource::File(path) => read_text(path)?,
                };
                self.post(config, tenant, client, &[("client_secret", &secret)], now).await
            }
            EntraCredential::ManagedIdentity { client, endpoint } => {
                let (url, header) = endpoint.request(&self.audience, client.as_deref());
                exchange(config, &url, Some(header), None, now).await
            }
            EntraCredential::AzureCli { tenant } => {
                azure_cli::request_token(tenant.as_deref(), &self.audience, now).await
            }
        }
    }

    fn token_url(&self, tenant: &str) -> String {
        format!("{}/{tenant}/oauth2/v2.0/token", self.authority.trim_end_matches('/'))
    }

    async fn request_with_assertion(
        &self,
        config: &Config,
        tenant: &str,
        client: &str,
        assertion: &str,
        now: Duration,
    ) -> Result<IssuedToken, Error> {
        let fields = [("client_assertion_type", ASSERTION_TYPE), ("client_assertion", assertion)];
        self.post(config, tenant, client, &fields, now).await
    }

    async fn post(
        &self,
        config: &Config,
        tenant: &str,
        client: &str,
        proof: &[(&str, &str)],
        now: Duration,
    ) -> Result<IssuedToken, Error> {
        let scope = format!("{}/.default", self.audience);
        let fields = [("grant_type", "client_credentials"), ("client_id", client), ("scope", &scope)];
        let fields = fields.iter().chain(proof).map(|(name, value)| format!("{name}={}", percent_encode(value)));
        let body = fields.collect::<Vec<_>>().join("&");
        exchange(config, &self.token_url(tenant), None, Some(body), now).await
    }

    /// Names the issuer in log lines and problems.
    pub fn issuer(&self) -> &str {
        match &self.credential {
            EntraCredential::ManagedIdentity {
                endpoint: ManagedIdentityEndpoint::MetadataService { host }, ..
            } => host,
            EntraCredential::ManagedIdentity { endpoint: ManagedIdentityEndpoint::AppService { url, .. }, .. } => url,
            EntraCredential::AzureCli { .. } => "Azure CLI",
            EntraCredential::WorkloadIdentity { .. }
            | EntraCredential::ClientSecret { .. }
            | EntraCredential::ClientCertificate { .. } => &self.authority,
        }
    }
}

impl ManagedIdentityEndpoint {
    fn request(&self, audience: &str, client: Option<&str>) -> (String, (&'static str, String)) {
        let client = client.map_or(String::new(), |client| format!("&client_id={}", percent_encode(client)));
        let resource = percent_encode(audience);
        match self {
            Self::MetadataService { host } => {
                let host = host.trim_end_matches('/');
                let url =
                    format!("{host}/metadata/identity/oauth2/token?api-version=2018-02-01&resource={resource}{client}");
                (url, ("metadata", "true".to_owned()))
            }
            Self::AppService { url, header } => {
                let url = format!("{url}?api-version=2019-08-01&resource={resource}{client}");
                (url, ("x-identity-header", header.clone()))
            }
        }
    }
}

/// A POST with a form, or a GET with a header.
async fn exchange(
    config: &Config,
    url: &str,
    header: Option<(&'static str, String)>,
    form: Option<String>,
    now: Duration,
) -> Result<IssuedToken, Error> {
    let invalid = || Error::Settings(format!("`{}` is not a valid URL", url.split('?').next().unwrap_or_default()));
    let url: Uri = url.parse().map_err(|_| invalid())?;
    let endpoint = endpoint(config, &url).ok_or_else(invalid)??;
    let authority = endpoint.authority.clone();
    let mut request = Request::builder().uri(url.path_and_query().map_or("/", |path| path.as_str()));
    request = request.method(if form.is_some() { "POST" } else { "GET" });
    request = request.header("host", &authority).header("accept", "application/json").header("connection", "close");
    if let Some((name, value)) = header {
        request = request.header(name, HeaderValue::from_str(&value).map_err(|_| invalid())?);
    }
    if form.is_some() {
        request = request.header("content-type", "application/x-www-form-urlencoded");
    }
    let request = request.body(Full::new(Bytes::from(form.unwrap_or_default()))).map_err(|_| invalid())?;
    let within = config.connect_timeout;
    let answer = tokio::time::timeout(within, endpoint.exchange(request, MAX_REPLY_BYTES)).await;
    let answer = answer.map_err(|_| Error::Timeout { authority: authority.clone(), within })?;
    let (status, body) = answer.map_err(|source| Error::Unreachable { authority: authority.clone(), source })?;
    if !status.is_success() {
        return Err(Error::Refused { authority, status: status.as_u16(), detail: read_refusal(&body) });
    }
    read_token(&body, now).ok_or(Error::InvalidReply { authority })
}

/// `None`: not a URL with a host. The metadata service is on the machine itself, so plain HTTP never uses a proxy.
fn endpoint(config: &Config, url: &Uri) -> Option<Result<HttpEndpoint, Error>> {
    let host = url.host()?;
    let secure = url.scheme_str()? == "https";
    let authority = format!("{host}:{}", url.port_u16().unwrap_or(if secure { 443 } else { 80 }));
    if !secure {
        return Some(Ok(HttpEndpoint { authority, tls: None, proxies: ProxySettings::default() }));
    }
    let name = ServerName::try_from(host.trim_matches(['[', ']']).to_owned()).ok()?;
    let connector = tls::connector(config).map_err(Error::Tls);
    Some(connector.map(|tls| HttpEndpoint { authority, tls: Some((tls, name)), proxies: config.proxies.clone() }))
}

fn read_text(path: &Path) -> Result<String, Error> {
    let text = std::fs::read_to_string(path);
    let text = text.map_err(|source| Error::File { path: path.to_owned(), source: Arc::new(source) })?;
    Ok(text.trim().to_owned())
}
