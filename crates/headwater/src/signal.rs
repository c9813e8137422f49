//! SIGINT and SIGTERM as futures.

use std::io;
use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// Two signals within this time count as one. Wrappers forward a signal that the terminal has already sent to the whole process group,
/// within milliseconds; nobody presses Ctrl-C twice that fast.
const SAME_SIGNAL: Duration = Duration::from_millis(250);

/// While this exists, the signals do not end the process.
pub(crate) struct ShutdownSignal {
    interrupt: Signal,
    terminate: Signal,
}

impl ShutdownSignal {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self { interrupt: signal(SignalKind::interrupt())?, terminate: signal(SignalKind::terminate())? })
    }

    /// Waits for the next signal.
    pub(crate) async fn recv(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {} // cancel-safe: recv
            _ = self.terminate.recv() => {} // cancel-safe: recv
        }
    }

    /// Waits for a second signal, and ignores repeats of the first one.
    pub(crate) async fn recv_second(&mut self) {
        // Swallow every repeat within the window, not only the first one.
        let _ = tokio::time::timeout(SAME_SIGNAL, async {
            loop {
                self.recv().await;
            }
        })
        .await;
        self.recv().await;
    }
}
