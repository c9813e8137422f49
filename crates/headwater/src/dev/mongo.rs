//! The MongoDB of `headwater dev`: its own, or the user's.

use std::time::Duration;

use anyhow::{Context, bail};
use mongo_error::DriverError;
use mongod::{Environment, MongoSource, ParentDeathSignal, ProgressStyle, SingleNodeReplicaSet};
use mongodb::Client;
use mongodb::bson::{Document, doc};
use mongodb::options::ClientOptions;

use super::data_folder::DataFolder;
use super::ports::{PortMode, last_port};
use crate::cli::advice::ErrorWithAdvice;

/// mongod flushes and ends in well under a second; a busy disk gets more.
const STOP_TIMEOUT: Duration = Duration::from_secs(30);

pub(super) enum DevMongo {
    Owned {
        node: Box<SingleNodeReplicaSet>,
        uri: String,
    },
    /// The user's MongoDB; `headwater dev` neither starts nor stops it.
    Given {
        uri: String,
        hosts: String,
    },
}

pub(super) async fn find(uri: Option<String>) -> anyhow::Result<MongoSource> {
    let find = move || mongod::provide(uri.as_deref(), &Environment::from_process(), ProgressStyle::to_stderr());
    Ok(tokio::task::spawn_blocking(find).await??)
}

impl DevMongo {
    pub(super) async fn start(source: MongoSource, folder: &DataFolder, ports: PortMode) -> anyhow::Result<Self> {
        match source {
            MongoSource::Uri(uri) => given(uri).await,
            MongoSource::ProgramPaths(binaries) => {
                let mut config = SingleNodeReplicaSet::config(folder.at("mongod"));
                if ports == PortMode::Stable {
                    // Freed at once: mongod reserves it itself.
                    let last = last_port(&config.folder.join("port"));
                    let port = ports.mongodb().reserve(last).context("failed to find a port for MongoDB")?;
                    config.port = Some(port.number());
                }
                config.parent_death_signal = ParentDeathSignal::Terminate;
                let node = Box::new(SingleNodeReplicaSet::start(&binaries, config).await?);
                Ok(Self::Owned { uri: node.uri(), node })
            }
        }
    }

    pub(super) fn uri(&self) -> &str {
        match self {
            Self::Owned { uri, .. } | Self::Given { uri, .. } => uri,
        }
    }

    /// Only the hosts of the user's MongoDB: a URI may hold a password.
    pub(super) fn display(&self) -> String {
        match self {
            Self::Owned { uri, .. } => uri.clone(),
            Self::Given { hosts, .. } => format!("{hosts} (yours: not started or stopped by this command)"),
        }
    }

    /// Returns when mongod exits on its own.
    pub(super) async fn ended(&mut self) -> anyhow::Error {
        let Self::Owned { node, .. } = self else { return std::future::pending().await };
        match node.server_mut().wait_until_exited().await {
            Ok(status) => {
                let log = node.server().log_file().display();
                anyhow::anyhow!("mongod exited ({status}); log: {log}")
            }
            Err(error) => error.into(),
        }
    }

    pub(super) async fn stop(&mut self) -> anyhow::Result<()> {
        match self {
            Self::Owned { node, .. } => Ok(node.stop(STOP_TIMEOUT).await?),
            Self::Given { .. } => Ok(()),
        }
    }
}

async fn given(uri: String) -> anyhow::Result<DevMongo> {
    let options = ClientOptions::parse(&uri).await.map_err(|_| {
        anyhow::anyhow!(
            "--mongodb-uri is not a MongoDB URI; write, for example, `mongodb://host:27017/?replicaSet=rs0`"
        )
    })?;
    let mut hosts: Vec<_> = options.hosts.iter().map(ToString::to_string).collect();
    hosts.sort();
    let hosts = hosts.join(",");
    let admin = Client::with_options(options).map_err(DriverError::from)?.database("admin");
    let hello = admin.run_command(doc! { "hello": 1 }).await.map_err(DriverError::from);
    let reach = || ErrorWithAdvice::new(format!("reach MongoDB at {hosts}"), IS_IT_THERE);
    if !has_change_streams(&hello.with_context(reach)?) {
        bail!("the MongoDB at {hosts} has no change streams; use a replica set or a sharded cluster");
    }
    Ok(DevMongo::Given { uri, hosts })
}

const IS_IT_THERE: &str = "is MongoDB running, and is `--mongodb-uri` (or HEADWATER_MONGODB_URI) right? Without it, `headwater dev` starts one of its own";

fn has_change_streams(hello: &Document) -> bool {
    hello.contains_key("setName") || hello.get_str("msg").is_ok_and(|msg| msg == "isdbgrid")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_standalone_mongod_has_no_change_streams() {
        assert!(has_change_streams(&doc! { "setName": "rs0" }));
        assert!(has_change_streams(&doc! { "msg": "isdbgrid" }));
        assert!(!has_change_streams(&doc! { "isWritablePrimary": true }));
    }
}
