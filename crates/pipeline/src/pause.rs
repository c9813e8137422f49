//! A switch with which an operator pauses a service. Whoever stores the operator's wish sets it; the service obeys.

use std::sync::Arc;

use tokio::sync::watch;

/// Shared: all copies switch together. Not paused at first.
#[derive(Clone, Debug)]
pub struct PauseSwitch(Arc<watch::Sender<bool>>);

impl Default for PauseSwitch {
    fn default() -> Self {
        Self(Arc::new(watch::Sender::new(false)))
    }
}

impl PauseSwitch {
    pub fn set(&self, paused: bool) {
        self.0.send_if_modified(|current| std::mem::replace(current, paused) != paused);
    }

    pub fn is_paused(&self) -> bool {
        *self.0.borrow()
    }

    /// Cancel-safe.
    pub async fn wait_until_paused(&self) {
        self.wait_for(true).await;
    }

    /// Cancel-safe.
    pub async fn wait_until_resumed(&self) {
        self.wait_for(false).await;
    }

    async fn wait_for(&self, paused: bool) {
        let mut current = self.0.subscribe();
        // It cannot fail: this copy keeps the sender.
        let _ = current.wait_for(|current| *current == paused).await;
    }
}
