//! The version of the binary, and its manual pages.

use std::process::Command;

use serde_json::Value as Json;

const BINARY: &str = env!("CARGO_BIN_EXE_headwater");

fn printed(arguments: &[&str]) -> String {
    let output = Command::new(BINARY).args(arguments).output().expect("the binary runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

#[test]
fn version_is_that_of_the_workspace() {
    let version = env!("CARGO_PKG_VERSION");
    assert!(printed(&["version"]).starts_with(&format!("headwater {version} (")));
    assert_eq!(printed(&["--version"]), format!("headwater {version}\n"));
    let build: Json = serde_json::from_str(&printed(&["version", "--json"])).expect("JSON");
    assert_eq!(build["version"], version);
    assert!(build["commit"].is_null() || build["commit"].as_str().is_some_and(|commit| commit.len() == 40), "{build}");
    assert!(build["formats"]["message"].is_number() && build["formats"]["status"].is_number(), "{build}");
}

#[test]
fn every_command_has_a_manual_page() {
    let folder = tempfile::tempdir().expect("a folder");
    printed(&["man", folder.path().to_str().expect("a text")]);
    let commands =
        ["", "-run", "-dev", "-broker", "-status", "-parked", "-parked-discard", "-checkpoint-set", "-version"];
    for command in commands {
        let page = std::fs::read_to_string(folder.path().join(format!("headwater{command}.1")));
        assert!(page.expect("a page").contains(".SH SYNOPSIS"), "headwater{command}");
    }
}
