//! `headwater dev` as a person meets it: the built program, a real mongod, signals.

use std::net::TcpStream;
use std::path::Path;
use std::time::Duration;

use mongodb::bson::{Document, doc};
use mongodb::{Client, Collection};
use testkit::process::{Process, Program};
use testkit::wait::wait_for;

/// A cold cache is filled first; that took a quarter of a minute on a good line.
const READY_WITHIN: Duration = Duration::from_secs(180);
const SOON: Duration = Duration::from_secs(30);

fn headwater(arguments: &[&str]) -> Process {
    Program::new(env!("CARGO_BIN_EXE_headwater")).args(arguments).start().unwrap()
}

fn dev(data_dir: &Path) -> Process {
    headwater(&["dev", "--data-dir", data_dir.to_str().unwrap()])
}

async fn uri_of(dev: &Process) -> String {
    let line = dev.wait_for_line("MongoDB: ", READY_WITHIN).await.text;
    line.trim_start_matches("MongoDB: ").to_owned()
}

async fn collection(uri: &str) -> Collection<Document> {
    Client::with_uri_str(uri).await.unwrap().database("d").collection("c")
}

#[tokio::test]
async fn dev_serves_a_mongodb_stops_cleanly_and_serves_the_same_data_again() {
    let folder = tempfile::tempdir().unwrap();
    let first = dev(folder.path());
    let uri = uri_of(&first).await;
    collection(&uri).await.insert_one(doc! { "_id": 1 }).await.unwrap();
    first.wait_for_line("Not there yet", SOON).await;
    first.terminate();
    assert!(first.wait_for_exit(SOON).await.success());
    first.wait_for_line("Stopped", SOON).await;

    let second = dev(folder.path());
    assert_eq!(uri_of(&second).await, uri);
    assert_eq!(collection(&uri).await.count_documents(doc! {}).await.unwrap(), 1);
}

#[tokio::test]
async fn a_killed_dev_leaves_no_mongod_behind() {
    let folder = tempfile::tempdir().unwrap();
    let dev = dev(folder.path());
    let uri = uri_of(&dev).await;
    let address = uri.trim_start_matches("mongodb://").split('/').next().unwrap();
    TcpStream::connect(address).expect("it listens");
    dev.kill().await;
    wait_for("mongod to end", SOON, async || match TcpStream::connect(address) {
        Err(_) => Ok(()),
        Ok(_) => Err("it still listens"),
    })
    .await;
}

#[tokio::test]
async fn a_data_folder_in_use_is_refused_with_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    let first = dev(folder.path());
    uri_of(&first).await;
    let second = dev(folder.path());
    assert!(!second.wait_for_exit(SOON).await.success());
    second.wait_for_line("pass --data-dir", SOON).await;
}

#[tokio::test]
async fn a_given_mongodb_is_used_and_nothing_is_started() {
    let shared = testkit::mongo::shared().await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let data_dir = folder.path().join("data");
    let dev = headwater(&["dev", "--mongodb-uri", shared.uri(), "--data-dir", data_dir.to_str().unwrap()]);
    dev.wait_for_line("yours", SOON).await;
    dev.terminate();
    assert!(dev.wait_for_exit(SOON).await.success());
    assert!(!data_dir.exists());
}

#[tokio::test]
async fn a_password_in_a_given_uri_is_never_shown() {
    let uri = "mongodb://someone:open-sesame@127.0.0.1:1/?serverSelectionTimeoutMS=200";
    let dev = headwater(&["dev", "--mongodb-uri", uri]);
    assert!(!dev.wait_for_exit(SOON).await.success());
    let said: String = dev.lines().iter().map(|line| format!("{line}\n")).collect();
    assert!(said.contains("reach MongoDB at 127.0.0.1:1"), "{said}");
    assert!(!said.contains("open-sesame"), "{said}");
}

#[tokio::test]
async fn the_version_and_the_help_are_there() {
    let version = headwater(&["--version"]);
    assert!(version.wait_for_exit(SOON).await.success());
    version.wait_for_line(env!("CARGO_PKG_VERSION"), SOON).await;
    let help = headwater(&["dev", "--help"]);
    assert!(help.wait_for_exit(SOON).await.success());
    help.wait_for_line("HEADWATER_MONGODB_URI", SOON).await;
}
