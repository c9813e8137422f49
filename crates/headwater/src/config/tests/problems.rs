//! Every mistake with its exact words.

use super::{MINIMAL, load, load_from};

/// A change to the minimal file, and everything that is said about it.
const MISTAKES: &[(&str, &str, &str)] = &[
    (
        "uri: \"mongodb://localhost\"",
        "uri: \"localhost:27017\"",
        "line 2, column 16: `source.uri` is not a MongoDB URI: it begins neither with `mongodb://` nor with `mongodb+srv://`; write, for example, `mongodb://localhost:27017/?replicaSet=rs0`",
    ),
    (
        "uri: \"mongodb://localhost\"",
        "uri: \"mongodb://me:open/sesame@localhost\"",
        "line 2, column 16: `source.uri` is not a MongoDB URI: its user or password has a sign that must be percent-encoded, as `@` is `%40` and `/` is `%2F`; write, for example, `mongodb://localhost:27017/?replicaSet=rs0`",
    ),
    (
        "uri: \"mongodb://localhost\"",
        "uri: \"mongodb://localhost/?maxPoolSize=many\"",
        "line 2, column 16: `source.uri` is not a MongoDB URI: its option `maxPoolSize` cannot be used; write, for example, `mongodb://localhost:27017/?replicaSet=rs0`",
    ),
    (
        "uri: \"mongodb://localhost\"",
        "uri: \"mongodb://localhost\", uri_file: /secret",
        "line 2, column 49: `source.uri_file` says what is said already, line 2, column 16; give the secret or its file",
    ),
    (
        "uri: \"mongodb://localhost\"",
        "uri_file: /token",
        "line 2, column 21: `source.uri_file` is `/token`, and what that file holds is not a MongoDB URI: it begins neither with `mongodb://` nor with `mongodb+srv://`; write, for example, `mongodb://localhost:27017/?replicaSet=rs0`",
    ),
    (
        "uri: \"mongodb://localhost\"",
        "uri_file: \"mongodb://me:open-sesame@localhost\"",
        "line 2, column 21: `source.uri_file` is a text that holds a secret, which cannot be read (entity not found); name a file that can",
    ),
    (
        "source: {",
        "coordination: { uri: \"\" }\nsource: {",
        "line 2, column 22: `coordination.uri` is empty; write, for example, `mongodb://localhost:27017/?replicaSet=rs0`",
    ),
    (
        "Endpoint=sb://localhost;UseDevelopmentEmulator=true",
        "SharedAccessKeyName=me;SharedAccessKey=open-sesame",
        "line 3, column 35: `service_bus.connection_string` is not a Service Bus connection string: `Endpoint` is missing; write, for example, `Endpoint=sb://localhost;SharedAccessKeyName=any;SharedAccessKey=any;UseDevelopmentEmulator=true`",
    ),
    (
        "Endpoint=sb://localhost;UseDevelopmentEmulator=true",
        "Endpoint=sb://localhost;SharedAccessKey=open-sesame",
        "line 3, column 35: `service_bus.connection_string` is not a Service Bus connection string: `SharedAccessKeyName` and `SharedAccessKey` go together; write, for example, `Endpoint=sb://localhost;SharedAccessKeyName=any;SharedAccessKey=any;UseDevelopmentEmulator=true`",
    ),
    (
        "UseDevelopmentEmulator=true",
        "EntityPath=orders",
        "line 3, column 35: `service_bus.connection_string` has `EntityPath=orders`, and `service_bus.topic` is `events`; write `topic: orders`, or leave `EntityPath` out",
    ),
    (
        "service_bus: {",
        "service_bus: { topic: my events,",
        "line 3, column 23: `service_bus.topic` is `my events`, and must be a name of up to 260 letters, digits, `.`, `-`, `_` and `/`, with a letter or digit at both ends, such as `events`",
    ),
    (
        "service_bus: {",
        "service_bus: { subscription: read/models,",
        "line 3, column 30: `service_bus.subscription` is `read/models`, and must be a name of up to 50 letters, digits, `.`, `-` and `_`, with a letter or digit at both ends, such as `read-models`",
    ),
    (
        "UseDevelopmentEmulator=true\"",
        "\", ca_file: /nowhere",
        "line 3, column 72: `service_bus.ca_file` is `/nowhere`, which cannot be read (entity not found); name a PEM file that can",
    ),
    (
        "UseDevelopmentEmulator=true\"",
        "UseDevelopmentEmulator=true\", ca_file: /token",
        "line 3, column 99: `service_bus.ca_file` trusts nobody: `UseDevelopmentEmulator=true` in the connection string means no TLS; leave one of them out",
    ),
    (
        "service_bus: { connection_string: \"Endpoint=sb://localhost;UseDevelopmentEmulator=true\" }",
        "service_bus: \"Endpoint=sb://localhost;SharedAccessKeyName=me;SharedAccessKey=open-sesame\"",
        "line 3, column 14: `service_bus` is a text that holds a secret, and must be a map with keys such as `connection_string`, `topic`, `subscription`, `ca_file`",
    ),
    (
        ", sequence: version",
        "",
        "not in the file: `source.sequence` is missing, and `producer.start: beginning` needs it: without it old events have no order; write, for example, `sequence: version`, or `producer.start: now`",
    ),
    (
        "collection: events, sequence: version",
        "collections: []",
        "line 2, column 68: `source.collections` is empty; write, for example, `[orders, customers]`\nnot in the file: `source.sequence` is missing, and `producer.start: beginning` needs it: without it old events have no order; write, for example, `sequence: version`, or `producer.start: now`",
    ),
    (
        "collection: events, sequence: version",
        "collections: [orders, system.views], kind: documents",
        "line 2, column 68: `source.collections` has `system.views`, which no collection can be called; write, for example, `orders`",
    ),
    (
        "",
        "producer: { filter: [ { $mach: {} }, { $match: {}, $set: {} } ] }\n",
        "line 4, column 23: `producer.filter.0` is a stage `$mach`, and a change stream takes `$match`, `$project`, `$addFields`, `$set`, `$unset`, `$replaceRoot`, `$replaceWith`, `$redact`; write, for example, `$match: { fullDocument.region: eu }`\nline 4, column 38: `producer.filter.1` has 2 operators, and a stage has one; write, for example, `$match: { fullDocument.region: eu }`",
    ),
    (
        "",
        "consumer: { max_concurrent_sessions: 1 }\n",
        "line 4, column 38: `consumer.max_concurrent_sessions` is `1`, and must not be less than `consumer.connections`, which is `2`; the defaults are 2 and 256",
    ),
    (
        "",
        "telemetry: { otlp_endpoint: \"http://me:open-sesame@collector:4318\" }\n",
        "line 4, column 29: `telemetry.otlp_endpoint` is a text that holds a secret, and must be an http or https address without a user and a path, such as `http://127.0.0.1:4318`",
    ),
    (
        "",
        "produser: { body: xml }\ncoordination: { lease: { tll: 5s } }\n",
        "line 4, column 1: `produser` is not a key; did you mean `producer`?\nline 4, column 19: `producer.body` is `xml`, and must be `bson` or `json`\nline 5, column 26: `coordination.lease.tll` is not a key; did you mean `ttl`?\nline 5, column 31: `coordination.lease.ttl` is `5s`, and does not go with its neighbours: `lease`: `ttl` must be longer than `renew_deadline` by more than 2 % (twice the drift bound), or two pods can lead at once; the defaults are ttl 15s, renew_deadline 10s, heartbeat 5s",
    ),
    ("format: 1\n", "", "not in the file: `format` is missing; write, for example, `1`"),
    ("format: 1", "format: 2", "line 1, column 9: `format` is `2`, and must be `1`"),
    ("format: 1", "format: 1\nformat: 1", "line 2, column 1: `format` is said before, line 1, column 1; say it once"),
    ("database: shop", "databse: shop", "line 2, column 39: `source.databse` is not a key; did you mean `database`?"),
    (
        "database: shop",
        "database: { name: shop }",
        "line 2, column 49: `source.database` is a map of 1, and must be the name of a database, without spaces, `/`, `\\`, `.`, `\"` and `$`, and none of the server's own, such as `shop`",
    ),
    (
        "database: shop",
        "database: \"\"",
        "line 2, column 49: `source.database` is ``, and must be the name of a database, without spaces, `/`, `\\`, `.`, `\"` and `$`, and none of the server's own, such as `shop`",
    ),
    (
        ", collection: events",
        "",
        "not in the file: `source.collection` is missing; write, for example, `collection: events`, or several under `collections`",
    ),
    (
        "collection: events",
        "collection: events, collections: [orders]",
        "line 2, column 88: `source.collections` is said beside `source.collection`, which is `events`; keep one of them, such as `collections: [events, orders]`",
    ),
    (
        "collection: events",
        "collections: [orders, orders]",
        "line 2, column 68: `source.collections` names `orders` twice; name it once",
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
        "line 2, column 16: `source.uri` is not a text; write, for example, `mongodb://localhost:27017/?replicaSet=rs0`",
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
        "line 4, column 31: `coordination.lease.ttl` is `5s`, and does not go with its neighbours: `lease`: `ttl` must be longer than `renew_deadline` by more than 2 % (twice the drift bound), or two pods can lead at once; the defaults are ttl 15s, renew_deadline 10s, heartbeat 5s",
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
        "line 4, column 17: `admin.token` is 11 signs long, and must be at least 16 letters, digits and signs without spaces; write, for example, `what openssl rand -hex 16 prints`",
    ),
    (
        "",
        "admin: { token: \"open sesame, open sesame\" }\n",
        "line 4, column 17: `admin.token` has signs that cannot be sent, and must be at least 16 letters, digits and signs without spaces; write, for example, `what openssl rand -hex 16 prints`",
    ),
    (
        "",
        "admin: { token: 5 }\n",
        "line 4, column 17: `admin.token` is not a text; write, for example, `what openssl rand -hex 16 prints`",
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
    (
        "",
        "producer: { body: !!str json }\n",
        "line 4, column 19: `producer.body` has a tag, and tags are not used here; write the value plainly",
    ),
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
        "line 4, column 26: `consumer.connections` is `9`, and must not exceed `consumer.max_concurrent_sessions`, which is `3`; the defaults are 2 and 256",
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
        "line 4, column 13: `consumer.sessions` is not a key; known here: `max_concurrent_sessions`, `on_poison`, `connections`, `transactions`, `credit`, `bytes_in_flight`, `session_idle_timeout`, `max_session_duration`, `max_session_events`, `lock_duration`, `gap_timeout`, `first_sequence`, `drain`",
    ),
    (
        "",
        "consumer: { idle: 2s, longest_hold: 5s, most_events: 10, unhealable_after: 1h }\n",
        "line 4, column 13: `consumer.idle` is now `consumer.session_idle_timeout`\nline 4, column 23: `consumer.longest_hold` is now `consumer.max_session_duration`\nline 4, column 41: `consumer.most_events` is now `consumer.max_session_events`\nline 4, column 58: `consumer.unhealable_after` is now `consumer.gap_timeout`",
    ),
    (
        "",
        "consumer: { idle: 5 }\n",
        "line 4, column 13: `consumer.idle` is now `consumer.session_idle_timeout`\nline 4, column 19: `consumer.session_idle_timeout` is `5`, and must be a duration from 0s to 10m, such as `5s`",
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
        assert!(!told.contains("sesame"), "a secret is told: {told}");
        if told != *said {
            wrong.push(format!("--- {to}\n{told}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(MISTAKES.len() >= 25, "{} mistakes", MISTAKES.len());
}

/// Mistakes of every sort: of YAML, of names, of types, of patterns, of secrets, of read models, and between keys.
const AT_ONCE: &str = "\
format: 1
pipelin: shop
source:
  uri: \"localhost:27017\"
  database: shop
  collection: checkpoints
  database: shop2
coordination:
  database: shop
  lease: { ttl: 5s, watch: yes }
service_bus:
  connection_string: \"Endpoint=sb://localhost;SharedAccessKey=open-sesame\"
  topic: my events
producer: { body: xml, checkpoint: often }
consumer: { connections: 9, max_concurrent_sessions: 3, credit: !!int 5 }
read_models:
  a: { when: { OrderPlaced: remove } }
admin: { token: short }
";

#[test]
fn mistakes_of_every_kind_are_told_at_once() {
    let environment = [("HEADWATER__PRODUCER__DRAIN", "1y"), ("OTEL_EXPORTER_OTLP_ENDPOINT", "collector")];
    let told = load_from(AT_ONCE, &environment, &["consumer.session_idle_timeout=5", "nothing"]).unwrap_err();
    assert_eq!(told, include_str!("problems_at_once.txt").trim_end(), "{told}");
    assert!(!told.contains("open-sesame"));
}
