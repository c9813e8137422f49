//! How a pod ends when it is asked to.

use std::time::Duration;

use testkit::cluster::StoreKind;

use crate::house::{House, SOON, blueprint};

#[tokio::test]
async fn a_pod_that_cannot_finish_ends_at_once_on_the_second_signal_and_says_so() {
    let mut house = House::start(blueprint(StoreKind::Shared)).await;
    // What was read cannot be sent, and so a stop in order would take its time.
    house.0.broker_mut().pause().await;
    house.insert("order-1", 1).await;
    house.pod().terminate();
    house.pod().wait_for_line("stopping", SOON).await;
    // Signals that follow closely, within a quarter of a second, are one wish; a person who presses twice waits no second.
    tokio::time::sleep(Duration::from_millis(800)).await;
    assert_eq!(house.pod().exit_status(), None, "it has not finished");
    house.pod().terminate();
    let status = house.pod().wait_for_exit(SOON).await;
    assert_eq!(status.code(), Some(130), "{}", house.pod().tail());
    house.0.broker_mut().resume();
}
