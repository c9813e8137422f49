//! Waits for a state, with a deadline. A timeout reports the last state seen.
//!
//! A probe returns `Ok(value)` once the state is reached, or `Err(current state)`. A failed wait prints the last `Err`, so
//! return more than "not yet": a count, a document, the driver's error.
//!
//! It polls, so it cannot miss a signal, and it never sleeps to be "probably ready".

use std::{
    fmt::{self, Debug, Display},
    panic::Location,
    time::Duration,
};

use tokio::time::{Instant, sleep, timeout_at};

/// The first pause between two probes: short, because most states are reached within milliseconds.
const FIRST_PAUSE: Duration = Duration::from_millis(1);
/// The longest pause: a slow state is noticed soon, and probes do not load a server.
const LONGEST_PAUSE: Duration = Duration::from_millis(50);

/// Waits until `probe` returns `Ok`, and returns its value.
///
/// ```
/// # use std::time::Duration;
/// # use local_cluster::wait::wait_for;
/// # #[tokio::main(flavor = "current_thread")] async fn main() {
/// # use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
/// # let orders = AtomicU32::new(0);
/// # let count_orders = async || orders.fetch_add(1, Relaxed);
/// let applied = wait_for("three orders to be applied", Duration::from_secs(5), async || {
///     let applied = count_orders().await;
///     if applied >= 3 { Ok(applied) } else { Err(format!("{applied} applied")) }
/// })
/// .await;
/// assert_eq!(applied, 3);
/// # }
/// ```
///
/// The probe may not change what it captures (use a `Cell` or a `Mutex`). In return the wait can be spawned, which is not
/// possible with `AsyncFnMut`.
///
/// # Panics
/// When the deadline passes first. The message is [`TimedOut`]'s.
#[track_caller]
pub fn wait_for<T, S: Debug, Probe: Future<Output = Result<T, S>>>(
    what: impl Display,
    within: Duration,
    probe: impl FnMut() -> Probe,
) -> impl Future<Output = T> {
    let waiting = try_wait_for(what, within, probe);
    async move { waiting.await.unwrap_or_else(|timed_out| panic!("{timed_out}")) }
}

/// Like [`wait_for`], for a caller that handles the timeout itself.
#[track_caller]
pub fn try_wait_for<T, S: Debug, Probe: Future<Output = Result<T, S>>>(
    what: impl Display,
    within: Duration,
    mut probe: impl FnMut() -> Probe,
) -> impl Future<Output = Result<T, TimedOut>> {
    let caller = Location::caller();
    async move {
        let started = Instant::now();
        let deadline = started + within;
        let mut last = LastState { attempts: 0, state: None, hung: false };
        let mut pause = FIRST_PAUSE;
        loop {
            match timeout_at(deadline, probe()).await {
                Ok(Ok(value)) => return Ok(value),
                Ok(Err(state)) => last.record(&state),
                Err(_) => last.hung = true,
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(TimedOut { what: what.to_string(), waited: started.elapsed(), last, caller });
            }
            // Clamped, so that the last probe runs at the deadline and not up to a pause before it.
            sleep(pause.min(left)).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }
}

/// A timeout: what was awaited, for how long, and the last state.
#[derive(Debug, thiserror::Error)]
#[error("waited {waited:.1?} for {what}, at {caller}: {last}")]
pub struct TimedOut {
    what: String,
    waited: Duration,
    last: LastState,
    caller: &'static Location<'static>,
}

#[derive(Debug)]
struct LastState {
    attempts: u64,
    state: Option<String>,
    /// The probe had not returned when the deadline passed.
    hung: bool,
}

impl LastState {
    fn record(&mut self, state: &impl Debug) {
        self.attempts += 1;
        self.state = Some(format!("{state:?}"));
    }
}

impl Display for LastState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.state {
            Some(state) => write!(f, "last state {state} (probe {})", self.attempts)?,
            None => write!(f, "no state seen")?,
        }
        if self.hung { write!(f, ", and the next probe never returned") } else { Ok(()) }
    }
}
