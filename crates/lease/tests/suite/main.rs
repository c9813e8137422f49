//! The lease on real MongoDB, with contenders that are real processes.

mod clocks;
mod failover;
mod inspection;
mod paused;
mod races;
mod recovery;
mod sharded;
mod shutdown;
mod starved;
mod statements;
mod unreachable;

use std::time::Duration;

use bench::contest::Contest;
use lease::Config;

/// The arguments that make this program a contender.
const CONTENDER: &[&str] = &["--exact", "contender", "--nocapture"];

/// Not a test: what this program does when [`Contest`] starts it again.
#[test]
fn contender() {
    bench::contest::serve_if_asked();
}

fn contest(uri: &str, database: &str) -> Contest {
    Contest::new(uri, database, quick(), CONTENDER)
}

/// ttl 2 s: long enough for a machine that is busy with other tests, short enough to wait for.
fn quick() -> Config {
    Config {
        ttl: Duration::from_secs(2),
        renew_deadline: Duration::from_millis(1400),
        heartbeat: Duration::from_millis(400),
        ..Config::default()
    }
}

fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}
