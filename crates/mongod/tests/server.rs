//! Real servers: started, stopped, killed, served again, and never left behind.

use std::fs::{self, Permissions};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use mongod::{Binaries, Environment, Progress, Role, Server, ServerConfig, ServerError, SingleNode, Source};
use mongodb::bson::{Document, doc};

const STOP_WITHIN: Duration = Duration::from_secs(30);

fn binaries() -> Binaries {
    match mongod::provide(None, &Environment::of_this_process(), Progress::Lines).unwrap() {
        Source::Binaries(binaries) => binaries,
        Source::Uri(_) => unreachable!("no URI was given"),
    }
}

/// A mongod that is a shell script; `$REAL` is the real one.
fn scripted(folder: &Path, script: &str) -> Binaries {
    let real = binaries();
    let script = script.replace("$REAL", &real.mongod.display().to_string());
    let mongod = folder.join("mongod");
    fs::write(&mongod, format!("#!/bin/sh\n{script}\n")).unwrap();
    fs::set_permissions(&mongod, Permissions::from_mode(0o755)).unwrap();
    Binaries { mongod, ..real }
}

fn member(folder: &Path) -> ServerConfig {
    ServerConfig::new(Role::Member { replica_set: "one".into() }, folder)
}

fn listens(port: u16) -> bool {
    TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_ok()
}

async fn write(node: &SingleNode, id: i32) {
    let collection = node.client().await.unwrap().database("d").collection::<Document>("c");
    collection.insert_one(doc! { "_id": id }).await.unwrap();
}

async fn count(node: &SingleNode) -> u64 {
    let collection = node.client().await.unwrap().database("d").collection::<Document>("c");
    collection.count_documents(doc! {}).await.unwrap()
}

#[tokio::test]
async fn a_set_of_one_takes_majority_writes_and_stops_cleanly() {
    let folder = tempfile::tempdir().unwrap();
    let mut node = SingleNode::start(&binaries(), SingleNode::config(folder.path())).await.unwrap();
    write(&node, 1).await;
    node.stop(STOP_WITHIN).await.unwrap();
    assert!(!listens(node.server().port()));
}

#[tokio::test]
async fn data_is_served_again_on_the_port_it_had() {
    let folder = tempfile::tempdir().unwrap();
    let binaries = binaries();
    let mut node = SingleNode::start(&binaries, SingleNode::config(folder.path())).await.unwrap();
    let uri = node.uri();
    write(&node, 1).await;
    node.stop(STOP_WITHIN).await.unwrap();
    drop(node);

    let node = SingleNode::start(&binaries, SingleNode::config(folder.path())).await.unwrap();
    assert_eq!(node.uri(), uri);
    assert_eq!(count(&node).await, 1);
}

#[tokio::test]
async fn data_is_served_on_another_port_when_the_one_it_had_is_taken() {
    let folder = tempfile::tempdir().unwrap();
    let binaries = binaries();
    let mut node = SingleNode::start(&binaries, SingleNode::config(folder.path())).await.unwrap();
    let port = node.server().port();
    write(&node, 1).await;
    node.stop(STOP_WITHIN).await.unwrap();
    drop(node);
    let _taken = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).unwrap();

    let node = SingleNode::start(&binaries, SingleNode::config(folder.path())).await.unwrap();
    assert_ne!(node.server().port(), port);
    write(&node, 2).await;
    assert_eq!(count(&node).await, 2);
}

#[tokio::test]
async fn a_killed_server_comes_back_on_its_port_with_what_was_acknowledged() {
    let folder = tempfile::tempdir().unwrap();
    let mut node = SingleNode::start(&binaries(), SingleNode::config(folder.path())).await.unwrap();
    let port = node.server().port();
    write(&node, 1).await;
    node.server_mut().kill().await.unwrap();
    assert!(!listens(port));
    node.server_mut().restart().await.unwrap();
    assert_eq!(node.server().port(), port);
    mongod::wait_until_writable(node.server(), Duration::from_secs(30)).await.unwrap();
    assert_eq!(count(&node).await, 1);
}

#[tokio::test]
async fn a_dropped_server_is_gone() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(&binaries(), member(folder.path())).await.unwrap();
    let port = server.port();
    assert!(listens(port));
    drop(server);
    assert!(!listens(port));
}

#[tokio::test]
async fn a_server_outlives_the_thread_and_the_runtime_that_started_it() {
    let folder = tempfile::tempdir().unwrap();
    let config = member(folder.path());
    let start = move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(Server::start(&binaries(), config)).unwrap()
    };
    let mut server = tokio::task::spawn_blocking(|| std::thread::spawn(start).join().unwrap()).await.unwrap();
    // The kernel sends its signal after the join, so there is something to wait for, in vain.
    tokio::time::timeout(Duration::from_secs(1), server.ended()).await.expect_err("it goes on");
    assert!(listens(server.port()));
}

#[tokio::test]
async fn a_server_that_ends_at_once_tells_why() {
    let folder = tempfile::tempdir().unwrap();
    let config = member(folder.path()).argument("--noSuchOption");
    let error = Server::start(&binaries(), config).await.unwrap_err();
    assert!(matches!(&error, ServerError::Ended { log_tail, .. } if log_tail.contains("noSuchOption")), "{error}");
}

#[tokio::test]
async fn a_server_that_never_listens_is_given_up_at_the_deadline_with_what_it_said() {
    let folder = tempfile::tempdir().unwrap();
    let binaries = scripted(folder.path(), "echo still thinking; exec sleep 600");
    let config = ServerConfig { ready_within: Duration::from_millis(300), ..member(folder.path()) };
    let error = Server::start(&binaries, config).await.unwrap_err();
    assert!(matches!(&error, ServerError::NotReady { log_tail, .. } if log_tail == "still thinking"), "{error}");
}

#[tokio::test]
async fn a_port_lost_to_someone_else_is_replaced_by_another() {
    let folder = tempfile::tempdir().unwrap();
    let tried: PathBuf = folder.path().join("tried");
    // Status 48 is how mongod ends when it cannot bind.
    let script = format!("test -e {0} || {{ touch {0}; exit 48; }}\nexec $REAL \"$@\"", tried.display());
    let server = Server::start(&scripted(folder.path(), &script), member(folder.path())).await.unwrap();
    assert!(tried.exists());
    assert!(listens(server.port()));
}
