//! MONGODB-OIDC with Entra ID: a user of MongoDB (Atlas calls it workload identity federation) authenticates with the tokens of a workload identity,
//! managed identity, client secret or client certificate, as Service Bus does.
//!
//! The URI is that of every driver: `authMechanism=MONGODB-OIDC` with `authMechanismProperties=ENVIRONMENT:azure,TOKEN_RESOURCE:…`. The driver's own
//! feature for it knows only the metadata service of virtual machines and brings an HTTP client (decision 022). `ENVIRONMENT:k8s` is left to the driver.

use std::sync::Arc;

use futures_util::FutureExt;
use mongodb::error::Error;
use mongodb::options::oidc::{Callback, IdpServerResponse};
use mongodb::options::{AuthMechanism, ClientOptions};
use servicebus::entra::TokenSource;
use servicebus::entra::environment::EntraSettings;

const ENVIRONMENT: &str = "ENVIRONMENT";
const AZURE: &str = "azure";
const TOKEN_RESOURCE: &str = "TOKEN_RESOURCE";

/// Lets the driver take its tokens from Entra ID, if the URI asks for it. `variable` reads the environment, and `config` gives timeouts and proxies.
pub(crate) fn provide_tokens(
    options: &mut ClientOptions,
    variable: impl Fn(&str) -> Option<String>,
    config: servicebus::Config,
) -> Result<(), servicebus::entra::Error> {
    let Some(credential) = &mut options.credential else { return Ok(()) };
    let Some(properties) = &mut credential.mechanism_properties else { return Ok(()) };
    let is_azure = properties.get_str(ENVIRONMENT).is_ok_and(|environment| environment == AZURE);
    if credential.mechanism != Some(AuthMechanism::MongoDbOidc) || !is_azure {
        return Ok(());
    }
    let settings = EntraSettings {
        // As in other drivers, the user of the URI is the client id of the identity.
        client: credential.username.take(),
        audience: properties.get_str(TOKEN_RESOURCE).ok().map(str::to_owned),
        ..EntraSettings::default()
    };
    let tokens = Arc::new(TokenSource::new(settings.resolve(variable)?, config));
    // The driver refuses a callback beside them.
    properties.remove(ENVIRONMENT);
    properties.remove(TOKEN_RESOURCE);
    credential.oidc_callback = Callback::machine(move |_| {
        let tokens = Arc::clone(&tokens);
        async move {
            let (token, expires_at) = tokens.access_token().await.map_err(|error| {
                Error::custom(format!(
                    "failed to obtain an Entra ID token for MongoDB: {:#}",
                    anyhow::Error::from(error)
                ))
            })?;
            Ok(IdpServerResponse::builder().access_token(token).expires(expires_at).build())
        }
        .boxed()
    });
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const URI: &str = "mongodb://localhost/?authMechanism=MONGODB-OIDC&authMechanismProperties=";

    async fn options(properties: &str) -> ClientOptions {
        ClientOptions::parse(format!("{URI}{properties}")).await.unwrap()
    }

    #[tokio::test]
    async fn only_azure_is_answered_here() {
        let mut azure = options("ENVIRONMENT:azure,TOKEN_RESOURCE:api%3A%2F%2Fatlas").await;
        provide_tokens(&mut azure, |_| None, servicebus::Config::default()).unwrap();
        assert!(azure.credential.as_ref().unwrap().mechanism_properties.as_ref().unwrap().is_empty());
        // The driver accepts what is left.
        assert!(mongodb::Client::with_options(azure).is_ok());

        let mut k8s = options("ENVIRONMENT:k8s").await;
        provide_tokens(&mut k8s, |_| None, servicebus::Config::default()).unwrap();
        let left = k8s.credential.unwrap().mechanism_properties.unwrap();
        assert_eq!(left.get_str(ENVIRONMENT).unwrap(), "k8s");
    }

    #[tokio::test]
    async fn an_incomplete_identity_is_an_error_that_names_it() {
        let mut azure = options("ENVIRONMENT:azure,TOKEN_RESOURCE:api%3A%2F%2Fatlas").await;
        let variable = |name: &str| (name == "AZURE_FEDERATED_TOKEN_FILE").then(|| "/token".to_owned());
        let error = provide_tokens(&mut azure, variable, servicebus::Config::default()).unwrap_err();
        assert!(error.to_string().contains("AZURE_TENANT_ID"), "{error}");
    }
}
