//! Two minutes of `cargo xtask chaos` with their own seed; and a short run with a failpoint, which must not pass.

use std::path::Path;
use std::time::Duration;

use bench::soak::chaos::{ChaosOptions, run};
use bench::soak::{Failpoint, SoakViolation, detect_in_chaos, expected_violation};
use testkit::cluster::MongoTopology;

use super::BINARY;

#[tokio::test]
async fn two_minutes_of_chaos_break_no_guarantee() {
    let result = run(Path::new(BINARY), &ChaosOptions::short(19)).await.unwrap();
    println!("{result}");
    assert!(result.is_clean(), "{:?}\n{result}", result.violations());
    assert_eq!(result.missing(), [""; 0], "{result}");
}

/// The failpoint breaks this guarantee within ten seeds, and the same seeds without it are clean.
async fn assert_failpoint_is_found(defect: Failpoint, violation: SoakViolation) {
    assert_eq!(expected_violation(defect), violation);
    detect_in_chaos(Path::new(BINARY), defect, 0..10).await.unwrap_or_else(|error| panic!("{error}"));
}

#[tokio::test]
async fn an_ignored_gap_loses_events_that_the_bus_lost() {
    assert_failpoint_is_found(Failpoint::GapIgnored, SoakViolation::Lost).await;
}

#[tokio::test]
async fn a_paused_read_model_that_skips_its_events_differs() {
    assert_failpoint_is_found(Failpoint::PausedEventsSkipped, SoakViolation::ReadModelDiffers).await;
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
