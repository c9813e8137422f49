//! Session slots, and when an idle session must release its slot.
//!
//! An acceptor takes a slot before it accepts. While an accept is in flight no session waits for a slot here: it would be granted. If none
//! is in flight because all slots or bytes are taken, every waiting acceptor requests a release, and an idle session answers one request by
//! closing. Requests and slots are counted, so both are semaphores.

use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_util::FutureExt;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

#[derive(Debug)]
pub(super) struct SessionSlots {
    free: Arc<Semaphore>,
    release_requests: Semaphore,
    counts: Mutex<AcceptCounts>,
}

#[derive(Debug, Default)]
struct AcceptCounts {
    /// Acceptors with an accept in flight.
    accepting: usize,
    /// Acceptors without slot or capacity.
    waiting: usize,
}

/// The slot of one session; free again when dropped.
#[derive(Debug)]
pub(super) struct SessionSlot {
    _permit: OwnedSemaphorePermit,
}

impl SessionSlots {
    pub(super) fn new(count: usize) -> Self {
        Self { free: Arc::new(Semaphore::new(count)), release_requests: Semaphore::new(0), counts: Mutex::default() }
    }

    /// Waits for a slot and for `capacity`. The guard marks an accept in flight until it is dropped. Cancel-safe if `capacity` is.
    pub(super) async fn acquire(&self, capacity: impl Future<Output = ()>) -> (SessionSlot, WaitingAcceptGuard<'_>) {
        let acquiring = async {
            let permit = Arc::clone(&self.free).acquire_owned().await.expect("the semaphore is never closed");
            capacity.await;
            SessionSlot { _permit: permit }
        };
        let mut acquiring = std::pin::pin!(acquiring);
        // Without a wait no session has to be asked to release its slot.
        if let Some(slot) = acquiring.as_mut().now_or_never() {
            return (slot, WaitingAcceptGuard::new(self, |counts| &mut counts.accepting));
        }
        let waiting = WaitingAcceptGuard::new(self, |counts| &mut counts.waiting);
        let slot = acquiring.await;
        let accepting = WaitingAcceptGuard::new(self, |counts| &mut counts.accepting);
        // After `accepting` is counted, so that no release is requested in between.
        drop(waiting);
        (slot, accepting)
    }

    /// Returns when an acceptor needs a slot; the caller must then release its own. Cancel-safe.
    pub(super) async fn release_requested(&self) {
        self.release_requests.acquire().await.expect("the semaphore is never closed").forget();
    }

    /// Keeps one request per waiting acceptor while no accept is in flight; otherwise adds none. A request may be repeated while it is being
    /// met: then one slot too many is released, and soon taken again.
    fn update_release_requests(&self, counts: &AcceptCounts) {
        let release_requests = self.release_requests.available_permits();
        if counts.accepting == 0 && release_requests < counts.waiting {
            self.release_requests.add_permits(counts.waiting - release_requests);
        } else if release_requests > counts.waiting {
            self.release_requests.forget_permits(release_requests - counts.waiting);
        }
    }

    fn counts(&self) -> MutexGuard<'_, AcceptCounts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Counts one acceptor in [`AcceptCounts`] while it exists.
pub(super) struct WaitingAcceptGuard<'a> {
    slots: &'a SessionSlots,
    field: fn(&mut AcceptCounts) -> &mut usize,
}

impl<'a> WaitingAcceptGuard<'a> {
    fn new(slots: &'a SessionSlots, field: fn(&mut AcceptCounts) -> &mut usize) -> Self {
        let mut counts = slots.counts();
        *field(&mut counts) += 1;
        slots.update_release_requests(&counts);
        Self { slots, field }
    }
}

impl Drop for WaitingAcceptGuard<'_> {
    fn drop(&mut self) {
        let mut counts = self.slots.counts();
        *(self.field)(&mut counts) -= 1;
        self.slots.update_release_requests(&counts);
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use super::*;

    fn is_release_requested(slots: &SessionSlots) -> bool {
        slots.release_requested().now_or_never().is_some()
    }

    #[test]
    fn no_release_is_requested_while_an_accept_is_in_flight() {
        let slots = SessionSlots::new(2);
        let (_held, accepting) = slots.acquire(ready(())).now_or_never().expect("a slot is free");
        drop(accepting);
        let (_other, accepting) = slots.acquire(ready(())).now_or_never().expect("a slot is free");
        let mut late = Box::pin(slots.acquire(ready(())));
        assert!(late.as_mut().now_or_never().is_none());
        assert!(!is_release_requested(&slots));
        drop(accepting);
        assert!(is_release_requested(&slots), "the last accept in flight has ended");
        assert!(!is_release_requested(&slots), "a request is consumed once");
    }

    #[tokio::test]
    async fn each_waiting_acceptor_requests_one_release() {
        let slots = SessionSlots::new(1);
        let (held, accepting) = slots.acquire(ready(())).await;
        drop(accepting);
        let mut first = Box::pin(slots.acquire(ready(())));
        let mut second = Box::pin(slots.acquire(ready(())));
        assert!(first.as_mut().now_or_never().is_none() && second.as_mut().now_or_never().is_none());
        assert_eq!(slots.release_requests.available_permits(), 2);
        drop(held);
        let _first = first.await;
        assert_eq!(slots.release_requests.available_permits(), 1);
        drop(second);
        assert!(!is_release_requested(&slots), "it no longer waits");
    }

    #[test]
    fn a_full_byte_budget_requests_a_release() {
        let slots = SessionSlots::new(2);
        let mut late = Box::pin(slots.acquire(pending()));
        assert!(late.as_mut().now_or_never().is_none());
        assert!(is_release_requested(&slots), "a closed session frees bytes");
    }
}
