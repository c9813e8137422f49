//! SIGINT or SIGTERM as something to await.

use std::io;
use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// Two signals within this time are one wish: a wrapper that passes on what its terminal has sent to everybody takes milliseconds, and nobody presses
/// twice as fast.
const SAME_SIGNAL: Duration = Duration::from_millis(250);

/// From the moment this exists the signals no longer end the process by themselves.
pub(crate) struct StopSignal {
    interrupt: Signal,
    terminate: Signal,
}

impl StopSignal {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self { interrupt: signal(SignalKind::interrupt())?, terminate: signal(SignalKind::terminate())? })
    }

    /// Returns at the next signal.
    pub(crate) async fn recv(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {} // cancel-safe: recv
            _ = self.terminate.recv() => {} // cancel-safe: recv
        }
    }

    /// Returns at a signal that is meant as a second one: wrappers often pass the first on twice.
    pub(crate) async fn recv_second(&mut self) {
        let _ = tokio::time::timeout(SAME_SIGNAL, async {
            loop {
                self.recv().await;
            }
        })
        .await;
        self.recv().await;
    }
}
