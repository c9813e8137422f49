//! `$cbs`: puts the tokens that authorize links, before the first use of an address, and renews them before they expire.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use amqp::{Message, Symbol, Value};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use tokio::time::Instant;

use crate::connection::ClientConnection;
use crate::connection_string::Credential;
use crate::entra::{self, AccessToken};
use crate::error::{BusErrorKind, ClientOperation, Error, ServiceError};
use crate::request_link::{NodeRequest, RequestLink};

const NODE: &str = "$cbs";
const SAS: &str = "servicebus.windows.net:sastoken";
const JWT: &str = "jwt";
/// How often renewals are looked for: in fractions of the lifetime of the newest token.
const LIFETIME_FRACTION: u32 = 16;
const MAX_INTERVAL: Duration = Duration::from_secs(60);
const MIN_INTERVAL: Duration = Duration::from_millis(10);
const EXPIRED_INTERVAL: Duration = Duration::from_secs(1);

/// The tokens of one connection.
pub(crate) struct CbsTokens {
    credential: Credential,
    lifetime: Duration,
    /// Held while a token is put, so that concurrent callers do not put two for one address.
    link: tokio::sync::Mutex<Option<RequestLink>>,
    granted: Mutex<HashMap<Arc<str>, PutToken>>,
}

/// The token that was put for an address.
#[derive(Debug, Clone, Copy)]
struct PutToken {
    /// `None` if it cannot be renewed.
    renew_at: Option<Instant>,
    expires_at: Option<Instant>,
}

/// A token to put.
struct Token {
    text: Arc<str>,
    kind: &'static str,
    renew_at: Option<Instant>,
    expires_at: Option<Instant>,
}

/// Whether a call put a token or found one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TokenGrant {
    New,
    /// Service Bus may have forgotten it since.
    Earlier,
}

impl CbsTokens {
    pub(crate) fn new(credential: Credential, lifetime: Duration) -> Self {
        Self { credential, lifetime, link: tokio::sync::Mutex::new(None), granted: Mutex::default() }
    }

    /// Puts a token for an address, unless one is already granted.
    pub(crate) async fn authorize(
        &self,
        connection: &ClientConnection,
        address: &Arc<str>,
        deadline: Instant,
    ) -> Result<TokenGrant, Error> {
        if self.is_granted(address) {
            return Ok(TokenGrant::Earlier);
        }
        let waited = Instant::now();
        let late = || Error::Timeout {
            operation: ClientOperation::Authorize,
            address: Arc::clone(address),
            within: waited.elapsed(),
        };
        let mut link = tokio::time::timeout_at(deadline, self.link.lock()).await.map_err(|_| late())?;
        if self.is_granted(address) {
            return Ok(TokenGrant::Earlier);
        }
        let put = self.put_token(connection, &mut link, address, deadline).await;
        if put.as_ref().is_err_and(|error| error.kind() == BusErrorKind::Unauthorized) {
            self.on_refused();
        }
        put.map(|()| TokenGrant::New)
    }

    /// Service Bus refused a link: the next [`authorize`](Self::authorize) puts a token.
    pub(crate) fn on_link_refused(&self, address: &str) {
        self.forget(address);
        self.on_refused();
    }

    fn forget(&self, address: &str) {
        self.granted.lock().expect("no one panics while holding the tokens").remove(address);
    }

    fn on_refused(&self) {
        if let Credential::Entra(tokens) = &self.credential {
            tokens.on_refused();
        }
    }

    /// How long to wait before [`renew`](Self::renew) is called again. Polled, because addresses may be added at any time.
    pub(crate) fn renewal_interval(&self) -> Duration {
        let granted = self.granted.lock().expect("no one panics while holding the tokens");
        let now = Instant::now();
        let left = granted.values().filter_map(|put| put.expires_at).map(|at| at.saturating_duration_since(now)).max();
        match left {
            // Every token has expired, and could not be replaced.
            Some(left) if left.is_zero() => EXPIRED_INTERVAL,
            left => (left.unwrap_or(self.lifetime) / LIFETIME_FRACTION).clamp(MIN_INTERVAL, MAX_INTERVAL),
        }
    }

    /// Renews the tokens that are due. Returns the failures.
    pub(crate) async fn renew(&self, connection: &ClientConnection, timeout: Duration) -> Vec<Error> {
        let due = self.due(Instant::now());
        put_each(due.iter().map(|address| self.renew_one(connection, address, timeout))).await
    }

    async fn renew_one(
        &self,
        connection: &ClientConnection,
        address: &Arc<str>,
        timeout: Duration,
    ) -> Result<(), Error> {
        let mut link = self.link.lock().await;
        // Its own deadline: an address without a reply must not use up the time of the others.
        let result = self.put_token(connection, &mut link, address, Instant::now() + timeout).await;
        if result.as_ref().is_err_and(|error| !error.is_retryable()) {
            // Refused for good, such as an entity that is gone. The next use of the address puts a token again.
            self.on_link_refused(address);
        }
        result
    }

    fn due(&self, now: Instant) -> Vec<Arc<str>> {
        let granted = self.granted.lock().expect("no one panics while holding the tokens");
        let due = granted.iter().filter(|(_, put)| put.renew_at.is_some_and(|at| at <= now));
        due.map(|(address, _)| Arc::clone(address)).collect()
    }

    fn is_granted(&self, address: &str) -> bool {
        matches!(self.credential, Credential::None)
            || self.granted.lock().expect("no one panics while holding the tokens").contains_key(address)
    }

    async fn put_token(
        &self,
        connection: &ClientConnection,
        link: &mut Option<RequestLink>,
        address: &Arc<str>,
        deadline: Instant,
    ) -> Result<(), Error> {
        let audience = format!("sb://{}/{address}", connection.host());
        let late = |_| Error::Timeout {
            operation: ClientOperation::Authorize,
            address: Arc::clone(address),
            within: deadline.elapsed(),
        };
        let token = tokio::time::timeout_at(deadline, token(&self.credential, &audience, self.lifetime)).await;
        let Some(token) = token.map_err(late)?? else { return Ok(()) };
        if self.is_put(address, &token) {
            // Only looked for a newer one: the issuer has none yet.
            return Ok(());
        }
        if link.as_ref().is_none_or(|link| !link.is_alive()) {
            *link = Some(RequestLink::open(connection, &NODE.into(), deadline).await?);
        }
        let link = link.as_ref().expect("just opened");
        let mut properties =
            vec![("operation", Value::from("put-token")), ("type", token.kind.into()), ("name", audience.into())];
        if let Some(at) = token.expires_at {
            let at = since_epoch() + at.saturating_duration_since(Instant::now());
            properties.push(("expiration", Value::Timestamp(at.as_millis() as i64)));
        }
        let request = NodeRequest { properties, body: token.text.to_string().into() };
        check(&link.request(ClientOperation::Authorize, &request, deadline).await?, address)?;
        let put = PutToken { renew_at: token.renew_at, expires_at: token.expires_at };
        self.granted.lock().expect("no one panics while holding the tokens").insert(Arc::clone(address), put);
        Ok(())
    }

    fn is_put(&self, address: &str, token: &Token) -> bool {
        let granted = self.granted.lock().expect("no one panics while holding the tokens");
        granted.get(address).is_some_and(|put| put.expires_at.is_some() && put.expires_at == token.expires_at)
    }
}

/// Puts one token after the other. One that fails does not keep the others from being put.
async fn put_each(puts: impl Iterator<Item = impl Future<Output = Result<(), Error>>>) -> Vec<Error> {
    let mut failures = Vec::new();
    for put in puts {
        failures.extend(put.await.err());
    }
    failures
}

fn check(response: &Message, address: &Arc<str>) -> Result<(), Error> {
    let status = response.application_property("status-code").and_then(|value| value.as_integer());
    match status {
        Some(200..=299) => Ok(()),
        Some(status) => {
            let text = response.application_property("status-description").and_then(|value| value.as_str());
            let condition = response.application_property("error-condition").and_then(|value| value.as_text());
            let condition = condition.map_or(condition_of_status(status), |name| Symbol::from(name.to_owned()));
            let source = Box::new(ServiceError { condition, description: text.unwrap_or_default().into() });
            Err(Error::Refused { operation: ClientOperation::Authorize, address: Arc::clone(address), source })
        }
        None => {
            let address = Arc::clone(address);
            Err(Error::InvalidReply {
                operation: ClientOperation::Authorize,
                address,
                what: "the response has no status-code",
            })
        }
    }
}

/// The condition for a status code, for responses that name none.
pub(crate) fn condition_of_status(status: i64) -> Symbol {
    use amqp::condition as c;
    match status {
        400 => c::NOT_ALLOWED,
        401 => c::UNAUTHORIZED_ACCESS,
        403 => c::RESOURCE_LIMIT_EXCEEDED,
        404 => c::NOT_FOUND,
        408 => c::TIMEOUT,
        409 => c::ENTITY_ALREADY_EXISTS,
        410 => c::MESSAGE_LOCK_LOST,
        501 => c::NOT_IMPLEMENTED,
        503 => c::SERVER_BUSY,
        _ => c::INTERNAL_ERROR,
    }
}

/// A token for this audience, as the `Authorization` header takes it.
pub(crate) async fn authorization(
    credential: &Credential,
    audience: &str,
    lifetime: Duration,
) -> Result<Option<String>, entra::Error> {
    let token = obtain_token(credential, audience, lifetime).await?;
    let prefix = |kind| if kind == JWT { "Bearer " } else { "" };
    Ok(token.map(|token| format!("{}{}", prefix(token.kind), token.text)))
}

async fn token(credential: &Credential, audience: &str, lifetime: Duration) -> Result<Option<Token>, Error> {
    let failed = |source| Error::Token { host: audience.into(), source: Box::new(source) };
    obtain_token(credential, audience, lifetime).await.map_err(failed)
}

/// `None`: no token is needed.
async fn obtain_token(
    credential: &Credential,
    audience: &str,
    lifetime: Duration,
) -> Result<Option<Token>, entra::Error> {
    Ok(match credential {
        Credential::None => None,
        // It cannot be renewed: there is no key to sign another.
        Credential::Signature(signature) => {
            Some(Token { text: signature.as_str().into(), kind: SAS, renew_at: None, expires_at: None })
        }
        Credential::Key { name, key } => {
            let (now, expires) = (Instant::now(), (since_epoch() + lifetime).as_secs());
            let text = sign(name, key, audience, expires).into();
            let (renew_at, expires_at) = (Some(now + lifetime * 3 / 4), Some(now + lifetime));
            Some(Token { text, kind: SAS, renew_at, expires_at })
        }
        Credential::Entra(tokens) => {
            let AccessToken { text, refresh_at, expires_at } = tokens.token().await?;
            Some(Token { text, kind: JWT, renew_at: Some(refresh_at), expires_at: Some(expires_at) })
        }
    })
}

fn sign(name: &str, key: &str, audience: &str, expires: u64) -> String {
    let resource = percent_encode(audience);
    let mut mac = Hmac::<Sha256>::new_from_slice(key.as_bytes()).expect("HMAC takes a key of any length");
    mac.update(format!("{resource}\n{expires}").as_bytes());
    let signature = percent_encode(&BASE64_STANDARD.encode(mac.finalize().into_bytes()));
    format!("SharedAccessSignature sr={resource}&sig={signature}&se={expires}&skn={}", percent_encode(name))
}

pub(crate) fn percent_encode(text: &str) -> String {
    let mut out = String::with_capacity(text.len() * 3);
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => out.push(byte.into()),
            _ => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}

#[expect(
    clippy::disallowed_methods,
    reason = "a token names the wall-clock time at which it expires; nothing here depends on it"
)]
fn since_epoch() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_signed_as_the_service_documents_it() {
        // Made with Python: hmac.new(b"secret", b"sb%3A%2F%2Fns%2Forders\n1700000000", sha256).
        let token = sign("Root", "secret", "sb://ns/orders", 1_700_000_000);
        let expected = "SharedAccessSignature sr=sb%3A%2F%2Fns%2Forders&sig=kvr23SoimDYhx3ikMzE4%2BFk8x6EU3C64mj1h5Zt0BvQ%3D&se=1700000000&skn=Root";
        assert_eq!(token, expected);
    }

    #[tokio::test]
    async fn an_address_that_fails_does_not_stop_the_renewal() {
        let renewed = Mutex::new(Vec::new());
        let put = |address: &'static str| {
            let renewed = &renewed;
            async move {
                if address == "a" {
                    return Err(Error::Closed { address: address.into() });
                }
                renewed.lock().unwrap().push(address);
                Ok(())
            }
        };
        assert_eq!(put_each(["a", "b", "c"].into_iter().map(put)).await.len(), 1);
        assert_eq!(renewed.into_inner().unwrap(), ["b", "c"]);
    }

    #[tokio::test]
    async fn a_given_signature_is_used_as_it_is() {
        let credential = Credential::Signature("SharedAccessSignature sr=x".into());
        let made = authorization(&credential, "sb://ns/orders", Duration::from_secs(60)).await.unwrap();
        assert_eq!(made.as_deref(), Some("SharedAccessSignature sr=x"));
        assert_eq!(authorization(&Credential::None, "sb://ns/orders", Duration::from_secs(60)).await.unwrap(), None);
    }
}
