//! AMQP over WebSocket.

use servicebus::{Client, Config, DisconnectReason, Error, Transport};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use crate::fixture::*;

fn over_web_socket() -> Config {
    Config { transport: Transport::WebSocket, ..long_timeouts() }
}

#[tokio::test]
async fn messages_go_both_ways_over_a_web_socket() {
    let broker = start_broker(None).await;
    let client = Client::new(&broker.connection_string(), over_web_socket()).unwrap();
    // Larger than a WebSocket message that either side writes.
    let body = "event".repeat(40_000);
    client.sender(ORDERS).send_message(&in_session("s", body.clone())).await.unwrap();
    let mut session = client.accept_session(ORDERS, "s").await.unwrap();
    let messages = session.receive(1, SOON).await.unwrap();
    assert_eq!(bodies(&messages), [body]);
    session.settler().complete(&messages).await.unwrap();
    session.close().await.unwrap();
    client.close().await.unwrap();
    broker.stop().await;
}

#[tokio::test]
async fn a_server_without_web_sockets_is_reported() {
    let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = server.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = server.accept().await {
            let _ = stream.read(&mut [0; 1_024]).await;
            let _ = stream.write_all(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n").await;
        }
    });
    let error = ClientFixture::client_by(address, over_web_socket()).connect().await.unwrap_err();
    assert!(matches!(error, Error::Connect { source: DisconnectReason::WebSocket(_), .. }), "{error:?}");
}
