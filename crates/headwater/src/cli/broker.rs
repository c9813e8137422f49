//! `headwater broker`: the Service Bus-compatible broker alone.

use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::Context;
use broker::{Broker, Config, Persistence, TlsFiles, emulator_config};
use clap::Args;

use crate::exit::Exit;
use crate::out;
use crate::signal::StopSignal;

/// Run the Service Bus-compatible broker.
///
/// One port serves AMQP and administration over HTTP, with TLS as well when a certificate is given; what is stored survives any
/// crash. Point any Service Bus SDK at it with the connection string
/// `Endpoint=sb://ADDRESS;SharedAccessKeyName=any;SharedAccessKey=any;UseDevelopmentEmulator=true`. Every key is accepted: whoever reaches the port may use it.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
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

pub(crate) async fn run(arguments: Arguments) -> anyhow::Result<()> {
    let mut stop = StopSignal::new()?;
    let kept = if arguments.ephemeral {
        "nothing is kept".to_owned()
    } else {
        format!("data in {}", arguments.data_dir.display())
    };
    let broker = Broker::start(configuration(arguments)?).await?;
    out::tell(format_args!("broker ready on {} ({kept})\n", broker.address()));
    stop.received().await;
    tokio::select! {
        () = broker.stop() => Ok(()),
        () = stop.received_again() => anyhow::bail!(Exit::CutShort.because("stopped at once, on the second signal")),
    }
}

fn configuration(arguments: Arguments) -> anyhow::Result<Config> {
    let persistence =
        if arguments.ephemeral { Persistence::Ephemeral } else { Persistence::Folder(arguments.data_dir) };
    let mut config = Config::new(arguments.listen, persistence);
    if let Some(file) = arguments.config {
        let mistake = |doing: &str| Exit::Misconfigured.because(format!("{doing}`{}`", file.display()));
        let text = std::fs::read_to_string(&file).with_context(|| mistake("read "))?;
        config.entities = emulator_config::parse(&text).with_context(|| mistake(""))?.entities;
    }
    config.tls = arguments.tls_cert.zip(arguments.tls_key).map(|(certificate, key)| TlsFiles { certificate, key });
    config.test_token = arguments.test_token;
    Ok(config)
}
