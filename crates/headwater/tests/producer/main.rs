//! Pods as processes, from the source to the topic: leader kills, lost history and interrupted snapshots lose no event.

mod guarantees;
mod history_lost;
mod snapshot;
mod split_events;
mod start_position;

use std::time::Duration;

use mongodb::bson::{Document, doc};
use testkit::checker::Checker;
use testkit::cluster::TestCluster;
use testkit::wait::{try_wait_for, wait_for};

const BINARY: &str = env!("CARGO_BIN_EXE_headwater");
const TIMEOUT: Duration = Duration::from_secs(60);

/// Waits for a stored checkpoint that matches.
async fn wait_for_checkpoint(cluster: &TestCluster, what: &str, is_it: impl Fn(&Document) -> bool) -> Document {
    let checkpoints = cluster.coordination().collection::<Document>("checkpoints");
    let found = try_wait_for(what, TIMEOUT, async || match checkpoints.find_one(doc! { "_id": "shop" }).await {
        Ok(Some(stored)) if is_it(&stored) => Ok(stored),
        other => Err(format!("{other:?}")),
    });
    found.await.unwrap_or_else(|timed_out| panic!("{timed_out}"))
}

/// Waits until every acknowledged write is received.
async fn wait_for_all_events(checker: &Checker) {
    wait_for("every event to come", TIMEOUT, async || match checker.outstanding() {
        0 => Ok(()),
        outstanding => Err(outstanding),
    })
    .await;
}

fn phase(checkpoint: &Document) -> &str {
    checkpoint.get_str("phase").unwrap_or_default()
}
