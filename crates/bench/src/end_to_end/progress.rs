//! How many events are in the read model.

use std::net::SocketAddr;

use futures_util::StreamExt;
use local_cluster::send_request;
use mongodb::Database;
use mongodb::bson::{Bson, Document, doc};

/// Where the number of applied events comes from.
#[derive(Clone, Debug)]
pub enum AppliedCounter {
    /// The sum over the documents of the read model, which any system has; a scan of it, so only for few aggregates.
    ReadModel(Database),
    /// The metrics of Headwater's pods.
    Metrics(Vec<SocketAddr>),
}

impl AppliedCounter {
    /// # Panics
    /// When MongoDB or a pod does not respond.
    pub async fn count(&self) -> u64 {
        match self {
            Self::ReadModel(views) => sum_of_events(views).await,
            Self::Metrics(pods) => {
                let mut applied = 0;
                for pod in pods {
                    applied += applied_by(*pod).await;
                }
                applied
            }
        }
    }
}

async fn sum_of_events(views: &Database) -> u64 {
    let sum = doc! { "$group": { "_id": null, "events": { "$sum": "$events" } } };
    let mut found = views.collection::<Document>("totals").aggregate([sum]).await.expect("a sum");
    let Some(sum) = found.next().await else { return 0 };
    number(sum.expect("a document").get("events"))
}

async fn applied_by(pod: SocketAddr) -> u64 {
    let request = format!("GET /metrics HTTP/1.1\r\nhost: {pod}\r\nconnection: close\r\n\r\n");
    let (_, body) = send_request(pod, &request).await.expect("the pod responds");
    let sample =
        body.lines().find_map(|line| line.strip_prefix("headwater_read_model_events_total{read_model=\"totals\"} "));
    sample.and_then(|value| value.trim().parse::<f64>().ok()).map_or(0, |value| value as u64)
}

fn number(value: Option<&Bson>) -> u64 {
    let value = value.and_then(|value| value.as_i64().or_else(|| value.as_i32().map(i64::from)));
    value.and_then(|value| u64::try_from(value).ok()).expect("a count")
}

/// Checks that every event is in the read model once, and that the last version of each aggregate is the number of its events.
///
/// # Panics
/// When an event is missing or was applied twice.
pub async fn assert_all_applied(views: &Database, written: u64) {
    assert_eq!(sum_of_events(views).await, written, "every event once");
    let out_of_step = doc! { "$expr": { "$ne": ["$events", "$last"] } };
    let found = views.collection::<Document>("totals").find_one(out_of_step).await.expect("MongoDB responds");
    assert_eq!(found, None, "the last version is the number of events");
}
