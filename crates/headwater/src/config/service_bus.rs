//! How pods reach Service Bus: by a connection string, or by the name of a namespace with tokens of Entra ID.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::OnceLock;

use servicebus::entra::environment::{CredentialKind, EntraSettings};
use servicebus::entra::{SecretSource, TokenSource};

use super::load::ResolvedSettings;
use super::{Secret, ServiceBusConfig, schema};

pub(super) const STRING: &str = "service_bus.connection_string";
pub(super) const NAMESPACE: &str = "service_bus.fully_qualified_namespace";

/// The words of `service_bus.entra.credential`.
pub(super) const CREDENTIALS: &[&str] =
    &["environment", "workload_identity", "managed_identity", "client_secret", "client_certificate", "azure_cli"];

#[derive(Debug)]
pub(crate) enum BusAccess {
    ConnectionString(Secret),
    Entra(EntraAccess),
}

/// A namespace by name. One source of tokens serves all clients of the process.
pub(crate) struct EntraAccess {
    pub(crate) namespace: String,
    pub(crate) settings: EntraSettings,
    pub(crate) tokens: OnceLock<Arc<TokenSource>>,
}

impl std::fmt::Debug for EntraAccess {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EntraAccess").field("namespace", &self.namespace).field("settings", &self.settings).finish()
    }
}

pub(super) fn build(settings: &ResolvedSettings) -> ServiceBusConfig {
    ServiceBusConfig {
        access: build_access(settings),
        topic: settings.required_text("service_bus.topic").to_owned(),
        subscription: settings.required_text("service_bus.subscription").to_owned(),
        ca_file: settings.text("service_bus.ca_file").map(PathBuf::from),
        transport: match settings.required_text("service_bus.transport") {
            "web_socket" => servicebus::Transport::WebSocket,
            _ => servicebus::Transport::Amqp,
        },
    }
}

fn build_access(settings: &ResolvedSettings) -> BusAccess {
    let text = |name: &str| settings.text(&format!("service_bus.entra.{name}")).map(str::to_owned);
    match settings.text(NAMESPACE) {
        Some(namespace) => BusAccess::Entra(EntraAccess {
            namespace: namespace.to_owned(),
            settings: EntraSettings {
                kind: credential_kind(settings.required_text("service_bus.entra.credential")),
                tenant: text("tenant_id"),
                client: text("client_id"),
                // From a file: read again for every token, so that a new secret needs no restart.
                secret: match settings.secret_file("service_bus.entra.client_secret") {
                    Some(file) => Some(SecretSource::File(file.into())),
                    None => text("client_secret").map(SecretSource::Text),
                },
                certificate_file: text("certificate_file").map(PathBuf::from),
                authority: text("authority"),
                audience: text("audience"),
            },
            tokens: OnceLock::new(),
        }),
        None => {
            let example = || schema::key(STRING).expect("is in the table").example().into_owned();
            BusAccess::ConnectionString(Secret(settings.text(STRING).map_or_else(example, str::to_owned)))
        }
    }
}

fn credential_kind(word: &str) -> CredentialKind {
    match word {
        "workload_identity" => CredentialKind::WorkloadIdentity,
        "managed_identity" => CredentialKind::ManagedIdentity,
        "client_secret" => CredentialKind::ClientSecret,
        "client_certificate" => CredentialKind::ClientCertificate,
        "azure_cli" => CredentialKind::AzureCli,
        _ => CredentialKind::Environment,
    }
}
