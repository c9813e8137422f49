//! `headwater dev`: runs everything on one machine, for evaluation and development.

use std::path::PathBuf;

use crate::dev::{self, DevOptions, PortMode};

/// Run everything on this machine, for development: MongoDB, the broker, pods, and a shop that writes orders.
///
/// Nothing needs to be installed before. Downloads MongoDB if necessary and starts it as a single-node replica set, then starts the
/// broker, some pods as separate processes, and a small shop that writes orders. Shows every second how far the orders have come. Kill
/// the leader (`kill -9`, its pid is shown) and another pod takes over. Ctrl-C stops the shop, waits until every event is applied,
/// compares the read models with a fold of all events, and stops everything. The data stays in the data folder.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Number of pods.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=32))]
    pods: u16,

    /// Events per second that the shop writes; 0 for none.
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(0..=10_000))]
    rate: u32,

    /// The data folder, kept from one run to the next.
    #[arg(long, value_name = "FOLDER", default_value = ".headwater")]
    data_dir: PathBuf,

    /// Use this MongoDB (a replica set or a sharded cluster) instead of starting one. The shop uses new databases there.
    #[arg(long, value_name = "URI", env = "HEADWATER_MONGODB_URI", hide_env_values = true)]
    mongodb_uri: Option<String>,

    /// Which ports to use. The ports of the last run with the same data folder are used again if they are free.
    #[arg(long, value_enum, value_name = "MODE", default_value_t = PortMode::Stable)]
    ports: PortMode,
}

pub(crate) async fn run(args: Args) -> anyhow::Result<()> {
    let Args { pods, rate, data_dir, mongodb_uri, ports } = args;
    dev::run(DevOptions { pods, rate, data_dir, mongodb_uri, ports }).await
}
