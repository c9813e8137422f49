//! Pods as processes, as far as the topic: leaders fall, histories are lost, snapshots are interrupted, and nothing is.

mod history;
mod promises;
mod snapshot;
mod split;
mod starts;

use std::time::Duration;

use mongodb::bson::{Document, doc};
use testkit::checker::Checker;
use testkit::cluster::TestCluster;
use testkit::wait::{try_wait_for, wait_for};

const BINARY: &str = env!("CARGO_BIN_EXE_headwater");
const SOON: Duration = Duration::from_secs(60);

/// Waits until the stored checkpoint is as it should be, and returns it.
async fn checkpoint(house: &TestCluster, what: &str, is_it: impl Fn(&Document) -> bool) -> Document {
    let checkpoints = house.coordination().collection::<Document>("checkpoints");
    let found = try_wait_for(what, SOON, async || match checkpoints.find_one(doc! { "_id": "shop" }).await {
        Ok(Some(stored)) if is_it(&stored) => Ok(stored),
        other => Err(format!("{other:?}")),
    });
    found.await.unwrap_or_else(|timed_out| panic!("{timed_out}"))
}

/// Waits until every acknowledged write has come out.
async fn all_come(checker: &Checker) {
    wait_for("every event to come", SOON, async || match checker.outstanding() {
        0 => Ok(()),
        outstanding => Err(outstanding),
    })
    .await;
}

fn phase(checkpoint: &Document) -> &str {
    checkpoint.get_str("phase").unwrap_or_default()
}
