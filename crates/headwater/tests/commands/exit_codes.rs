//! What a command's end tells a script: a code for each kind of reason. The second signal is the pod's own test.

use std::net::TcpListener;
use std::process::{Command, Output};

use crate::house::House;

const BINARY: &str = env!("CARGO_BIN_EXE_headwater");

const FAILED: i32 = 1;
const USAGE: i32 = 2;
const MISCONFIGURED: i32 = 3;
const NOT_WELL: i32 = 4;

fn run(arguments: &[&str]) -> Output {
    Command::new(BINARY).args(arguments).env_remove("HEADWATER_CONFIG").output().expect("the binary runs")
}

fn code(arguments: &[&str]) -> i32 {
    run(arguments).status.code().expect("no signal ended it")
}

#[test]
fn the_help_tells_every_code() {
    for arguments in [&["--help"][..], &["run", "--help"], &["status", "--help"]] {
        let output = run(arguments);
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && said.contains("4"), "{said}");
    }
    let help = String::from_utf8(run(&["run", "--help"]).stdout).unwrap();
    for code in ["0 ", "1 ", "2 ", "3 ", "4 ", "130 "] {
        assert!(help.lines().any(|line| line.trim_start().starts_with(code)), "{code}in\n{help}");
    }
}

#[test]
fn a_command_line_that_is_not_understood_is_told_from_a_failure() {
    assert_eq!(code(&["config", "reference"]), 0);
    assert_eq!(code(&["fly"]), USAGE);
    assert_eq!(code(&["run", "--no-such-flag"]), USAGE);
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let broker = run(&["broker", "--ephemeral", "--listen", &address]);
    assert_eq!(broker.status.code(), Some(FAILED));
    let said = String::from_utf8_lossy(&broker.stderr).into_owned();
    assert!(said.contains(&format!("listen on {address}")) && said.contains("what to do: "), "{said}");
    assert!(said.contains("`--listen`"), "{said}");
}

#[test]
fn a_mistake_in_the_configuration_is_told_from_a_failure() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("headwater.yaml");
    let file = path.to_str().unwrap();
    assert_eq!(code(&["run", "--config", file]), MISCONFIGURED, "there is no such file");
    std::fs::write(&path, "format: 1\npipelin: shop\n").unwrap();
    assert_eq!(code(&["run", "--config", file]), MISCONFIGURED, "an unknown key");
    let with = |uri: &str, bus: &str| {
        let text = format!(
            "format: 1\npipeline: shop\nproducer: {{ start: now }}\nsource: {{ uri: \"{uri}\", database: shop, collection: events }}\n\
             service_bus: {{ connection_string: \"{bus}\" }}\nadmin: {{ listen: \"127.0.0.1:0\" }}\n"
        );
        std::fs::write(&path, text).unwrap();
        let output = run(&["run", "--config", file]);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.code(), said)
    };
    let bus = "Endpoint=sb://127.0.0.1:9;SharedAccessKeyName=any;SharedAccessKey=any;UseDevelopmentEmulator=true";
    let (code, said) = with("http://127.0.0.1", bus);
    assert_eq!(code, Some(MISCONFIGURED), "{said}");
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let listen = format!("admin.listen={}", taken.local_addr().unwrap());
    let output = run(&["run", "--config", file, "--set", &listen, "--set", "source.uri=mongodb://127.0.0.1:9"]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(FAILED), "{said}");
    assert!(said.contains("what to do: ") && said.contains("`admin.listen`"), "{said}");
    let (code, said) = with("mongodb://127.0.0.1:9/?directConnection=true", "Endpoint=nowhere");
    assert_eq!(code, Some(MISCONFIGURED), "{said}");
}

#[tokio::test]
async fn an_answer_that_is_no_is_told_from_a_failure() {
    let house = House::new("exit_codes", "").await;
    let ended = async |arguments: &[&str]| house.ask(arguments).await.status.code();
    // Nobody leads, and there is no topic.
    assert_eq!(ended(&["status"]).await, Some(NOT_WELL));
    assert_eq!(ended(&["check"]).await, Some(NOT_WELL));
    assert_eq!(ended(&["check", "--offline"]).await, Some(0));
    assert_eq!(ended(&["step-down"]).await, Some(FAILED));
    assert_eq!(ended(&["checkpoint", "reset", "--start", "now"]).await, Some(USAGE), "it wants --yes");
}
