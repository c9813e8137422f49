//! The MongoDB of `headwater dev`: one of its own, or the user's.

use std::time::Duration;

use anyhow::{Context, bail};
use mongo_error::DriverError;
use mongod::{Environment, LastWill, Progress, SingleNode, Source};
use mongodb::Client;
use mongodb::bson::{Document, doc};
use mongodb::options::ClientOptions;

use super::folder::Folder;
use crate::cli::advice::AdvisedContext;

/// mongod flushes and ends in well under a second; a busy disk gets more.
const STOP_WITHIN: Duration = Duration::from_secs(30);

pub(super) enum Store {
    Own {
        node: Box<SingleNode>,
        uri: String,
    },
    /// Neither started nor stopped here.
    Given {
        uri: String,
        hosts: String,
    },
}

pub(super) async fn find(uri: Option<String>) -> anyhow::Result<Source> {
    let find = move || mongod::provide(uri.as_deref(), &Environment::of_this_process(), Progress::to_stderr());
    Ok(tokio::task::spawn_blocking(find).await??)
}

impl Store {
    pub(super) async fn start(source: Source, folder: &Folder) -> anyhow::Result<Self> {
        match source {
            Source::Uri(uri) => given(uri).await,
            Source::Binaries(binaries) => {
                let mut config = SingleNode::config(folder.at("mongod"));
                config.last_will = LastWill::Terminate;
                let node = Box::new(SingleNode::start(&binaries, config).await?);
                Ok(Self::Own { uri: node.uri(), node })
            }
        }
    }

    pub(super) fn uri(&self) -> &str {
        match self {
            Self::Own { uri, .. } | Self::Given { uri, .. } => uri,
        }
    }

    /// Hosts only, of a given one: a URI may hold a password.
    pub(super) fn shown(&self) -> String {
        match self {
            Self::Own { uri, .. } => uri.clone(),
            Self::Given { hosts, .. } => format!("{hosts} (yours: it is neither started nor stopped here)"),
        }
    }

    /// Returns when it ends by itself.
    pub(super) async fn ended(&mut self) -> anyhow::Error {
        let Self::Own { node, .. } = self else { return std::future::pending().await };
        match node.server_mut().ended().await {
            Ok(status) => {
                let log = node.server().log_file().display();
                anyhow::anyhow!("mongod ended by itself ({status}); its log is {log}")
            }
            Err(error) => error.into(),
        }
    }

    pub(super) async fn stop(&mut self) -> anyhow::Result<()> {
        match self {
            Self::Own { node, .. } => Ok(node.stop(STOP_WITHIN).await?),
            Self::Given { .. } => Ok(()),
        }
    }
}

async fn given(uri: String) -> anyhow::Result<Store> {
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
    let reach = || AdvisedContext::new(format!("reach MongoDB at {hosts}"), IS_IT_THERE);
    if !has_change_streams(&hello.with_context(reach)?) {
        bail!("the MongoDB at {hosts} is neither a replica set nor a sharded cluster, so it has no change streams");
    }
    Ok(Store::Given { uri, hosts })
}

const IS_IT_THERE: &str = "is MongoDB there, and is `--mongodb-uri` (or HEADWATER_MONGODB_URI) right? Without it, `headwater dev` starts one of its own";

fn has_change_streams(hello: &Document) -> bool {
    hello.contains_key("setName") || hello.get_str("msg").is_ok_and(|msg| msg == "isdbgrid")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_replica_set_and_a_sharded_cluster_have_change_streams_and_a_lone_mongod_has_none() {
        assert!(has_change_streams(&doc! { "setName": "rs0" }));
        assert!(has_change_streams(&doc! { "msg": "isdbgrid" }));
        assert!(!has_change_streams(&doc! { "isWritablePrimary": true }));
    }
}
