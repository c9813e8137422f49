//! Configuration files, from a hand that slipped to one that means harm.

use std::process::Stdio;
use std::time::Duration;

use futures_util::StreamExt;
use tokio::process::Command;
use tokio::time::timeout;

use crate::processes::command_memory;
use crate::table::HostileTable;

const HANG: Duration = Duration::from_secs(20);
/// Commands that run at the same time.
const COMMANDS: usize = 4;
const SECRET: &str = "open-sesame-0123456789";

const GOOD: &str = "format: 1
source: { uri: \"mongodb://user:open-sesame-0123456789@localhost/\", database: shop, collection: events }
service_bus: { connection_string: \"Endpoint=sb://localhost;SharedAccessKeyName=a;SharedAccessKey=open-sesame-0123456789;UseDevelopmentEmulator=true\" }
";

#[tokio::test]
async fn hostile_configuration_is_refused_with_a_reason() {
    let folder = tempfile::tempdir().unwrap();
    let mut table = HostileTable::new("configuration");
    let results =
        futures_util::stream::iter(inputs().into_iter().enumerate()).map(async |(number, (name, content))| {
            let path = folder.path().join(format!("headwater-{number}.yaml"));
            std::fs::write(&path, content).unwrap();
            (name, print_config(&path).await)
        });
    let mut results = Box::pin(results.buffered(COMMANDS));
    while let Some((name, result)) = results.next().await {
        table.record(&name, result);
    }
    table.finish(&command_memory());
}

/// `config print` reads and checks everything without a server.
async fn print_config(path: &std::path::Path) -> Result<String, String> {
    let mut command = Command::new(crate::BINARY);
    command.args(["config", "print", "--config"]).arg(path).stdin(Stdio::null()).kill_on_drop(true);
    let output = timeout(HANG, command.output()).await.map_err(|_| "hangs".to_owned())?.unwrap();
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    match output.status.code() {
        None => Err(format!("ended by a signal: {}", output.status)),
        Some(101) => Err("panicked".to_owned()),
        Some(_) if text.contains(SECRET) => Err("prints a secret".to_owned()),
        Some(0) => Ok("accepted".to_owned()),
        Some(code) => Ok(format!("refused, exit code {code}")),
    }
}

fn inputs() -> Vec<(String, Vec<u8>)> {
    let mut inputs: Vec<(String, Vec<u8>)> = vec![
        ("nothing".into(), vec![]),
        ("NUL bytes".into(), vec![0; 1_000]),
        ("not UTF-8".into(), vec![0xff, 0xfe, 0xfa]),
        ("byte order mark".into(), [b"\xef\xbb\xbf", GOOD.as_bytes()].concat()),
        ("1 MB of one letter".into(), vec![b'a'; 1 << 20]),
        ("lists 20,000 deep".into(), vec![b'['; 20_000]),
        ("maps 20,000 deep".into(), b"{a: ".repeat(20_000)),
        (
            "blocks 5,000 deep".into(),
            (0..5_000).flat_map(|depth| [" ".repeat(depth).into_bytes(), b"a:\n".to_vec()].concat()).collect(),
        ),
        ("anchors that multiply".into(), laughs()),
        ("anchor in itself".into(), b"a: &a [ *a ]\n".to_vec()),
        ("unknown anchor".into(), b"a: *b\n".to_vec()),
        ("tags".into(), b"format: !!python/object/apply:os.system [\"id\"]\n".to_vec()),
        ("several documents".into(), [GOOD, "---\n", GOOD].concat().into_bytes()),
        ("a key twice".into(), [GOOD, "format: 1\n"].concat().into_bytes()),
        ("merge keys".into(), [GOOD, "admin: { <<: { token: a } }\n"].concat().into_bytes()),
        ("a list at the top".into(), b"- format: 1\n".to_vec()),
        ("a number at the top".into(), b"1\n".to_vec()),
        ("keys of all types".into(), b"1: a\ntrue: b\n~: c\n[a]: d\n".to_vec()),
        ("10,000 keys".into(), (0..10_000).flat_map(|number| format!("key{number}: 1\n").into_bytes()).collect()),
        ("a key of 1 MB".into(), format!("{}: 1\n", "k".repeat(1 << 20)).into_bytes()),
    ];
    inputs.extend(
        HOSTILE_SETTINGS
            .iter()
            .map(|line| ((*line).escape_debug().to_string(), [GOOD, line, "\n"].concat().into_bytes())),
    );
    let models = ["[[[[[[[[", "{ when: { A: ", "{ key: { a: ", "[ { $set: { a: "];
    for open in models {
        let text = format!("{GOOD}read_models: {{ m: {} }}\n", open.repeat(2_000));
        inputs.push((format!("read model of 2,000 `{open}`"), text.into_bytes()));
    }
    inputs
}

const HOSTILE_SETTINGS: &[&str] = &[
    "format: 99",
    "format: -1",
    "format: 1e400",
    "format: .nan",
    "pipeline: \"\\0\"",
    "pipeline: \"$where\"",
    "pod_id: \"../../etc/passwd\"",
    "admin: { listen: \"0.0.0.0:99999\" }",
    "admin: { listen: \"[::1\" }",
    "admin: { token: \"a\" }",
    "admin: { token_file: /dev/zero }",
    "admin: { token_file: /etc/shadow-of-nothing }",
    "admin: { certificate_file: /etc/hostname }",
    "admin: { certificate_file: /nowhere, key_file: /nowhere }",
    "admin: { hosts: { a: b } }",
    "producer: { start: 99999-99-99T00:00:00Z }",
    "producer: { filter: [ { $where: \"sleep(1000)\" } ] }",
    "producer: { filter: [ { $out: other } ] }",
    "producer: { window: { events: 0 } }",
    "producer: { window: { bytes: 99999999999999999999GiB } }",
    "consumer: { connections: 4294967296 }",
    "consumer: { lock_duration: -5s }",
    "consumer: { drain: 1e9999h }",
    "coordination: { lease: { ttl: 0s } }",
    "telemetry: { otlp_endpoint: \"file:///etc/passwd\" }",
    "telemetry: { otlp_endpoint: \"http://user:open-sesame-0123456789@host\" }",
    "read_models: { system.users: { mirror: true } }",
    "read_models: { _headwater_cursors: { mirror: true } }",
    "read_models: { orders: { when: { A: { $rename: { a: $$event.x } } } } }",
    "read_models: { orders: { when: { A: { $set: { _id: $$event.x } } } } }",
    "read_models: { orders: { when: { A: { $set: { a: $$event.$b } } } } }",
    "read_models: { orders: { when: { A: [ { $function: { body: a, args: [], lang: js } } ] } } }",
    "read_models: { \"a$b\": { mirror: true } }",
];

/// Nine levels of nine references each: 387 million entries, if they are expanded.
fn laughs() -> Vec<u8> {
    let mut text = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n".to_owned();
    for level in 1..9 {
        let before = format!("*a{}", level - 1);
        text += &format!("a{level}: &a{level} [{}]\n", [before.as_str(); 9].join(", "));
    }
    text.into_bytes()
}
