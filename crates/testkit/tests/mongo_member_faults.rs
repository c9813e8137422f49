//! Faults of a replica set member, observed through the driver.

use std::time::Duration;

use mongodb::Client;
use mongodb::bson::{Document, doc};
use mongodb::error::{ErrorKind, Result};
use mongodb::options::{ClientOptions, ServerAddress};
use testkit::mongo::{ReplicaSet, ReplicaSetConfig};
use testkit::wait::wait_for;
use tokio::time::timeout;

/// Long enough for a response on a busy machine, short enough to wait for a response that never comes.
const SILENCE: Duration = Duration::from_secs(2);

/// A client of one member, with a short timeout.
fn only(set: &ReplicaSet, member: usize) -> Client {
    let mut options = ClientOptions::default();
    options.hosts = vec![ServerAddress::Tcp { host: "127.0.0.1".into(), port: Some(set.member(member).port()) }];
    options.direct_connection = Some(true);
    options.server_selection_timeout = Some(SILENCE);
    Client::with_options(options).unwrap()
}

async fn ping(client: &Client) -> Result<Document> {
    client.database("admin").run_command(doc! { "ping": 1 }).await
}

async fn role(client: &Client) -> &'static str {
    let Ok(hello) = client.database("admin").run_command(doc! { "hello": 1 }).await else { return "silent" };
    match (hello.get_bool("isWritablePrimary").unwrap(), hello.get_bool("secondary").unwrap()) {
        (true, false) => "primary",
        (false, true) => "secondary",
        _ => "neither",
    }
}

async fn insert(client: &Client, id: i32) {
    client.database("d").collection::<Document>("c").insert_one(doc! { "_id": id }).await.unwrap();
}

async fn count(client: &Client) -> u64 {
    client.database("d").collection::<Document>("c").count_documents(doc! {}).await.unwrap()
}

#[tokio::test]
async fn a_killed_primary_refuses_connections_and_is_replaced() {
    let mut set = ReplicaSet::start(3).await.unwrap();
    let client = set.client().await.unwrap();
    insert(&client, 1).await;
    let killed = set.primary().await.unwrap();
    set.kill(killed).await.unwrap();
    let error = ping(&only(&set, killed)).await.unwrap_err();
    assert!(matches!(*error.kind, ErrorKind::ServerSelection { .. }), "{error}");
    assert_ne!(set.primary().await.unwrap(), killed);
    insert(&client, 2).await;
    assert_eq!(count(&client).await, 2);
}

#[tokio::test]
async fn a_restarted_member_catches_up_with_what_it_missed() {
    let mut set = ReplicaSet::start(3).await.unwrap();
    let client = set.client().await.unwrap();
    let member = set.secondary().await.unwrap();
    let address = set.member(member).address();
    set.kill(member).await.unwrap();
    insert(&client, 1).await;
    set.restart(member).await.unwrap();
    set.wait_until_secondary(member).await.unwrap();
    assert_eq!(set.member(member).address(), address);
    let alone = only(&set, member);
    let deadline = Duration::from_secs(30);
    wait_for("the restarted member to have the document", deadline, async || {
        let here = count(&alone).await;
        if here == 1 { Ok(()) } else { Err(here) }
    })
    .await;
}

#[tokio::test]
async fn a_paused_member_keeps_its_connections_until_resumed() {
    let mut set = ReplicaSet::start(3).await.unwrap();
    let member = set.secondary().await.unwrap();
    let client = only(&set, member);
    ping(&client).await.unwrap();
    set.pause(member).await.unwrap();
    let mut waiting = Box::pin(ping(&client));
    timeout(SILENCE, &mut waiting).await.expect_err("a paused member answers nothing");
    set.resume(member).unwrap();
    waiting.await.expect("the connection is the same and now answers");
}

#[tokio::test]
async fn a_paused_primary_is_replaced_and_follows_after_resume() {
    let mut set = ReplicaSet::start(3).await.unwrap();
    let client = set.client().await.unwrap();
    insert(&client, 1).await;
    let paused = set.primary().await.unwrap();
    set.pause(paused).await.unwrap();
    let next = set.primary().await.unwrap();
    assert_ne!(next, paused);
    set.resume(paused).unwrap();
    // It may be a secondary for a moment, then roll back what nobody else has, and only then follow.
    wait_for("the member that was paused to follow", Duration::from_secs(30), async || {
        let roles = (role(&only(&set, paused)).await, role(&only(&set, next)).await);
        if roles == ("secondary", "primary") { Ok(()) } else { Err(roles) }
    })
    .await;
}

#[tokio::test]
async fn a_primary_that_steps_down_becomes_a_secondary() {
    let set = ReplicaSet::start(3).await.unwrap();
    let client = set.client().await.unwrap();
    insert(&client, 1).await;
    let stepped_down = set.step_down(Duration::from_secs(60)).await.unwrap();
    let next = set.primary().await.unwrap();
    assert_ne!(next, stepped_down);
    assert_eq!(role(&only(&set, stepped_down)).await, "secondary");
    insert(&client, 2).await;
}

#[tokio::test]
async fn a_stopped_member_ends_cleanly_and_comes_back() {
    let mut set = ReplicaSet::start(3).await.unwrap();
    let member = set.secondary().await.unwrap();
    set.stop(member).await.unwrap();
    ping(&only(&set, member)).await.unwrap_err();
    set.restart(member).await.unwrap();
    set.wait_until_secondary(member).await.unwrap();
}

#[tokio::test]
async fn each_member_sees_its_own_variables_and_all_see_the_arguments() {
    // TZ is a variable a process shows to the outside: the local time of its log.
    let config =
        ReplicaSetConfig::with_members(3).variable(1, "TZ", "XYZ-5").argument("--timeStampFormat=iso8601-local");
    let set = config.start().await.unwrap();
    let shifted = |member: usize| {
        let log = std::fs::read_to_string(set.member(member).log_file()).unwrap();
        log.contains("+05:00\"}")
    };
    assert_eq!([shifted(0), shifted(1), shifted(2)], [false, true, false]);
}
