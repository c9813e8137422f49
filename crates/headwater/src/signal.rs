//! SIGINT and SIGTERM as futures.

use std::io;
use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::{Instant, timeout_at};

/// Two signals within this time count as one. Wrappers forward a signal that the terminal has already sent to the whole process group,
/// within milliseconds; nobody presses Ctrl-C twice that fast.
const SAME_SIGNAL: Duration = Duration::from_millis(250);

/// While this exists, the signals do not end the process.
pub(crate) struct ShutdownSignal {
    interrupt: Signal,
    terminate: Signal,
    /// When [`recv`](Self::recv) last returned.
    received_at: Option<Instant>,
}

impl ShutdownSignal {
    pub(crate) fn new() -> io::Result<Self> {
        let [interrupt, terminate] = [SignalKind::interrupt(), SignalKind::terminate()].map(signal);
        Ok(Self { interrupt: interrupt?, terminate: terminate?, received_at: None })
    }

    /// Waits for the next signal. Cancel-safe.
    pub(crate) async fn recv(&mut self) {
        self.next().await;
        self.received_at = Some(Instant::now());
    }

    /// Waits for a second signal, and ignores repeats of the one that [`recv`](Self::recv) returned. Cancel-safe: a later call ignores repeats for the
    /// rest of the same time.
    pub(crate) async fn recv_second(&mut self) {
        if let Some(received_at) = self.received_at {
            // Swallow every repeat within the window, not only the first one.
            let _ = timeout_at(received_at + SAME_SIGNAL, async {
                loop {
                    self.next().await;
                }
            })
            .await;
        }
        self.next().await;
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {} // cancel-safe: recv
            _ = self.terminate.recv() => {} // cancel-safe: recv
        }
    }
}

#[cfg(test)]
mod tests {
    use nix::sys::signal::{Signal, raise};
    use tokio::time::timeout;

    use super::*;

    const LONG: Duration = Duration::from_secs(30);

    /// A pod with several pipelines waits for signals again whenever a pipeline ends.
    #[tokio::test]
    async fn a_second_signal_counts_however_often_the_wait_restarts() {
        let mut stop = ShutdownSignal::new().unwrap();
        raise(Signal::SIGTERM).unwrap();
        timeout(LONG, stop.recv()).await.unwrap();
        let first_at = Instant::now();
        // A repeat of the first one.
        raise(Signal::SIGINT).unwrap();
        let mut is_raised = false;
        let received = async {
            while timeout(SAME_SIGNAL / 5, stop.recv_second()).await.is_err() {
                if !is_raised && first_at.elapsed() > SAME_SIGNAL * 2 {
                    is_raised = true;
                    raise(Signal::SIGTERM).unwrap();
                }
            }
        };
        timeout(LONG, received).await.expect("the second signal is received");
        assert!(is_raised, "a repeat is not a second signal");
    }
}
