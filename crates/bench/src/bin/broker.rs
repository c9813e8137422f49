//! How fast the durable broker is, beside raw TCP on the same machine in the same run.
//!
//! `cargo xtask bench broker [-- MESSAGES]`. A real process, release, loopback, 1 KiB bodies. Raw: the same bytes in 64 KiB
//! writes over a bare connection. Single: messages sent one a transfer, as many under way as the broker gives credit for, every one awaited.
//! Batch: the same in Service Bus's batch format. Receive: one session, all its messages, settled in ranges and the answers awaited. Accepts: a session of
//! one message accepted, received, completed and let go, by eight workers.

use std::io;
use std::time::{Duration, Instant};

use amqp::message::BatchBuilder;
use amqp::{DeliveryState, Event, Outgoing};
use bench::broker_process::BrokerProcess;
use bench::peer::{Peer, message};
use bytes::Bytes;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

const BODY: usize = 1024;
const WORKERS: usize = 8;
const BATCH_BYTES: usize = 200 << 10;
const QUEUE: &str = "<MaxSizeInMegabytes>81920</MaxSizeInMegabytes>";
const SESSIONS: &str = "<RequiresSession>true</RequiresSession><MaxSizeInMegabytes>81920</MaxSizeInMegabytes>";

#[tokio::main]
async fn main() -> io::Result<()> {
    let count: usize = std::env::args().nth(1).map_or(200_000, |given| given.parse().expect("a number of messages"));
    let folder = tempfile::tempdir()?;
    let broker = BrokerProcess::start(folder.path(), None).await;
    let (ready_ms, rss_mb) = (broker.ready_after.as_secs_f64() * 1000.0, broker.rss_mb());
    broker.create_queue("single", QUEUE).await;
    broker.create_queue("batch", SESSIONS).await;
    broker.create_queue("short", SESSIONS).await;

    let body = vec![b'x'; BODY];
    let messages: Vec<Bytes> = (0..count).map(|n| message(&format!("{n:032}"), Some("one"), &body)).collect();
    let raw = raw(messages.iter().map(Bytes::len).sum(), count).await?;
    let single = send_single(&broker, &messages).await?;
    let batch = send_batches(&broker, &messages).await?;
    let receive = receive(&broker, count).await?;
    let accepts = accepts(&broker, count / 10, &body).await?;
    println!("raw {raw:.0}/s, single {single:.0}/s, batch {batch:.0}/s, receive {receive:.0}/s");
    println!(
        r#"{{"bench":"broker","send_single_ratio":{:.3},"send_batch_ratio":{:.3},"receive_ratio":{:.3},"accepts_per_s":{accepts:.0},"ready_ms":{ready_ms:.0},"rss_mb":{rss_mb:.1}}}"#,
        single / raw,
        batch / raw,
        receive / raw
    );
    Ok(())
}

/// Messages a second that the same bytes would make over a bare connection.
async fn raw(bytes: usize, count: usize) -> io::Result<f64> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let reader = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await?;
        let mut buffer = vec![0; 64 << 10];
        let mut read = 0;
        while read < bytes {
            read += stream.read(&mut buffer).await?;
        }
        stream.write_all(b"!").await
    });
    let mut stream = TcpStream::connect(address).await?;
    let chunk = vec![7; 64 << 10];
    let began = Instant::now();
    let mut left = bytes;
    while left > 0 {
        let now = left.min(chunk.len());
        stream.write_all(&chunk[..now]).await?;
        left -= now;
    }
    stream.read_exact(&mut [0]).await?;
    reader.await??;
    Ok(rate(count, began.elapsed()))
}

async fn send_single(broker: &BrokerProcess, messages: &[Bytes]) -> io::Result<f64> {
    let began = Instant::now();
    send(broker, "single", messages, amqp::message::FORMAT).await?;
    Ok(rate(messages.len(), began.elapsed()))
}

async fn send_batches(broker: &BrokerProcess, messages: &[Bytes]) -> io::Result<f64> {
    let began = Instant::now();
    let mut batches = Vec::new();
    let mut batch = BatchBuilder::new(BATCH_BYTES);
    for message in messages {
        if batch.add(message).is_err() {
            batches.push(std::mem::replace(&mut batch, BatchBuilder::new(BATCH_BYTES)).finish());
            batch.add(message).expect("a message fits an empty batch");
        }
    }
    batches.push(batch.finish());
    send(broker, "batch", &batches, BatchBuilder::FORMAT).await?;
    Ok(rate(messages.len(), began.elapsed()))
}

/// Sends as fast as credit allows and waits until every transfer is accepted.
async fn send(broker: &BrokerProcess, queue: &str, payloads: &[Bytes], message_format: u32) -> io::Result<()> {
    let mut peer = Peer::connect(broker.address()).await?;
    let link = peer.sender(queue);
    let (mut sent, mut accepted) = (0, 0);
    while accepted < payloads.len() {
        while sent < payloads.len() && peer.amqp.credit(link) > 0 && peer.amqp.output_len() < 256 << 10 {
            let tag = (sent as u32).to_be_bytes();
            let outgoing = Outgoing { tag: &tag, message_format, ..Outgoing::default() };
            peer.amqp.transfer(link, outgoing, &[&payloads[sent]]).map_err(io::Error::other)?;
            sent += 1;
        }
        for event in peer.exchange().await? {
            match event {
                Event::Disposition(disposition) if disposition.state == Some(DeliveryState::Accepted) => {
                    accepted += disposition.deliveries.len();
                }
                Event::Disposition(_) | Event::Detached { .. } | Event::Closed { .. } => {
                    return Err(io::Error::other(format!("refused: {event:?}")));
                }
                _ => {}
            }
        }
    }
    Ok(())
}

async fn receive(broker: &BrokerProcess, count: usize) -> io::Result<f64> {
    let mut peer = Peer::connect(broker.address()).await?;
    let link = peer.receiver("receive".into(), "batch", Some(Some("one")));
    peer.until(|event| matches!(event, Event::Attached { .. })).await?;
    let began = Instant::now();
    peer.amqp.keep_credit(link, 2_000).map_err(io::Error::other)?;
    let mut settled = 0;
    while settled < count {
        let mut range: Option<(u32, u32)> = None;
        for event in peer.exchange().await? {
            match event {
                Event::Delivery(delivery) => {
                    range = Some(range.map_or((delivery.id, delivery.id), |(first, _)| (first, delivery.id)));
                }
                Event::Disposition(disposition) if disposition.settled => settled += disposition.deliveries.len(),
                Event::Detached { .. } | Event::Closed { .. } => {
                    return Err(io::Error::other(format!("ended: {event:?}")));
                }
                _ => {}
            }
        }
        if let Some((first, last)) = range {
            peer.amqp.dispose(link, first, last, false, Some(DeliveryState::Accepted)).map_err(io::Error::other)?;
        }
    }
    Ok(rate(count, began.elapsed()))
}

/// Sessions of one message: accept, receive, complete, let go.
async fn accepts(broker: &BrokerProcess, sessions: usize, body: &[u8]) -> io::Result<f64> {
    let messages: Vec<_> =
        (0..sessions).map(|n| message(&format!("a{n}"), Some(&format!("session-{n}")), body)).collect();
    send(broker, "short", &messages, amqp::message::FORMAT).await?;
    let began = Instant::now();
    let share = sessions / WORKERS;
    let workers: Vec<_> =
        (0..WORKERS).map(|worker| tokio::spawn(accept_some(broker.address(), worker, share))).collect();
    for worker in workers {
        worker.await??;
    }
    Ok(rate(share * WORKERS, began.elapsed()))
}

async fn accept_some(address: std::net::SocketAddr, worker: usize, count: usize) -> io::Result<()> {
    let mut peer = Peer::connect(address).await?;
    for n in 0..count {
        let link = peer.receiver(format!("accept-{worker}-{n}"), "short", Some(None));
        peer.amqp.set_credit(link, 1).map_err(io::Error::other)?;
        let mut gone = false;
        while !gone {
            for event in peer.exchange().await? {
                match event {
                    Event::Delivery(delivery) => peer
                        .amqp
                        .dispose(link, delivery.id, delivery.id, false, Some(DeliveryState::Accepted))
                        .map_err(io::Error::other)?,
                    Event::Disposition(_) => peer.amqp.detach(link, None).map_err(io::Error::other)?,
                    Event::Detached { error: Some(error), .. } => return Err(io::Error::other(error)),
                    Event::Detached { .. } => gone = true,
                    _ => {}
                }
            }
        }
    }
    Ok(())
}

fn rate(count: usize, took: Duration) -> f64 {
    count as f64 / took.as_secs_f64()
}
