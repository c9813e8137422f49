//! What is loaded, from where, and every mistake with its exact words.

use super::*;

const MINIMAL: &str = "\
format: 1
source: { uri: \"mongodb://localhost\", database: shop, collection: events }
service_bus: { connection_string: \"Endpoint=sb://localhost;UseDevelopmentEmulator=true\" }
";

fn load_from(file: &str, environment: &[(&str, &str)], flags: &[&str]) -> Result<Config, String> {
    let environment: Vec<_> =
        environment.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    let flags: Vec<_> = flags.iter().map(|flag| (*flag).to_owned()).collect();
    let read_file = |file: &str| match file {
        "/token" => Ok("0123456789abcdef\n".to_owned()),
        "/secret" => Ok("mongodb://user:pass@host\n".to_owned()),
        _ => Err(std::io::Error::from(std::io::ErrorKind::NotFound)),
    };
    let sources =
        Sources { file: Some(file), file_name: None, environment: &environment, flags: &flags, read_file: &read_file };
    let told = |problems: Vec<Problem>| problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n");
    Config::load(&sources, Some("host-1")).map_err(told)
}

fn load(file: &str) -> Result<Config, String> {
    load_from(file, &[], &[])
}

#[test]
fn a_short_file_is_enough() {
    let config = load(MINIMAL).unwrap();
    assert_eq!(config.pipeline, "changeStreamPublisher");
    assert_eq!(config.pod_id, "host-1");
    assert_eq!(config.coordination.uri.reveal(), "mongodb://localhost");
    assert_eq!(config.coordination.lease, lease::Config::default());
    assert_eq!(config.source, Source::events("shop", "events"));
    assert_eq!(
        (config.service_bus.topic.as_str(), config.service_bus.subscription.as_str()),
        ("events", "read-models")
    );
}

#[test]
fn the_defaults_are_those_of_the_parts() {
    let config = load(MINIMAL).unwrap().producer;
    assert_eq!(config.capture, capture::Config::default());
    assert_eq!(config.publish, publish::Config::default());
    assert_eq!(config.start, capture::Start::default());
    assert_eq!(config.on_history_lost, OnHistoryLost::default());
}

#[test]
fn the_environment_overrides_the_file_and_flags_override_both() {
    let environment =
        [("HEADWATER__SERVICE_BUS__TOPIC", "from-env"), ("HEADWATER__PIPELINE", "from-env"), ("PATH", "/bin")];
    let config = load_from(MINIMAL, &environment, &["pipeline=from-flag", "coordination.lease.watch=false"]).unwrap();
    assert_eq!((config.service_bus.topic.as_str(), config.pipeline.as_str()), ("from-env", "from-flag"));
    assert!(!config.coordination.lease.watch);
    // A connection string full of signs is a text all the same.
    let key = "Endpoint=sb://a.example/;SharedAccessKeyName=n;SharedAccessKey=a+b/c=: d";
    let config = load_from(MINIMAL, &[("HEADWATER__SERVICE_BUS__CONNECTION_STRING", key)], &[]).unwrap();
    assert_eq!(config.service_bus.connection_string.reveal(), key);
}

#[test]
fn a_secret_can_be_a_file_and_is_never_shown() {
    let file = MINIMAL.replace("uri: \"mongodb://localhost\"", "uri_file: /secret");
    let config = load(&file).unwrap();
    assert_eq!(config.source_uri.reveal(), "mongodb://user:pass@host");
    assert!(!format!("{config:?}").contains("pass"));
    let read_file = |_: &str| Ok("mongodb://user:pass@host".to_owned());
    let settings = Sources { file: Some(&file), file_name: None, environment: &[], flags: &[], read_file: &read_file }
        .load()
        .unwrap();
    let shown = reference::effective(&settings);
    assert!(shown.contains("uri: \"***\"") && !shown.contains("pass"), "{shown}");
    // What is printed can be loaded again, once the secrets are back.
    load(&shown).unwrap();
}

#[test]
fn a_token_lets_people_act_and_is_never_shown() {
    assert!(load(MINIMAL).unwrap().admin.token.is_none());
    let token = |config: Config| config.admin.token.map(|token| token.reveal().to_owned());
    let file = format!("{MINIMAL}admin: {{ token: a-token-of-some-length }}\n");
    let config = load(&file).unwrap();
    assert!(!format!("{config:?}").contains("of-some-length"));
    assert_eq!(token(config).as_deref(), Some("a-token-of-some-length"));
    // A variable's digits are no number, and its signs no YAML.
    for given in ["12345678901234567", "{a: 1}#&*!'\"0123456"] {
        let given = given.replace(' ', "");
        let config = load_from(MINIMAL, &[("HEADWATER__ADMIN__TOKEN", &given)], &[]).unwrap();
        assert_eq!(token(config), Some(given));
    }
    // From a file, as other secrets.
    let config = load(&format!("{MINIMAL}admin: {{ token_file: /token }}\n")).unwrap();
    assert_eq!(token(config).as_deref(), Some("0123456789abcdef"));
    let sources =
        Sources { file: Some(&file), file_name: None, environment: &[], flags: &[], read_file: &|_| unreachable!() };
    let shown = reference::effective(&sources.load().unwrap());
    assert!(shown.contains("token: \"***\"") && !shown.contains("of-some-length"), "{shown}");
}

#[test]
fn the_collector_may_be_named_as_everywhere_and_the_file_goes_first() {
    let endpoint = |more: &str, variable: &str| {
        let config = load_from(&format!("{MINIMAL}{more}"), &[("OTEL_EXPORTER_OTLP_ENDPOINT", variable)], &[]);
        config.map(|config| config.telemetry.otlp_endpoint)
    };
    let named = |name: &str| Ok(Some(name.to_owned()));
    assert_eq!(load(MINIMAL).unwrap().telemetry.otlp_endpoint, None);
    assert_eq!(endpoint("", ""), Ok(None));
    assert_eq!(endpoint("", "https://collector:4318/"), named("https://collector:4318"));
    let file = "telemetry: { otlp_endpoint: \"http://127.0.0.1:4318\" }\n";
    assert_eq!(endpoint(file, "https://collector:4318"), named("http://127.0.0.1:4318"));
    // A password in it is not repeated.
    let said = endpoint("", "http://me:secret@collector").unwrap_err();
    assert!(said.contains("OTEL_EXPORTER_OTLP_ENDPOINT") && !said.contains("secret"), "{said}");
}

#[test]
fn every_value_can_be_set() {
    let file = format!(
        "{MINIMAL}{}",
        "producer:\n  start: 2026-01-31T00:00:00Z\n  sessions: buckets(256)\n  checkpoint: each\n  body: json\n  on_history_lost: snapshot\n  \
         filter: [ { $match: { fullDocument.region: eu } } ]\n  window: { events: 100, bytes: 1MiB }\n  drain: 3s\n"
    );
    let producer = load(&file).unwrap().producer;
    assert!(matches!(producer.start, capture::Start::At(_)));
    assert_eq!(producer.publish.sessions, Sessions::Buckets(NonZeroU32::new(256).unwrap()));
    assert_eq!((producer.publish.checkpoint, producer.publish.body), (Checkpointing::Each, Body::Json));
    assert_eq!(producer.publish.window_bytes.get(), 1 << 20);
    assert_eq!(producer.capture.filter, [mongodb::bson::doc! { "$match": { "fullDocument.region": "eu" } }]);
    assert_eq!(producer.on_history_lost, OnHistoryLost::Snapshot);
}

#[test]
fn the_defaults_of_the_consumer_are_those_of_its_parts() {
    assert_eq!(load(MINIMAL).unwrap().consumer, consumer::Config::default());
    let config =
        load(&format!("{MINIMAL}consumer: {{ on_poison: dead_letter, transactions: 5, drain: 3s }}\n")).unwrap();
    assert_eq!(config.consumer.view.on_poison, OnPoison::DeadLetter);
    assert_eq!(
        (config.consumer.view.connections.get(), config.consumer.session.drain_within),
        (5, Duration::from_secs(3))
    );
}

const READ_MODELS: &str = "\
read_models:
  order_summary:
    when:
      OrderPlaced: { $set: { status: placed, customer: $$event.payload.customer } }
      PaymentTaken: [ { $set: { paid: true } } ]
      OrderCancelled: delete
    indexes: [ { keys: { customer: 1, _id: -1 }, unique: true } ]
  customers: { key: $$event.payload.customer, when: { OrderPlaced: { $inc: { orders: 1 } } } }
";

#[test]
fn read_models_are_declared_beside_where_they_live() {
    use pipeline::view::Projection;
    let file = format!("{MINIMAL}{READ_MODELS}");
    let config = load(&file).unwrap().read_models;
    let names: Vec<_> = config.models.iter().map(|model| model.name()).collect();
    assert_eq!(names, ["order_summary", "customers"]);
    // The order of an index is the order written.
    assert_eq!(config.models[0].indexes()[0].keys, mongodb::bson::doc! { "customer": 1, "_id": -1 });
    assert_eq!((config.database.as_str(), config.uri.reveal()), ("shop_views", "mongodb://localhost"));
    let elsewhere =
        load_from(&file, &[("HEADWATER__READ_MODELS__URI", "mongodb://other")], &["read_models.database=v"]);
    let elsewhere = elsewhere.unwrap().read_models;
    assert_eq!((elsewhere.database.as_str(), elsewhere.uri.reveal()), ("v", "mongodb://other"));
    // What is printed says the same.
    let read_file = |_: &str| Ok(String::new());
    let sources = Sources { file: Some(&file), file_name: None, environment: &[], flags: &[], read_file: &read_file };
    let shown = reference::effective(&sources.load().unwrap());
    let again = load(&shown).unwrap().read_models;
    assert_eq!(again.models[0].indexes(), config.models[0].indexes(), "{shown}");
}

#[test]
fn what_the_server_finds_wrong_is_told_with_its_line() {
    let config = load(&format!("{MINIMAL}{READ_MODELS}")).unwrap().read_models;
    let mistake = |path: &[&str]| pipeline::view::Mistake {
        model: "order_summary".into(),
        event_type: Some("OrderPlaced".into()),
        path: path.iter().map(|part| (*part).to_owned()).collect(),
        problem: "no".into(),
    };
    let mistakes = [
        mistake(&["when", "OrderPlaced", "$set", "status"]),
        mistake(&["when", "PaymentTaken", "0"]),
        mistake(&["when", "OrderPlaced", "$set", "status", "deeper"]),
    ];
    let told = config.declared.explain(&mistakes).to_string();
    let lines: Vec<&str> = told.lines().skip(1).collect();
    assert_eq!(
        lines,
        [
            "  line 7, column 38: `read_models.order_summary.when.OrderPlaced.$set.status` is `placed`: no",
            "  line 8, column 23: `read_models.order_summary.when.PaymentTaken.0` no",
            "  line 7, column 38: `read_models.order_summary.when.OrderPlaced.$set.status.deeper` no",
        ]
    );
}

#[test]
fn the_reference_file_is_the_code_and_loads() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../config/headwater.yaml");
    let stored = std::fs::read_to_string(&path).expect("config/headwater.yaml");
    assert_eq!(stored, reference_file(), "write it anew: cargo run -- config reference > config/headwater.yaml");
    let loaded = load(&stored).map(|_| ());
    // Its example of an optional `collection` is commented out; that is all it lacks.
    assert!(loaded.unwrap_err().contains("must name a `collection`"));
}

#[test]
fn the_schema_for_editors_knows_every_key() {
    let schema = json_schema();
    for key in schema::KEYS {
        let pointer: String = key.path.split('.').map(|name| format!("/properties/{name}")).collect();
        let pointer = pointer.replace("/properties/*", "/additionalProperties/properties/when");
        assert!(schema.pointer(&pointer).is_some(), "{}", key.path);
    }
}

/// A change to the minimal file, and everything that is said about it.
const MISTAKES: &[(&str, &str, &str)] = &[
    ("format: 1\n", "", "not in the file: `format` is missing; write, for example, `1`"),
    ("format: 1", "format: 2", "line 1, column 9: `format` is `2`, and must be `1`"),
    ("format: 1", "format: 1\nformat: 1", "line 2, column 1: `format` said before, line 1, column 1; say it once"),
    (
        "database: shop",
        "databse: shop",
        "line 2, column 39: `source.databse` is not a key; did you mean `database`?\nnot in the file: `source.database` is missing; write, for example, `shop`",
    ),
    (
        "database: shop",
        "database: { name: shop }",
        "line 2, column 49: `source.database` is a map of 1, and must be a text, such as `shop`",
    ),
    (
        "database: shop",
        "database: \"\"",
        "line 2, column 49: `source.database` is ``, and must be a text, such as `shop`",
    ),
    (
        ", collection: events",
        "",
        "not in the file: `source` cannot be used: `source` must name a `collection`, or several `collections`, and not both; write, for example, `collection: events`",
    ),
    (
        "collection: events",
        "collection: events, collections: [orders]",
        "line 2, column 88: `source` cannot be used: `source` must name a `collection`, or several `collections`, and not both; write, for example, `collection: events`",
    ),
    (
        "collection: events",
        "collections: [orders, orders]",
        "line 2, column 68: `source` cannot be used: `source.collections` names `orders` twice; write, for example, `collection: events`",
    ),
    (
        "collection: events",
        "collections: orders",
        "line 2, column 68: `source.collections` is `orders`, and must be a list of texts, such as `[orders, customers]`",
    ),
    (
        "collection: events",
        "collection: events, kind: event",
        "line 2, column 81: `source.kind` is `event`, and must be `events` or `documents`",
    ),
    (
        "collection: events",
        "collection: events, sequenze: version",
        "line 2, column 75: `source.sequenze` is not a key; did you mean `sequence`?",
    ),
    (
        "uri: \"mongodb://localhost\"",
        "uri: 5",
        "line 2, column 16: `source.uri` is not a text, and must be a text, such as `mongodb://localhost:27017/?replicaSet=rs0`",
    ),
    (
        "uri: \"mongodb://localhost\"",
        "uri_file: /nowhere",
        "line 2, column 21: `source.uri_file` is `/nowhere`, which cannot be read (entity not found); name a file that can",
    ),
    ("", "produser: {}\n", "line 4, column 1: `produser` is not a key; did you mean `producer`?"),
    (
        "",
        "coordination: { lease: { ttl: 15 } }\n",
        "line 4, column 31: `coordination.lease.ttl` is `15`, and must be a duration from 1s to 10m, such as `15s`",
    ),
    (
        "",
        "coordination: { lease: { ttl: 500ms } }\n",
        "line 4, column 31: `coordination.lease.ttl` is `500ms`, and must be a duration from 1s to 10m, such as `15s`",
    ),
    (
        "",
        "coordination: { lease: { ttl: 5s } }\n",
        "line 4, column 31: `coordination.lease.ttl` does not go with its neighbours: `lease`: `ttl` must be longer than `renew_deadline` by more than 2 % (twice the drift bound), or two pods can lead at once; the defaults are ttl 15s, renew_deadline 10s, heartbeat 5s",
    ),
    (
        "",
        "coordination: { lease: { heartbeat: soon } }\n",
        "line 4, column 37: `coordination.lease.heartbeat` is `soon`, and must be a duration from 50ms to 10m, such as `5s`",
    ),
    (
        "",
        "coordination: { lease: { watch: yes } }\n",
        "line 4, column 33: `coordination.lease.watch` is `yes`, and must be `true` or `false`",
    ),
    (
        "",
        "coordination: { lease: 15s }\n",
        "line 4, column 24: `coordination.lease` is `15s`, and must be a map with keys such as `ttl`, `renew_deadline`, `heartbeat`, `poll`, `watch`, `max_clock_skew`",
    ),
    (
        "",
        "producer: { start: yesterday }\n",
        "line 4, column 20: `producer.start` is `yesterday`, and must be `beginning`, `now` or a time, such as `2026-01-31T00:00:00Z`",
    ),
    (
        "",
        "producer: { sessions: buckets(0) }\n",
        "line 4, column 23: `producer.sessions` is `buckets(0)`, and must be `aggregate` or `buckets(n)`, such as `buckets(256)`",
    ),
    (
        "",
        "producer: { checkpoint: often }\n",
        "line 4, column 25: `producer.checkpoint` is `often`, and must be a duration or `each`, such as `200ms`",
    ),
    (
        "",
        "producer: { checkpoint: 200 }\n",
        "line 4, column 25: `producer.checkpoint` is `200`, and must be a duration or `each`, such as `200ms`",
    ),
    (
        "",
        "admin: { listen: 8080 }\n",
        "line 4, column 18: `admin.listen` is `8080`, and must be an address with a port, such as `0.0.0.0:8080`",
    ),
    (
        "",
        "admin: { listen: localhost }\n",
        "line 4, column 18: `admin.listen` is `localhost`, and must be an address with a port, such as `0.0.0.0:8080`",
    ),
    (
        "",
        "admin: { token: open-sesame }\n",
        "line 4, column 17: `admin.token` is 11 signs long, and must be at least 16 letters, digits and signs without spaces, such as what `openssl rand -hex 16` prints",
    ),
    (
        "",
        "admin: { token: \"open sesame, open sesame\" }\n",
        "line 4, column 17: `admin.token` has signs that cannot be sent, and must be at least 16 letters, digits and signs without spaces, such as what `openssl rand -hex 16` prints",
    ),
    (
        "",
        "admin: { token: 5 }\n",
        "line 4, column 17: `admin.token` is not a text, and must be a text, such as `as-printed-by-openssl-rand-hex-16`",
    ),
    (
        "",
        "telemetry: { otlp_endpoint: \"collector:4318\" }\n",
        "line 4, column 29: `telemetry.otlp_endpoint` is `collector:4318`, and must be an http or https address without a user and a path, such as `http://127.0.0.1:4318`",
    ),
    (
        "",
        "telemetry: { trace_one_in: 0 }\n",
        "line 4, column 28: `telemetry.trace_one_in` is `0`, and must be a whole number from 1 to 1000000000, such as `100`",
    ),
    ("", "producer: { body: xml }\n", "line 4, column 19: `producer.body` is `xml`, and must be `bson` or `json`"),
    (
        "",
        "producer: { on_history_lost: restart }\n",
        "line 4, column 30: `producer.on_history_lost` is `restart`, and must be `halt` or `snapshot`",
    ),
    (
        "",
        "producer: { filter: { $match: {} } }\n",
        "line 4, column 21: `producer.filter` is a map of 1, and must be a list of stages, such as `[ { $match: { fullDocument.region: eu } } ]`",
    ),
    (
        "",
        "producer: { filter: [ 5 ] }\n",
        "line 4, column 21: `producer.filter` is a list of 1, and must be a list of stages, such as `[ { $match: { fullDocument.region: eu } } ]`",
    ),
    (
        "",
        "producer: { window: { events: 3 } }\n",
        "line 4, column 31: `producer.window.events` is `3`, and must be a whole number from 16 to 1000000, such as `8192`",
    ),
    (
        "",
        "producer: { window: { events: many } }\n",
        "line 4, column 31: `producer.window.events` is `many`, and must be a whole number from 16 to 1000000, such as `8192`",
    ),
    (
        "",
        "producer: { window: { bytes: 100 } }\n",
        "line 4, column 30: `producer.window.bytes` is `100`, and must be a size from 1MiB to 2GiB, such as `8MiB`",
    ),
    (
        "",
        "producer: [ body, json ]\n",
        "line 4, column 11: `producer` is a list of 2, and must be a map with keys such as `start`, `on_history_lost`, `filter`, `body`, `sessions`, `checkpoint`, `window`, `read_ahead`, `drain`",
    ),
    ("", "producer: { body: !!str json }\n", "line 4, column 19: tags are not used here; write the value plainly"),
    (
        "",
        "producer: { body: json\n",
        "line 5, column 1: not YAML: while parsing a flow mapping, did not find expected ',' or '}'",
    ),
    ("", "---\nformat: 1\n", "line 5, column 1: a second document begins here; one file holds one configuration"),
    (
        "",
        "# three at once\npod: 1\nproducer: { body: xml, drain: 1y }\n",
        "line 5, column 1: `pod` is not a key; known here: `format`, `pipeline`, `pod_id`, `source`, `coordination`, `service_bus`, `producer`, `consumer`, `read_models`, `admin`, `telemetry`\nline 6, column 19: `producer.body` is `xml`, and must be `bson` or `json`\nline 6, column 31: `producer.drain` is `1y`, and must be a duration from 0s to 10m, such as `10s`",
    ),
    (
        "",
        "consumer: { connections: 9, max_concurrent_sessions: 3 }\n",
        "line 4, column 26: `consumer.connections` does not go with its neighbours: `consumer.connections` must not exceed `consumer.max_concurrent_sessions`; the defaults are 2 and 256",
    ),
    (
        "",
        "consumer: { on_poison: drop }\n",
        "line 4, column 24: `consumer.on_poison` is `drop`, and must be `park` or `dead_letter`",
    ),
    (
        "",
        "consumer: { lock_duration: 1h }\n",
        "line 4, column 28: `consumer.lock_duration` is `1h`, and must be a duration from 5s to 5m, such as `1m`",
    ),
    (
        "",
        "consumer: { sessions: 5 }\n",
        "line 4, column 13: `consumer.sessions` is not a key; known here: `max_concurrent_sessions`, `on_poison`, `connections`, `transactions`, `credit`, `bytes_in_flight`, `idle`, `longest_hold`, `most_events`, `lock_duration`, `unhealable_after`, `first_sequence`, `drain`",
    ),
    (
        "",
        "read_models: [ a ]\n",
        "line 4, column 14: `read_models` is a list of 1, and must be a map with keys such as `uri`, `database`",
    ),
    (
        "",
        "read_models: { a: 5 }\n",
        "line 4, column 19: `read_models.a` is `5`, and must be a map, such as `{ when: { OrderPlaced: { $set: { status: placed } } } }`",
    ),
    (
        "",
        "read_models: { a: {} }\n",
        "line 4, column 19: `read_models.a.when` names no event type, so nothing would be written",
    ),
    (
        "",
        "read_models: { a: { on: { OrderPlaced: delete } } }\n",
        "line 4, column 21: `read_models.a.on` is not a key; write `when` (`on` means true to many readers of YAML)",
    ),
    (
        "",
        "read_models: { a: { wen: { OrderPlaced: delete } } }\n",
        "line 4, column 21: `read_models.a.wen` is not a key; did you mean `when`?",
    ),
    (
        "",
        "read_models: { a: { when: [ OrderPlaced ] } }\n",
        "line 4, column 27: `read_models.a.when` is a list of 1, and must be a map from event types, such as `{ OrderPlaced: { $set: { status: placed } } }`",
    ),
    (
        "",
        "read_models: { a: { when: { OrderPlaced: remove } } }\n",
        "line 4, column 42: `read_models.a.when.OrderPlaced` is `remove`: must be a map (an update document), a list (a pipeline) or `delete`",
    ),
    (
        "",
        "read_models: { a: { when: { OrderPlaced: { status: placed } } } }\n",
        "line 4, column 52: `read_models.a.when.OrderPlaced.status` is `placed`: is not an operator; write `{ $set: { … } }`, or `[ { $replaceWith: … } ]` for the whole document",
    ),
    (
        "",
        "read_models: { a: { when: { OrderPlaced: { $set: { _id: 1 } } } } }\n",
        "line 4, column 57: `read_models.a.when.OrderPlaced.$set._id` is `1`: the key of a read model cannot be changed",
    ),
    (
        "",
        "read_models: { a: { key: fixed, when: { OrderPlaced: delete } } }\n",
        "line 4, column 26: `read_models.a.key` is `fixed`: names no value of the event, such as `$$event.customerId`",
    ),
    (
        "",
        "read_models: { a: { mirror: maybe } }\n",
        "line 4, column 29: `read_models.a.mirror` is `maybe`, and must be `true` or `false`",
    ),
    (
        "",
        "read_models: { a: { mirror: true, when: { insert: delete } } }\n",
        "line 4, column 29: `read_models.a.mirror` is `true`: a mirror copies, and has no `when`",
    ),
    (
        "",
        "read_models: { a: { when: { OrderPlaced: delete }, indexes: { customer: 1 } } }\n",
        "line 4, column 61: `read_models.a.indexes` is a map of 1, and must be a list of indexes, such as `[ { keys: { customer: 1 } } ]`",
    ),
    (
        "",
        "read_models: { a: { when: { OrderPlaced: delete }, indexes: [ { customer: 1 } ] } }\n",
        "line 4, column 63: `read_models.a.indexes.0` an index needs `keys`, such as `{ customer: 1 }`",
    ),
    (
        "",
        "read_models: { _headwater_cursors: { when: { OrderPlaced: delete } } }\n",
        "line 4, column 36: `read_models._headwater_cursors` is the name of a collection Headwater keeps for itself",
    ),
    (
        "",
        "read_models: { database: shop, events: { when: { OrderPlaced: delete } } }\n",
        "line 4, column 40: `read_models.events` is captured itself, and would feed itself; give `read_models.database` another name",
    ),
];

#[test]
fn every_mistake_is_told_with_its_place_and_what_to_write_instead() {
    let mut wrong = Vec::new();
    for (from, to, said) in MISTAKES {
        assert!(from.is_empty() || MINIMAL.contains(from), "`{from}` is in the minimal file");
        let file = if from.is_empty() { format!("{MINIMAL}{to}") } else { MINIMAL.replace(from, to) };
        let told = load(&file).map(|_| "loaded".to_owned()).unwrap_or_else(|told| told);
        if told != *said {
            wrong.push(format!("--- {to}\n{told}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(MISTAKES.len() >= 25, "{} mistakes", MISTAKES.len());
}
