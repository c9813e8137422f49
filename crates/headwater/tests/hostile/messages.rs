//! Messages that anyone with the right to send may put on the topic.

use bytes::Bytes;
use mongodb::bson::{Bson, RawDocumentBuf, Regex, doc};
use pipeline::envelope::{content_type, property};
use servicebus::{Config, EncodedMessage, Message, Value};
use testkit::wait::wait_for;

use crate::processes::{SOON, assert_events_are_still_applied, describe_cursor, find_cursor, pod_memory, start_pod};
use crate::table::HostileTable;

const READ_MODELS: &str = "consumer: { gap_timeout: 500ms }
read_models: { orders: { when: { Added: { $push: { lines: $$event.payload.line } } } } }\n";

/// A message whose parts a row changes.
struct ForgedMessage {
    id: String,
    session: String,
    aggregate: Bson,
    content_type: &'static str,
    subject: Option<&'static str>,
    properties: Vec<(&'static str, Value)>,
    body: Vec<u8>,
}

fn typed(value: impl Into<Bson>) -> Value {
    let document = RawDocumentBuf::try_from(&doc! { "v": value.into() }).unwrap();
    Value::Binary(Bytes::from(document.into_bytes()))
}

impl ForgedMessage {
    fn new(number: usize, source: &str) -> Self {
        let aggregate = format!("forged-{number}");
        let body = doc! { "_id": aggregate.as_str(), "aggregateId": aggregate.as_str(), "version": 1_i64, "type": "Added", "payload": { "line": 1 } };
        Self {
            id: format!("forged-{number}"),
            session: aggregate.clone(),
            aggregate: aggregate.as_str().into(),
            content_type: content_type::BSON,
            subject: Some("Added"),
            properties: vec![
                (property::FORMAT, Value::Int(1)),
                (property::OPERATION, Value::from("insert")),
                (property::NAMESPACE, Value::from(format!("{source}.events").as_str())),
                (property::AGGREGATE, typed(aggregate)),
                (property::TOKEN, Value::from("820000000000")),
                (property::EPOCH, Value::Long(1)),
                (property::SEQUENCE, Value::Long(1)),
                (property::TERM, Value::Long(1)),
            ],
            body: RawDocumentBuf::try_from(&body).unwrap().into_bytes(),
        }
    }

    fn set(&mut self, name: &'static str, value: Value) {
        self.properties.retain(|(known, _)| *known != name);
        self.properties.push((name, value));
    }

    fn encode(&self) -> EncodedMessage {
        let properties = self.properties.iter().map(|(name, value)| ((*name).to_owned(), value.clone()));
        let message = Message {
            message_id: Some(self.id.clone()),
            session_id: Some(self.session.clone()),
            content_type: Some(self.content_type.to_owned()),
            subject: self.subject.map(str::to_owned),
            application_properties: properties.collect(),
            body: Bytes::from(self.body.clone()),
            ..Message::default()
        };
        message.encode()
    }
}

type Change = Box<dyn Fn(&mut ForgedMessage)>;

fn changes() -> Vec<(String, Change)> {
    let mut changes: Vec<(String, Change)> = vec![];
    let names = [
        property::FORMAT,
        property::OPERATION,
        property::NAMESPACE,
        property::AGGREGATE,
        property::TOKEN,
        property::EPOCH,
        property::SEQUENCE,
        property::TERM,
    ];
    for name in names {
        changes
            .push((format!("without {name}"), Box::new(move |it| it.properties.retain(|(known, _)| *known != name))));
        changes.push((format!("{name} is a boolean"), Box::new(move |it| it.set(name, Value::Boolean(true)))));
        changes.push((format!("{name} is null"), Box::new(move |it| it.set(name, Value::Null))));
        changes.push((
            format!("{name} is 20 KB of text"),
            Box::new(move |it| it.set(name, Value::from("x".repeat(20_000).as_str()))),
        ));
    }
    for (name, value) in [("-1", -1), ("the lowest long", i64::MIN), ("the highest long", i64::MAX)] {
        for property in [property::EPOCH, property::SEQUENCE, property::TERM] {
            changes.push((format!("{property} is {name}"), Box::new(move |it| it.set(property, Value::Long(value)))));
        }
    }
    changes.extend(aggregates());
    changes.extend(bodies());
    changes
}

fn aggregates() -> Vec<(String, Change)> {
    let deep = |levels: usize| (0..levels).fold(Bson::from(1), |inner, _| doc! { "a": inner }.into());
    let mut changes: Vec<(String, Change)> = vec![];
    let values = [
        ("a document with operators", Bson::from(doc! { "$gt": "" })),
        (
            "a regular expression",
            Bson::RegularExpression(Regex { pattern: ".*".try_into().unwrap(), options: "".try_into().unwrap() }),
        ),
        ("null", Bson::Null),
        ("the lowest key", Bson::MinKey),
        ("an array", vec![1, 2].into()),
        ("20 KB of text", "x".repeat(20_000).into()),
        ("80 levels deep", deep(80)),
        ("NaN", f64::NAN.into()),
        ("text with a zero byte", "a\0b".into()),
    ];
    for (name, value) in values {
        changes.push((
            format!("the aggregate is {name}"),
            Box::new(move |it| {
                it.aggregate = value.clone();
                it.set(property::AGGREGATE, typed(value.clone()));
            }),
        ));
    }
    for (name, bytes) in [
        ("empty", vec![]),
        ("4 bytes", vec![5, 0, 0, 0]),
        ("a false length", vec![0xff, 0xff, 0xff, 0x7f, 0]),
        ("2,000 levels of nothing", [vec![0, 0x38, 0, 0], [3, b'v', 0].repeat(2_000)].concat()),
    ] {
        let value = Value::Binary(Bytes::from(bytes));
        changes.push((
            format!("the bytes of the aggregate are {name}"),
            Box::new(move |it| it.set(property::AGGREGATE, value.clone())),
        ));
    }
    changes
}

fn bodies() -> Vec<(String, Change)> {
    let mut changes: Vec<(String, Change)> = vec![
        ("content type of a picture".into(), Box::new(|it| it.content_type = "image/png")),
        ("no subject".into(), Box::new(|it| it.subject = None)),
        ("a marker that nobody wrote".into(), Box::new(|it| it.set(property::MARKER, Value::from("nothing")))),
        (
            "an oversize body that nobody stored".into(),
            Box::new(|it| it.set(property::OVERSIZE, Value::from("nothing"))),
        ),
        ("a namespace of dots".into(), Box::new(|it| it.set(property::NAMESPACE, Value::from("...")))),
        (
            "a namespace of another database".into(),
            Box::new(|it| it.set(property::NAMESPACE, Value::from("admin.system.users"))),
        ),
        ("an unknown operation".into(), Box::new(|it| it.set(property::OPERATION, Value::from("drop")))),
        ("a key that is an operator".into(), Box::new(|it| it.set(property::KEY, typed(doc! { "$exists": true })))),
        ("a trace that is noise".into(), Box::new(|it| it.set(property::TRACEPARENT, Value::from("00-zz-zz-zz")))),
    ];
    for (name, body) in [
        ("empty", vec![]),
        ("noise", vec![0xa5; 5_000]),
        ("cut", vec![40, 0, 0, 0, 2]),
        ("of a false length", [vec![0xff, 0xff, 0, 0], vec![0; 500]].concat()),
    ] {
        changes.push((format!("the body is {name}"), Box::new(move |it| it.body = body.clone())));
    }
    for (name, body) in [
        ("60,000 brackets", "[".repeat(60_000)),
        ("a number", "1".to_owned()),
        ("a false date", "{\"a\":{\"$date\":\"x\"}}".to_owned()),
        ("100 levels", format!("{}1{}", "{\"a\":".repeat(100), "}".repeat(100))),
    ] {
        changes.push((
            format!("the JSON body is {name}"),
            Box::new(move |it| {
                it.content_type = content_type::JSON;
                it.body = body.clone().into_bytes();
            }),
        ));
    }
    changes
}

#[tokio::test]
async fn forged_messages_do_not_harm_a_pod() {
    let cluster = start_pod(READ_MODELS).await;
    let client = cluster.broker().client(Config::default());
    let sender = client.sender(cluster.broker().topic());
    let mut sent = vec![];
    for (number, (name, change)) in changes().into_iter().enumerate() {
        let mut message = ForgedMessage::new(number, cluster.mongo().source());
        change(&mut message);
        sender.send(&message.encode()).await.unwrap();
        sent.push((name, message));
    }
    assert_events_are_still_applied(&cluster).await;
    wait_for("the forged messages to be settled", SOON, async || match cluster.broker().active_messages().await {
        Ok(0) => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .await;
    let mut table = HostileTable::new("messages");
    let mut dead_lettered = 0;
    for (name, message) in sent {
        let result = match find_cursor(&cluster, &message.aggregate).await {
            Some(cursor) => describe_cursor(&cursor, "orders", None),
            None => "dead-lettered".to_owned(),
        };
        // A body that cannot be read is kept in both places; one that is missing has nothing to keep.
        let is_oversize = message.properties.iter().any(|(name, _)| *name == property::OVERSIZE);
        dead_lettered += u64::from(result == "dead-lettered" || (result == "parked: no_body" && !is_oversize));
        table.record(&name, Ok(result));
    }
    let subscription = cluster.broker().subscription();
    let found = cluster.broker().dead_letter_messages(&subscription).await.unwrap();
    table.finish(&pod_memory(&cluster));
    assert_eq!(found, dead_lettered, "a message without a cursor is in the dead-letter queue");
    let _ = client.close().await;
    assert!(cluster.stop().await.is_empty());
}
