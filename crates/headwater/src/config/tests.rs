//! What is loaded, and from which source. [`problems`] has the exact text of every problem.

use std::num::NonZeroU32;

use pipeline::producer::OnHistoryLost;
use pipeline::publish::{BodyFormat, CheckpointInterval, SessionMapping};
use pipeline::view::OnPoison;
use pipeline::{capture, publish};

use super::*;

mod pipelines;
mod problems;
mod schema;

const MINIMAL: &str = "\
format: 1
source: { uri: \"mongodb://localhost\", database: shop, collection: events, sequence: version }
service_bus: { connection_string: \"Endpoint=sb://localhost;UseDevelopmentEmulator=true\" }
";

/// A file, and secrets in other files.
fn of_file(file: &str) -> ConfigSources<'_> {
    ConfigSources {
        file: Some(file),
        file_name: None,
        environment: &[],
        unreadable: &[],
        flags: &[],
        read_file: &|file| match file {
            "/token" => Ok("0123456789abcdef\n".to_owned()),
            "/secret" => Ok("mongodb://user:pass@host\n".to_owned()),
            _ => Err(std::io::Error::from(std::io::ErrorKind::NotFound)),
        },
    }
}

/// As `config print` shows it.
fn shown(file: &str) -> String {
    Deployment::read(&of_file(file), Some("host-1")).unwrap().1.to_yaml()
}

fn load_from(file: &str, environment: &[(&str, &str)], flags: &[&str]) -> Result<Config, String> {
    load_all_from(file, environment, flags).map(|deployment| deployment.select(None).unwrap())
}

fn load_all_from(file: &str, environment: &[(&str, &str)], flags: &[&str]) -> Result<Deployment, String> {
    let environment: Vec<_> =
        environment.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    let flags: Vec<_> = flags.iter().map(|flag| (*flag).to_owned()).collect();
    let sources = ConfigSources { environment: &environment, flags: &flags, ..of_file(file) };
    let text = |problems: Vec<ConfigProblem>| problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n");
    Deployment::read(&sources, Some("host-1")).map(|(deployment, _)| deployment).map_err(text)
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
    assert_eq!(
        config.source,
        SourceConfig { sequence: Some("version".into()), ..SourceConfig::events("shop", "events") }
    );
    assert_eq!(
        (config.service_bus.topic.as_str(), config.service_bus.subscription.as_str()),
        ("events", "read-models")
    );
}

#[test]
fn the_defaults_are_those_of_the_services() {
    let config = load(MINIMAL).unwrap().producer;
    assert_eq!(config.capture, capture::Config::default());
    assert_eq!(config.publish, publish::Config::default());
    assert_eq!(config.start, capture::StartPosition::default());
    assert_eq!(config.on_history_lost, OnHistoryLost::default());
}

#[test]
fn the_environment_overrides_the_file_and_flags_override_both() {
    let environment =
        [("HEADWATER__SERVICE_BUS__TOPIC", "from-env"), ("HEADWATER__PIPELINE", "from-env"), ("PATH", "/bin")];
    let config = load_from(MINIMAL, &environment, &["pipeline=from-flag", "coordination.lease.watch=false"]).unwrap();
    assert_eq!((config.service_bus.topic.as_str(), config.pipeline.as_str()), ("from-env", "from-flag"));
    assert!(!config.coordination.lease.watch);
    // A connection string with special characters is still a string.
    let key = "Endpoint=sb://a.example/;SharedAccessKeyName=n;SharedAccessKey=a+b/c=: d";
    let config = load_from(MINIMAL, &[("HEADWATER__SERVICE_BUS__CONNECTION_STRING", key)], &[]).unwrap();
    let BusAccess::ConnectionString(text) = &config.service_bus.access else { panic!("{:?}", config.service_bus) };
    assert_eq!(text.reveal(), key);
}

#[test]
fn a_secret_can_be_a_file_and_is_never_shown() {
    let file = MINIMAL.replace("uri: \"mongodb://localhost\"", "uri_file: /secret");
    let config = load(&file).unwrap();
    assert_eq!(config.source_uri.reveal(), "mongodb://user:pass@host");
    assert!(!format!("{config:?}").contains("pass"));
    let shown = shown(&file);
    assert!(shown.contains("uri: \"mongodb://***@host\"") && !shown.contains("pass"), "{shown}");
    // The output can be loaded again after the secrets are filled in.
    let text = load(&shown).unwrap_err();
    assert!(text.contains("its secrets are masked"), "{text}");
    load(&shown.replace("***@", "user:pass@").replace("=***", "=key")).unwrap();
}

#[test]
fn the_operator_token_is_never_shown() {
    assert!(load(MINIMAL).unwrap().admin.token.is_none());
    let token = |config: Config| config.admin.token.map(|token| token.reveal().to_owned());
    let file = format!("{MINIMAL}admin: {{ token: a-token-of-some-length }}\n");
    let config = load(&file).unwrap();
    assert!(!format!("{config:?}").contains("of-some-length"));
    assert_eq!(token(config).as_deref(), Some("a-token-of-some-length"));
    // Digits in a variable are not a number, and special characters are not YAML.
    for given in ["12345678901234567", "{a: 1}#&*!'\"0123456"] {
        let given = given.replace(' ', "");
        let config = load_from(MINIMAL, &[("HEADWATER__ADMIN__TOKEN", &given)], &[]).unwrap();
        assert_eq!(token(config), Some(given));
    }
    // From a file, like other secrets.
    let config = load(&format!("{MINIMAL}admin: {{ token_file: /token }}\n")).unwrap();
    assert_eq!(token(config).as_deref(), Some("0123456789abcdef"));
    let shown = shown(&file);
    assert!(shown.contains("token: \"***\"") && !shown.contains("of-some-length"), "{shown}");
}

#[test]
fn message_keys_are_never_shown() {
    assert!(load(MINIMAL).unwrap().message_keys.is_none());
    const KEY: &str = "AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE=";
    let file = format!("{MINIMAL}message_signing: {{ keys: \"old:{KEY} new:{KEY}\", sign_with: new }}\n");
    let config = load(&file).unwrap();
    let shown_config = format!("{config:?}");
    assert!(shown_config.contains("signer: \"new\"") && !shown_config.contains(KEY), "{shown_config}");
    let shown = shown(&file);
    assert!(shown.contains("keys: \"***\"") && !shown.contains(KEY), "{shown}");
    let variable = format!("one:{KEY}\ntwo:{KEY}");
    let config = load_from(MINIMAL, &[("HEADWATER__MESSAGE_SIGNING__KEYS", &variable)], &[]).unwrap();
    assert_eq!(config.message_keys.unwrap().ids().collect::<Vec<_>>(), ["one", "two"]);
}

#[test]
fn the_file_overrides_the_otlp_endpoint_variable() {
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
    // The password in it is not repeated.
    let text = endpoint("", "http://me:secret@collector").unwrap_err();
    assert!(text.contains("OTEL_EXPORTER_OTLP_ENDPOINT") && !text.contains("secret"), "{text}");
}

#[test]
fn every_value_can_be_set() {
    let file = format!(
        "{MINIMAL}{}",
        "producer:\n  start: 2026-01-31T00:00:00Z\n  sessions: buckets(256)\n  checkpoint: each\n  body: json\n  on_history_lost: snapshot\n  \
         filter: [ { $match: { fullDocument.region: eu } } ]\n  window: { events: 100, bytes: 1MiB }\n  drain: 3s\n"
    );
    let producer = load(&file).unwrap().producer;
    assert!(matches!(producer.start, capture::StartPosition::At(_)));
    assert_eq!(producer.publish.sessions, SessionMapping::Buckets(NonZeroU32::new(256).unwrap()));
    assert_eq!((producer.publish.checkpoint, producer.publish.body), (CheckpointInterval::Each, BodyFormat::Json));
    assert_eq!(producer.publish.window_bytes.get(), 1 << 20);
    assert_eq!(producer.capture.filter, [mongodb::bson::doc! { "$match": { "fullDocument.region": "eu" } }]);
    assert_eq!(producer.on_history_lost, OnHistoryLost::Snapshot);
}

#[test]
fn consumer_defaults_are_those_of_its_services() {
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
fn read_models_are_compiled_from_their_declarations() {
    use pipeline::view::Projection;
    let file = format!("{MINIMAL}{READ_MODELS}");
    let config = load(&file).unwrap().read_models;
    let names: Vec<_> = config.models.iter().map(|model| model.name()).collect();
    assert_eq!(names, ["order_summary", "customers"]);
    // The index has its fields in the order of the file.
    assert_eq!(config.models[0].indexes()[0].keys, mongodb::bson::doc! { "customer": 1, "_id": -1 });
    assert_eq!((config.database.as_str(), config.uri.reveal()), ("shop_views", "mongodb://localhost"));
    let elsewhere =
        load_from(&file, &[("HEADWATER__READ_MODELS__URI", "mongodb://other")], &["read_models.database=v"]);
    let elsewhere = elsewhere.unwrap().read_models;
    assert_eq!((elsewhere.database.as_str(), elsewhere.uri.reveal()), ("v", "mongodb://other"));
    // The printed configuration declares the same.
    let shown = shown(&file);
    let again = load(&shown).unwrap().read_models;
    assert_eq!(again.models[0].indexes(), config.models[0].indexes(), "{shown}");
}

#[test]
fn problems_found_by_the_server_have_a_line() {
    let config = load(&format!("{MINIMAL}{READ_MODELS}")).unwrap().read_models;
    let mistake = |path: &[&str]| pipeline::view::ModelProblem {
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
    let text = config.declared.explain(&mistakes).to_string();
    let lines: Vec<&str> = text.lines().skip(1).collect();
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
fn the_reference_file_matches_the_code_and_loads() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../config/headwater.yaml");
    let stored = std::fs::read_to_string(&path).expect("config/headwater.yaml");
    assert_eq!(stored, reference_file(), "regenerate it: cargo run -- config reference > config/headwater.yaml");
    load(&stored).unwrap();
}

#[test]
fn every_key_has_a_description() {
    let bare = super::schema::KEYS.iter().filter(|key| key.about.is_empty()).map(|key| key.path);
    assert_eq!(bare.collect::<Vec<_>>(), [""; 0]);
}

#[test]
fn the_schema_for_editors_knows_every_key() {
    let schema = json_schema();
    for key in super::schema::KEYS {
        let pointer: String = key.path.split('.').map(|name| format!("/properties/{name}")).collect();
        let pointer = pointer.replace("/properties/*", "/additionalProperties/properties/when");
        assert!(schema.pointer(&pointer).is_some(), "{}", key.path);
    }
}

#[test]
fn invalid_yaml_does_not_hide_other_problems() {
    let text = load_from("source: [\n", &[("HEADWATER__PRODUCER__BODY", "xml")], &["producer.boby=bson"]).unwrap_err();
    let text: Vec<_> = text.lines().collect();
    assert_eq!(text.len(), 3, "{text:#?}");
    assert!(text[0].starts_with("line 2, column 1: not YAML"), "{text:#?}");
    assert!(text[1].contains("HEADWATER__PRODUCER__BODY: `producer.body` is `xml`"), "{text:#?}");
    assert!(text[2].contains("--set: `producer.boby` is not a known key; did you mean `body`?"), "{text:#?}");
}

#[test]
fn a_secret_and_its_file_follow_source_precedence() {
    let uri = |file: &str, environment: &[(&str, &str)]| {
        load_from(file, environment, &[]).map(|config| config.source_uri.reveal().to_owned())
    };
    let from_file = MINIMAL.replace("uri: \"mongodb://localhost\"", "uri_file: /secret");
    let by_variable = [("HEADWATER__SOURCE__URI", "mongodb://variable")];
    assert_eq!(uri(&from_file, &by_variable).as_deref(), Ok("mongodb://variable"));
    let by_file = [("HEADWATER__SOURCE__URI_FILE", "/secret")];
    assert_eq!(uri(MINIMAL, &by_file).as_deref(), Ok("mongodb://user:pass@host"));
    let both = [by_variable[0], by_file[0]];
    assert!(uri(MINIMAL, &both).unwrap_err().contains("set either the secret or its file"));
}

#[test]
fn certificates_that_a_uri_names_are_watched() {
    let uri = "mongodb://a/?tls=true&tlsCAFile=%2Ftmp%2Fca.pem&tlsCertificateKeyFile=/tmp/a%20b.pem&appName=y";
    let config = load(&MINIMAL.replace("mongodb://localhost", uri)).unwrap();
    assert_eq!(config.secret_files, ["/tmp/ca.pem", "/tmp/a b.pem"].map(std::path::PathBuf::from));
}
