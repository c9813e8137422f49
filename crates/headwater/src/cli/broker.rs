//! `headwater broker`: runs only the Service Bus-compatible broker.

use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::Context;
use broker::access::{AccessKeys, EntraIssuer};
use broker::{Broker, Config, ProfileName, ServiceTier, StorageLocation, TlsFiles, emulator_config};

use crate::exit::ExitReason;
use crate::output;
use crate::signal::ShutdownSignal;

/// Run the Service Bus-compatible broker.
///
/// One port serves AMQP and administration over HTTP, and also TLS if a certificate is given. Stored messages survive a crash.
/// Any Service Bus SDK can use it with the connection string that it prints. The address that it prints as `page` opens a web page in a browser: entities, messages,
/// sessions and rules, and actions on messages. Without `--keys` every key is accepted, and only a loopback address is served:
/// everyone who can reach the port has full access.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Address and port to listen on; port 0 means any free port
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:5672")]
    listen: SocketAddr,

    /// Another address that serves the same; can be given several times. The official emulator has its administration on
    /// port 5300: `--also-listen 127.0.0.1:5300`
    #[arg(long, value_name = "ADDRESS")]
    also_listen: Vec<SocketAddr>,

    /// Folder for messages
    #[arg(long, value_name = "FOLDER", default_value = ".headwater/broker", conflicts_with = "ephemeral")]
    data_dir: PathBuf,

    /// Store nothing: all messages are lost when the broker stops; for tests
    #[arg(long)]
    ephemeral: bool,

    /// Queues, topics and subscriptions to create, in the `config.json` format of the official emulator, as JSON or YAML
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,

    /// Create queues, topics and subscriptions when a client first uses them; for tests. A sender that does not say what it
    /// sends to gets a queue
    #[arg(long)]
    create_on_first_use: bool,

    /// Tier whose limits apply: `basic` and `standard` take messages up to 256 KiB in entities up to 5 GB, `premium` up to 1 MiB
    /// in 1,000 entities up to 80 GB, none of them partitioned; `basic` has only queues, without sessions, duplicate detection,
    /// forwarding and transactions
    #[arg(long, value_name = "TIER", value_enum, default_value = "standard")]
    tier: TierName,

    /// Do to clients what Azure Service Bus does: end idle links and connections, throttle, detach a publisher for one refused transfer. `harsh` adds
    /// node moves, storms of internal errors and failovers. Sets the tier too
    #[arg(long, value_name = "PROFILE", value_enum, conflicts_with = "tier")]
    profile: Option<ProfileChoice>,

    /// Divide the times of the profile by this number
    #[arg(long, value_name = "NUMBER", default_value_t = 1.0, requires = "profile", value_parser = parse_scale)]
    profile_scale: f64,

    /// Chooses the disturbances of the profile `harsh`
    #[arg(long, value_name = "NUMBER", default_value_t = 1, requires = "profile")]
    profile_seed: u64,

    /// Connections at once. Further ones are refused with the reason
    #[arg(long, value_name = "NUMBER", default_value_t = broker::DEFAULT_MAX_CONNECTIONS, value_parser = parse_connections)]
    max_connections: usize,

    /// Certificate chain (PEM); the port then also accepts TLS
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,

    /// Private key of the certificate (PEM)
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,

    /// Refuse connections without TLS
    #[arg(long, requires = "tls_cert")]
    require_tls: bool,

    /// Keys that clients must have (JSON): `{"keys": [{"name": "reader", "key": "…", "secondaryKey": "…", "rights": ["Listen"], "entity": "orders"}]}`.
    /// Rights are Send, Listen and Manage; without `entity` a key is for all entities
    #[arg(long, value_name = "FILE")]
    keys: Option<PathBuf>,

    /// Accept tokens of Entra ID, or of another issuer of JWTs (RS256): a JSON file
    /// `{"issuer": "https://…", "jwks": "keys.json", "assignments": [{"principal": "…", "rights": ["Send", "Listen"], "entity": "orders"}]}`.
    /// A principal is a value of the claims `oid`, `appid`, `azp`, `sub` or `roles`
    #[arg(long, value_name = "FILE")]
    entra: Option<PathBuf>,

    /// Allow requests with this token to move the clock, inject faults and reset everything, under `/$test`; never use it in production
    #[arg(long, value_name = "TOKEN", env = "HEADWATER_BROKER_TEST_TOKEN", hide_env_values = true)]
    test_token: Option<String>,
}

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum TierName {
    Basic,
    Standard,
    Premium,
}

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum ProfileChoice {
    AzureStandard,
    AzurePremium,
    Harsh,
}

impl From<ProfileChoice> for ProfileName {
    fn from(choice: ProfileChoice) -> Self {
        match choice {
            ProfileChoice::AzureStandard => Self::AzureStandard,
            ProfileChoice::AzurePremium => Self::AzurePremium,
            ProfileChoice::Harsh => Self::Harsh,
        }
    }
}

fn parse_connections(text: &str) -> Result<usize, String> {
    let number = text.parse::<usize>().ok().filter(|number| (1..=1_000_000).contains(number));
    number.ok_or_else(|| "must be a number from 1 to 1000000".to_owned())
}

fn parse_scale(text: &str) -> Result<f64, String> {
    let scale = text.parse::<f64>().ok().filter(|scale| (1.0..=10_000.0).contains(scale));
    scale.ok_or_else(|| "must be a number from 1 to 10000".to_owned())
}

impl From<TierName> for ServiceTier {
    fn from(name: TierName) -> Self {
        match name {
            TierName::Basic => Self::Basic,
            TierName::Standard => Self::Standard,
            TierName::Premium => Self::Premium,
        }
    }
}

pub(crate) async fn run(args: Args) -> anyhow::Result<()> {
    let mut stop = ShutdownSignal::new()?;
    let storage = if args.ephemeral {
        "messages are not stored".to_owned()
    } else {
        format!("data in {}", args.data_dir.display())
    };
    let config = broker_config(args)?;
    let mut addresses = std::iter::once(&config.listen).chain(&config.also_listen);
    if let Some(address) = addresses.find(|address| config.keys.is_none() && !address.ip().is_loopback()) {
        anyhow::bail!(ExitReason::Misconfigured.with_message(format!(
            "refusing to listen on {address} without keys: everyone who can reach it would have full access; pass `--keys FILE` or `--entra FILE`, or listen on 127.0.0.1",
        )));
    }
    let broker = Broker::start(config).await?;
    output::try_print(format_args!("broker ready on {} ({storage})\n", broker.address()));
    for address in broker.other_addresses() {
        output::try_print(format_args!("also serving {address}\n"));
    }
    output::try_print(format_args!("connection string: {}\n", broker.connection_string()));
    output::try_print(format_args!("page: {}\n", broker.page_url()));
    stop.recv().await;
    tokio::select! {
        () = broker.stop() => Ok(()),
        () = stop.recv_second() => anyhow::bail!(ExitReason::Interrupted.with_message("stopped at once by the second signal")),
    }
}

fn broker_config(args: Args) -> anyhow::Result<Config> {
    let persistence = if args.ephemeral { StorageLocation::Ephemeral } else { StorageLocation::Folder(args.data_dir) };
    let mut config = Config::new(args.listen, persistence);
    config.also_listen = args.also_listen;
    if let Some(file) = args.config {
        let problem = |text: &str| ExitReason::Misconfigured.with_message(format!("{text} `{}`", file.display()));
        let text = std::fs::read_to_string(&file).with_context(|| problem("failed to read"))?;
        let read = emulator_config::parse(&text).with_context(|| problem("invalid file"))?;
        (config.entities, config.rules) = (read.entities, read.rules);
    }
    config.tls = args.tls_cert.zip(args.tls_key).map(|(certificate, key)| TlsFiles { certificate, key });
    config.require_tls = args.require_tls;
    if let Some(file) = args.keys {
        let problem = |text: &str| ExitReason::Misconfigured.with_message(format!("{text} `{}`", file.display()));
        let text = std::fs::read_to_string(&file).with_context(|| problem("failed to read"))?;
        config.keys = Some(AccessKeys::parse(&text).with_context(|| problem("invalid file"))?);
    }
    if let Some(file) = args.entra {
        let invalid = || ExitReason::Misconfigured.with_message("`--entra` cannot be used");
        let issuer = EntraIssuer::load(&file).with_context(invalid)?;
        config.keys = Some(match config.keys.take() {
            Some(keys) => keys.with_entra(issuer),
            None => issuer.into(),
        });
    }
    config.test_token = args.test_token;
    config.create_on_first_use = args.create_on_first_use;
    config.max_connections = args.max_connections;
    match args.profile.map(ProfileName::from) {
        Some(profile) => {
            config.set_tier(profile.tier());
            config.profile = profile.profile(args.profile_scale, args.profile_seed);
        }
        None => config.set_tier(args.tier.into()),
    }
    Ok(config)
}
