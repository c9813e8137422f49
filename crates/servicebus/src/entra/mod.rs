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

/// The authority of the public cloud.
pub const PUBLIC_AUTHORITY: &str = "https://login.microsoftonline.com";
/// The resource that Service Bus tokens are for.
pub const SERVICE_BUS_AUDIENCE: &str = "https://servicebus.azure.net";
