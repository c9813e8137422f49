//! Two minutes of `cargo xtask chaos` with their own seed; and a short run with a failpoint, which must not pass.

use std::path::Path;
use std::time::Duration;

use bench::soak::chaos::{ChaosOptions, run};
use bench::soak::{Failpoint, SoakViolation};
use testkit::cluster::MongoTopology;

use super::BINARY;

#[tokio::test]
async fn two_minutes_of_chaos_break_no_guarantee() {
    let result = run(Path::new(BINARY), &ChaosOptions::short(19)).await.unwrap();
    println!("{result}");
    assert!(result.is_clean(), "{:?}\n{result}", result.violations());
    assert_eq!(result.missing(), [""; 0], "{result}");
}

#[tokio::test]
async fn chaos_finds_events_that_are_applied_twice() {
    let length = Duration::from_secs(8);
    let mut options = ChaosOptions::with_topology(7, length, MongoTopology::SingleNode, 2);
    (options.base.load.rate, options.base.verbose) = (Some(100.0), false);
    options.base.failpoint = Some(Failpoint::NoCursorCheck);
    let result = run(Path::new(BINARY), &options).await.unwrap();
    assert!(result.violations().contains(&SoakViolation::Duplicated), "{:?}\n{result}", result.violations());
}
