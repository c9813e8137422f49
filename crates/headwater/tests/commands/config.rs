//! `headwater config`, and configuration problems in all commands.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::{Value as Json, json};

const BINARY: &str = env!("CARGO_BIN_EXE_headwater");

const MISCONFIGURED: Option<i32> = Some(3);

/// Runs the binary in this folder, without `HEADWATER` variables.
fn run(folder: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(BINARY);
    let ours = std::env::vars().map(|(name, _)| name).filter(|name| name.starts_with("HEADWATER"));
    ours.for_each(|name| {
        command.env_remove(name);
    });
    command.args(arguments).current_dir(folder).output().expect("the binary runs")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("text")
}

#[test]
fn the_reference_file_can_be_copied_and_used_as_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let reference = run(folder.path(), &["config", "reference"]);
    assert!(reference.status.success());
    std::fs::write(folder.path().join("headwater.yaml"), &reference.stdout).unwrap();
    // Found in the current folder.
    let printed = run(folder.path(), &["config", "print"]);
    assert!(printed.status.success(), "{}", text(&printed.stderr));
    let checked = run(folder.path(), &["check", "--offline", "--json"]);
    assert!(checked.status.success(), "{}", text(&checked.stderr));
    let checked: Json = serde_json::from_slice(&checked.stdout).unwrap();
    assert_eq!(checked["ok"], true);
}

#[test]
fn the_effective_configuration_is_printed_without_secrets() {
    let folder = tempfile::tempdir().unwrap();
    let file = "\
format: 1
source: { uri: \"mongodb://me:open-sesame@localhost\", database: shop, collection: events, sequence: version }
service_bus: { connection_string: \"Endpoint=sb://localhost;SharedAccessKeyName=n;SharedAccessKey=open-sesame\" }
producer: { window: { events: 100 } }
admin: { token: open-sesame-open-sesame }
read_models: { totals: { when: { Added: { $inc: { total: $$event.payload.amount } } } } }
";
    std::fs::write(folder.path().join("mine.yaml"), file).unwrap();
    let set = ["--config", "mine.yaml", "--set", "producer.drain=3s"];
    let printed = run(folder.path(), &[&["config", "print", "--json"], &set[..]].concat());
    assert!(printed.status.success(), "{}", text(&printed.stderr));
    let output = text(&printed.stdout);
    assert!(!output.contains("sesame"), "{output}");
    let json: Json = serde_json::from_str(&output).unwrap();
    // Hosts are shown.
    assert_eq!(json["source"]["uri"], "mongodb://***@localhost");
    let bus = "Endpoint=sb://localhost;SharedAccessKeyName=n;SharedAccessKey=***";
    assert_eq!(
        json["service_bus"],
        json!({ "connection_string": bus, "entra": { "credential": "environment" }, "topic": "events", "subscription": "read-models", "transport": "amqp" })
    );
    assert_eq!(json["admin"]["token"], "***");
    assert_eq!((&json["producer"]["window"]["events"], &json["producer"]["drain"]), (&json!(100), &json!("3s")));
    assert_eq!(
        (&json["coordination"]["lease"]["ttl"], &json["coordination"]["lease"]["watch"]),
        (&json!("15s"), &json!(true))
    );
    assert_eq!(json["read_models"]["totals"]["when"]["Added"]["$inc"]["total"], "$$event.payload.amount");
    let yaml = run(folder.path(), &[&["config", "print"], &set[..]].concat());
    let yaml = text(&yaml.stdout);
    assert!(yaml.contains("    events: 100\n") && yaml.contains("  drain: 3s\n") && !yaml.contains("sesame"), "{yaml}");
}

#[test]
fn every_command_reports_all_configuration_problems() {
    let folder = tempfile::tempdir().unwrap();
    let file = "format: 1\nsource: { uri: nowhere, databse: shop, collection: events }\nproducer: { body: xml }\nconsumer: { connections: 9, max_concurrent_sessions: 3 }\n";
    std::fs::write(folder.path().join("headwater.yaml"), file).unwrap();
    let commands: [&[&str]; 8] = [
        &["run"],
        &["check"],
        &["status"],
        &["topology", "apply"],
        &["checkpoint", "show"],
        &["parked", "list"],
        &["step-down"],
        &["config", "print"],
    ];
    for arguments in commands {
        let output = run(folder.path(), arguments);
        assert_eq!(output.status.code(), MISCONFIGURED, "{arguments:?}");
        let output = text(&output.stderr);
        assert!(output.starts_with("error: the configuration `headwater.yaml` has 6 problems\n"), "{output}");
        for line in [
            "line 2, column 16: `source.uri` is not a MongoDB URI",
            "line 2, column 25: `source.databse` is not a known key; did you mean `database`?",
            "line 3, column 19: `producer.body` is `xml`",
            "line 4, column 26: `consumer.connections` is `9`",
            "`service_bus.connection_string` is missing",
            "`source.sequence` is missing",
        ] {
            assert!(output.contains(line), "{line}: {output}");
        }
    }
}

#[test]
fn check_json_contains_the_configuration_problems() {
    let folder = tempfile::tempdir().unwrap();
    let file = "format: 1\nsource: { uri: \"mongodb://localhost\", database: shop, collection: events, sequence: version }\nproducer: { body: xml }\n";
    std::fs::write(folder.path().join("headwater.yaml"), file).unwrap();
    let output = run(folder.path(), &["check", "--json"]);
    assert_eq!(output.status.code(), MISCONFIGURED);
    let text: Json = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&text["ok"], &text["file"]), (&json!(false), &json!("headwater.yaml")));
    let body = json!({
        "level": "error", "about": "configuration", "path": "producer.body", "line": 3, "column": 19,
        "problem": "is `xml`, but must be `bson` or `json`"
    });
    assert_eq!(text["findings"][0], body);
    assert_eq!(text["findings"][1]["path"], "service_bus.connection_string");
    assert_eq!(text["findings"][1]["line"], Json::Null);
}

#[test]
fn check_json_reports_a_missing_file() {
    let folder = tempfile::tempdir().unwrap();
    let output = run(folder.path(), &["check", "--json", "--config", "missing.yaml"]);
    assert_eq!(output.status.code(), MISCONFIGURED);
    let text: Json = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&text["ok"], &text["findings"][0]["about"]), (&json!(false), &json!("configuration")));
    let problem = text["findings"][0]["problem"].as_str().unwrap();
    assert!(problem.contains("`missing.yaml`") && problem.contains("No such file"), "{problem}");
}

#[test]
fn without_a_file_the_error_says_how_to_start() {
    let folder = tempfile::tempdir().unwrap();
    let output = run(folder.path(), &["run"]);
    assert_eq!(output.status.code(), MISCONFIGURED);
    let output = text(&output.stderr);
    assert!(
        output.contains("no configuration file found")
            && output.contains("headwater config reference > headwater.yaml"),
        "{output}"
    );
}

#[test]
fn an_unreachable_server_is_reported_with_advice() {
    let folder = tempfile::tempdir().unwrap();
    let file = "\
format: 1
source: { uri: \"mongodb://me:open-sesame@127.0.0.1:1/?serverSelectionTimeoutMS=200\", database: shop, collection: events, sequence: version }
service_bus: { connection_string: \"Endpoint=sb://127.0.0.1:1;UseDevelopmentEmulator=true\" }
";
    std::fs::write(folder.path().join("headwater.yaml"), file).unwrap();
    for (arguments, advice) in [
        (&["checkpoint", "show"][..], "check that MongoDB is running"),
        (&["parked", "list"], "check that MongoDB is running"),
        (&["step-down"], "check that MongoDB is running"),
        (&["topology", "apply"], "check that Service Bus is reachable"),
        (&["status"], "check that MongoDB is running"),
    ] {
        let output = run(folder.path(), arguments);
        let code = if arguments == ["status"] { 4 } else { 1 };
        assert_eq!(output.status.code(), Some(code), "{arguments:?}");
        let output = text(&output.stderr);
        assert!(output.contains(&format!("help: {advice}")), "{output}");
        assert!(output.contains("127.0.0.1:1") && output.contains("refused"), "{output}");
        assert!(!output.contains("Topology") && !output.contains("sesame"), "{output}");
    }
}
