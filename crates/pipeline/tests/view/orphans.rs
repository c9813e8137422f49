//! Transactions that somebody left open on a document that events want to change.

use std::time::Duration;

use mongodb::bson::{Document, doc};
use mongodb::options::ClientOptions;
use mongodb::{Client, ClientSession};
use pipeline::view::{Setup, application};
use testkit::mongo::shared;
use testkit::wait::wait_for;

use crate::house::{House, Pod, all_delivered, complete, event};

const CUSTOMER: &str = "ada";
const SOON: Duration = Duration::from_secs(30);

/// Writes the customer's document in a transaction, and leaves it so.
async fn left_open(house: &House, application: &str) -> (Client, ClientSession) {
    let mut options = ClientOptions::parse(shared().await.unwrap().uri()).await.unwrap();
    options.app_name = Some(application.to_owned());
    let client = Client::with_options(options).unwrap();
    let mut session = client.start_session().await.unwrap();
    session.start_transaction().await.unwrap();
    let customers = client.database(house.views.name()).collection::<Document>("customers");
    let changed = customers.update_one(doc! { "_id": CUSTOMER }, doc! { "$inc": { "orders": 1 } }).upsert(true);
    changed.session(&mut session).await.unwrap();
    (client, session)
}

fn pod_of(house: &House, pipeline: &str) -> Pod {
    Pod::start(Setup { pipeline: pipeline.into(), ..house.setup(&house.views) })
}

fn an_order() -> Document {
    event("order-1", 1, "Placed", doc! { "customer": CUSTOMER })
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_dead_pod_left_open_is_ended_by_another() {
    let house = House::shop("orphaned").await;
    let pod = pod_of(&house, "orphaned");
    let (_client, mut session) = left_open(&house, &application("orphaned")).await;
    // Without help the server would keep the document for a minute, longer than a session is kept waiting.
    pod.apply(all_delivered(&[an_order()])).await;
    assert_eq!(house.view("customers").await, [doc! { "_id": CUSTOMER, "orders": 1 }]);
    session.commit_transaction().await.unwrap_err();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_others_left_open_is_theirs() {
    let house = House::shop("not_orphaned").await;
    let pod = pod_of(&house, "not_orphaned");
    let (_client, mut session) = left_open(&house, "somebody else").await;
    let mut feed = pod.feed();
    let applying = tokio::spawn(async move { feed.apply(all_delivered(&[an_order()])).await });
    // Far longer than a transaction of ours would have been left alone.
    wait_for("twenty conflicts", SOON, async || match pod.handle.counts().conflicts {
        enough @ 20.. => Ok(enough),
        few => Err(few),
    })
    .await;
    session.commit_transaction().await.unwrap();
    complete(applying.await.unwrap());
    assert_eq!(house.view("customers").await, [doc! { "_id": CUSTOMER, "orders": 2 }]);
}
