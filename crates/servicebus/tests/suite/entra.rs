//! Tokens of Entra ID, from an issuer on loopback, for a broker that accepts them.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use broker::access::EntraIssuer;
use broker::{Broker, TlsFiles};
use servicebus::administration::AdministrationClient;
use servicebus::entra::environment::{CredentialKind, EntraSettings};
use servicebus::entra::{SecretSource, TokenSource};
use servicebus::{BusErrorKind, Client, Config, ConnectionString, Message};
use tempfile::TempDir;
use testkit::issuer::{CLIENT, ClientCertificate, IDENTITY_HEADER, TENANT, TokenIssuer};
use testkit::wait::wait_for;

use crate::fixture::*;

pub(crate) struct EntraFixture {
    folder: TempDir,
    ca_file: std::path::PathBuf,
    tls: TlsFiles,
    issuer: TokenIssuer,
    broker: Broker,
}

impl EntraFixture {
    pub(crate) async fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let access = testkit::bus::create_access(folder.path()).unwrap();
        let files = access.certificate.unwrap();
        let issuer = TokenIssuer::start(folder.path(), &files).await;
        let tls = TlsFiles { certificate: files.certificate.clone(), key: files.private_key.clone() };
        let broker = start_accepting(&issuer, &tls).await;
        Self { folder, ca_file: files.ca_file, tls, issuer, broker }
    }

    pub(crate) fn issuer(&self) -> &TokenIssuer {
        &self.issuer
    }

    /// Tokens of the known secret, requested with this configuration.
    pub(crate) fn secret_tokens(&self, config: Config) -> Arc<TokenSource> {
        let authority = Some(self.issuer.authority());
        let secret = Some(SecretSource::Text("secret-1".into()));
        let settings = EntraSettings { authority, secret, ..registered() };
        Arc::new(TokenSource::new(settings.resolve(|_| None).unwrap(), config))
    }

    pub(crate) fn config(&self) -> Config {
        Config { ca_file: Some(self.ca_file.clone()), max_backoff: Duration::from_millis(200), ..long_timeouts() }
    }

    /// The source of tokens for a credential, with these variables instead of the environment.
    fn tokens(&self, settings: EntraSettings, variables: &[(&str, String)]) -> Arc<TokenSource> {
        let settings = EntraSettings { authority: Some(self.issuer.authority()), ..settings };
        let find = |name: &str| variables.iter().find(|(key, _)| *key == name).map(|(_, value)| value.clone());
        Arc::new(TokenSource::new(settings.resolve(find).unwrap(), self.config()))
    }

    fn with_secret(&self, secret: SecretSource) -> Arc<TokenSource> {
        self.tokens(EntraSettings { secret: Some(secret), ..registered() }, &[])
    }

    pub(crate) fn endpoint(&self, tokens: Arc<TokenSource>) -> ConnectionString {
        let namespace = format!("localhost:{}", self.broker.address().port());
        ConnectionString::for_namespace(&namespace, tokens).unwrap()
    }

    fn client(&self, tokens: &Arc<TokenSource>) -> Client {
        Client::for_endpoint(self.endpoint(Arc::clone(tokens)), self.config()).unwrap()
    }

    fn write(&self, name: &str, text: &str) -> std::path::PathBuf {
        let file = self.folder.path().join(name);
        std::fs::write(&file, text).unwrap();
        file
    }
}

async fn start_accepting(issuer: &TokenIssuer, tls: &TlsFiles) -> Broker {
    start_broker_with(|config| {
        config.tls = Some(TlsFiles { certificate: tls.certificate.clone(), key: tls.key.clone() });
        config.keys = Some(EntraIssuer::load(&issuer.broker_file()).unwrap().into());
    })
    .await
}

fn registered() -> EntraSettings {
    EntraSettings { tenant: Some(TENANT.into()), client: Some(CLIENT.into()), ..EntraSettings::default() }
}

fn certificate(file: &Path) -> EntraSettings {
    EntraSettings { certificate_file: Some(file.to_owned()), ..registered() }
}

async fn send(client: &Client, body: &'static str) -> Result<(), servicebus::Error> {
    client.sender(PLAIN).send_message(&Message::new(body)).await
}

pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

#[tokio::test]
async fn every_credential_opens_links() {
    let fixture = EntraFixture::start().await;
    let registered_certificate = ClientCertificate::create(fixture.folder.path(), "client");
    fixture.issuer.behave(|issuer| issuer.certificate = Some(registered_certificate.clone()));
    let url = fixture.issuer.authority();
    let federated = fixture.write("federated", "federated-1\n");
    let workload = vec![("AZURE_FEDERATED_TOKEN_FILE", federated.to_str().unwrap().to_owned())];
    let app_service =
        vec![("IDENTITY_ENDPOINT", format!("{url}/msi/token")), ("IDENTITY_HEADER", IDENTITY_HEADER.to_owned())];
    let machine = vec![("AZURE_POD_IDENTITY_AUTHORITY_HOST", url)];
    let secret = EntraSettings { secret: Some(SecretSource::Text("secret-1".into())), ..registered() };
    let mut sent = 0;
    for (settings, variables) in [
        (secret, vec![]),
        (certificate(&registered_certificate.file), vec![]),
        (registered(), workload),
        (registered(), app_service),
        (EntraSettings { kind: CredentialKind::ManagedIdentity, ..registered() }, machine),
    ] {
        let name = format!("{settings:?} {variables:?}");
        let tokens = fixture.tokens(settings, &variables);
        let client = fixture.client(&tokens);
        send(&client, "x").await.unwrap_or_else(|error| panic!("{name}: {}", chain(&error)));
        assert_eq!(client.receiver(PLAIN).receive(1, SOON).await.unwrap().len(), 1, "{name}");
        assert_eq!(tokens.health().obtained, 1, "one token for both links");
        client.close().await.unwrap();
        sent += 1;
    }
    assert_eq!(fixture.issuer.requests(), sent);
}

#[tokio::test]
async fn administration_sends_the_token_as_bearer() {
    let fixture = EntraFixture::start().await;
    let tokens = fixture.with_secret(SecretSource::Text("secret-1".into()));
    let administration = |fixture: &EntraFixture| {
        AdministrationClient::for_endpoint(fixture.endpoint(Arc::clone(&tokens)), &fixture.config()).unwrap()
    };
    let refused = administration(&fixture).get(ORDERS).await.unwrap_err();
    assert!(refused.is_unauthorized(), "without Manage: {refused}");
    fixture.issuer.assign(&["Manage"]).unwrap();
    let broker = start_accepting(&fixture.issuer, &fixture.tls).await;
    let fixture = EntraFixture { broker, ..fixture };
    assert!(administration(&fixture).get(ORDERS).await.unwrap().is_some());
    fixture.issuer.behave(|issuer| issuer.away = true);
    let tokens = fixture.with_secret(SecretSource::Text("secret-1".into()));
    let unreachable = AdministrationClient::for_endpoint(fixture.endpoint(tokens), &fixture.config()).unwrap();
    let error = chain(&unreachable.get(ORDERS).await.unwrap_err());
    assert!(error.contains("failed to obtain a token") && error.contains(&fixture.issuer.authority()[8..]), "{error}");
}

#[tokio::test]
async fn tokens_are_replaced_before_they_expire() {
    let fixture = EntraFixture::start().await;
    fixture.issuer.behave(|issuer| issuer.lifetime = Duration::from_secs(4));
    let tokens = fixture.with_secret(SecretSource::Text("secret-1".into()));
    let client = fixture.client(&tokens);
    send(&client, "first").await.unwrap();
    let link = client.sender(PLAIN).pipelined().await.unwrap();
    let mut held = {
        client.sender(ORDERS).send_message(&in_session("s", "one")).await.unwrap();
        client.accept_session(ORDERS, "s").await.unwrap()
    };
    // Three times the lifetime of the first token: the broker cuts a link at the expiry of its token.
    wait_for("six tokens", SOON, async || match tokens.health().obtained {
        6.. => Ok(()),
        fewer => Err(fewer),
    })
    .await;
    assert!(link.closed_reason().is_none(), "the sender link is still open");
    assert!(held.session().lost_reason().is_none(), "the session is still held");
    assert_eq!(bodies(&receive_all(&mut held, 1).await), ["one"]);
}

#[tokio::test]
async fn an_issuer_that_is_away_is_reported_before_the_expiry() {
    let fixture = EntraFixture::start().await;
    fixture.issuer.behave(|issuer| issuer.lifetime = Duration::from_secs(6));
    let tokens = fixture.with_secret(SecretSource::Text("secret-1".into()));
    let client = fixture.client(&tokens);
    send(&client, "before").await.unwrap();
    fixture.issuer.behave(|issuer| issuer.away = true);
    let health = wait_for("failed requests", SOON, async || {
        let health = tokens.health();
        if health.failures_in_a_row >= 2 { Ok(health) } else { Err(health) }
    })
    .await;
    assert!(health.expires_at.unwrap() > tokio::time::Instant::now(), "the present token is still valid");
    assert!(health.last_error.unwrap().contains("token request to localhost"), "the error names the issuer");
    send(&client, "meanwhile").await.unwrap();
    let error = wait_for("the token to expire", SOON, async || send(&client, "late").await.err().ok_or("sent")).await;
    assert!(error.is_retryable() || error.kind() == BusErrorKind::Unauthorized, "{}", chain(&error));
    fixture.issuer.behave(|issuer| issuer.away = false);
    wait_for("the recovery", SOON, async || send(&client, "after").await.map_err(|error| chain(&error))).await;
    assert_eq!(tokens.health().failures_in_a_row, 0);
}

#[tokio::test]
async fn a_wrong_certificate_is_named_until_it_is_replaced() {
    let fixture = EntraFixture::start().await;
    let known = ClientCertificate::create(fixture.folder.path(), "known");
    let other = ClientCertificate::create(fixture.folder.path(), "other");
    fixture.issuer.behave(|issuer| issuer.certificate = Some(known.clone()));
    let tokens = fixture.tokens(certificate(&other.file), &[]);
    let client = fixture.client(&tokens);
    let error = send(&client, "x").await.unwrap_err();
    assert_eq!(error.kind(), BusErrorKind::Unauthorized);
    let text = chain(&error);
    assert!(text.contains("status 401: invalid_client: AADSTS700027") && !text.contains("PRIVATE"), "{text}");
    std::fs::write(&other.file, "no certificate").unwrap();
    let text = wait_for("the unusable file", SOON, async || {
        let text = chain(&send(&client, "x").await.unwrap_err());
        if text.contains("it contains no certificate") { Ok(text) } else { Err(text) }
    })
    .await;
    assert!(text.contains("other.pem"), "{text}");
    // The file is read for every token: no restart.
    std::fs::copy(&known.file, &other.file).unwrap();
    wait_for("the correction", SOON, async || send(&client, "x").await.map_err(|error| chain(&error))).await;
}

#[tokio::test]
async fn an_issuer_with_an_untrusted_certificate_gets_no_secret() {
    let fixture = EntraFixture::start().await;
    let other = tempfile::tempdir().unwrap();
    let untrusted = testkit::bus::create_access(other.path()).unwrap().certificate.unwrap();
    let issuer = TokenIssuer::start(other.path(), &untrusted).await;
    let settings = EntraSettings {
        authority: Some(issuer.authority()),
        secret: Some(SecretSource::Text("secret-1".into())),
        ..registered()
    };
    let tokens = Arc::new(TokenSource::new(settings.resolve(|_| None).unwrap(), fixture.config()));
    let error = send(&fixture.client(&tokens), "x").await.unwrap_err();
    assert_eq!(error.kind(), BusErrorKind::Unauthorized);
    let text = chain(&error);
    assert!(text.contains("TLS handshake failed") && !text.contains("secret-1"), "{text}");
}

#[tokio::test]
async fn refused_tokens_are_requested_again() {
    let fixture = EntraFixture::start().await;
    fixture.issuer.behave(|issuer| issuer.issues_expired = true);
    let secret = fixture.write("secret", "secret-1");
    let tokens = fixture.with_secret(SecretSource::File(secret.clone()));
    let client = fixture.client(&tokens);
    let error = send(&client, "x").await.unwrap_err();
    assert_eq!(error.kind(), BusErrorKind::Unauthorized);
    assert!(chain(&error).contains("ExpiredToken"), "{}", chain(&error));
    fixture.issuer.behave(|issuer| {
        issuer.issues_expired = false;
        issuer.secret = "secret-2".to_owned();
    });
    // A rotated secret is read from its file.
    std::fs::write(&secret, "secret-2").unwrap();
    wait_for("a new token", SOON, async || send(&client, "x").await.map_err(|error| chain(&error))).await;
}
