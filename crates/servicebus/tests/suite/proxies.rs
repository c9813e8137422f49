//! A CONNECT proxy between the client and everything that it reaches by HTTPS.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use servicebus::administration::AdministrationClient;
use servicebus::{Client, Config, Message, ProxySettings, Transport};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::entra::EntraFixture;
use crate::fixture::*;

/// `user:hush`.
const CREDENTIAL: &str = "proxy-authorization: basic dxnlcjpodxno";

/// A proxy that demands a password, and remembers where it connected to.
struct ConnectProxy {
    address: SocketAddr,
    targets: Arc<Mutex<Vec<String>>>,
}

impl ConnectProxy {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let targets = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&targets);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(tunnel(stream, Arc::clone(&seen)));
            }
        });
        Self { address, targets }
    }

    fn settings(&self, password: &str, bypass: &str) -> ProxySettings {
        let url = format!("http://user:{password}@{}", self.address);
        let find = |name: &str| match name {
            "HTTPS_PROXY" => Some(url.clone()),
            "NO_PROXY" => Some(bypass.to_owned()),
            _ => None,
        };
        ProxySettings::from_environment(find).unwrap()
    }

    fn targets(&self) -> Vec<String> {
        self.targets.lock().unwrap().clone()
    }
}

async fn tunnel(mut stream: TcpStream, targets: Arc<Mutex<Vec<String>>>) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        match stream.read_u8().await {
            Ok(byte) => head.push(byte),
            Err(_) => return,
        }
    }
    let head = String::from_utf8(head).unwrap();
    if !head.to_lowercase().contains(CREDENTIAL) {
        let _ = stream.write_all(b"HTTP/1.1 407 Proxy Authentication Required\r\ncontent-length: 0\r\n\r\n").await;
        return;
    }
    let target = head.split_whitespace().nth(1).unwrap().to_owned();
    let Ok(mut behind) = TcpStream::connect(&target).await else { return };
    targets.lock().unwrap().push(target);
    let _ = stream.write_all(b"HTTP/1.1 200 Connection established\r\n\r\n").await;
    let _ = tokio::io::copy_bidirectional(&mut stream, &mut behind).await;
}

#[tokio::test]
async fn a_proxy_carries_amqp_tokens_and_administration() {
    let (fixture, proxy) = (EntraFixture::start().await, ConnectProxy::start().await);
    let config =
        Config { transport: Transport::WebSocket, proxies: proxy.settings("hush", "127.0.0.1"), ..fixture.config() };
    let tokens = fixture.secret_tokens(config.clone());
    let client = Client::for_endpoint(fixture.endpoint(Arc::clone(&tokens)), config.clone()).unwrap();
    client.sender(PLAIN).send_message(&Message::new("x")).await.unwrap();
    let issuer = fixture.issuer().authority()["https://".len()..].to_owned();
    let broker = fixture.endpoint(Arc::clone(&tokens)).authority();
    assert_eq!(proxy.targets(), [broker.clone(), issuer.clone()]);
    let administration = AdministrationClient::for_endpoint(fixture.endpoint(tokens), &config).unwrap();
    assert!(administration.get(PLAIN).await.unwrap_err().is_unauthorized(), "it arrives, without Manage");
    assert_eq!(proxy.targets(), [broker.clone(), issuer, broker]);
}

#[tokio::test]
async fn a_refusal_of_the_proxy_is_named_without_its_password() {
    let (fixture, proxy) = (EntraFixture::start().await, ConnectProxy::start().await);
    let proxies = proxy.settings("wrong-password", "");
    let config = Config { transport: Transport::WebSocket, proxies, ..fixture.config() };
    let client = Client::for_endpoint(fixture.endpoint(fixture.secret_tokens(config.clone())), config).unwrap();
    let error = crate::entra::chain(&client.connect().await.unwrap_err());
    assert!(error.contains("status 407") && error.contains("HTTPS_PROXY"), "{error}");
    assert!(!error.contains("wrong-password"), "{error}");
}

#[tokio::test]
async fn amqp_on_its_own_port_and_no_proxy_hosts_go_directly() {
    let (fixture, proxy) = (EntraFixture::start().await, ConnectProxy::start().await);
    for (transport, bypass) in [(Transport::Amqp, ""), (Transport::WebSocket, "localhost")] {
        let direct = fixture.secret_tokens(fixture.config());
        let config = Config { transport, proxies: proxy.settings("hush", bypass), ..fixture.config() };
        let client = Client::for_endpoint(fixture.endpoint(direct), config).unwrap();
        client.sender(PLAIN).send_message(&Message::new("x")).await.unwrap();
    }
    assert_eq!(proxy.targets(), Vec::<String>::new());
}

/// A proxy would see keys and tokens on a connection without TLS.
#[tokio::test]
async fn without_tls_no_proxy_sees_a_token() {
    let (broker, proxy) = (start_broker(None).await, ConnectProxy::start().await);
    let proxies = proxy.settings("hush", "");
    let config = Config { transport: Transport::WebSocket, proxies: proxies.clone(), ..long_timeouts() };
    let client = Client::new(&emulator(broker.address()), config.clone()).unwrap();
    client.sender(PLAIN).send_message(&Message::new("x")).await.unwrap();
    let administration = AdministrationClient::new(&emulator(broker.address()), &config).unwrap();
    administration.get(PLAIN).await.unwrap();
    assert_eq!(proxy.targets(), Vec::<String>::new());
    broker.stop().await;
}
