//! Scripts for shells.

use std::process::Command;

const BINARY: &str = env!("CARGO_BIN_EXE_headwater");

fn script(shell: &str) -> String {
    let output = Command::new(BINARY).args(["completions", shell]).output().expect("the binary runs");
    assert!(output.status.success(), "{shell}");
    String::from_utf8(output.stdout).expect("text")
}

#[test]
fn every_shell_gets_a_completion_script() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = script(shell);
        for word in ["step-down", "parked", "discard", "dry-run"] {
            assert!(script.contains(word), "{word} for {shell}");
        }
    }
}

/// What bash offers for the last of these words.
fn offered(words: &str) -> Vec<String> {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("headwater");
    std::fs::write(&file, script("bash")).expect("a file");
    let last = words.split(' ').count() - 1;
    let ask = format!(
        "source '{}' && COMP_WORDS=({words}) COMP_CWORD={last} && _headwater headwater \"${{COMP_WORDS[{last}]}}\" \
         \"${{COMP_WORDS[{}]}}\" && printf '%s\\n' \"${{COMPREPLY[@]}}\"",
        file.display(),
        last - 1,
    );
    let output = Command::new("bash").args(["--norc", "-c", &ask]).output().expect("bash runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect()
}

#[test]
fn bash_completes_commands_and_their_flags() {
    assert_eq!(offered("headwater par"), ["parked"]);
    assert_eq!(offered("headwater parked dis"), ["discard"]);
    assert_eq!(offered("headwater status --wa"), ["--watch"]);
}
