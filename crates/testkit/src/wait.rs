//! Waiting for a state, with a deadline, and with the last state seen when it never came.
//!
//! A probe looks at the world and answers `Ok(value)` once the state is there, or `Err(what it saw instead)`. The
//! second is what a failed wait prints, so let it say more than "not yet": a count, a document, the driver's error.
//!
//! Never waits for a signal that may have passed already, and never sleeps to be "probably ready".

use std::{
    fmt::{self, Debug, Display},
    panic::Location,
    time::Duration,
};

use tokio::time::{Instant, sleep, timeout_at};

/// The first pause between two looks: short, because most states are there within milliseconds.
const FIRST_PAUSE: Duration = Duration::from_millis(1);
/// The longest pause: a slow state is still noticed soon, and a probe that asks a server does not load it.
const LONGEST_PAUSE: Duration = Duration::from_millis(50);

/// Waits until `probe` answers `Ok`, and returns its value.
///
/// ```
/// # use std::time::Duration;
/// # use testkit::wait::wait_for;
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
/// The probe may share what it captures but not change it (use a `Cell` or a `Mutex`): that is the price for a wait
/// that can be spawned, which one over `AsyncFnMut` cannot.
///
/// # Panics
/// When the deadline passes first. The message is [`TimedOut`]'s.
#[track_caller]
pub fn wait_for<T, S: Debug, Look: Future<Output = Result<T, S>>>(
    what: impl Display,
    within: Duration,
    probe: impl FnMut() -> Look,
) -> impl Future<Output = T> {
    let waiting = try_wait_for(what, within, probe);
    async move { waiting.await.unwrap_or_else(|timed_out| panic!("{timed_out}")) }
}

/// As [`wait_for`], for a caller that has something to add to the failure.
#[track_caller]
pub fn try_wait_for<T, S: Debug, Look: Future<Output = Result<T, S>>>(
    what: impl Display,
    within: Duration,
    mut probe: impl FnMut() -> Look,
) -> impl Future<Output = Result<T, TimedOut>> {
    let caller = Location::caller();
    async move {
        let started = Instant::now();
        let deadline = started + within;
        let mut last = LastSeen { looks: 0, state: None, hung: false };
        let mut pause = FIRST_PAUSE;
        loop {
            match timeout_at(deadline, probe()).await {
                Ok(Ok(value)) => return Ok(value),
                Ok(Err(state)) => last.saw(&state),
                Err(_) => last.hung = true,
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(TimedOut { what: what.to_string(), waited: started.elapsed(), last, caller });
            }
            // Clamped, so that the last look is at the deadline and not up to a pause before it.
            sleep(pause.min(left)).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }
}

/// A state that did not come in time: what was awaited, for how long, and what was there instead.
#[derive(Debug, thiserror::Error)]
#[error("waited {waited:.1?} for {what}, at {caller}: {last}")]
pub struct TimedOut {
    what: String,
    waited: Duration,
    last: LastSeen,
    caller: &'static Location<'static>,
}

#[derive(Debug)]
struct LastSeen {
    looks: u64,
    state: Option<String>,
    /// The probe was still looking when the deadline passed.
    hung: bool,
}

impl LastSeen {
    fn saw(&mut self, state: &impl Debug) {
        self.looks += 1;
        self.state = Some(format!("{state:?}"));
    }
}

impl Display for LastSeen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.state {
            Some(state) => write!(f, "last seen {state} (look {})", self.looks)?,
            None => write!(f, "nothing seen")?,
        }
        if self.hung { write!(f, ", and the look after it never ended") } else { Ok(()) }
    }
}
