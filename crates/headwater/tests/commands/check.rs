//! `headwater check`: findings and their fixes.

use std::fs::Permissions;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use mongod::{Environment, MongoServer, MongoSource, ProgramPaths, ProgressStyle, ServerConfig, ServerRole};
use mongodb::bson::{Document, doc};
use mongodb::options::IndexOptions;
use mongodb::{Client, IndexModel};
use servicebus::administration::EntityDescription;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::fixture::{CliFixture, SOON};

const MODELS: &str =
    "read_models: { database: VIEWS, totals: { when: { Added: { $inc: { total: $$event.payload.amount } } } } }";

#[tokio::test]
async fn check_is_ok_after_topology_apply() {
    let fixture = CliFixture::new("check_well", MODELS).await;
    fixture.run(&["topology", "apply"]).await.success();
    let output = fixture.run(&["check", "--json"]).await;
    assert_eq!(output.json()["ok"], true, "{}", output.stdout);
    output.success();
}

#[tokio::test]
async fn a_sample_finds_missing_values_and_shows_no_event() {
    let fixture = CliFixture::new("check_sample", MODELS).await;
    fixture.run(&["topology", "apply"]).await.success();
    let output = fixture.run(&["check", "--sample", "50"]).await.success();
    assert!(output.contains("note: source: has no events to sample"), "{output}");
    for (version, payload) in [(1, doc! { "amount": 5 }), (2, doc! { "amout": 7_777_777 })] {
        fixture.insert("order-1", version, "Added", payload).await;
    }
    fixture.insert("order-1", 3, "Shipped", doc! {}).await;
    let output = fixture.run(&["check", "--sample", "50"]).await.success();
    let note =
        "`read_models.totals.when.Added.$inc.total` is `$$event.payload.amount`: is missing in 1 of 2 sampled events";
    assert!(output.contains(note), "{output}");
    assert!(output.contains("no read model handles events of type `Shipped`"), "{output}");
    // Only the newest events: none of them has the value.
    let misspelt = MODELS.replace("payload.amount", "payload.price");
    fixture.configure(testkit::mongo::shared().await.unwrap().uri(), &misspelt);
    let output = fixture.run(&["check", "--sample", "2"]).await.success();
    assert!(output.contains("warning: read_models: ") && output.contains("missing in 1 of 1"), "{output}");
    assert!(!output.contains("order-1") && !output.contains("7777777"), "{output}");
}

#[tokio::test]
async fn settings_that_lose_events_are_found() {
    let fixture = CliFixture::new("check_bus", "").await;
    let missing = fixture.run(&["check"]).await;
    assert!(
        missing.stdout.contains("`events` does not exist; create it with `headwater topology apply`"),
        "{}",
        missing.stdout
    );
    missing.failure();

    let bus = fixture.administration();
    bus.create("events", &EntityDescription::topic(&[])).await.unwrap();
    let poor = [
        ("LockDuration", "PT30S"),
        ("DefaultMessageTimeToLive", "P1D"),
        ("MaxDeliveryCount", "10"),
        ("AutoDeleteOnIdle", "P2D"),
    ];
    let poor = poor.map(|(name, value)| (name, value.to_owned()));
    bus.create("events/Subscriptions/read-models", &EntityDescription::subscription(&poor)).await.unwrap();
    let output = fixture.run(&["check"]).await;
    for (level, word) in [
        ("warning", "RequiresDuplicateDetection is false"),
        ("error", "RequiresSession is false: without sessions there is no order"),
        ("error", "DefaultMessageTimeToLive is P1D"),
        ("error", "MaxDeliveryCount is 10"),
        ("error", "LockDuration is PT30S"),
        ("error", "AutoDeleteOnIdle is P2D"),
    ] {
        let found = output.stdout.lines().any(|line| line.starts_with(level) && line.contains(word));
        assert!(found, "{level} {word}: {}", output.stdout);
    }
    output.failure();
}

#[tokio::test]
async fn a_ttl_index_on_leases_is_found() {
    let fixture = CliFixture::new("check_ttl", "").await;
    let expiring = IndexOptions::builder().expire_after(Duration::from_secs(60)).build();
    let index = IndexModel::builder().keys(doc! { "expiresAt": 1 }).options(expiring).build();
    fixture.coordination.collection::<Document>("leader_leases").create_index(index).await.unwrap();
    let output = fixture.run(&["check"]).await;
    let line = "error: coordination: the TTL index `expiresAt_1` on `leader_leases`";
    assert!(output.stdout.contains(line) && output.stdout.contains("dropIndex"), "{}", output.stdout);
    output.failure();
}

#[tokio::test]
async fn a_missing_index_and_an_invalid_read_model_are_found() {
    let wrong = "read_models: { database: VIEWS, totals: { when: { Added: { $incr: { total: 1 } } } } }";
    let fixture = CliFixture::new("check_models", wrong).await;
    fixture.source.collection::<Document>("events").drop_indexes().await.unwrap();
    let output = fixture.run(&["check"]).await;
    let (all, _) = (format!("{}{}", output.stdout, output.stderr), output.status);
    assert!(all.contains("$incr"), "{all}");
    fixture.configure(testkit::mongo::shared().await.unwrap().uri(), MODELS);
    let output = fixture.run(&["check"]).await;
    assert!(output.stdout.contains("error: source: `start: beginning` needs the index"), "{}", output.stdout);
}

async fn binaries() -> ProgramPaths {
    let find = || mongod::provide(None, &Environment::from_process(), ProgressStyle::Silent);
    match tokio::task::spawn_blocking(find).await.unwrap().unwrap() {
        MongoSource::ProgramPaths(binaries) => binaries,
        MongoSource::Uri(_) => unreachable!("none was given"),
    }
}

#[tokio::test]
async fn a_standalone_mongod_is_found() {
    let folder = tempfile::tempdir().unwrap();
    let alone =
        MongoServer::start(&binaries().await, ServerConfig::new(ServerRole::Standalone, folder.path())).await.unwrap();
    let fixture = CliFixture::new("check_alone", MODELS).await;
    fixture.configure(&format!("mongodb://{}/?directConnection=true", alone.address()), MODELS);
    let output = fixture.run(&["check"]).await;
    for line in [
        "error: source: is a standalone mongod, which has no change streams; start mongod with `--replSet",
        "error: coordination: is a standalone mongod",
        "error: read_models: is a standalone mongod",
    ] {
        assert!(output.stdout.contains(line), "{line}: {}", output.stdout);
    }
    output.failure();
}

#[tokio::test]
async fn offline_uses_no_server_and_online_finds_it_unreachable() {
    let fixture = CliFixture::new("check_offline", "").await;
    fixture.configure("mongodb://127.0.0.1:1/?serverSelectionTimeoutMS=200", "producer: { start: now }");
    let offline = fixture.run(&["check", "--offline", "--json"]).await;
    assert_eq!(offline.json()["findings"][0]["about"], "read_models");
    offline.success();
    let online = fixture.run(&["check"]).await;
    assert!(online.stdout.contains("error: source: cannot be reached"), "{}", online.stdout);
    online.failure();
}

/// A replica set with one member and authentication, and a client of its root user.
async fn start_with_authentication(folder: &Path) -> (MongoServer, Client) {
    let key = folder.join("key");
    std::fs::write(&key, "a key that members share").unwrap();
    std::fs::set_permissions(&key, Permissions::from_mode(0o600)).unwrap();
    let role = ServerRole::Member { replica_set: "rs0".into() };
    let config = ServerConfig::new(role, folder).argument("--keyFile").argument(&key);
    let server = MongoServer::start(&binaries().await, config).await.unwrap();
    let members = doc! { "_id": "rs0", "members": [{ "_id": 0, "host": server.address() }] };
    mongod::initiate(&server, members).await.unwrap();
    mongod::wait_until_writable(&server, SOON).await.unwrap();
    let root = doc! { "createUser": "root", "pwd": "root", "roles": ["root"] };
    server.direct_client().unwrap().database("admin").run_command(root).await.unwrap();
    let uri = format!("mongodb://root:root@{}/?directConnection=true", server.address());
    let root = Client::with_uri_str(uri).await.unwrap();
    (server, root)
}

#[tokio::test]
async fn missing_rights_are_named_without_the_password() {
    let folder = tempfile::tempdir().unwrap();
    let (server, root) = start_with_authentication(folder.path()).await;
    let fixture = CliFixture::new("check_rights", MODELS).await;
    fixture.run(&["topology", "apply"]).await.success();
    let [source, coordination, views] =
        [&fixture.source, &fixture.coordination, &fixture.views].map(|place| place.name());
    let index = IndexModel::builder().keys(doc! { "aggregateId": 1, "version": 1 }).build();
    root.database(source).collection::<Document>("events").create_index(index).await.unwrap();
    let check = async |name: &str, granted: &[(&str, &str)]| {
        let roles: Vec<_> = granted.iter().map(|(role, place)| doc! { "role": *role, "db": *place }).collect();
        let user = doc! { "createUser": name, "pwd": "open-sesame", "roles": roles };
        root.database("admin").run_command(user).await.unwrap();
        fixture.configure(&format!("mongodb://{name}:open-sesame@{}/?replicaSet=rs0", server.address()), MODELS);
        let output = fixture.run(&["check"]).await;
        assert!(!format!("{}{}", output.stdout, output.stderr).contains("open-sesame"), "{}", output.stdout);
        output
    };
    let (read, write) = (("read", source), |place| ("readWrite", place));

    // One right is missing at a time; only its section has findings.
    for (name, granted, about, problem, remedy) in [
        (
            "without-source",
            [write(coordination), write(views)],
            "source",
            "refused by the server".to_owned(),
            "grant the user `read` on the source database".to_owned(),
        ),
        (
            "without-coordination",
            [read, write(views)],
            "coordination",
            format!("`update` on `{coordination}.leader_leases` is refused"),
            format!("grant the user `readWrite` on `{coordination}`"),
        ),
        (
            "without-views",
            [read, write(coordination)],
            "read_models",
            format!("`update` on `{views}.totals` is refused"),
            format!("grant the user `readWrite` on `{views}`"),
        ),
    ] {
        let output = check(name, &granted).await;
        let errors: Vec<_> = output.stdout.lines().filter(|line| line.starts_with("error: ")).collect();
        assert!(errors.iter().all(|line| line.starts_with(&format!("error: {about}: "))), "{name}: {}", output.stdout);
        assert!(
            errors.iter().any(|line| line.contains(&problem) && line.contains(&remedy)),
            "{name}: {}",
            output.stdout
        );
        output.failure();
    }
    // A user with `read` cannot write.
    let output = check("reader", &[read, ("read", coordination), write(views)]).await;
    let refused = format!("error: coordination: `update` on `{coordination}.checkpoints` is refused");
    assert!(output.stdout.contains(&refused) && !output.stdout.contains("`find` on"), "{}", output.stdout);
    output.failure();

    let output = check("enough", &[read, write(coordination), write(views)]).await;
    assert!(output.stdout.contains("note: source: the oplog cannot be read"), "{}", output.stdout);
    output.success();
}

#[tokio::test]
async fn a_short_duplicate_detection_window_is_found() {
    let fixture = CliFixture::new("check_window", "").await;
    let topic = [("RequiresDuplicateDetection", "true"), ("DuplicateDetectionHistoryTimeWindow", "PT20S")];
    let topic = topic.map(|(name, value)| (name, value.to_owned()));
    fixture.administration().create("events", &EntityDescription::topic(&topic)).await.unwrap();
    let output = fixture.run(&["check"]).await;
    let line = output.stdout.lines().find(|line| line.contains("DuplicateDetectionHistoryTimeWindow is PT20S"));
    let line = line.unwrap_or_else(|| panic!("{}", output.stdout));
    assert!(line.starts_with("warning: service_bus: `events`") && line.contains("too short"), "{line}");
    assert!(line.ends_with("run `headwater topology apply`"), "{line}");
    fixture.run(&["topology", "apply"]).await.success();
    let output = fixture.run(&["check"]).await;
    assert!(!output.stdout.contains("DuplicateDetection"), "{}", output.stdout);
}

/// A proxy that forwards requests to the broker, and replies to requests for rules itself: our broker has no rules yet.
async fn start_rules_proxy(broker: SocketAddr, reply: String) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            let reply = reply.clone();
            tokio::spawn(async move {
                let mut head = vec![];
                while !head.windows(4).any(|end| end == b"\r\n\r\n") {
                    if client.read_buf(&mut head).await.unwrap_or(0) == 0 {
                        return;
                    }
                }
                let path = String::from_utf8_lossy(&head).split(' ').nth(1).unwrap_or_default().to_owned();
                if path.contains("/Rules") {
                    let _ = client.write_all(reply.as_bytes()).await;
                    return;
                }
                let mut bus = TcpStream::connect(broker).await.unwrap();
                bus.write_all(&head).await.unwrap();
                let _ = tokio::io::copy_bidirectional(&mut client, &mut bus).await;
            });
        }
    });
    address
}

#[tokio::test]
async fn filtering_and_unreadable_rules_are_found() {
    let fixture = CliFixture::new("check_rules", "").await;
    fixture.run(&["topology", "apply"]).await.success();
    let rule = r#"<feed xmlns="http://www.w3.org/2005/Atom"><entry><title type="text">europe</title><content type="application/xml"><RuleDescription xmlns="http://schemas.microsoft.com/netservices/2010/10/servicebus/connect" xmlns:i="http://www.w3.org/2001/XMLSchema-instance"><Filter i:type="SqlFilter"><SqlExpression>region = 'eu'</SqlExpression><CompatibilityLevel>20</CompatibilityLevel></Filter><Action i:type="EmptyRuleAction"/><Name>europe</Name></RuleDescription></content></entry></feed>"#;
    let filtering = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{rule}", rule.len());
    let refusing = "HTTP/1.1 401 Unauthorized\r\ncontent-length: 0\r\nconnection: close\r\n\r\n".to_owned();
    for (reply, expected) in [
        (
            filtering,
            "error: service_bus: `events/Subscriptions/read-models`: its rules do not deliver every message exactly once and unchanged: `europe` (SqlFilter); keep one rule",
        ),
        (
            refusing,
            "warning: service_bus: `events/Subscriptions/read-models`: its rules cannot be read and may filter events",
        ),
        (
            String::new(),
            "warning: service_bus: `events/Subscriptions/read-models`: its rules cannot be read and may filter events",
        ),
    ] {
        let address = start_rules_proxy(fixture.broker.address(), reply).await;
        let bus = format!(
            "service_bus.connection_string=Endpoint=sb://{address};SharedAccessKeyName=any;SharedAccessKey=any;UseDevelopmentEmulator=true"
        );
        let output = fixture.run(&["check", "--set", &bus]).await;
        assert!(output.stdout.lines().any(|line| line.starts_with(expected)), "{expected}: {}", output.stdout);
        assert_eq!(output.status.success(), expected.starts_with("warning"), "{}", output.stdout);
    }
}
