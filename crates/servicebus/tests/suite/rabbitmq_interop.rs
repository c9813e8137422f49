//! A third-party AMQP 1.0 server: RabbitMQ with its AMQP 1.0 plugin (Debian's `rabbitmq-server`). It finds errors that our client and
//! our broker might share.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use mongod::ReservedPort;
use servicebus::{
    BusErrorKind, Client, Config, Error, Message, ReceivedMessage, Receiver, ReceiverSettleMode, Settlement,
};
use tempfile::TempDir;
use testkit::process::{Process, Program};

use crate::fixture::*;

const SERVER: &str = "/usr/lib/rabbitmq/bin/rabbitmq-server";
/// The Erlang runtime starts slowly.
const START: Duration = Duration::from_secs(90);
const QUEUE: &str = "/queue/walk";

/// Dropped in this order: the server, its name service, its folder.
struct Rabbit {
    server: Process,
    _names: Process,
    _folder: TempDir,
    _ports: [ReservedPort; 3],
    address: SocketAddr,
}

impl Rabbit {
    async fn start() -> Self {
        let folder = TempDir::new().unwrap();
        let path = |name: &str| folder.path().join(name);
        std::fs::write(path("plugins"), "[rabbitmq_amqp1_0].").unwrap();
        let ports = [(); 3].map(|()| ReservedPort::reserve(None).unwrap());
        let [names, node, distribution] = ports.each_ref().map(ReservedPort::number);
        let with_names = |program: Program| {
            program
                .env("HOME", folder.path())
                .env("ERL_EPMD_PORT", names.to_string())
                .env("ERL_EPMD_ADDRESS", "127.0.0.1")
        };
        // Started here, because one that the server starts would outlive it.
        let name_service =
            with_names(Program::new("epmd")).args(["-port", &names.to_string(), "-address", "127.0.0.1"]);
        let name_service = name_service.start().unwrap();
        listens(names).await;
        let server = with_names(Program::new(Path::new(SERVER)).named("rabbitmq"))
            .env("RABBITMQ_NODENAME", format!("walk{node}@localhost"))
            .env("RABBITMQ_NODE_IP_ADDRESS", "127.0.0.1")
            .env("RABBITMQ_NODE_PORT", node.to_string())
            .env("RABBITMQ_DIST_PORT", distribution.to_string())
            .env("RABBITMQ_MNESIA_BASE", path("mnesia"))
            .env("RABBITMQ_LOG_BASE", path("log"))
            .env("RABBITMQ_LOGS", "-")
            .env("ERL_CRASH_DUMP", path("crash"))
            .env("RABBITMQ_PID_FILE", path("pid"))
            .env("RABBITMQ_CONFIG_FILE", path("none"))
            .env("RABBITMQ_ENABLED_PLUGINS_FILE", path("plugins"))
            // Makes the script become the server, so that it is the server that is killed in the end.
            .env("RUNNING_UNDER_SYSTEMD", "true")
            .start()
            .unwrap();
        server.wait_for_line("Server startup complete", START).await;
        let address = SocketAddr::from(([127, 0, 0, 1], node));
        Self { server, _names: name_service, _folder: folder, _ports: ports, address }
    }

    fn client(&self) -> Client {
        // No key, no token: it has no `$cbs`.
        let connection_string = format!("Endpoint=sb://{};UseDevelopmentEmulator=true", self.address);
        // And it removes a message as soon as we have settled.
        Client::new(&connection_string, Config { settle_mode: ReceiverSettleMode::First, ..long_timeouts() }).unwrap()
    }
}

async fn listens(port: u16) {
    testkit::wait::wait_for("the name service to listen", START, async || {
        tokio::net::TcpStream::connect(("127.0.0.1", port)).await.map(drop)
    })
    .await;
}

async fn receive(receiver: &mut Receiver, count: usize) -> Vec<ReceivedMessage> {
    let mut messages = Vec::new();
    while messages.len() < count {
        let more = receiver.receive(count - messages.len(), SOON).await.unwrap();
        assert!(!more.is_empty(), "{} of {count} came", messages.len());
        messages.extend(more);
    }
    messages
}

#[tokio::test]
async fn messages_are_sent_received_and_settled_with_rabbitmq() {
    let rabbit = Rabbit::start().await;
    let client = rabbit.client();

    // Pipelined sends, each accepted by the server; one of them larger than a frame.
    let sender = client.sender(QUEUE);
    let large = "x".repeat(300_000);
    let mut outcomes = vec![sender.enqueue(&Message::new(large.clone()).with_id("large").encode()).await.unwrap()];
    for number in 0..500 {
        let message = Message::new(number.to_string()).with_id(number.to_string()).with_property("number", number);
        outcomes.push(sender.enqueue(&message.encode()).await.unwrap());
    }
    for outcome in outcomes {
        outcome.await.unwrap();
    }

    // Received in order and as sent.
    let mut receiver = client.receiver(QUEUE);
    let messages = receive(&mut receiver, 101).await;
    assert_eq!(messages[0].body(), large);
    assert_eq!(messages[0].message_id().as_deref(), Some("large"));
    assert_eq!(bodies(&messages[1..]), (0..100).map(|number| number.to_string()).collect::<Vec<_>>());
    assert_eq!(messages[8].application_property("number").unwrap().as_int(), Some(7));

    // Completed in ranges; credit follows the settlement until all have come.
    receiver.settle(&messages, Settlement::Complete).await.unwrap();
    let more = receive(&mut receiver, 200).await;
    receiver.settle(&more, Settlement::Complete).await.unwrap();
    let rest = receive(&mut receiver, 200).await;
    assert_eq!(rest[199].body(), "499");
    receiver.settle(&rest[..199], Settlement::Complete).await.unwrap();
    receiver.settle(&rest[199..], Settlement::Release).await.unwrap();
    let again = receive(&mut receiver, 1).await;
    assert_eq!(again[0].body(), "499");
    receiver.settle(&again, Settlement::Complete).await.unwrap();
    // Not closed but dropped: a close drains first, and RabbitMQ 3.10's classic queues crash on a drain (`send_drained`, function_clause).
    drop(receiver);
    let mut receiver = client.receiver(QUEUE);
    assert!(receiver.receive(1, MOMENT).await.unwrap().is_empty());

    // A refused link is an error of its own, and the connection goes on or is opened again.
    let error = client.sender("/no/such/thing").send_message(&Message::new("x")).await.unwrap_err();
    assert!(matches!(error, Error::Refused { .. } | Error::ConnectionLost { .. }), "{error:?}");
    testkit::wait::wait_for("a send that goes through", SOON, async || {
        sender.send_message(&Message::new("y")).await.map_err(|error| format!("{error:?}"))
    })
    .await;

    // Killed while a receive waits: the receive fails at once.
    let mut receiver = client.receiver("/queue/quiet");
    receiver.receive(1, MOMENT).await.unwrap();
    let waiting = tokio::spawn(async move { receiver.receive(1, SOON * 3).await.map(drop).unwrap_err() });
    rabbit.server.kill().await;
    let error = waiting.await.unwrap();
    assert_eq!(error.kind(), BusErrorKind::ConnectionLost, "{error:?}");
}
