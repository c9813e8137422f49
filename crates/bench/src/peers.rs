//! Where `cargo xtask bench` installed the peers, and how Debezium's engine is run.

use std::path::PathBuf;

use mongodb::bson::Timestamp;
use tokio::process::Command;

/// The folder of the built NestJS application.
pub const NESTJS_VARIABLE: &str = "HEADWATER_PEER_NESTJS";
/// The folder with the compiled `Capture` and the engine's jars in `libs`.
pub const DEBEZIUM_VARIABLE: &str = "HEADWATER_PEER_DEBEZIUM";

/// A folder by its variable, which xtask sets.
///
/// # Panics
/// When the variable is not set.
pub fn peer_folder(variable: &str) -> PathBuf {
    let folder = std::env::var_os(variable).map(PathBuf::from);
    folder.unwrap_or_else(|| panic!("{variable} is not set: run `cargo xtask bench`, or pass --without-peers"))
}

/// Events per second that Debezium's engine captures from this time on, with a handler that does nothing.
///
/// # Panics
/// When the engine fails.
pub async fn measure_debezium(uri: &str, database: &str, start: Timestamp, events: u64) -> f64 {
    let folder = peer_folder(DEBEZIUM_VARIABLE);
    let jars = folder.join("libs/*");
    let mut command = Command::new("java");
    command.arg("-cp").arg(format!("{}:{}", folder.display(), jars.display()));
    command.args(["Capture", uri, database, "events"]).args([combined(start).to_string(), events.to_string()]);
    let output = command.kill_on_drop(true).output().await.expect("java can be started");
    let printed = String::from_utf8_lossy(&output.stdout);
    let rate = printed.lines().last().and_then(|line| line.trim().parse().ok());
    rate.unwrap_or_else(|| panic!("the engine failed: {}", String::from_utf8_lossy(&output.stderr)))
}

/// Seconds in the upper half, the increment in the lower one.
fn combined(time: Timestamp) -> u64 {
    (u64::from(time.time) << 32) | u64::from(time.increment)
}
