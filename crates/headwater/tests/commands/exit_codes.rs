//! Exit codes. The code for a second signal is tested with the pod.

use std::net::TcpListener;
use std::process::{Command, Output};

use crate::fixture::CliFixture;

const BINARY: &str = env!("CARGO_BIN_EXE_headwater");

const FAILED: i32 = 1;
const USAGE: i32 = 2;
const MISCONFIGURED: i32 = 3;
const UNHEALTHY: i32 = 4;

fn run(arguments: &[&str]) -> Output {
    Command::new(BINARY).args(arguments).env_remove("HEADWATER_CONFIG").output().expect("the binary runs")
}

fn code(arguments: &[&str]) -> i32 {
    run(arguments).status.code().expect("it was not ended by a signal")
}

#[test]
fn the_help_lists_every_exit_code() {
    for arguments in [&["--help"][..], &["run", "--help"], &["status", "--help"]] {
        let output = run(arguments);
        let stdout = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && stdout.contains("4"), "{stdout}");
    }
    let help = String::from_utf8(run(&["run", "--help"]).stdout).unwrap();
    for code in ["0 ", "1 ", "2 ", "3 ", "4 ", "130 "] {
        assert!(help.lines().any(|line| line.trim_start().starts_with(code)), "{code}in\n{help}");
    }
}

#[test]
fn a_usage_error_has_its_own_exit_code() {
    assert_eq!(code(&["config", "reference"]), 0);
    assert_eq!(code(&["fly"]), USAGE);
    assert_eq!(code(&["run", "--no-such-flag"]), USAGE);
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let broker = run(&["broker", "--ephemeral", "--listen", &address]);
    assert_eq!(broker.status.code(), Some(FAILED));
    let stderr = String::from_utf8_lossy(&broker.stderr).into_owned();
    assert!(stderr.contains(&format!("listen on {address}")) && stderr.contains("help: "), "{stderr}");
    assert!(stderr.contains("`--listen`"), "{stderr}");
}

#[test]
fn a_configuration_problem_has_its_own_exit_code() {
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
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.code(), stderr)
    };
    let bus = "Endpoint=sb://127.0.0.1:9;SharedAccessKeyName=any;SharedAccessKey=any;UseDevelopmentEmulator=true";
    let (code, stderr) = with("http://127.0.0.1", bus);
    assert_eq!(code, Some(MISCONFIGURED), "{stderr}");
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let listen = format!("admin.listen={}", taken.local_addr().unwrap());
    let output = run(&["run", "--config", file, "--set", &listen, "--set", "source.uri=mongodb://127.0.0.1:9"]);
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(FAILED), "{stderr}");
    assert!(stderr.contains("help: ") && stderr.contains("`admin.listen`"), "{stderr}");
    let (code, stderr) = with("mongodb://127.0.0.1:9/?directConnection=true", "Endpoint=nowhere");
    assert_eq!(code, Some(MISCONFIGURED), "{stderr}");
}

#[tokio::test]
async fn an_unhealthy_result_has_its_own_exit_code() {
    let fixture = CliFixture::new("exit_codes", "").await;
    let exit_code = async |arguments: &[&str]| fixture.run(arguments).await.status.code();
    // There is no leader and no topic.
    assert_eq!(exit_code(&["status"]).await, Some(UNHEALTHY));
    assert_eq!(exit_code(&["check"]).await, Some(UNHEALTHY));
    assert_eq!(exit_code(&["check", "--offline"]).await, Some(0));
    assert_eq!(exit_code(&["step-down"]).await, Some(FAILED));
    assert_eq!(exit_code(&["checkpoint", "reset", "--start", "now"]).await, Some(USAGE), "it wants --yes");
}
