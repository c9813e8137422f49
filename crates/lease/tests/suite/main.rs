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

/// Short enough to wait for, and long enough that a request may take almost a second on a machine busy with other tests.
fn quick() -> Config {
    Config {
        ttl: Duration::from_secs(3),
        renew_deadline: Duration::from_millis(2200),
        heartbeat: Duration::from_millis(400),
        ..Config::default()
    }
}

/// What may come on top of ttl here. That it is less than a second is `cargo xtask bench failover`'s to show, alone on a
/// machine.
const SLACK: Duration = Duration::from_secs(3);

fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}
