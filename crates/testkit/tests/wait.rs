//! A wait returns as soon as the state is there, and says what it saw when the state never comes.

use std::{
    cell::{Cell, RefCell},
    convert::Infallible,
    future::pending,
    sync::atomic::{AtomicU32, Ordering::Relaxed},
    time::Duration,
};

use testkit::wait::{try_wait_for, wait_for};
use tokio::time::{Instant, sleep};

const LIMIT: Duration = Duration::from_secs(5);

#[tokio::test(start_paused = true)]
async fn a_wait_returns_the_value_that_the_probe_found() {
    let counts = RefCell::new([0, 7, 12].into_iter());
    let found = wait_for("a two-digit count", LIMIT, async || match counts.borrow_mut().next() {
        Some(n @ 10..) => Ok(n),
        other => Err(other),
    })
    .await;
    assert_eq!(found, 12);
}

#[tokio::test(start_paused = true)]
async fn a_state_that_is_already_there_costs_no_time() {
    let started = Instant::now();
    wait_for("nothing in particular", LIMIT, async || Ok::<_, Infallible>(())).await;
    assert_eq!(started.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn a_timeout_reports_what_how_long_where_and_the_last_state() {
    let probes = Cell::new(0);
    let line = line!() + 1;
    let timed_out = try_wait_for("a primary", LIMIT, async || {
        probes.set(probes.get() + 1);
        Err::<(), _>(format!("{} secondaries", probes.get()))
    })
    .await
    .expect_err("no primary ever came")
    .to_string();
    let probes = probes.get();
    assert_eq!(
        timed_out,
        format!(
            "waited 5.0s for a primary, at {}:{line}:21: last state \"{probes} secondaries\" (probe {probes})",
            file!()
        )
    );
}

#[tokio::test(start_paused = true)]
#[should_panic(expected = "for the last order")]
async fn the_plain_form_panics_with_that_message() {
    wait_for("the last order", LIMIT, async || Err::<(), _>("order 41")).await;
}

#[tokio::test(start_paused = true)]
async fn a_hanging_probe_ends_at_the_deadline_and_is_reported() {
    let first = Cell::new(true);
    let started = Instant::now();
    let timed_out = try_wait_for("an answer", LIMIT, async || {
        if !first.replace(false) {
            pending::<()>().await;
        }
        Err::<(), _>("connecting")
    })
    .await
    .expect_err("the second probe hangs")
    .to_string();
    assert_eq!(started.elapsed(), LIMIT);
    assert!(
        timed_out.ends_with(r#"last state "connecting" (probe 1), and the next probe never returned"#),
        "{timed_out}"
    );
}

#[tokio::test(start_paused = true)]
async fn the_last_look_is_at_the_deadline() {
    let started = Instant::now();
    wait_for("the very last moment", LIMIT, async || {
        let now = started.elapsed();
        if now >= LIMIT { Ok(()) } else { Err(now) }
    })
    .await;
}

#[tokio::test]
async fn a_wait_can_be_spawned() {
    let waiting = tokio::spawn(async {
        let left = AtomicU32::new(3);
        wait_for("a countdown", LIMIT, async || {
            sleep(Duration::from_millis(1)).await;
            let left = left.fetch_sub(1, Relaxed);
            if left == 1 { Ok("lift-off") } else { Err(left) }
        })
        .await
    });
    assert_eq!(waiting.await.unwrap(), "lift-off");
}
