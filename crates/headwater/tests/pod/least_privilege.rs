//! A pod under the documented MongoDB role, on a server that requires authentication.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use broker::{Config, StorageLocation};
use local_cluster::{LeaseTimings, PodConfig, pod_program};
use mongod::{MongoServer, ServerConfig, ServerRole};
use mongodb::bson::{Document, doc};
use mongodb::{Client, IndexModel};
use tempfile::TempDir;
use testkit::bus::TestBroker;
use testkit::process::Program;
use testkit::wait::wait_for;

use crate::BINARY;
use crate::fixture::{READ_MODELS, SOON};

const ROLE: &str = include_str!("../../../../deploy/mongodb/pod-role.json");
const SET: &str = "secured";

/// A replica set of one with a user that has only the role, and one that may do everything.
pub(crate) struct SecuredMongo {
    server: MongoServer,
    folder: TempDir,
}

impl SecuredMongo {
    /// The users are created first: without authentication everybody may.
    pub(crate) async fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let role = ServerRole::Member { replica_set: SET.to_owned() };
        let config = ServerConfig::new(role, folder.path().join("mongod"))
            .parameter("shutdownTimeoutMillisForSignaledShutdown", 100);
        let mut server = MongoServer::start(&testkit::mongo::binaries().await.unwrap(), config).await.unwrap();
        let members = doc! { "_id": SET, "members": [{ "_id": 0, "host": server.address() }] };
        mongod::initiate(&server, members).await.unwrap();
        mongod::wait_until_writable(&server, SOON).await.unwrap();
        create_users(&server.direct_client().unwrap()).await;

        let key = folder.path().join("key");
        std::fs::write(&key, "c2VjcmV0LWtleS1vZi10aGUtdGVzdA==").unwrap();
        std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o400)).unwrap();
        server.stop(SOON).await.unwrap();
        server.config_mut().arguments.extend(["--keyFile".into(), key.into_os_string()]);
        server.restart().await.unwrap();
        Self { server, folder }
    }

    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub(crate) fn address(&self) -> String {
        self.server.address().to_string()
    }

    /// Restarts the server with further arguments.
    pub(crate) async fn restart_with(&mut self, arguments: &[&str]) {
        self.server.stop(SOON).await.unwrap();
        self.server.config_mut().arguments.extend(arguments.iter().map(|argument| (*argument).into()));
        self.server.restart().await.unwrap();
    }

    pub(crate) fn uri(&self, user: &str) -> String {
        format!("mongodb://{user}:password@{}/?replicaSet={SET}&authSource=admin", self.server.address())
    }

    pub(crate) async fn client(&self, user: &str) -> Client {
        Client::with_uri_str(self.uri(user)).await.unwrap()
    }
}

/// The documented role for the databases of this test; `without`: a right to leave out, by database.
fn role(without: Option<(&str, &str)>) -> Document {
    let text = ROLE.replace("SOURCE", "shop").replace("COORDINATION", "pods").replace("READ_MODELS", "shop_views");
    let mut role: serde_json::Value = serde_json::from_str(&text).unwrap();
    for privilege in role["privileges"].as_array_mut().unwrap() {
        let database = privilege["resource"]["db"].as_str().unwrap().to_owned();
        let actions = privilege["actions"].as_array_mut().unwrap();
        actions.retain(|action| without != Some((database.as_str(), action.as_str().unwrap())));
    }
    serde_json::from_value(role).unwrap()
}

async fn create_users(client: &Client) {
    let admin = client.database("admin");
    admin.run_command(role(None)).await.unwrap();
    for (user, role) in [("pod", "headwaterPod"), ("root", "root")] {
        admin.run_command(doc! { "createUser": user, "pwd": "password", "roles": [role] }).await.unwrap();
    }
}

pub(crate) async fn start_broker() -> TestBroker {
    let entities = local_cluster::emulator_config(&[local_cluster::TopicEntity {
        name: "events".into(),
        duplicate_window: Some(Duration::from_secs(600)),
        partitioned: false,
        subscriptions: vec![local_cluster::SubscriptionEntity {
            name: "read-models".into(),
            session_lock: Some(Duration::from_secs(30)),
            dead_letter_on_expiration: true,
        }],
    }]);
    let entities = broker::emulator_config::parse(&entities).unwrap().entities;
    let config = Config::new("127.0.0.1:0".parse().unwrap(), StorageLocation::Ephemeral);
    TestBroker::start(Config { entities, ..config }).await
}

/// The source with its index, and the configuration file of a pod that has only the role.
pub(crate) async fn prepare(mongo: &SecuredMongo, broker: &TestBroker) -> PathBuf {
    let events = mongo.client("root").await.database("shop").collection::<Document>("events");
    let index = IndexModel::builder().keys(doc! { "aggregateId": 1, "version": 1 }).build();
    events.create_index(index).await.unwrap();
    let config = PodConfig {
        pipeline: Some("shop"),
        mongodb_uri: &mongo.uri("pod"),
        database: "shop",
        source: "kind: events, aggregate_id: aggregateId, event_type: type, sequence: version",
        coordination: "pods",
        lease: LeaseTimings::default(),
        connection_string: &broker.endpoint().connection_string(),
        topic: "events",
        ca_file: broker.endpoint().ca_file(),
        extra_yaml: &format!("producer: {{ start: beginning }}\nconsumer: {{ lock_duration: 30s }}\n{READ_MODELS}"),
    };
    let path = mongo.folder.path().join("headwater.yaml");
    std::fs::write(&path, config.to_yaml()).unwrap();
    path
}

/// Whether `headwater check` finds nothing wrong, and its output.
async fn check(config: &Path) -> (bool, String) {
    let check = Program::new(BINARY).args(["check", "--config", config.to_str().unwrap()]).start().unwrap();
    let status = check.wait_for_exit(SOON).await;
    (status.success(), check.lines().into_iter().map(|line| line.text + "\n").collect())
}

pub(crate) fn order(version: i64) -> Document {
    doc! { "aggregateId": "order-1", "version": version, "type": "Placed", "payload": { "customer": "ada" } }
}

#[tokio::test]
async fn a_pod_needs_only_the_documented_mongodb_role() {
    let mongo = SecuredMongo::start().await;
    let broker = start_broker().await;
    let config = prepare(&mongo, &broker).await;
    let root = mongo.client("root").await;
    let events = root.database("shop").collection::<Document>("events");
    events.insert_one(order(1)).await.unwrap();

    let pod = pod_program(BINARY, &config).named("pod-0").env("HOSTNAME", "pod-0").start().unwrap();
    let orders = root.database("shop_views").collection::<Document>("orders");
    let found =
        wait_for("the snapshot to be applied", SOON, async || orders.find_one(doc! {}).await.unwrap().ok_or("not yet"))
            .await;
    assert_eq!(found, doc! { "_id": "order-1", "customer": "ada" });
    events.insert_one(order(2)).await.unwrap();
    let cursors = root.database("shop_views").collection::<Document>("_headwater_cursors");
    wait_for("the change stream to be applied", SOON, async || {
        let cursor = cursors.find_one(doc! { "_id.aggregate": "order-1" }).await.unwrap();
        cursor.filter(|cursor| cursor.get_i64("sequence").is_ok_and(|at| at == 2)).map(drop).ok_or("not yet")
    })
    .await;
    // `check` also tests the rights that only the status page needs.
    let (passed, output) = check(&config).await;
    assert!(passed, "{output}");
    let denied = pod.lines().into_iter().find(|line| line.text.contains("nauthorized"));
    assert!(denied.is_none(), "{denied:?}");

    // It may not do more.
    let limited = mongo.client("pod").await;
    assert!(
        limited.database("shop").collection("events").insert_one(order(3)).await.is_err(),
        "it may not write events"
    );
    assert!(limited.database("other").collection::<Document>("any").find_one(doc! {}).await.is_err());
    pod.terminate();
    assert!(pod.wait_for_exit(SOON).await.success());
    broker.stop().await;
}

#[tokio::test]
async fn a_missing_right_is_named_by_check() {
    let mongo = SecuredMongo::start().await;
    let broker = start_broker().await;
    let config = prepare(&mongo, &broker).await;
    let admin = mongo.client("root").await.database("admin");
    for (database, right, words) in [
        ("shop", "changeStream", "grant the user `read` on the source database (find and changeStream)"),
        ("shop", "find", "grant the user `read` on the source database (find and changeStream)"),
        ("pods", "find", "`find` on `pods."),
        ("pods", "update", "`update` on `pods."),
        ("shop_views", "find", "`find` on `shop_views."),
        ("shop_views", "update", "`update` on `shop_views."),
        ("pods", "insert", "`insert` on `pods."),
        ("pods", "remove", "`remove` on `pods."),
        ("pods", "createIndex", "`createIndex` on `pods."),
        ("pods", "createCollection", "`createCollection` on `pods."),
        ("shop_views", "insert", "`insert` on `shop_views."),
        ("shop_views", "remove", "`remove` on `shop_views."),
        ("shop_views", "createIndex", "`createIndex` on `shop_views."),
        ("shop_views", "createCollection", "`createCollection` on `shop_views."),
    ] {
        let Some(privileges) = role(Some((database, right))).remove("privileges") else { unreachable!() };
        admin.run_command(doc! { "updateRole": "headwaterPod", "privileges": privileges }).await.unwrap();
        let (passed, output) = check(&config).await;
        assert!(!passed && output.contains(words), "{right} on {database}: {output}");
        let fix = format!("`readWrite` on `{database}`, or the role `headwaterPod` of deploy/mongodb");
        assert!(database == "shop" || output.contains(&fix), "{output}");
    }
    let names: Vec<_> = mongo.client("root").await.database("shop_views").list_collection_names().await.unwrap();
    assert!(names.is_empty(), "check wrote nothing: {names:?}");
    broker.stop().await;
}
