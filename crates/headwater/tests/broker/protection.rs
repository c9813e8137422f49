//! Who may reach the broker: keys, host names, TLS, and the data folder.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use amqp::frame::ProtocolHeader;
use fe2o3_amqp::sasl_profile::SaslProfile;
use fe2o3_amqp::{Connection, Receiver, Sender, Session};
use servicebus::{BusErrorKind, Client, Config, Message};
use testkit::bus::sign_token;
use testkit::process::Program;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::broker_process::certificates;
use crate::fixture::{BINARY, BrokerFixture, SOON, TOKEN};

const KEYS: &str = r#"{"keys": [
    {"name": "root", "key": "root-key", "rights": ["Manage", "Send", "Listen"]},
    {"name": "reader", "key": "reader-key", "rights": ["Listen"]}
]}"#;

async fn exchange(fixture: &BrokerFixture, bytes: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(fixture.address).await.expect("the broker listens");
    stream.write_all(bytes).await.expect("a write");
    let mut answer = Vec::new();
    let _ = tokio::time::timeout(SOON, stream.read_to_end(&mut answer)).await.expect("an answer in time");
    answer
}

#[tokio::test]
async fn a_foreign_host_name_does_not_reach_administration() {
    let fixture = BrokerFixture::start().await;
    let status = async |method: &str, host: &str| {
        let request = format!(
            "{method} /q?api-version=2021-05 HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
        );
        let answer = exchange(&fixture, request.as_bytes()).await;
        String::from_utf8_lossy(&answer).split(' ').nth(1).expect("a status").to_owned()
    };
    fixture.queue("q", "").await;
    for method in ["GET", "PUT", "DELETE"] {
        assert_eq!(status(method, "evil.example").await, "403", "{method}");
    }
    let port = fixture.address.port();
    for host in ["localhost".to_owned(), format!("localhost:{port}"), format!("127.0.0.1:{port}"), "[::1]".to_owned()] {
        assert_eq!(status("GET", &host).await, "200", "{host}");
    }
}

#[test]
fn without_keys_only_loopback_is_served() {
    let output = Command::new(BINARY)
        .args(["broker", "--ephemeral", "--listen", "0.0.0.0:0"])
        .output()
        .expect("the binary runs");
    assert_eq!(output.status.code(), Some(3));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("0.0.0.0:0") && said.contains("--keys"), "{said}");
}

/// A broker with `KEYS` and the queue `q`.
pub(crate) async fn start_with_keys() -> BrokerFixture {
    let data = tempfile::tempdir().expect("a temporary folder");
    let keys = data.path().join("keys.json");
    std::fs::write(&keys, KEYS).expect("a file");
    let folder = data.path().join("data");
    let entities = data.path().join("entities.json");
    std::fs::write(
        &entities,
        r#"{"UserConfig": {"Namespaces": [{"Name": "n", "Queues": [{"Name": "q"}], "Topics": []}]}}"#,
    )
    .expect("a file");
    let program = Program::new(BINARY)
        .args(["broker", "--data-dir"])
        .args([&folder])
        .args(["--keys"])
        .args([&keys])
        .args(["--config"])
        .args([&entities])
        .args(["--test-token", TOKEN]);
    BrokerFixture::of(program, data).await
}

#[tokio::test]
async fn a_key_gives_its_rights_and_no_others() {
    let fixture = start_with_keys().await;
    let client = |name: &str, key: &str| {
        let address = fixture.address;
        let string = format!(
            "Endpoint=sb://{address};SharedAccessKeyName={name};SharedAccessKey={key};UseDevelopmentEmulator=true"
        );
        Client::new(&string, Config { operation_timeout: SOON, ..Config::default() }).expect("a client")
    };
    let send = async |name: &str, key: &str| {
        client(name, key).sender("q").send_message(&Message::new("a")).await.map_err(|error| error.kind())
    };
    assert_eq!(send("root", "root-key").await, Ok(()));
    assert_eq!(send("root", "reader-key").await, Err(BusErrorKind::Unauthorized));
    assert_eq!(send("nobody", "root-key").await, Err(BusErrorKind::Unauthorized));
    assert_eq!(send("reader", "reader-key").await, Err(BusErrorKind::Unauthorized));
    let received = client("reader", "reader-key").receiver("q").receive(1, SOON).await.expect("a receive");
    assert_eq!(received.len(), 1);
    // A link without any token is refused too.
    let mut peer = crate::raw_peer::RawPeer::begun(fixture.address).await;
    let attach = amqp::Attach::receiver("r", amqp::Source::at("q"), amqp::Target::at("me"));
    peer.frame(0, &crate::raw_peer::attach(attach)).await;
    assert_eq!(peer.close_error().await, Some(("detach", "amqp:unauthorized-access".to_owned())));
    let answer = fixture.http("GET", "/q?api-version=2021-05", "", b"").await;
    assert!(answer.starts_with("HTTP/1.1 401"), "{answer}");
    // An open link ends when its token expires.
    let client = client("root", "root-key");
    let sender = client.sender("q");
    sender.send_message(&Message::new("in time")).await.expect("a send");
    fixture.test("POST", "clock", r#"{"advance_ms": 86400000}"#).await;
    let error = sender.send_message(&Message::new("late")).await.expect_err("the token is expired");
    assert_eq!(error.condition(), Some("amqp:unauthorized-access"), "{error:?}");
}

/// Clients without claims-based security open their connection with the name of a key and the key.
#[tokio::test]
async fn sasl_plain_gives_the_rights_of_its_key() {
    let fixture = start_with_keys().await;
    let connect = async |user: &str, password: &str| {
        let profile = SaslProfile::Plain { username: user.to_owned(), password: password.to_owned() };
        let url = format!("amqp://{}", fixture.address);
        Connection::builder().container_id("plain").sasl_profile(profile).open(url.as_str()).await
    };
    for (user, password, may_send) in [("root", "root-key", true), ("reader", "reader-key", false)] {
        let mut connection = connect(user, password).await.expect("a connection");
        let mut session = Session::begin(&mut connection).await.expect("an AMQP session");
        let receiver = Receiver::attach(&mut session, "receiver", "q").await;
        assert!(receiver.is_ok(), "{user}: {receiver:?}");
        let sender = Sender::attach(&mut session, "sender", "q").await;
        assert_eq!(sender.is_ok(), may_send, "{user}: {sender:?}");
    }
    for (user, password) in [("root", "reader-key"), ("nobody", "root-key"), ("", "")] {
        assert!(connect(user, password).await.is_err(), "{user}");
    }
}

/// Authorization rules that are stored with an entity apply to administration too.
#[tokio::test]
async fn a_stored_rule_administers_its_entity_only() {
    let fixture = start_with_keys().await;
    let token = sign_token("root", SOON);
    let rule = |name: &str, right: &str| {
        format!(
            "<AuthorizationRule i:type=\"SharedAccessAuthorizationRule\" xmlns:i=\"http://www.w3.org/2001/XMLSchema-instance\">\
             <ClaimType>SharedAccessKey</ClaimType><ClaimValue>None</ClaimValue><Rights><AccessRights>{right}</AccessRights></Rights>\
             <KeyName>{name}</KeyName><PrimaryKey>{name}-key</PrimaryKey></AuthorizationRule>"
        )
    };
    let body = format!(
        "<entry xmlns=\"http://www.w3.org/2005/Atom\"><content type=\"application/xml\">\
         <TopicDescription xmlns=\"http://schemas.microsoft.com/netservices/2010/10/servicebus/connect\">\
         <AuthorizationRules>{}{}</AuthorizationRules></TopicDescription></content></entry>",
        rule("manager", "Manage"),
        rule("writer", "Send"),
    );
    let header = format!("authorization: {token}\r\n");
    let answer = fixture.http("PUT", "/t?api-version=2021-05", &header, body.as_bytes()).await;
    assert!(answer.starts_with("HTTP/1.1 201"), "{answer}");
    let status = async |name: &str, path: &str| {
        let header = format!("authorization: {}\r\n", sign_token(name, SOON));
        let answer = fixture.http("GET", &format!("/{path}?api-version=2021-05"), &header, b"").await;
        answer.split(' ').nth(1).expect("a status").to_owned()
    };
    for path in ["t", "T/", "t/Subscriptions"] {
        assert_eq!(status("manager", path).await, "200", "{path}");
    }
    assert_eq!(status("manager", "t/Subscriptions/none").await, "404");
    for path in ["q", "", "$Resources/topics", "t2"] {
        assert_eq!(status("manager", path).await, "401", "{path}");
    }
    assert_eq!(status("writer", "t").await, "401");
}

#[tokio::test]
async fn connections_without_tls_can_be_refused() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    certificates(folder.path());
    let file = |name: &str| folder.path().join(name).display().to_string();
    let arguments = ["--require-tls", "--tls-cert", &file("cert.pem"), "--tls-key", &file("key.pem")];
    let fixture = BrokerFixture::with(&arguments).await;
    assert_eq!(exchange(&fixture, &ProtocolHeader::Amqp.bytes()).await, b"AMQP\x02\x01\x00\x00");
    let answer = exchange(&fixture, b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n").await;
    assert!(answer.starts_with(b"HTTP/1.1 403"), "{}", String::from_utf8_lossy(&answer));
    let string =
        format!("Endpoint=sb://localhost:{};SharedAccessKeyName=any;SharedAccessKey=any", fixture.address.port());
    let config = Config { ca_file: Some(folder.path().join("ca.pem")), operation_timeout: SOON, ..Config::default() };
    let client = Client::new(&string, config).expect("a client");
    client.connect().await.expect("a connection with TLS");
}

#[tokio::test]
async fn the_data_folder_is_for_its_owner_only() {
    let data = tempfile::tempdir().expect("a temporary folder");
    let mut folders = vec![data.path().join("new")];
    for rights in [0o755, 0o775, 0o777, 0o750, 0o2775] {
        let old = data.path().join(format!("{rights:o}"));
        std::fs::create_dir(&old).expect("a folder");
        std::fs::set_permissions(&old, PermissionsExt::from_mode(rights)).expect("its rights");
        // A file of the broker that somebody opened to a group.
        std::fs::write(old.join("lock"), "").expect("a file");
        std::fs::set_permissions(old.join("lock"), PermissionsExt::from_mode(0o664)).expect("its rights");
        folders.push(old);
    }
    for folder in &folders {
        let program = Program::new(BINARY).args(["broker", "--data-dir"]).args([folder]);
        let fixture = BrokerFixture::of(program, tempfile::tempdir().expect("a temporary folder")).await;
        fixture.queue("q", "").await;
        fixture.client().sender("q").send_message(&Message::new("a")).await.expect("a send");
        assert_eq!(mode(folder), 0o700, "{}", folder.display());
        for entry in std::fs::read_dir(folder).expect("the folder") {
            let path = entry.expect("a file").path();
            assert_eq!(mode(&path), 0o600, "{}", path.display());
        }
    }
}

fn mode(path: &Path) -> u32 {
    std::fs::metadata(path).expect("it exists").permissions().mode() & 0o777
}
