//! SIGINT or SIGTERM as something to await.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// From the moment this exists the signals no longer end the process by themselves.
pub(crate) struct StopSignal {
    interrupt: Signal,
    terminate: Signal,
}

impl StopSignal {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self { interrupt: signal(SignalKind::interrupt())?, terminate: signal(SignalKind::terminate())? })
    }

    /// Returns at the next signal; call it again for the one after.
    pub(crate) async fn received(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {} // cancel-safe: recv
            _ = self.terminate.recv() => {} // cancel-safe: recv
        }
    }
}
