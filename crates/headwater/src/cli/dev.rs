//! `headwater dev`: everything on one machine, for trying things out. So far: a MongoDB.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail};
use clap::Args;
use mongod::{Binaries, Environment, LastWill, Progress, SingleNode, Source};
use mongodb::bson::{Document, doc};
use mongodb::options::ClientOptions;
use mongodb::{Client, Database};

use crate::signal::StopSignal;

/// mongod flushes and ends in well under a second; a busy disk gets more.
const STOP_WITHIN: Duration = Duration::from_secs(30);

const NOT_THERE_YET: &str = "\
Not there yet: the embedded broker, the pipeline, the example and the dashboard.
For now this is a MongoDB with change streams and transactions, and nothing else.";

/// Run everything on this machine, for development.
///
/// Brings a MongoDB if there is none, starts it as a replica set of one, and prints its URI. Ctrl-C stops it; the data
/// stays in the data folder.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Use this MongoDB (a replica set or a sharded cluster) instead of starting one.
    #[arg(long, value_name = "URI", env = "HEADWATER_MONGODB_URI", hide_env_values = true)]
    mongodb_uri: Option<String>,

    /// Where the data is kept from one run to the next.
    #[arg(long, value_name = "FOLDER", default_value = ".headwater")]
    data_dir: PathBuf,
}

pub(crate) async fn run(arguments: Arguments) -> anyhow::Result<()> {
    match find_mongodb(arguments.mongodb_uri).await? {
        Source::Uri(uri) => with_given(&uri).await,
        Source::Binaries(binaries) => with_own(&binaries, &arguments.data_dir).await,
    }
}

async fn find_mongodb(uri: Option<String>) -> anyhow::Result<Source> {
    let find = move || mongod::provide(uri.as_deref(), &Environment::of_this_process(), Progress::to_stderr());
    // Signals keep their default meaning until here: Ctrl-C ends a fetch at once, and the next run starts it afresh.
    Ok(tokio::task::spawn_blocking(find).await??)
}

async fn with_own(binaries: &Binaries, data_dir: &Path) -> anyhow::Result<()> {
    let _lock = lock(data_dir)?;
    let mut stop = StopSignal::new()?;
    let mut config = SingleNode::config(data_dir.join("mongod"));
    config.last_will = LastWill::Terminate;
    let mut node = tokio::select! {
        node = SingleNode::start(binaries, config) => node?,
        () = stop.received() => return Ok(()), // dropping a half-started server kills it; its journal is its own
    };
    println!("MongoDB: {}", node.uri());
    println!("Data:    {}", data_dir.display());
    explain();
    let ended = tokio::select! {
        ended = node.server_mut().ended() => Some(ended?), // cancel-safe: only looks
        () = stop.received() => None,
    };
    if let Some(status) = ended {
        bail!("mongod ended by itself ({status}); its log is {}", node.server().log_file().display());
    }
    println!("Stopping.");
    tokio::select! {
        stopped = node.stop(STOP_WITHIN) => stopped?,
        () = stop.received_again() => bail!("stopped at once, on the second signal"),
    }
    println!("Stopped; the data is in {}.", data_dir.display());
    Ok(())
}

async fn with_given(uri: &str) -> anyhow::Result<()> {
    let mut stop = StopSignal::new()?;
    let options = ClientOptions::parse(uri).await.context("read the MongoDB URI")?;
    // Hosts only: a URI may hold a password.
    let hosts: Vec<_> = options.hosts.iter().map(ToString::to_string).collect();
    let hosts = hosts.join(",");
    let admin = Client::with_options(options)?.database("admin");
    let hello = tokio::select! {
        hello = say_hello(&admin) => hello.with_context(|| format!("reach MongoDB at {hosts}"))?,
        () = stop.received() => return Ok(()),
    };
    if !has_change_streams(&hello) {
        bail!("the MongoDB at {hosts} is neither a replica set nor a sharded cluster, so it has no change streams");
    }
    println!("MongoDB: {hosts} (yours: it is neither started nor stopped here)");
    explain();
    stop.received().await;
    println!("Stopped.");
    Ok(())
}

fn explain() {
    println!("\n{NOT_THERE_YET}\nCtrl-C stops.");
}

/// Two of us on one folder would each see the other's half; mongod would say so too, but not as plainly.
fn lock(data_dir: &Path) -> anyhow::Result<File> {
    fs::create_dir_all(data_dir).with_context(|| format!("create the data folder `{}`", data_dir.display()))?;
    let lock = File::create(data_dir.join("lock")).with_context(|| format!("write in `{}`", data_dir.display()))?;
    if lock.try_lock().is_err() {
        bail!("another `headwater dev` uses the data folder `{}`; stop it, or pass --data-dir", data_dir.display());
    }
    Ok(lock)
}

async fn say_hello(admin: &Database) -> mongodb::error::Result<Document> {
    admin.run_command(doc! { "hello": 1 }).await
}

fn has_change_streams(hello: &Document) -> bool {
    hello.contains_key("setName") || hello.get_str("msg").is_ok_and(|msg| msg == "isdbgrid")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_replica_set_and_a_mongos_have_change_streams_and_a_lone_mongod_has_none() {
        assert!(has_change_streams(&doc! { "setName": "rs0" }));
        assert!(has_change_streams(&doc! { "msg": "isdbgrid" }));
        assert!(!has_change_streams(&doc! { "isWritablePrimary": true }));
    }

    #[test]
    fn a_data_folder_serves_one_at_a_time() {
        let folder = tempfile::tempdir().unwrap();
        let first = lock(folder.path()).unwrap();
        lock(folder.path()).unwrap_err();
        drop(first);
        lock(folder.path()).unwrap();
    }
}
