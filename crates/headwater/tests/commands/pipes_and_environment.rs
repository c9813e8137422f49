//! Closed pipes, and environment variables that are not UTF-8.

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
const NOT_UTF8: &[u8] = b"\xff\xfe";

fn headwater(folder: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_headwater"));
    command.current_dir(folder).env_remove("HEADWATER_CONFIG").stdin(Stdio::null());
    command
}

/// A pipe without a reader, as with `| true`.
fn closed_pipe() -> PipeWriter {
    std::io::pipe().unwrap().1
}

fn error(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn a_closed_pipe_does_not_change_the_exit_code() {
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
        let ended = headwater(folder.path()).args(arguments).stdout(closed_pipe()).output().unwrap();
        assert_eq!(ended.status.code(), Some(code), "{arguments:?}: {}", error(&ended));
        let neither =
            headwater(folder.path()).args(arguments).stdout(closed_pipe()).stderr(closed_pipe()).status().unwrap();
        assert_eq!(neither.code(), Some(code), "{arguments:?}");
    }
}

#[tokio::test]
async fn a_closed_pipe_is_ignored_by_commands_with_servers() {
    let fixture = CliFixture::new("unread", "").await;
    let commands: [(&[&str], i32); 5] = [
        (&["topology", "apply"], 0),
        (&["parked", "list"], 0),
        (&["checkpoint", "show"], 0),
        (&["status"], 4), // no leader
        (&["check"], 0),
    ];
    for (arguments, code) in commands {
        let mut command = headwater(fixture.folder());
        let ended =
            tokio::task::spawn_blocking(move || command.args(arguments).stdout(closed_pipe()).output().unwrap());
        let ended = ended.await.unwrap();
        assert_eq!(ended.status.code(), Some(code), "{arguments:?}: {}", error(&ended));
    }
}

#[tokio::test]
async fn status_watch_ends_when_its_pipe_is_closed() {
    let fixture = CliFixture::new("watched", "").await;
    let mut command = headwater(fixture.folder());
    let watch = move || {
        let (reader, writer) = std::io::pipe().unwrap();
        let mut watch = command.args(["status", "--watch", "--json"]).stdout(writer).spawn().unwrap();
        drop(command); // it also holds the write end of the pipe
        let mut first = String::new();
        BufReader::new(reader).read_line(&mut first).unwrap();
        assert_eq!(first, "{\n");
        let until = Instant::now() + SOON;
        loop {
            match watch.try_wait().unwrap() {
                Some(status) => return assert_eq!(status.code(), Some(0)),
                None if Instant::now() > until => {
                    watch.kill().unwrap();
                    panic!("`status --watch` did not end");
                }
                None => std::thread::sleep(std::time::Duration::from_millis(20)),
            }
        }
    };
    tokio::task::spawn_blocking(watch).await.unwrap();
}

#[test]
fn a_variable_that_is_not_utf8_is_refused_if_it_is_ours() {
    let folder = tempfile::tempdir().unwrap();
    let not_utf8 = OsStr::from_bytes(NOT_UTF8);
    let file = folder.path().join(not_utf8);
    std::fs::write(&file, FILE).unwrap();
    let printed = headwater(folder.path())
        .args(["config", "print"])
        .env("FOO", not_utf8)
        .env(not_utf8, "foo")
        .env("HOSTNAME", not_utf8)
        .env("HEADWATER_CONFIG", &file)
        .output()
        .unwrap();
    assert_eq!(printed.status.code(), Some(0), "{}", error(&printed));
    let refused = headwater(folder.path())
        .args(["config", "print"])
        .env("HEADWATER_CONFIG", &file)
        .env("HEADWATER__PIPELINE", not_utf8)
        .output()
        .unwrap();
    assert_eq!(refused.status.code(), Some(3));
    let output = error(&refused);
    assert!(output.contains("environment variable HEADWATER__PIPELINE: is not valid UTF-8"), "{output}");
}
