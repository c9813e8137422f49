//! A minimal AMQP client for measurements and soaks: the protocol engine on a socket, without other overhead.

use std::io;
use std::time::{Duration, Instant};

use amqp::codec::RawValue;
use amqp::message::{MessageWriter, Properties, annotation};
use amqp::performative::{ReceiverSettleMode, SenderSettleMode};
use amqp::{
    Attach, ClientSasl, Config, Connection, ConnectionEvent, LinkId, Map, OutgoingDelivery, Source, Symbol, Target,
    Value,
};
use bytes::{Bytes, BytesMut};
use local_cluster::{BrokerEndpoint, BrokerStream};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

/// A broker that does not respond for this long has failed the measurement.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(30);

pub struct RawAmqpClient {
    stream: Box<dyn BrokerStream>,
    pub amqp: Connection,
    session: amqp::SessionId,
    input: BytesMut,
}

impl RawAmqpClient {
    /// With the token, if the broker requires one.
    pub async fn connect(broker: &BrokerEndpoint) -> io::Result<Self> {
        let stream = broker.connect().await?;
        let config = Config { container_id: "bench".into(), hostname: Some("127.0.0.1".into()), ..Config::default() };
        let mut amqp = Connection::pipelined_client(config, ClientSasl::Anonymous, Instant::now());
        let session = amqp.begin_session().map_err(io::Error::other)?;
        let mut client = Self { stream, amqp, session, input: BytesMut::new() };
        if let Some(access) = &broker.access {
            client.put_token(&access.token).await?;
        }
        Ok(client)
    }

    /// Puts a token for the whole namespace.
    async fn put_token(&mut self, token: &str) -> io::Result<()> {
        const NODE: &str = "$cbs";
        let mut responses = Attach::receiver("replies", Source::at(NODE), Target::at("replies"));
        responses.snd_settle_mode = SenderSettleMode::Settled;
        let responses = self.amqp.attach(self.session, responses).map_err(io::Error::other)?;
        self.amqp.set_credit(responses, 1).map_err(io::Error::other)?;
        let requests = self.sender(NODE);
        self.until(|event| matches!(event, ConnectionEvent::Attached { link, .. } if *link == requests)).await?;
        while self.amqp.credit(requests) == 0 {
            self.exchange().await?;
        }
        let outgoing = OutgoingDelivery { tag: b"token", ..OutgoingDelivery::default() };
        self.amqp.transfer(requests, outgoing, &[&token_request(token)]).map_err(io::Error::other)?;
        self.until(|event| matches!(event, ConnectionEvent::Delivery(delivery) if delivery.link == responses)).await
    }

    pub fn attach(&mut self, attach: Attach) -> LinkId {
        self.amqp.attach(self.session, attach).expect("an AMQP session takes a link")
    }

    pub fn sender(&mut self, address: &str) -> LinkId {
        let mut attach = Attach::sender(format!("send-{address}"), Source::at("bench"), Target::at(address));
        attach.snd_settle_mode = SenderSettleMode::Unsettled;
        self.amqp.attach(self.session, attach).expect("an AMQP session takes a link")
    }

    /// A peek-lock receiver. `Some(Some(id))` accepts that session, `Some(None)` the next available one.
    pub fn receiver(&mut self, name: String, address: &str, session: Option<Option<&str>>) -> LinkId {
        let mut source = Source::at(address);
        if let Some(id) = session {
            let wanted = id.map_or_else(|| RawValue::from_value(&Value::Null), RawValue::string);
            source = source.with_filter("com.microsoft:session-filter", wanted);
        }
        let mut attach = Attach::receiver(name, source, Target::at("bench"));
        attach.snd_settle_mode = SenderSettleMode::Unsettled;
        attach.rcv_settle_mode = ReceiverSettleMode::Second;
        attach.properties = Some(Map::new().with(Symbol::from_static("com.microsoft:timeout"), 20_000_u32));
        self.amqp.attach(self.session, attach).expect("an AMQP session takes a link")
    }

    /// Writes pending output.
    pub async fn flush(&mut self) -> io::Result<()> {
        let output = self.amqp.take_output();
        if output.is_empty() { Ok(()) } else { self.stream.write_all(&output).await }
    }

    /// Writes, reads once, and returns the events. Fails when the broker is gone or does not respond.
    pub async fn exchange(&mut self) -> io::Result<Vec<ConnectionEvent>> {
        self.flush().await?;
        let waiting = self.events();
        if !waiting.is_empty() {
            return Ok(waiting);
        }
        self.input.reserve(256 << 10);
        if timeout(RESPONSE_TIMEOUT, self.stream.read_buf(&mut self.input)).await?? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.amqp.feed(&mut self.input, Instant::now());
        Ok(self.events())
    }

    fn events(&mut self) -> Vec<ConnectionEvent> {
        std::iter::from_fn(|| self.amqp.poll_event()).collect()
    }

    /// Exchanges until an event satisfies `wanted`; the others are dropped.
    pub async fn until(&mut self, mut wanted: impl FnMut(&ConnectionEvent) -> bool) -> io::Result<()> {
        loop {
            if self.exchange().await?.iter().any(&mut wanted) {
                return Ok(());
            }
        }
    }
}

fn token_request(token: &str) -> Bytes {
    let mut buffer = BytesMut::new();
    let properties = Properties { message_id: Some("1".into()), reply_to: Some("replies"), ..Properties::default() };
    let request = [("operation", "put-token"), ("type", "servicebus.windows.net:sastoken"), ("name", "sb://localhost")];
    MessageWriter::new(&mut buffer)
        .properties(&properties)
        .application_properties(|map| {
            for (name, value) in request {
                map.put_string(name, value);
            }
        })
        .value(&Value::from(token.to_owned()));
    buffer.freeze()
}

/// A message with an id, a session and a body.
pub fn message(id: &str, session: Option<&str>, body: &[u8]) -> Bytes {
    let mut buffer = BytesMut::with_capacity(body.len() + 128);
    let mut writer = MessageWriter::new(&mut buffer);
    if let Some(session) = session {
        writer.message_annotations(|map| {
            map.put_string(annotation::PARTITION_KEY, session);
        });
    }
    writer.properties(&Properties { message_id: Some(id.into()), group_id: session, ..Properties::default() });
    writer.data(body);
    buffer.freeze()
}
