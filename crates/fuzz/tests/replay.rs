//! Replays the inputs of each target that are in the repository: its seeds and its corpus, which has every past finding.

use std::time::Duration;

use fuzz::{FuzzRun, RunLimit, TARGETS, find_target, load_corpus};

/// No mutations: the gate runs them beside the suites (`cargo xtask test`).
const REPLAY: RunLimit = RunLimit { cpu_time: Duration::ZERO, executions: 0 };

fn check(name: &str) {
    let target = find_target(name).expect("a target of that name");
    let summary = FuzzRun::new(target, load_corpus(name).expect("the corpus is readable"), 1).run(REPLAY);
    assert!(summary.executions > 0, "{name} has no seed");
    let problems: Vec<_> =
        summary.findings.iter().map(|finding| format!("{}: {:02x?}", finding.problem, finding.input)).collect();
    assert!(problems.is_empty(), "{name}:\n{}", problems.join("\n"));
    println!("{name}: {} executions, slowest {:?}", summary.executions, summary.slowest);
}

const TESTED: [&str; 19] = [
    "amqp-types",
    "amqp-frames",
    "amqp-messages",
    "amqp-server",
    "envelope",
    "bson-bodies",
    "read-models",
    "atom",
    "emulator-config",
    "rules",
    "connection-string",
    "http-heads",
    "broker-port",
    "page-requests",
    "jwts",
    "token-replies",
    "proxy-replies",
    "journal-records",
    "store-recovery",
];

#[test]
fn every_target_has_a_replay() {
    assert_eq!(TARGETS.iter().map(|target| target.name).collect::<Vec<_>>(), TESTED);
}

#[test]
fn amqp_values_of_any_bytes_are_read_or_refused() {
    check("amqp-types");
}

#[test]
fn amqp_frames_of_any_bytes_are_read_or_refused() {
    check("amqp-frames");
}

#[test]
fn amqp_messages_of_any_bytes_are_read_or_refused() {
    check("amqp-messages");
}

#[test]
fn an_amqp_server_survives_any_conversation() {
    check("amqp-server");
}

#[test]
fn an_envelope_of_any_bytes_is_read_or_refused() {
    check("envelope");
}

#[test]
fn an_event_body_of_any_bytes_is_applied_or_refused() {
    check("bson-bodies");
}

#[test]
fn a_read_model_of_any_text_is_compiled_or_refused() {
    check("read-models");
}

#[test]
fn an_atom_entry_of_any_bytes_is_read_or_refused() {
    check("atom");
}

#[test]
fn an_entity_file_of_any_text_is_read_or_refused() {
    check("emulator-config");
}

#[test]
fn sql_of_rules() {
    check("rules");
}

#[test]
fn a_connection_string_of_any_text_is_read_or_refused() {
    check("connection-string");
}

#[test]
fn the_admin_server_survives_any_request() {
    check("http-heads");
}

#[test]
fn the_broker_port_survives_any_bytes() {
    check("broker-port");
}

#[test]
fn the_page_of_the_broker_survives_any_request() {
    check("page-requests");
}

#[test]
fn a_token_of_any_bytes_is_accepted_or_refused() {
    check("jwts");
}

#[test]
fn a_token_reply_of_any_bytes_is_read_or_refused() {
    check("token-replies");
}

#[test]
fn a_proxy_reply_of_any_bytes_is_read_or_refused() {
    check("proxy-replies");
}

#[test]
fn a_journal_record_of_any_bytes_is_replayed_or_refused() {
    check("journal-records");
}

#[test]
fn a_damaged_data_folder_is_recovered_or_refused() {
    check("store-recovery");
}
