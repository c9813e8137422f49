//! Real servers: start, stop, kill, restart, and never leak.

use std::fs::{self, Permissions};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use mongod::{
    Environment, MongoServer, MongoSource, ProgramPaths, ProgressStyle, ServerConfig, ServerError, ServerRole,
    SingleNodeReplicaSet,
};
use mongodb::bson::{Document, doc};

const STOP_WITHIN: Duration = Duration::from_secs(30);

fn binaries() -> ProgramPaths {
    match mongod::provide(None, &Environment::from_process(), ProgressStyle::Lines).unwrap() {
        MongoSource::ProgramPaths(binaries) => binaries,
        MongoSource::Uri(_) => unreachable!("no URI was given"),
    }
}

/// A mongod that is a shell script; `$REAL` is the real one.
fn scripted_mongod(folder: &Path, script: &str) -> ProgramPaths {
    let real = binaries();
    let script = script.replace("$REAL", &real.mongod.display().to_string());
    let mongod = folder.join("mongod");
    fs::write(&mongod, format!("#!/bin/sh\n{script}\n")).unwrap();
    fs::set_permissions(&mongod, Permissions::from_mode(0o755)).unwrap();
    ProgramPaths { mongod, ..real }
}

fn member(folder: &Path) -> ServerConfig {
    ServerConfig::new(ServerRole::Member { replica_set: "one".into() }, folder)
}

fn listens(port: u16) -> bool {
    TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_ok()
}

async fn write(node: &SingleNodeReplicaSet, id: i32) {
    let collection = node.client().await.unwrap().database("d").collection::<Document>("c");
    collection.insert_one(doc! { "_id": id }).await.unwrap();
}

async fn count(node: &SingleNodeReplicaSet) -> u64 {
    let collection = node.client().await.unwrap().database("d").collection::<Document>("c");
    collection.count_documents(doc! {}).await.unwrap()
}

#[tokio::test]
async fn a_single_node_set_accepts_writes_and_stops_cleanly() {
    let folder = tempfile::tempdir().unwrap();
    let mut node = SingleNodeReplicaSet::start(&binaries(), SingleNodeReplicaSet::config(folder.path())).await.unwrap();
    write(&node, 1).await;
    node.stop(STOP_WITHIN).await.unwrap();
    assert!(!listens(node.server().port()));
}

#[tokio::test]
async fn data_is_served_again_on_its_old_port() {
    let folder = tempfile::tempdir().unwrap();
    let binaries = binaries();
    let mut node = SingleNodeReplicaSet::start(&binaries, SingleNodeReplicaSet::config(folder.path())).await.unwrap();
    let uri = node.uri();
    write(&node, 1).await;
    node.stop(STOP_WITHIN).await.unwrap();
    drop(node);

    let node = SingleNodeReplicaSet::start(&binaries, SingleNodeReplicaSet::config(folder.path())).await.unwrap();
    assert_eq!(node.uri(), uri);
    assert_eq!(count(&node).await, 1);
}

#[tokio::test]
async fn data_is_served_on_another_port_if_the_old_one_is_taken() {
    let folder = tempfile::tempdir().unwrap();
    let binaries = binaries();
    let mut node = SingleNodeReplicaSet::start(&binaries, SingleNodeReplicaSet::config(folder.path())).await.unwrap();
    let port = node.server().port();
    write(&node, 1).await;
    node.stop(STOP_WITHIN).await.unwrap();
    drop(node);
    let _taken = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).unwrap();

    let node = SingleNodeReplicaSet::start(&binaries, SingleNodeReplicaSet::config(folder.path())).await.unwrap();
    assert_ne!(node.server().port(), port);
    write(&node, 2).await;
    assert_eq!(count(&node).await, 2);
}

#[tokio::test]
async fn a_killed_server_restarts_with_all_acknowledged_writes() {
    let folder = tempfile::tempdir().unwrap();
    let mut node = SingleNodeReplicaSet::start(&binaries(), SingleNodeReplicaSet::config(folder.path())).await.unwrap();
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
async fn a_dropped_server_is_killed() {
    let folder = tempfile::tempdir().unwrap();
    let server = MongoServer::start(&binaries(), member(folder.path())).await.unwrap();
    let port = server.port();
    assert!(listens(port));
    drop(server);
    assert!(!listens(port));
}

#[tokio::test]
async fn a_server_outlives_the_thread_that_started_it() {
    let folder = tempfile::tempdir().unwrap();
    let config = member(folder.path());
    let start = move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(MongoServer::start(&binaries(), config)).unwrap()
    };
    let mut server = tokio::task::spawn_blocking(|| std::thread::spawn(start).join().unwrap()).await.unwrap();
    // The kernel would send its signal after the join, so the test waits for it.
    tokio::time::timeout(Duration::from_secs(1), server.wait_until_exited())
        .await
        .expect_err("the server keeps running");
    assert!(listens(server.port()));
}

#[tokio::test]
async fn a_server_that_exits_at_once_reports_its_log() {
    let folder = tempfile::tempdir().unwrap();
    let config = member(folder.path()).argument("--noSuchOption");
    let error = MongoServer::start(&binaries(), config).await.unwrap_err();
    assert!(matches!(&error, ServerError::Ended { log_tail, .. } if log_tail.contains("noSuchOption")), "{error}");
}

#[tokio::test]
async fn a_server_that_never_listens_fails_at_the_deadline() {
    let folder = tempfile::tempdir().unwrap();
    let binaries = scripted_mongod(folder.path(), "echo still thinking; exec sleep 600");
    let config = ServerConfig { ready_within: Duration::from_millis(300), ..member(folder.path()) };
    let error = MongoServer::start(&binaries, config).await.unwrap_err();
    assert!(matches!(&error, ServerError::NotReady { log_tail, .. } if log_tail == "still thinking"), "{error}");
}

#[tokio::test]
async fn a_port_taken_by_another_process_is_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let tried: PathBuf = folder.path().join("tried");
    // mongod exits with status 48 when it cannot bind.
    let script = format!("test -e {0} || {{ touch {0}; exit 48; }}\nexec $REAL \"$@\"", tried.display());
    let server = MongoServer::start(&scripted_mongod(folder.path(), &script), member(folder.path())).await.unwrap();
    assert!(tried.exists());
    assert!(listens(server.port()));
}
