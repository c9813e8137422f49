//! Hostile inputs against real processes: the broker, a pod, the commands, and a damaged data folder.
//!
//! `docs/hostile-inputs.md` has every input with its result; `cargo xtask hostile` runs them and prints both. Nothing may crash, hang, or
//! use more memory than stated.

mod amqp_peers;
mod broker_requests;
mod configuration;
mod data_folder;
mod events;
mod exchange;
mod messages;
mod pod_requests;
mod processes;
mod replies;
mod table;
mod tokens;

const BINARY: &str = env!("CARGO_BIN_EXE_headwater");

/// The areas of the table.
const AREAS: [&str; 9] =
    ["AMQP", "broker HTTP", "pod HTTP", "messages", "events", "configuration", "data folder", "tokens", "replies"];
