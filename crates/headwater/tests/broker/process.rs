//! The broker as a process: killed under load, and what it says on the command line.

use std::path::Path;
use std::process::Command;

const BINARY: &str = env!("CARGO_BIN_EXE_headwater");

/// A smaller cut of `cargo xtask soak broker-kills`, with a seed of its own.
#[tokio::test]
async fn a_broker_killed_again_and_again_loses_nothing_it_accepted() {
    let report = bench::kills::run(Path::new(BINARY), 12, 20_261_115).await.expect("the broker kept its word");
    assert!(report.accepted > 0 && report.completed == report.accepted, "{report:?}");
    assert!(report.sends_in_doubt > 0, "no kill hit while a send was under way: {report:?}");
}

#[test]
fn a_mistake_in_the_entities_file_is_told_with_its_place() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("config.json");
    std::fs::write(&file, "{\n  \"UserConfig\": { \"Namespaces\": [ { \"Name\": 7 } ] }\n}").expect("a file");
    let output = Command::new(BINARY)
        .args(["broker", "--ephemeral", "--listen", "127.0.0.1:0", "--config"])
        .arg(&file)
        .output()
        .expect("the binary runs");
    assert!(!output.status.success());
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("UserConfig.Namespaces[0].Name") && said.contains("2:"), "{said}");
}

#[test]
fn a_port_in_use_is_told() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = taken.local_addr().expect("its address").to_string();
    let output =
        Command::new(BINARY).args(["broker", "--ephemeral", "--listen", &address]).output().expect("the binary runs");
    assert!(!output.status.success());
    assert!(String::from_utf8_lossy(&output.stderr).contains(&format!("listen on {address}")));
}
