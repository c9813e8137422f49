//! The credential as the environment gives it: the variables that the SDKs, Kubernetes and App Service use.

use std::path::PathBuf;

use super::credential::{EntraConfig, EntraCredential, ManagedIdentityEndpoint, SecretSource};
use super::{Error, PUBLIC_AUTHORITY, SERVICE_BUS_AUDIENCE};

/// The kind of credential, or the first that the environment has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CredentialKind {
    /// Workload identity, client secret or client certificate if their variables are set; else managed identity. Never the Azure CLI.
    #[default]
    Environment,
    WorkloadIdentity,
    ManagedIdentity,
    ClientSecret,
    ClientCertificate,
    AzureCli,
}

/// Settings that take precedence over the environment.
#[derive(Debug, Clone, Default)]
pub struct EntraSettings {
    pub kind: CredentialKind,
    pub tenant: Option<String>,
    pub client: Option<String>,
    pub secret: Option<SecretSource>,
    pub certificate_file: Option<PathBuf>,
    pub authority: Option<String>,
    pub audience: Option<String>,
}

const METADATA_SERVICE: &str = "http://169.254.169.254";

impl EntraSettings {
    /// Completes the settings from the environment. An error names the setting or variable that is missing.
    pub fn resolve(self, variable: impl Fn(&str) -> Option<String>) -> Result<EntraConfig, Error> {
        let variable = |name: &str| variable(name).filter(|value| !value.is_empty());
        let token_file = variable("AZURE_FEDERATED_TOKEN_FILE").map(PathBuf::from);
        let secret = self.secret.or_else(|| variable("AZURE_CLIENT_SECRET").map(SecretSource::Text));
        let file = self.certificate_file.or_else(|| variable("AZURE_CLIENT_CERTIFICATE_PATH").map(PathBuf::from));
        let tenant = self.tenant.or_else(|| variable("AZURE_TENANT_ID"));
        let client = self.client.or_else(|| variable("AZURE_CLIENT_ID"));
        let kind = match self.kind {
            CredentialKind::Environment if token_file.is_some() => CredentialKind::WorkloadIdentity,
            CredentialKind::Environment if secret.is_some() => CredentialKind::ClientSecret,
            CredentialKind::Environment if file.is_some() => CredentialKind::ClientCertificate,
            CredentialKind::Environment => CredentialKind::ManagedIdentity,
            kind => kind,
        };
        let tenant_id = || required(tenant.clone(), "entra.tenant_id", "AZURE_TENANT_ID");
        let client_id = || required(client.clone(), "entra.client_id", "AZURE_CLIENT_ID");
        let credential = match kind {
            CredentialKind::WorkloadIdentity => {
                let missing = "`AZURE_FEDERATED_TOKEN_FILE` is not set: workload identity needs the label `azure.workload.identity/use` on the pod";
                let token_file = token_file.ok_or_else(|| Error::Settings(missing.to_owned()))?;
                EntraCredential::WorkloadIdentity { tenant: tenant_id()?, client: client_id()?, token_file }
            }
            CredentialKind::ClientSecret => {
                let secret = required(secret, "entra.client_secret", "AZURE_CLIENT_SECRET")?;
                EntraCredential::ClientSecret { tenant: tenant_id()?, client: client_id()?, secret }
            }
            CredentialKind::ClientCertificate => {
                let file = required(file, "entra.certificate_file", "AZURE_CLIENT_CERTIFICATE_PATH")?;
                EntraCredential::ClientCertificate { tenant: tenant_id()?, client: client_id()?, file }
            }
            CredentialKind::AzureCli => EntraCredential::AzureCli { tenant },
            CredentialKind::ManagedIdentity | CredentialKind::Environment => {
                let endpoint = match variable("IDENTITY_ENDPOINT").zip(variable("IDENTITY_HEADER")) {
                    Some((url, header)) => ManagedIdentityEndpoint::AppService { url, header },
                    None => {
                        let host = variable("AZURE_POD_IDENTITY_AUTHORITY_HOST");
                        ManagedIdentityEndpoint::MetadataService {
                            host: host.unwrap_or_else(|| METADATA_SERVICE.to_owned()),
                        }
                    }
                };
                EntraCredential::ManagedIdentity { client, endpoint }
            }
        };
        let authority = self.authority.or_else(|| variable("AZURE_AUTHORITY_HOST"));
        let authority = authority.unwrap_or_else(|| PUBLIC_AUTHORITY.to_owned());
        // A token request contains a secret or a signed assertion.
        if !authority.starts_with("https://") {
            return Err(Error::Settings(
                "the authority (`entra.authority`, `AZURE_AUTHORITY_HOST`) must start with `https://`".to_owned(),
            ));
        }
        let audience = self.audience.unwrap_or_else(|| SERVICE_BUS_AUDIENCE.to_owned());
        Ok(EntraConfig { credential, authority, audience })
    }
}

fn required<T>(value: Option<T>, setting: &str, variable: &str) -> Result<T, Error> {
    value.ok_or_else(|| Error::Settings(format!("neither `{setting}` nor `{variable}` is set")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolve(kind: CredentialKind, variables: &[(&str, &str)]) -> Result<EntraConfig, String> {
        let find = |name: &str| variables.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned());
        EntraSettings { kind, ..EntraSettings::default() }.resolve(find).map_err(|error| error.to_string())
    }

    const IDS: [(&str, &str); 2] = [("AZURE_TENANT_ID", "t"), ("AZURE_CLIENT_ID", "c")];

    #[test]
    fn the_environment_decides_the_kind() {
        let (tenant, client) = (|| "t".to_owned(), || "c".to_owned());
        let workload = [IDS[0], IDS[1], ("AZURE_FEDERATED_TOKEN_FILE", "/f"), ("AZURE_CLIENT_SECRET", "s")];
        let expected =
            EntraCredential::WorkloadIdentity { tenant: tenant(), client: client(), token_file: "/f".into() };
        assert_eq!(resolve(CredentialKind::Environment, &workload).unwrap().credential, expected);
        let secret = [IDS[0], IDS[1], ("AZURE_CLIENT_SECRET", "s")];
        let expected = EntraCredential::ClientSecret {
            tenant: tenant(),
            client: client(),
            secret: SecretSource::Text("s".into()),
        };
        let found = resolve(CredentialKind::Environment, &secret).unwrap();
        assert_eq!(found.credential, expected);
        assert!(!format!("{found:?}").contains("\"s\""), "{found:?}");
        let machine = resolve(CredentialKind::Environment, &IDS[1..]).unwrap();
        let endpoint = ManagedIdentityEndpoint::MetadataService { host: METADATA_SERVICE.into() };
        assert_eq!(machine.credential, EntraCredential::ManagedIdentity { client: Some(client()), endpoint });
        assert_eq!((machine.authority.as_str(), machine.audience.as_str()), (PUBLIC_AUTHORITY, SERVICE_BUS_AUDIENCE));
    }

    #[test]
    fn what_is_missing_is_named() {
        for (kind, variables, expected) in [
            (CredentialKind::WorkloadIdentity, &IDS[..], "AZURE_FEDERATED_TOKEN_FILE"),
            (CredentialKind::ClientSecret, &IDS[..], "neither `entra.client_secret` nor `AZURE_CLIENT_SECRET`"),
            (CredentialKind::ClientSecret, &[("AZURE_CLIENT_SECRET", "hush")][..], "`AZURE_TENANT_ID`"),
            (CredentialKind::ClientCertificate, &IDS[..], "`AZURE_CLIENT_CERTIFICATE_PATH`"),
            (CredentialKind::AzureCli, &[("AZURE_AUTHORITY_HOST", "http://x")][..], "must start with `https://`"),
        ] {
            let error = resolve(kind, variables).unwrap_err();
            assert!(error.contains(expected) && !error.contains("hush"), "{error}");
        }
    }
}
