//! Ordinary use of a shell: a reader that goes before everything is output, and an environment with things in it that are none of ours.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, PipeWriter};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Instant;

use crate::fixture::{CliFixture, SOON};

const FILE: &str = "\
format: 1
source: { uri: \"mongodb://127.0.0.1:1/?serverSelectionTimeoutMS=200\", database: shop, collection: events, sequence: version }
service_bus: { connection_string: \"Endpoint=sb://127.0.0.1:1;UseDevelopmentEmulator=true\" }
";
const NOT_TEXT: &[u8] = b"\xff\xfe";

fn headwater(folder: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_headwater"));
    command.current_dir(folder).env_remove("HEADWATER_CONFIG").stdin(Stdio::null());
    command
}

/// A pipe nobody reads, as after `| true`.
fn unread() -> PipeWriter {
    std::io::pipe().unwrap().1
}

fn error(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn a_reader_that_has_gone_changes_neither_the_end_of_a_command_nor_makes_it_panic() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("headwater.yaml"), FILE).unwrap();
    let commands: [(&[&str], i32); 9] = [
        (&["config", "schema"], 0),
        (&["config", "reference"], 0),
        (&["config", "print"], 0),
        (&["config", "print", "--json"], 0),
        (&["check", "--offline"], 0),
        (&["check", "--offline", "--json"], 0),
        (&["check", "--config", "missing.yaml", "--json"], 3),
        (&["completions", "bash"], 0),
        (&["--help"], 0),
    ];
    for (arguments, code) in commands {
        let ended = headwater(folder.path()).args(arguments).stdout(unread()).output().unwrap();
        assert_eq!(ended.status.code(), Some(code), "{arguments:?}: {}", error(&ended));
        let neither = headwater(folder.path()).args(arguments).stdout(unread()).stderr(unread()).status().unwrap();
        assert_eq!(neither.code(), Some(code), "{arguments:?}");
    }
}

#[tokio::test]
async fn a_reader_that_has_gone_is_no_matter_to_commands_that_ask_servers() {
    let fixture = CliFixture::new("unread", "").await;
    let commands: [(&[&str], i32); 5] = [
        (&["topology", "apply"], 0),
        (&["parked", "list"], 0),
        (&["checkpoint", "show"], 0),
        (&["status"], 4), // nobody leads
        (&["check"], 0),
    ];
    for (arguments, code) in commands {
        let mut command = headwater(fixture.folder());
        let ended = tokio::task::spawn_blocking(move || command.args(arguments).stdout(unread()).output().unwrap());
        let ended = ended.await.unwrap();
        assert_eq!(ended.status.code(), Some(code), "{arguments:?}: {}", error(&ended));
    }
}

#[tokio::test]
async fn a_watch_ends_when_nobody_looks_any_more() {
    let fixture = CliFixture::new("watched", "").await;
    let mut command = headwater(fixture.folder());
    let watch = move || {
        let (reader, writer) = std::io::pipe().unwrap();
        let mut watch = command.args(["status", "--watch", "--json"]).stdout(writer).spawn().unwrap();
        drop(command); // it has the other end of the pipe, too
        let mut first = String::new();
        BufReader::new(reader).read_line(&mut first).unwrap();
        assert_eq!(first, "{\n");
        let until = Instant::now() + SOON;
        loop {
            match watch.try_wait().unwrap() {
                Some(status) => return assert_eq!(status.code(), Some(0)),
                None if Instant::now() > until => {
                    watch.kill().unwrap();
                    panic!("it watches on, for nobody");
                }
                None => std::thread::sleep(std::time::Duration::from_millis(20)),
            }
        }
    };
    tokio::task::spawn_blocking(watch).await.unwrap();
}

#[test]
fn a_variable_that_is_no_text_is_told_of_if_it_is_ours_and_else_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let not_text = OsStr::from_bytes(NOT_TEXT);
    let file = folder.path().join(not_text);
    std::fs::write(&file, FILE).unwrap();
    let printed = headwater(folder.path())
        .args(["config", "print"])
        .env("FOO", not_text)
        .env(not_text, "foo")
        .env("HOSTNAME", not_text)
        .env("HEADWATER_CONFIG", &file)
        .output()
        .unwrap();
    assert_eq!(printed.status.code(), Some(0), "{}", error(&printed));
    let refused = headwater(folder.path())
        .args(["config", "print"])
        .env("HEADWATER_CONFIG", &file)
        .env("HEADWATER__PIPELINE", not_text)
        .output()
        .unwrap();
    assert_eq!(refused.status.code(), Some(3));
    let output = error(&refused);
    assert!(output.contains("environment variable HEADWATER__PIPELINE: is not text (UTF-8)"), "{output}");
}
