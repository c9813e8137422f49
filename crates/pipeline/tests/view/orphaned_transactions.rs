//! Transactions left open on a document that events change.

use std::time::Duration;

use mongodb::bson::{Document, doc};
use mongodb::{Client, ClientSession};
use pipeline::view::{ApplierSetup, application_name};
use testkit::mongo::{connect_as, shared};
use testkit::wait::wait_for;

use crate::fixture::{TestApplier, ViewFixture, all_delivered, complete, event};

const CUSTOMER: &str = "ada";
const SOON: Duration = Duration::from_secs(30);

/// Writes the customer's document in a transaction and leaves it open.
async fn left_open(fixture: &ViewFixture, application: &str) -> (Client, ClientSession) {
    let client = connect_as(shared().await.unwrap().uri(), application).await.unwrap();
    let mut session = client.start_session().await.unwrap();
    session.start_transaction().await.unwrap();
    let customers = client.database(fixture.views.name()).collection::<Document>("customers");
    let changed = customers.update_one(doc! { "_id": CUSTOMER }, doc! { "$inc": { "orders": 1 } }).upsert(true);
    changed.session(&mut session).await.unwrap();
    (client, session)
}

fn pod_of(fixture: &ViewFixture, pipeline: &str) -> TestApplier {
    TestApplier::start(ApplierSetup { pipeline: pipeline.into(), ..fixture.setup(&fixture.views) })
}

fn an_order() -> Document {
    event("order-1", 1, "Placed", doc! { "customer": CUSTOMER })
}

#[tokio::test(flavor = "multi_thread")]
async fn orphaned_transactions_are_aborted_by_another_pod() {
    let fixture = ViewFixture::shop("orphaned").await;
    let pod = pod_of(&fixture, "orphaned");
    let (_client, mut session) = left_open(&fixture, &application_name("orphaned")).await;
    // Otherwise the server would lock the document for a minute, longer than a session waits.
    pod.apply(all_delivered(&[an_order()])).await;
    assert_eq!(fixture.view("customers").await, [doc! { "_id": CUSTOMER, "orders": 1 }]);
    session.commit_transaction().await.unwrap_err();
}

#[tokio::test(flavor = "multi_thread")]
async fn transactions_of_other_applications_are_left_alone() {
    let fixture = ViewFixture::shop("not_orphaned").await;
    let pod = pod_of(&fixture, "not_orphaned");
    let (_client, mut session) = left_open(&fixture, "somebody else").await;
    let mut applier = pod.session_applier();
    let applying = tokio::spawn(async move { applier.apply(all_delivered(&[an_order()])).await });
    // Far longer than the idle threshold of our own transactions.
    wait_for("twenty conflicts", SOON, async || match pod.handle.counts().conflicts {
        enough @ 20.. => Ok(enough),
        few => Err(few),
    })
    .await;
    session.commit_transaction().await.unwrap();
    complete(applying.await.unwrap());
    assert_eq!(fixture.view("customers").await, [doc! { "_id": CUSTOMER, "orders": 2 }]);
}
