//! `headwater dev`: everything on one machine, for trying things out.

use std::path::PathBuf;

use crate::dev::{self, Plan};

/// Run everything on this machine, for development: MongoDB, the bus, pods, and a shop that writes orders.
///
/// Nothing needs to be installed before. Brings a MongoDB if there is none, starts it as a replica set of one, the broker beside it, some
/// pods as processes of their own, and a small shop that writes orders; then shows every second how far the orders have come. Kill the
/// leading pod (`kill -9`, its pid is shown) and watch another take over. Ctrl-C closes the shop, waits until every order has arrived,
/// compares the read models with what a plain fold of all events says, and stops everything; the data stays in the data folder.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// How many pods.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=32))]
    pods: u16,

    /// Events a second that the shop writes; 0 for a shop that is closed.
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(0..=10_000))]
    rate: u32,

    /// Where the data is kept from one run to the next.
    #[arg(long, value_name = "FOLDER", default_value = ".headwater")]
    data_dir: PathBuf,

    /// Use this MongoDB (a replica set or a sharded cluster) instead of starting one. The shop gets databases of its own there.
    #[arg(long, value_name = "URI", env = "HEADWATER_MONGODB_URI", hide_env_values = true)]
    mongodb_uri: Option<String>,
}

pub(crate) async fn run(args: Args) -> anyhow::Result<()> {
    let Args { pods, rate, data_dir, mongodb_uri } = args;
    dev::run(Plan { pods, rate, data_dir, mongodb_uri }).await
}
