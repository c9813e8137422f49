//! A data folder that somebody damaged: the broker recovers it, or says what is wrong.

use std::collections::BTreeMap;
use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use broker::{Broker, Config, StorageLocation};
use futures_util::StreamExt;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader};
use tokio::process::Command;
use tokio::time::timeout;

use crate::processes::command_memory;
use crate::table::HostileTable;

const HANG: Duration = Duration::from_secs(30);

/// Brokers that start at the same time.
const BROKERS: usize = 4;

const ENTITIES: &str = r#"{ "UserConfig": { "Namespaces": [ { "Name": "sbemulatorns", "Queues": [ { "Name": "orders" } ] } ], "Logging": { "Type": "File" } } }"#;

type Files = BTreeMap<String, Vec<u8>>;

#[tokio::test]
async fn a_damaged_data_folder_does_not_crash_the_broker() {
    let good = good_folder().await;
    let mut table = HostileTable::new("data folder");
    let results = futures_util::stream::iter(damages(&good)).map(async |(name, files)| {
        let folder = tempfile::tempdir().unwrap();
        for (file, bytes) in &files {
            fs::write(folder.path().join(file), bytes).unwrap();
        }
        (name, start(folder.path()).await)
    });
    let mut results = Box::pin(results.buffered(BROKERS));
    while let Some((name, result)) = results.next().await {
        table.record(&name, result);
    }
    table.finish(&command_memory());
}

/// The files of a broker that stored some messages, without the allocated space at their ends.
async fn good_folder() -> Files {
    let folder = tempfile::tempdir().unwrap();
    let config = Config::new(SocketAddr::from(([127, 0, 0, 1], 0)), StorageLocation::Folder(folder.path().to_owned()));
    let entities = broker::emulator_config::parse(ENTITIES).unwrap().entities;
    let broker = Broker::start(Config { entities, ..config }).await.unwrap();
    let client = servicebus::Client::new(&broker.connection_string(), servicebus::Config::default()).unwrap();
    for number in 0..50 {
        let message = servicebus::Message::new(format!("body {number}")).with_id(format!("m{number}"));
        client.sender("orders").send_message(&message).await.unwrap();
    }
    let _ = client.close().await;
    broker.stop().await;
    let mut files = Files::new();
    for entry in fs::read_dir(folder.path()).unwrap().flatten() {
        let mut bytes = fs::read(entry.path()).unwrap();
        let used = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |at| at + 1);
        bytes.truncate((used + 4_096).min(bytes.len()));
        files.insert(entry.file_name().into_string().unwrap(), bytes);
    }
    files
}

/// Waits for readiness or for the end, whichever comes first.
async fn start(folder: &Path) -> Result<String, String> {
    let mut command = Command::new(crate::BINARY);
    command.args(["broker", "--listen", "127.0.0.1:0", "--data-dir"]).arg(folder);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    let mut child = command.spawn().unwrap();
    let (stdout, mut stderr) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
    let ready = async {
        let mut lines = BufReader::new(stdout).lines();
        while let Ok(Some(line)) = lines.next_line().await {
            if line.contains("broker ready on") {
                return true;
            }
        }
        false
    };
    if timeout(HANG, ready).await.map_err(|_| "hangs".to_owned())? {
        child.kill().await.unwrap();
        return Ok("recovered".to_owned());
    }
    let status = timeout(HANG, child.wait()).await.map_err(|_| "hangs".to_owned())?.unwrap();
    let mut text = String::new();
    let _ = stderr.read_to_string(&mut text).await;
    match status.code() {
        None => Err(format!("ended by a signal: {status}")),
        Some(101) => Err(format!("panicked: {text}")),
        Some(_) if text.contains("panicked") => Err(format!("panicked: {text}")),
        Some(0) => Err("ended without an error".to_owned()),
        Some(code) => Ok(format!("refused, exit code {code}")),
    }
}

fn damages(good: &Files) -> Vec<(String, Files)> {
    let with = |name: &str, bytes: Vec<u8>| {
        let mut files = good.clone();
        files.insert(name.to_owned(), bytes);
        files
    };
    let mut inputs = vec![
        ("as it was".to_owned(), good.clone()),
        ("empty".to_owned(), Files::new()),
        ("a foreign file".to_owned(), with("notes.txt", b"hello".to_vec())),
        ("a file with a name like ours".to_owned(), with("99999999999.log", vec![0xff; 100])),
    ];
    for (name, bytes) in good.iter().filter(|(_, bytes)| !bytes.is_empty()) {
        let mut change = |what: &str, edit: &dyn Fn(&mut Vec<u8>)| {
            let mut bytes = bytes.clone();
            edit(&mut bytes);
            inputs.push((format!("{name}: {what}"), with(name, bytes)));
        };
        let middle = bytes.len() / 2;
        change("empty", &|bytes| bytes.clear());
        change("one byte", &|bytes| bytes.truncate(1));
        change("half", &|bytes| bytes.truncate(middle));
        change("last byte missing", &|bytes| bytes.truncate(bytes.len() - 1));
        change("twice", &|bytes| bytes.extend_from_within(..));
        change("noise at the end", &|bytes| bytes.extend([0xa5; 5_000]));
        change("noise", &|bytes| bytes.fill(0xa5));
        change("zeros", &|bytes| bytes.fill(0));
        for at in [0, 4, 8, 12, 16, 20, 24, 32, 48, 64, 100, 200, 500, 1_000, 2_000] {
            if at < bytes.len() {
                change(&format!("bit at {at}"), &|bytes| bytes[at] ^= 0x80);
                change(&format!("0xffffffff at {at}"), &|bytes| {
                    let to = (at + 4).min(bytes.len());
                    bytes[at..to].fill(0xff);
                });
            }
        }
        let mut without = good.clone();
        without.remove(name);
        inputs.push((format!("{name}: missing"), without));
    }
    inputs
}
