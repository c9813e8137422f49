//! `headwater broker`: the Service Bus-compatible broker alone.

use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::Context;
use broker::{Broker, Config, Persistence, TlsFiles, emulator_config};

use crate::exit::ExitReason;
use crate::output;
use crate::signal::StopSignal;

/// Run the Service Bus-compatible broker.
///
/// One port serves AMQP and administration over HTTP, with TLS as well when a certificate is given; what is stored survives any
/// crash. Point any Service Bus SDK at it with the connection string
/// `Endpoint=sb://ADDRESS;SharedAccessKeyName=any;SharedAccessKey=any;UseDevelopmentEmulator=true`. Every key is accepted: whoever reaches the port may use it.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Address and port to listen on; port 0 takes any that is free.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:5672")]
    listen: SocketAddr,

    /// Where messages are kept.
    #[arg(long, value_name = "FOLDER", default_value = ".headwater/broker", conflicts_with = "ephemeral")]
    data_dir: PathBuf,

    /// Keep nothing: everything is gone when the broker stops. For tests.
    #[arg(long)]
    ephemeral: bool,

    /// Queues, topics and subscriptions to create, in the official emulator's `config.json` format.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,

    /// Certificate with its chain (PEM); the same port then speaks TLS too.
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,

    /// The certificate's private key (PEM).
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,

    /// Let whoever shows this token move the clock and arm faults, under `/$test`. Never on a broker that matters.
    #[arg(long, value_name = "TOKEN", env = "HEADWATER_BROKER_TEST_TOKEN", hide_env_values = true)]
    test_token: Option<String>,
}

pub(crate) async fn run(args: Args) -> anyhow::Result<()> {
    let mut stop = StopSignal::new()?;
    let kept =
        if args.ephemeral { "nothing is kept".to_owned() } else { format!("data in {}", args.data_dir.display()) };
    let broker = Broker::start(broker_config(args)?).await?;
    output::try_print(format_args!("broker ready on {} ({kept})\n", broker.address()));
    stop.recv().await;
    tokio::select! {
        () = broker.stop() => Ok(()),
        () = stop.recv_second() => anyhow::bail!(ExitReason::Interrupted.with_message("stopped at once, on the second signal")),
    }
}

fn broker_config(args: Args) -> anyhow::Result<Config> {
    let persistence = if args.ephemeral { Persistence::Ephemeral } else { Persistence::Folder(args.data_dir) };
    let mut config = Config::new(args.listen, persistence);
    if let Some(file) = args.config {
        let mistake = |doing: &str| ExitReason::Misconfigured.with_message(format!("{doing}`{}`", file.display()));
        let text = std::fs::read_to_string(&file).with_context(|| mistake("read "))?;
        config.entities = emulator_config::parse(&text).with_context(|| mistake(""))?.entities;
    }
    config.tls = args.tls_cert.zip(args.tls_key).map(|(certificate, key)| TlsFiles { certificate, key });
    config.test_token = args.test_token;
    Ok(config)
}
