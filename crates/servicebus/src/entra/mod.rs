//! Entra ID: obtains the access tokens that authorize links and administration requests, instead of keys.
//!
//! [`EntraConfig`] says who this process is ([`EntraCredential`], usually from the [environment]) and which authority issues its tokens. [`TokenSource`]
//! requests a token on first use, replaces it at half of its lifetime, and reports its state as [`TokenHealth`]. Files are read again for every request,
//! so a rotated secret, certificate or federated token needs no restart.
//!
//! Decision 020 says why this is not the `azure_identity` crate. Never logs a token, a secret or a key.

mod assertion;
mod azure_cli;
mod credential;
pub mod environment;
mod error;
mod reply;
mod token_source;

pub use credential::{EntraConfig, EntraCredential, ManagedIdentityEndpoint, SecretSource};
pub use error::Error;
pub use token_source::{TokenHealth, TokenSource};

pub(crate) use token_source::AccessToken;

/// Reads the reply of a token endpoint, as a token and as a refusal; returns whether it has a token. For fuzzing.
#[doc(hidden)]
pub fn read_reply(body: &[u8]) -> bool {
    let refusal = reply::read_refusal(body);
    assert!(refusal.lines().count() <= 1, "a refusal is one line of the log");
    reply::read_token(body, std::time::Duration::from_secs(1_700_000_000)).is_some()
}

/// The authority of the public cloud.
pub const PUBLIC_AUTHORITY: &str = "https://login.microsoftonline.com";
/// The resource that Service Bus tokens are for.
pub const SERVICE_BUS_AUDIENCE: &str = "https://servicebus.azure.net";
