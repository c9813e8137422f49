//! The exact text of every problem.

use super::{MINIMAL, load, load_from};

/// A change to the minimal file, and the expected problems.
const PROBLEMS: &[(&str, &str, &str)] = &[
    (
        "uri: \"mongodb://localhost\"",
        "uri: \"localhost:27017\"",
        "line 2, column 16: `source.uri` is not a MongoDB URI: it must start with `mongodb://` or `mongodb+srv://`; write, for example, `mongodb://localhost:27017/?replicaSet=rs0`",
    ),
    (
        "uri: \"mongodb://localhost\"",
        "uri: \"mongodb://me:open/sesame@localhost\"",
        "line 2, column 16: `source.uri` is not a MongoDB URI: its user or password has a character that must be percent-encoded (`@` as `%40`, `/` as `%2F`); write, for example, `mongodb://localhost:27017/?replicaSet=rs0`",
    ),
    (
        "uri: \"mongodb://localhost\"",
        "uri: \"mongodb://localhost/?maxPoolSize=many\"",
        "line 2, column 16: `source.uri` is not a MongoDB URI: its option `maxPoolSize` is not valid; write, for example, `mongodb://localhost:27017/?replicaSet=rs0`",
    ),
    (
        "uri: \"mongodb://localhost\"",
        "uri: \"mongodb://localhost\", uri_file: /secret",
        "line 2, column 49: `source.uri_file` sets the same secret as line 2, column 16; set either the secret or its file",
    ),
    (
        "uri: \"mongodb://localhost\"",
        "uri_file: /token",
        "line 2, column 21: `source.uri_file` is `/token`, and the content of that file is not a MongoDB URI: it must start with `mongodb://` or `mongodb+srv://`; write, for example, `mongodb://localhost:27017/?replicaSet=rs0`",
    ),
    (
        "uri: \"mongodb://localhost\"",
        "uri_file: \"mongodb://me:open-sesame@localhost\"",
        "line 2, column 21: `source.uri_file` is a value that looks like a secret, which cannot be read (entity not found); name a readable file",
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
        "line 3, column 35: `service_bus.connection_string` has `EntityPath=orders`, but `service_bus.topic` is `events`; write `topic: orders`, or remove `EntityPath`",
    ),
    (
        "service_bus: {",
        "service_bus: { fully_qualified_namespace: ns.example,",
        "line 3, column 43: `service_bus.fully_qualified_namespace` is set together with `service_bus.connection_string`; remove one of them",
    ),
    (
        "service_bus: {",
        "service_bus: { entra: { tenant_id: t },",
        "line 3, column 36: `service_bus.entra.tenant_id` has no effect without `service_bus.fully_qualified_namespace`; set it, or remove this key",
    ),
    (
        "connection_string: \"Endpoint=sb://localhost;UseDevelopmentEmulator=true\"",
        "fully_qualified_namespace: ns.example, entra: { authority: \"http://issuer\" }",
        "line 3, column 75: `service_bus.entra.authority` is `http://issuer`, but must be an https URL without a path, such as `https://login.microsoftonline.us`",
    ),
    (
        "service_bus: {",
        "service_bus: { topic: my events,",
        "line 3, column 23: `service_bus.topic` is `my events`, but must be a name of up to 260 letters, digits, `.`, `-`, `_` and `/`, with a letter or digit at both ends, such as `events`",
    ),
    (
        "service_bus: {",
        "service_bus: { subscription: read/models,",
        "line 3, column 30: `service_bus.subscription` is `read/models`, but must be a name of up to 50 letters, digits, `.`, `-` and `_`, with a letter or digit at both ends, such as `read-models`",
    ),
    (
        "UseDevelopmentEmulator=true\"",
        "\", ca_file: /nowhere",
        "line 3, column 72: `service_bus.ca_file` is `/nowhere`, which cannot be read (entity not found); name a readable PEM file",
    ),
    (
        "UseDevelopmentEmulator=true\"",
        "UseDevelopmentEmulator=true\", ca_file: /token",
        "line 3, column 99: `service_bus.ca_file` has no effect: `UseDevelopmentEmulator=true` in the connection string turns TLS off; remove one of them",
    ),
    (
        "service_bus: { connection_string: \"Endpoint=sb://localhost;UseDevelopmentEmulator=true\" }",
        "service_bus: \"Endpoint=sb://localhost;SharedAccessKeyName=me;SharedAccessKey=open-sesame\"",
        "line 3, column 14: `service_bus` is a value that looks like a secret, but must be a map with keys such as `connection_string`, `fully_qualified_namespace`, `entra`, `topic`, `subscription`, `ca_file`, `transport`",
    ),
    (
        ", sequence: version",
        "",
        "not set: `source.sequence` is missing, but `producer.start: beginning` needs it to order existing events; write, for example, `sequence: version`, or use `producer.start: now`",
    ),
    (
        "collection: events, sequence: version",
        "collections: []",
        "line 2, column 68: `source.collections` is empty; write, for example, `[orders, customers]`\nnot set: `source.sequence` is missing, but `producer.start: beginning` needs it to order existing events; write, for example, `sequence: version`, or use `producer.start: now`",
    ),
    (
        "collection: events, sequence: version",
        "collections: [orders, system.views], kind: documents",
        "line 2, column 68: `source.collections` has `system.views`, which is not a valid collection name; write, for example, `orders`",
    ),
    (
        "",
        "producer: { filter: [ { $mach: {} }, { $match: {}, $set: {} } ] }\n",
        "line 4, column 23: `producer.filter.0` is the stage `$mach`, but a change stream accepts only `$match`, `$project`, `$addFields`, `$set`, `$unset`, `$replaceRoot`, `$replaceWith`, `$redact`; write, for example, `$match: { fullDocument.region: eu }`\nline 4, column 38: `producer.filter.1` has 2 operators, but a stage has one; write, for example, `$match: { fullDocument.region: eu }`",
    ),
    (
        "",
        "consumer: { max_concurrent_sessions: 1 }\n",
        "line 4, column 38: `consumer.max_concurrent_sessions` is `1`, but must not be less than `consumer.connections`, which is `2`; the defaults are 2 connections and 256 sessions",
    ),
    (
        "",
        "telemetry: { otlp_endpoint: \"http://me:open-sesame@collector:4318\" }\n",
        "line 4, column 29: `telemetry.otlp_endpoint` is a value that looks like a secret, but must be an http or https URL without user and path, such as `http://127.0.0.1:4318`",
    ),
    (
        "",
        "produser: { body: xml }\ncoordination: { lease: { tll: 5s } }\n",
        "line 4, column 1: `produser` is not a known key; did you mean `producer`?\nline 4, column 19: `producer.body` is `xml`, but must be `bson` or `json`\nline 5, column 26: `coordination.lease.tll` is not a known key; did you mean `ttl`?\nline 5, column 31: `coordination.lease.ttl` is `5s`, which does not fit the other lease settings: `lease`: `ttl` must be longer than `renew_deadline` by more than 2 % (twice the drift bound), or two pods can lead at once; the defaults are ttl 15s, renew_deadline 10s, heartbeat 5s",
    ),
    ("format: 1\n", "", "not set: `format` is missing; write, for example, `1`"),
    ("format: 1", "format: 2", "line 1, column 9: `format` is `2`, but must be `1`"),
    ("format: 1", "format: 1\nformat: 1", "line 2, column 1: `format` is already set at line 1, column 1; set it once"),
    (
        "database: shop",
        "databse: shop",
        "line 2, column 39: `source.databse` is not a known key; did you mean `database`?",
    ),
    (
        "database: shop",
        "database: { name: shop }",
        "line 2, column 49: `source.database` is a map, but must be a database name without spaces, `/`, `\\`, `.`, `\"` and `$`, other than `admin`, `config` and `local`, such as `shop`",
    ),
    (
        "database: shop",
        "database: \"\"",
        "line 2, column 49: `source.database` is ``, but must be a database name without spaces, `/`, `\\`, `.`, `\"` and `$`, other than `admin`, `config` and `local`, such as `shop`",
    ),
    (
        ", collection: events",
        "",
        "not set: `source.collection` is missing; write, for example, `collection: events`, or several under `collections`",
    ),
    (
        "collection: events",
        "collection: events, collections: [orders]",
        "line 2, column 88: `source.collections` is set together with `source.collection`, which is `events`; keep one of them, for example `collections: [events, orders]`",
    ),
    (
        "collection: events",
        "collections: [orders, orders]",
        "line 2, column 68: `source.collections` names `orders` twice; name it once",
    ),
    (
        "collection: events",
        "collections: orders",
        "line 2, column 68: `source.collections` is `orders`, but must be a list of strings, such as `[orders, customers]`",
    ),
    (
        "collection: events",
        "collection: events, kind: event",
        "line 2, column 81: `source.kind` is `event`, but must be `events` or `documents`",
    ),
    (
        "collection: events",
        "collection: events, sequenze: version",
        "line 2, column 75: `source.sequenze` is not a known key; did you mean `sequence`?",
    ),
    (
        "uri: \"mongodb://localhost\"",
        "uri: 5",
        "line 2, column 16: `source.uri` is not a string; write, for example, `mongodb://localhost:27017/?replicaSet=rs0`",
    ),
    (
        "uri: \"mongodb://localhost\"",
        "uri_file: /nowhere",
        "line 2, column 21: `source.uri_file` is `/nowhere`, which cannot be read (entity not found); name a readable file",
    ),
    ("", "produser: {}\n", "line 4, column 1: `produser` is not a known key; did you mean `producer`?"),
    (
        "",
        "coordination: { lease: { ttl: 15 } }\n",
        "line 4, column 31: `coordination.lease.ttl` is `15`, but must be a duration from 1s to 10m, such as `15s`",
    ),
    (
        "",
        "coordination: { lease: { ttl: 500ms } }\n",
        "line 4, column 31: `coordination.lease.ttl` is `500ms`, but must be a duration from 1s to 10m, such as `15s`",
    ),
    (
        "",
        "coordination: { lease: { ttl: 5s } }\n",
        "line 4, column 31: `coordination.lease.ttl` is `5s`, which does not fit the other lease settings: `lease`: `ttl` must be longer than `renew_deadline` by more than 2 % (twice the drift bound), or two pods can lead at once; the defaults are ttl 15s, renew_deadline 10s, heartbeat 5s",
    ),
    (
        "",
        "coordination: { lease: { heartbeat: soon } }\n",
        "line 4, column 37: `coordination.lease.heartbeat` is `soon`, but must be a duration from 50ms to 10m, such as `5s`",
    ),
    (
        "",
        "coordination: { lease: { watch: yes } }\n",
        "line 4, column 33: `coordination.lease.watch` is `yes`, but must be `true` or `false`",
    ),
    (
        "",
        "coordination: { lease: 15s }\n",
        "line 4, column 24: `coordination.lease` is `15s`, but must be a map with keys such as `ttl`, `renew_deadline`, `heartbeat`, `poll`, `watch`, `max_clock_skew`",
    ),
    (
        "",
        "producer: { start: yesterday }\n",
        "line 4, column 20: `producer.start` is `yesterday`, but must be `beginning`, `now` or a time, such as `2026-01-31T00:00:00Z`",
    ),
    (
        "",
        "producer: { sessions: buckets(0) }\n",
        "line 4, column 23: `producer.sessions` is `buckets(0)`, but must be `aggregate` or `buckets(n)`, such as `buckets(256)`",
    ),
    (
        "",
        "producer: { checkpoint: often }\n",
        "line 4, column 25: `producer.checkpoint` is `often`, but must be a duration, or `each` for every event, such as `200ms`",
    ),
    (
        "",
        "producer: { checkpoint: 200 }\n",
        "line 4, column 25: `producer.checkpoint` is `200`, but must be a duration, or `each` for every event, such as `200ms`",
    ),
    (
        "",
        "message_signing: { keys: \"a:hush\" }\n",
        "line 4, column 26: `message_signing.keys` has the key `a`, which is shorter than 32 bytes; write, for example, `2026-11:the output of openssl rand -base64 32`",
    ),
    (
        "",
        "message_signing: { keys: hush }\n",
        "line 4, column 26: `message_signing.keys` has a key without an id: a key is `id:base64`, and keys are separated by spaces or line breaks; write, for example, `2026-11:the output of openssl rand -base64 32`",
    ),
    (
        "",
        "message_signing: { keys: \"a:AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE=\", sign_with: b }\n",
        "line 4, column 87: `message_signing.sign_with` is `b`, but the ids of the keys are `a`",
    ),
    (
        "",
        "message_signing: { sign_with: a, accept_unsigned_until: 2026-12-01T00:00:00Z }\n",
        "line 4, column 31: `message_signing.sign_with` is set without `message_signing.keys`; set the keys too, or remove it\nline 4, column 57: `message_signing.accept_unsigned_until` is set without `message_signing.keys`; set the keys too, or remove it",
    ),
    (
        "",
        "message_signing: { keys: \"a:AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE=\", accept_unsigned_until: soon }\n",
        "line 4, column 99: `message_signing.accept_unsigned_until` is `soon`, but must be a time, such as `2026-12-01T00:00:00Z`",
    ),
    (
        "",
        "admin: { listen: 8080 }\n",
        "line 4, column 18: `admin.listen` is `8080`, but must be an address with a port, such as `0.0.0.0:8080`",
    ),
    (
        "",
        "admin: { listen: localhost }\n",
        "line 4, column 18: `admin.listen` is `localhost`, but must be an address with a port, such as `0.0.0.0:8080`",
    ),
    (
        "",
        "admin: { token: open-sesame }\n",
        "line 4, column 17: `admin.token` is 11 characters long, but must be at least 16 printable ASCII characters without spaces; write, for example, `the output of openssl rand -hex 16`",
    ),
    (
        "",
        "admin: { token: \"open sesame, open sesame\" }\n",
        "line 4, column 17: `admin.token` has characters that cannot be sent in a header, but must be at least 16 printable ASCII characters without spaces; write, for example, `the output of openssl rand -hex 16`",
    ),
    (
        "",
        "admin: { token: 5 }\n",
        "line 4, column 17: `admin.token` is not a string; write, for example, `the output of openssl rand -hex 16`",
    ),
    (
        "",
        "telemetry: { otlp_endpoint: \"collector:4318\" }\n",
        "line 4, column 29: `telemetry.otlp_endpoint` is `collector:4318`, but must be an http or https URL without user and path, such as `http://127.0.0.1:4318`",
    ),
    (
        "",
        "telemetry: { trace_one_in: 0 }\n",
        "line 4, column 28: `telemetry.trace_one_in` is `0`, but must be a whole number from 1 to 1000000000, such as `100`",
    ),
    ("", "producer: { body: xml }\n", "line 4, column 19: `producer.body` is `xml`, but must be `bson` or `json`"),
    (
        "",
        "producer: { on_history_lost: restart }\n",
        "line 4, column 30: `producer.on_history_lost` is `restart`, but must be `halt` or `snapshot`",
    ),
    (
        "",
        "producer: { filter: { $match: {} } }\n",
        "line 4, column 21: `producer.filter` is a map, but must be a list of stages, such as `[ { $match: { fullDocument.region: eu } } ]`",
    ),
    (
        "",
        "producer: { filter: [ 5 ] }\n",
        "line 4, column 21: `producer.filter` is a list, but must be a list of stages, such as `[ { $match: { fullDocument.region: eu } } ]`",
    ),
    (
        "",
        "producer: { window: { events: 3 } }\n",
        "line 4, column 31: `producer.window.events` is `3`, but must be a whole number from 16 to 1000000, such as `8192`",
    ),
    (
        "",
        "producer: { window: { events: many } }\n",
        "line 4, column 31: `producer.window.events` is `many`, but must be a whole number from 16 to 1000000, such as `8192`",
    ),
    (
        "",
        "producer: { window: { bytes: 100 } }\n",
        "line 4, column 30: `producer.window.bytes` is `100`, but must be a size from 1MiB to 2GiB, such as `8MiB`",
    ),
    (
        "",
        "producer: [ body, json ]\n",
        "line 4, column 11: `producer` is a list, but must be a map with keys such as `start`, `on_history_lost`, `filter`, `body`, `sessions`, `checkpoint`, `window`, `read_ahead`, `drain`",
    ),
    (
        "",
        "producer: { body: !!str json }\n",
        "line 4, column 19: `producer.body` has a YAML tag, which is not supported; remove the tag",
    ),
    (
        "",
        "producer: { body: json\n",
        "line 5, column 1: not YAML: while parsing a flow mapping, did not find expected ',' or '}'",
    ),
    ("", "---\nformat: 1\n", "line 5, column 1: a second YAML document starts here; a file holds one configuration"),
    (
        "",
        "# three at once\npod: 1\nproducer: { body: xml, drain: 1y }\n",
        "line 5, column 1: `pod` is not a known key; known keys: `format`, `pipeline`, `pod_id`, `source`, `coordination`, `service_bus`, `message_signing`, `producer`, `consumer`, `read_models`, `audit`, `admin`, `telemetry`\nline 6, column 19: `producer.body` is `xml`, but must be `bson` or `json`\nline 6, column 31: `producer.drain` is `1y`, but must be a duration from 0s to 10m, such as `10s`",
    ),
    (
        "",
        "consumer: { connections: 9, max_concurrent_sessions: 3 }\n",
        "line 4, column 26: `consumer.connections` is `9`, but must not exceed `consumer.max_concurrent_sessions`, which is `3`; the defaults are 2 connections and 256 sessions",
    ),
    (
        "",
        "consumer: { on_poison: drop }\n",
        "line 4, column 24: `consumer.on_poison` is `drop`, but must be `park` or `dead_letter`",
    ),
    (
        "",
        "consumer: { lock_duration: 1h }\n",
        "line 4, column 28: `consumer.lock_duration` is `1h`, but must be a duration from 5s to 5m, such as `1m`",
    ),
    (
        "",
        "consumer: { sessions: 5 }\n",
        "line 4, column 13: `consumer.sessions` is not a known key; known keys: `max_concurrent_sessions`, `on_poison`, `connections`, `transactions`, `credit`, `bytes_in_flight`, `session_idle_timeout`, `max_session_duration`, `max_session_events`, `lock_duration`, `gap_timeout`, `first_sequence`, `drain`",
    ),
    (
        "",
        "consumer: { idle: 2s, longest_hold: 5s, most_events: 10, unhealable_after: 1h }\n",
        "line 4, column 13: `consumer.idle` is now `consumer.session_idle_timeout`\nline 4, column 23: `consumer.longest_hold` is now `consumer.max_session_duration`\nline 4, column 41: `consumer.most_events` is now `consumer.max_session_events`\nline 4, column 58: `consumer.unhealable_after` is now `consumer.gap_timeout`",
    ),
    (
        "",
        "consumer: { idle: 5 }\n",
        "line 4, column 13: `consumer.idle` is now `consumer.session_idle_timeout`\nline 4, column 19: `consumer.session_idle_timeout` is `5`, but must be a duration from 0s to 10m, such as `5s`",
    ),
    (
        "",
        "read_models: [ a ]\n",
        "line 4, column 14: `read_models` is a list, but must be a map with keys such as `uri`, `database`, `on_change`, `change_delay`",
    ),
    (
        "",
        "read_models: { a: 5 }\n",
        "line 4, column 19: `read_models.a` is `5`, but must be a map, such as `{ when: { OrderPlaced: { $set: { status: placed } } } }`",
    ),
    (
        "",
        "read_models: { a: {} }\n",
        "line 4, column 19: `read_models.a.when` names no event type, so nothing would be written",
    ),
    (
        "",
        "read_models: { a: { on: { OrderPlaced: delete } } }\n",
        "line 4, column 21: `read_models.a.on` is not a known key; write `when` (`on` means `true` in many YAML parsers)",
    ),
    (
        "",
        "read_models: { a: { wen: { OrderPlaced: delete } } }\n",
        "line 4, column 21: `read_models.a.wen` is not a known key; did you mean `when`?",
    ),
    (
        "",
        "read_models: { a: { when: [ OrderPlaced ] } }\n",
        "line 4, column 27: `read_models.a.when` is a list, but must be a map of event types, such as `{ OrderPlaced: { $set: { status: placed } } }`",
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
        "line 4, column 29: `read_models.a.mirror` is `maybe`, but must be `true` or `false`",
    ),
    (
        "",
        "read_models: { a: { mirror: true, when: { insert: delete } } }\n",
        "line 4, column 29: `read_models.a.mirror` is `true`: a mirror copies, and has no `when`",
    ),
    (
        "",
        "read_models: { a: { when: { OrderPlaced: delete }, indexes: { customer: 1 } } }\n",
        "line 4, column 61: `read_models.a.indexes` is a map, but must be a list of indexes, such as `[ { keys: { customer: 1 } } ]`",
    ),
    (
        "",
        "read_models: { a: { when: { OrderPlaced: delete }, indexes: [ { customer: 1 } ] } }\n",
        "line 4, column 63: `read_models.a.indexes.0` an index needs `keys`, such as `{ customer: 1 }`",
    ),
    (
        "",
        "read_models: { _headwater_cursors: { when: { OrderPlaced: delete } } }\n",
        "line 4, column 36: `read_models._headwater_cursors` is the name of a collection that Headwater uses itself",
    ),
    (
        "",
        "read_models: { database: shop, events: { when: { OrderPlaced: delete } } }\n",
        "line 4, column 40: `read_models.events` is a captured collection and would feed itself; change `read_models.database`",
    ),
];

#[test]
fn every_problem_has_its_position_and_a_fix() {
    let mut failures = Vec::new();
    for (from, to, expected) in PROBLEMS {
        assert!(from.is_empty() || MINIMAL.contains(from), "`{from}` is in the minimal file");
        let file = if from.is_empty() { format!("{MINIMAL}{to}") } else { MINIMAL.replace(from, to) };
        let actual = load(&file).map(|_| "loaded".to_owned()).unwrap_or_else(|actual| actual);
        assert!(!actual.contains("sesame"), "a secret is quoted: {actual}");
        if actual != *expected {
            failures.push(format!("--- {to}\n{actual}"));
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    assert!(PROBLEMS.len() >= 25, "{} problems", PROBLEMS.len());
}

/// Problems of all kinds: YAML, names, types, formats, secrets, read models, and rules between keys.
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
fn problems_of_all_kinds_are_reported_together() {
    let environment = [("HEADWATER__PRODUCER__DRAIN", "1y"), ("OTEL_EXPORTER_OTLP_ENDPOINT", "collector")];
    let actual = load_from(AT_ONCE, &environment, &["consumer.session_idle_timeout=5", "nothing"]).unwrap_err();
    assert_eq!(actual, include_str!("problems_at_once.txt").trim_end(), "{actual}");
    assert!(!actual.contains("open-sesame"));
}
