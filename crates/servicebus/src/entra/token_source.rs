//! Keeps one valid access token for all connections of a process.
//!
//! A token is replaced at half of its lifetime, so that a failing issuer is noticed and reported long before the token expires. A failed request is
//! retried after a backoff; meanwhile the present token stays in use while it is valid.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::time::Instant;
use tracing::{info, warn};

use super::{EntraConfig, Error};
use crate::client::backoff;
use crate::{Config, error_chain};

/// The shortest time between two requests because of a refusal by Service Bus.
const REFUSAL_PAUSE: Duration = Duration::from_secs(5);

/// A token, as `$cbs` and the `Authorization` header take it.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct AccessToken {
    pub(crate) text: Arc<str>,
    pub(crate) refresh_at: Instant,
    pub(crate) expires_at: Instant,
}

/// How the source is doing.
#[derive(Debug, Clone, Default)]
pub struct TokenHealth {
    pub obtained: u64,
    pub failures: u64,
    /// Requests that failed since the last success.
    pub failures_in_a_row: u32,
    pub failing_since: Option<Instant>,
    /// Of the present token.
    pub expires_at: Option<Instant>,
    /// With its causes. Contains no secret.
    pub last_error: Option<String>,
}

pub struct TokenSource {
    entra: EntraConfig,
    config: Config,
    /// Held during a request, so that concurrent callers share one.
    request: tokio::sync::Mutex<()>,
    state: Mutex<TokenState>,
}

#[derive(Default)]
struct TokenState {
    token: Option<AccessToken>,
    not_before: Option<Instant>,
    last_error: Option<Error>,
    last_refusal: Option<Instant>,
    health: TokenHealth,
}

impl TokenSource {
    /// `config` gives timeouts, backoff, trust and proxies.
    pub fn new(entra: EntraConfig, config: Config) -> Self {
        Self { entra, config, request: tokio::sync::Mutex::new(()), state: Mutex::default() }
    }

    pub fn health(&self) -> TokenHealth {
        self.lock().health.clone()
    }

    pub fn issuer(&self) -> &str {
        self.entra.issuer()
    }

    /// The text of a valid token, and when it expires: for services besides Service Bus.
    pub async fn access_token(&self) -> Result<(String, std::time::Instant), Error> {
        let token = self.token().await?;
        Ok((token.text.to_string(), token.expires_at.into_std()))
    }

    /// The present token, or a new one if it is due. Fails only if there is no valid token.
    pub(crate) async fn token(&self) -> Result<AccessToken, Error> {
        let now = Instant::now();
        if let Some(token) = self.lock().usable(now) {
            return token;
        }
        // While another caller requests a token, the present one serves.
        let valid = self.lock().valid(now);
        let _request = match (self.request.try_lock(), valid) {
            (Ok(request), _) => request,
            (Err(_), Some(token)) => return Ok(token),
            (Err(_), None) => self.request.lock().await,
        };
        if let Some(token) = self.lock().usable(Instant::now()) {
            return token;
        }
        // Boxed: requests are rare, and every call of the client would carry its state.
        let requested = Box::pin(self.entra.request_token(&self.config, since_epoch())).await;
        let mut state = self.lock();
        match requested {
            Ok(issued) => {
                let now = Instant::now();
                let refresh_in = issued.refresh_in.unwrap_or(issued.lifetime / 2).min(issued.lifetime);
                let token = AccessToken {
                    text: issued.text.into(),
                    refresh_at: now + refresh_in,
                    expires_at: now + issued.lifetime,
                };
                state.record_token(token.clone());
                info!(issuer = self.issuer(), lifetime = ?issued.lifetime, "obtained an Entra ID token");
                Ok(token)
            }
            Err(error) => {
                state.record_failure(&error, &self.config);
                warn!(issuer = self.issuer(), error = %error_chain(&error), "failed to obtain an Entra ID token; retrying");
                state.valid(Instant::now()).ok_or(error)
            }
        }
    }

    /// Service Bus refused the token: rights may have changed since it was issued, so the next use requests another one. Until there is one, the present
    /// token serves: other links may be allowed.
    pub(crate) fn on_refused(&self) {
        let now = Instant::now();
        let mut state = self.lock();
        let recently = state.last_refusal.is_some_and(|at| now.duration_since(at) < REFUSAL_PAUSE);
        if !recently {
            state.last_refusal = Some(now);
            if let Some(token) = &mut state.token {
                token.refresh_at = now;
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, TokenState> {
        self.state.lock().expect("no one panics while holding the token")
    }
}

impl TokenState {
    fn valid(&self, now: Instant) -> Option<AccessToken> {
        self.token.clone().filter(|token| token.expires_at > now)
    }

    /// What a caller gets without a request. `None`: request a token.
    fn usable(&self, now: Instant) -> Option<Result<AccessToken, Error>> {
        match self.valid(now) {
            Some(token) if token.refresh_at > now => Some(Ok(token)),
            valid if self.not_before.is_some_and(|at| at > now) => {
                valid.map(Ok).or_else(|| self.last_error.clone().map(Err))
            }
            _ => None,
        }
    }

    fn record_token(&mut self, token: AccessToken) {
        self.health.obtained += 1;
        self.health.failures_in_a_row = 0;
        self.health.failing_since = None;
        self.health.last_error = None;
        self.health.expires_at = Some(token.expires_at);
        self.token = Some(token);
        self.not_before = None;
        self.last_error = None;
    }

    fn record_failure(&mut self, error: &Error, config: &Config) {
        let now = Instant::now();
        self.health.failures += 1;
        self.health.failures_in_a_row += 1;
        self.health.failing_since.get_or_insert(now);
        self.health.last_error = Some(error_chain(error));
        self.not_before = Some(now + backoff(self.health.failures_in_a_row, config, rand::random()));
        self.last_error = Some(error.clone());
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "assertions and some replies name wall-clock times; validity is measured on the monotonic clock"
)]
fn since_epoch() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(refresh_at: Instant, expires_at: Instant) -> AccessToken {
        AccessToken { text: "t".into(), refresh_at, expires_at }
    }

    #[tokio::test(start_paused = true)]
    async fn a_failed_refresh_keeps_the_token_until_it_expires() {
        let (config, start, second) = (Config::default(), Instant::now(), Duration::from_secs(1));
        let mut state = TokenState::default();
        assert!(state.usable(start).is_none(), "the first token is requested");
        let present = token(start + second, start + 2 * second);
        state.record_token(present.clone());
        assert!(matches!(state.usable(start), Some(Ok(_))));
        tokio::time::advance(second).await;
        assert!(state.usable(Instant::now()).is_none(), "due");
        state.record_failure(&Error::Settings("x".into()), &config);
        assert!(matches!(state.usable(Instant::now()), Some(Ok(_))), "the present token serves during the backoff");
        assert_eq!(state.health.failures_in_a_row, 1);
        tokio::time::advance(second).await;
        assert!(state.usable(Instant::now()).is_none(), "expired, and the backoff is over");
        state.record_failure(&Error::Settings("x".into()), &config);
        assert!(matches!(state.usable(Instant::now()), Some(Err(_))), "no request during the backoff");
        state.record_token(token(start + 9 * second, start + 9 * second));
        assert!(state.health.failing_since.is_none() && state.health.last_error.is_none());
    }
}
