//! Events written at once to many pipelines, and their read models.

use std::time::Duration;

use futures_util::future::try_join_all;
use mongodb::bson::{Document, doc};
use mongodb::{Collection, Database};
use testkit::cluster::TestCluster;
use testkit::wait::try_wait_for;

use crate::soak::consumer_soak::Error;

const APPLY_TIMEOUT: Duration = Duration::from_secs(300);

/// The size of a backlog of one pipeline.
#[derive(Clone, Copy, Debug)]
pub struct Backlog {
    pub aggregates: u64,
    /// Of each aggregate.
    pub events: u64,
}

impl Backlog {
    /// Writes the backlog of this round to further pipelines, side by side.
    pub(super) async fn write(&self, cluster: &TestCluster, pipelines: &[&str], round: usize) -> Result<(), Error> {
        try_join_all(pipelines.iter().map(|name| self.insert(cluster.events_of(name), round))).await?;
        Ok(())
    }

    /// Writes the backlog of this round to the first pipeline.
    pub(super) async fn write_first(&self, cluster: &TestCluster, round: usize) -> Result<(), Error> {
        self.insert(cluster.events(), round).await
    }

    /// The first event of each aggregate cannot be applied, so the others wait behind it.
    pub(super) async fn poison(&self, cluster: &TestCluster, pipeline: &str) -> Result<(), Error> {
        let events = cluster.events_of(pipeline);
        let poison = (0..self.aggregates).map(|number| event(number, 1, "Placed", doc! {}));
        insert_all(&events, poison.collect()).await?;
        let poison = (0..self.aggregates).map(|number| event(number, 2, "Paid", doc! { "amount": "not a number" }));
        insert_all(&events, poison.collect()).await?;
        let behind = (3..3 + self.events as i64)
            .flat_map(|version| (0..self.aggregates).map(move |number| event(number, version, "Placed", doc! {})));
        insert_all(&events, behind.collect()).await
    }

    async fn insert(&self, events: Collection<Document>, round: usize) -> Result<(), Error> {
        let first = round as i64 * self.events as i64 + 1;
        let versions = first..first + self.events as i64;
        let all = versions
            .flat_map(|version| (0..self.aggregates).map(move |number| event(number, version, "Placed", doc! {})));
        insert_all(&events, all.collect()).await
    }

    /// Waits until every document has the events of all rounds up to this one.
    pub(super) async fn wait_until_applied(
        &self,
        cluster: &TestCluster,
        pipelines: &[&str],
        round: usize,
    ) -> Result<(), Error> {
        let applied = doc! { "n": (round as i64 + 1) * self.events as i64 };
        for views in read_models(cluster, pipelines) {
            let orders = views.collection::<Document>("orders");
            try_wait_for("the backlog to be applied", APPLY_TIMEOUT, async || {
                match orders.count_documents(applied.clone()).await {
                    Ok(count) if count == self.aggregates => Ok(()),
                    other => Err(format!("{other:?} in {}", views.name())),
                }
            })
            .await?;
        }
        Ok(())
    }

    /// Documents that do not have each event of all rounds exactly once.
    pub(super) async fn differences(
        &self,
        cluster: &TestCluster,
        pipelines: &[&str],
        rounds: usize,
    ) -> Result<Vec<String>, Error> {
        let expected = (rounds as i64 + 1) * self.events as i64;
        let mut found = vec![];
        for views in read_models(cluster, pipelines) {
            let orders = views.collection::<Document>("orders");
            let count = async |filter| orders.count_documents(filter).await;
            let (right, all) = (count(doc! { "n": expected }).await?, count(doc! {}).await?);
            if (right, all) != (self.aggregates, self.aggregates) {
                found.push(format!("{}: {right} of {all} documents have {expected} events", views.name()));
            }
        }
        Ok(found)
    }

    /// Waits until every aggregate of the poisoned pipeline is parked. Returns their number.
    pub(super) async fn wait_until_parked(&self, cluster: &TestCluster, pipeline: &str) -> Result<u64, Error> {
        let sample = format!("headwater_parked_aggregates{{pipeline=\"{pipeline}\",read_model=\"orders\"}}");
        let parked = try_wait_for("the aggregates to be parked", APPLY_TIMEOUT, async || {
            let metrics = cluster.pod(0).metrics().await.ok_or(0_u64)?;
            match metrics.value(&sample) {
                parked if parked == self.aggregates => Ok(parked),
                parked => Err(parked),
            }
        });
        Ok(parked.await?)
    }
}

/// Of the first pipeline, and of these.
fn read_models<'a>(cluster: &'a TestCluster, pipelines: &'a [&str]) -> impl Iterator<Item = Database> + 'a {
    let first = cluster.mongo().client().database(&format!("{}_views", cluster.mongo().source()));
    [first].into_iter().chain(pipelines.iter().map(|name| cluster.views_of(name)))
}

fn event(aggregate: u64, version: i64, kind: &str, payload: Document) -> Document {
    doc! { "aggregateId": format!("order-{aggregate:05}"), "version": version, "type": kind, "payload": payload }
}

async fn insert_all(events: &Collection<Document>, all: Vec<Document>) -> Result<(), Error> {
    events.insert_many(all).await?;
    Ok(())
}
