//! What transactions and rules cost: the same messages with and without them, on one broker.

use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use amqp::codec::encode;
use amqp::message::{FORMAT, MessageWriter, Properties};
use amqp::performative::{Coordinator, TransactionalState};
use amqp::{Attach, ConnectionEvent, DeliveryState, Described, LinkId, OutgoingDelivery, Source, Target, Value};
use bytes::{Bytes, BytesMut};
use local_cluster::usage::cpu_time;
use local_cluster::{BrokerEndpoint, BrokerProcess};
use serde_json::{Value as Json, json};

use crate::amqp_client::RawAmqpClient;
use crate::broker_load::{messages, send};
use crate::processes::{headwater_binary, start_broker_with};

const BODY: usize = 1024;
const RULES: u64 = 1_000;
/// Clients that each have one transaction open at a time.
const CLIENTS: u64 = 8;
/// Messages of a transaction.
const GROUP: usize = 10;

/// The loads, in the order in which they are measured.
pub const LOADS: [&str; 8] = [
    "no rules",
    "1,000 correlation filters",
    "1,000 SQL filters, looked up",
    "1,000 SQL filters, evaluated",
    "10 sends",
    "10 sends in a transaction",
    "10 sends rolled back",
    "durable send alone",
];

/// Messages per second, and microseconds of the broker's CPU for each.
#[derive(Debug, Clone, Copy)]
pub struct FeatureFigure {
    pub rate: f64,
    pub cpu_us: f64,
}

/// Measures every load once on a new broker with a data folder.
pub async fn measure(folder: &Path, count: u64) -> io::Result<Vec<FeatureFigure>> {
    let entities = folder.join("entities.json");
    std::fs::write(&entities, entities_file().to_string())?;
    let mut broker = start_broker_with(&headwater_binary(), &folder.join("data"), Some(entities)).await;
    let mut figures = Vec::with_capacity(LOADS.len());
    for topic in ["none", "correlation", "sql", "evaluated"] {
        let payloads: Vec<Bytes> = (0..count).map(labelled).collect();
        let load = send(broker.endpoint(), topic, payloads.into_iter(), FORMAT);
        figures.push(measure_load(&broker, count, load).await?);
    }
    let groups = (count / GROUP as u64 / CLIENTS).max(1);
    let sent = groups * GROUP as u64 * CLIENTS;
    for discharge in [None, Some(false), Some(true)] {
        let load = send_groups(broker.endpoint(), groups, GROUP, discharge);
        figures.push(measure_load(&broker, sent, load).await?);
    }
    let load = send_groups(broker.endpoint(), groups, 1, None);
    figures.push(measure_load(&broker, groups * CLIENTS, load).await?);
    broker.kill().await;
    Ok(figures)
}

/// A topic for each kind of rule, with one subscription, and a queue.
fn entities_file() -> Json {
    let rule = |number: u64, filter: Json| json!({"Name": format!("r{number}"), "Properties": filter});
    let sql = |text: String| json!({"FilterType": "Sql", "SqlFilter": {"SqlExpression": text}});
    let topic = |name: &str, filter: Option<&dyn Fn(u64) -> Json>| {
        let rules = filter.map(|filter| (0..RULES).map(|number| rule(number, filter(number))).collect::<Vec<_>>());
        let properties = json!({"MaxSizeInMegabytes": 5120});
        let subscription = json!({"Name": "s", "Properties": {}, "Rules": rules.unwrap_or_default()});
        json!({"Name": name, "Properties": properties, "Subscriptions": [subscription]})
    };
    let correlation =
        |number: u64| json!({"FilterType": "Correlation", "CorrelationFilter": {"Label": format!("label-{number}")}});
    let looked_up = |number: u64| sql(format!("number = {number} AND color = 'red'"));
    let evaluated = |number: u64| sql(format!("number + 0 = {number}"));
    let topics = [
        topic("none", None),
        topic("correlation", Some(&correlation)),
        topic("sql", Some(&looked_up)),
        topic("evaluated", Some(&evaluated)),
    ];
    let queues = [json!({"Name": "q", "Properties": {"MaxSizeInMegabytes": 5120}})];
    json!({"UserConfig": {"Namespaces": [{"Name": "bench", "Queues": queues, "Topics": topics}]}})
}

/// A message that exactly one rule of each topic selects.
fn labelled(number: u64) -> Bytes {
    let mut buffer = BytesMut::with_capacity(BODY + 256);
    let (id, label) = (format!("{number:032}"), format!("label-{}", number % RULES));
    MessageWriter::new(&mut buffer)
        .properties(&Properties {
            message_id: Some(id.as_str().into()),
            subject: Some(&label),
            ..Properties::default()
        })
        .application_properties(|map| {
            encode::string(map.string("color"), "red");
            encode::long(map.string("number"), (number % RULES).cast_signed());
        })
        .data(&[b'x'; BODY]);
    buffer.freeze()
}

async fn measure_load(
    broker: &BrokerProcess,
    count: u64,
    load: impl Future<Output = io::Result<()>>,
) -> io::Result<FeatureFigure> {
    let (began, before) = (Instant::now(), cpu_time(broker.pid()));
    load.await?;
    let micros = |time: Duration| time.as_secs_f64() * 1e6;
    let cpu = cpu_time(broker.pid()).saturating_sub(before);
    Ok(FeatureFigure { rate: count as f64 / began.elapsed().as_secs_f64(), cpu_us: micros(cpu) / count as f64 })
}

/// Sends groups of messages, and waits for each group. `discharge`: each group is a transaction, which fails if true.
async fn send_groups(broker: &BrokerEndpoint, groups: u64, group: usize, discharge: Option<bool>) -> io::Result<()> {
    let clients = (0..CLIENTS).map(|_| {
        let broker = broker.clone();
        tokio::spawn(async move {
            let mut client = GroupSender::connect(&broker).await?;
            for _ in 0..groups {
                client.send(group, discharge).await?;
            }
            Ok::<_, io::Error>(())
        })
    });
    for client in clients.collect::<Vec<_>>() {
        client.await??;
    }
    Ok(())
}

/// A client with a sender and a coordinator link.
struct GroupSender {
    client: RawAmqpClient,
    sender: LinkId,
    coordinator: LinkId,
    payload: Bytes,
    sent: u32,
}

impl GroupSender {
    async fn connect(broker: &BrokerEndpoint) -> io::Result<Self> {
        let mut client = RawAmqpClient::connect(broker).await?;
        let sender = client.sender("q");
        let target = Target::from(Coordinator::default());
        let coordinator = client.attach(Attach::sender("coordinator", Source::at("bench"), target));
        while client.amqp.credit(sender) == 0 || client.amqp.credit(coordinator) == 0 {
            client.exchange().await?;
        }
        let payload = messages(0..1, 1, BODY).next().expect("one message");
        Ok(Self { client, sender, coordinator, payload, sent: 0 })
    }

    async fn send(&mut self, group: usize, discharge: Option<bool>) -> io::Result<()> {
        let transaction = match discharge {
            None => None,
            Some(_) => Some(self.declare().await?),
        };
        let state = transaction.clone().map(|transaction| {
            DeliveryState::Transactional(Box::new(TransactionalState { transaction, outcome: None }))
        });
        let payload = self.payload.clone();
        for _ in 0..group {
            self.transfer(self.sender, state.as_ref(), &payload)?;
        }
        self.outcomes(self.sender, group).await?;
        if let (Some(transaction), Some(fail)) = (transaction, discharge) {
            let fields = vec![Value::Binary(transaction), Value::Boolean(fail)];
            self.transfer(self.coordinator, None, &described(0x32, fields))?;
            self.outcomes(self.coordinator, 1).await?;
        }
        Ok(())
    }

    async fn declare(&mut self) -> io::Result<Bytes> {
        self.transfer(self.coordinator, None, &described(0x31, vec![Value::Null]))?;
        match self.outcomes(self.coordinator, 1).await? {
            Some(DeliveryState::Declared { transaction }) => Ok(transaction),
            other => Err(io::Error::other(format!("not declared: {other:?}"))),
        }
    }

    fn transfer(&mut self, link: LinkId, state: Option<&DeliveryState>, payload: &[u8]) -> io::Result<()> {
        self.sent += 1;
        let tag = self.sent.to_be_bytes();
        let outgoing = OutgoingDelivery { tag: &tag, message_format: FORMAT, state, ..OutgoingDelivery::default() };
        self.client.amqp.transfer(link, outgoing, &[payload]).map(drop).map_err(io::Error::other)
    }

    /// Waits for the outcomes of `count` deliveries; returns the last one.
    async fn outcomes(&mut self, link: LinkId, mut count: usize) -> io::Result<Option<DeliveryState>> {
        let mut last = None;
        while count > 0 {
            for event in self.client.exchange().await? {
                match event {
                    ConnectionEvent::Disposition(found) if found.link == link => {
                        if matches!(found.state, Some(DeliveryState::Rejected(_))) {
                            return Err(io::Error::other(format!("refused: {found:?}")));
                        }
                        count = count.saturating_sub(found.deliveries.len());
                        last = found.state;
                    }
                    ConnectionEvent::Detached { .. } | ConnectionEvent::Closed { .. } => {
                        return Err(io::Error::other(format!("ended: {event:?}")));
                    }
                    _ => {}
                }
            }
        }
        Ok(last)
    }
}

fn described(descriptor: u64, fields: Vec<Value>) -> Bytes {
    let mut buffer = BytesMut::new();
    let value = Described { descriptor: Value::Ulong(descriptor), value: Value::List(fields) };
    MessageWriter::new(&mut buffer).value(&Value::Described(Box::new(value)));
    buffer.freeze()
}
