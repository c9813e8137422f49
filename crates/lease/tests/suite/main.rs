//! The lease on a real MongoDB, with candidates that are real processes.

mod busy_runtime;
mod cold_start;
mod deleted_lease;
mod mongo_statements;
mod mongodb_failover;
mod mongodb_unreachable;
mod paused_leader;
mod release;
mod several_leases;
mod sharded_cluster;
mod start_checks;
mod wall_clock_skew;

use std::time::Duration;

use election_test::ElectionTest;
use lease::Config;

/// The arguments that make this program run as a candidate.
const CANDIDATE_ARGS: &[&str] = &["--exact", "candidate", "--nocapture"];

/// Not a test: the entry point when [`ElectionTest`] starts this program again.
#[test]
fn candidate() {
    election_test::run_if_candidate();
}

fn election(uri: &str, database: &str) -> ElectionTest {
    ElectionTest::new(uri, database, quick(), CANDIDATE_ARGS)
}

/// Short enough for tests, and long enough that a request may take almost a second on a busy machine.
fn quick() -> Config {
    Config {
        ttl: Duration::from_secs(3),
        renew_deadline: Duration::from_millis(2200),
        heartbeat: Duration::from_millis(400),
        ..Config::default()
    }
}

/// After a crash another pod leads within ttl and this, while MongoDB has a primary.
const SLACK: Duration = Duration::from_secs(1);
/// The same for tests about something else, which start several mongods on a busy machine.
const BUSY_SLACK: Duration = Duration::from_secs(3);
/// After a release another pod leads within this. The promise is about 99 of 100 takeovers on a quiet machine (`cargo xtask bench failover`); the tests
/// assert it of the median.
const RELEASE_LIMIT: Duration = Duration::from_millis(100);

fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}
