//! Seats for sessions, and when one is to be given up.
//!
//! Who would accept a session takes a seat first. While an accept is under way no session waits at the bus for a seat here: it would be
//! granted. When none is, because every seat is taken or the bytes are, each who cannot accept wishes for a seat, and a session that has
//! nothing to do grants one wish by going. What is waited for is counted, so both counts are semaphores.

use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_util::FutureExt;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

#[derive(Debug)]
pub(super) struct Seats {
    free: Arc<Semaphore>,
    wishes: Semaphore,
    askers: Mutex<Askers>,
}

#[derive(Debug, Default)]
struct Askers {
    /// With an accept under way.
    asking: usize,
    /// Who cannot begin one.
    waiting: usize,
}

/// A session's seat; free again when dropped.
#[derive(Debug)]
pub(super) struct Seat {
    _permit: OwnedSemaphorePermit,
}

impl Seats {
    pub(super) fn new(count: usize) -> Self {
        Self { free: Arc::new(Semaphore::new(count)), wishes: Semaphore::new(0), askers: Mutex::default() }
    }

    /// A seat, once there is one and `room` besides, and the word that an accept is under way until that word is dropped. Cancel-safe,
    /// if `room` is.
    pub(super) async fn take(&self, room: impl Future<Output = ()>) -> (Seat, Count<'_>) {
        let taken = async {
            let permit = Arc::clone(&self.free).acquire_owned().await.expect("it is never closed");
            room.await;
            Seat { _permit: permit }
        };
        let mut taken = std::pin::pin!(taken);
        if let Some(seat) = taken.as_mut().now_or_never() {
            return (seat, Count::of(self, |askers| &mut askers.asking));
        }
        let waiting = Count::of(self, |askers| &mut askers.waiting);
        let seat = taken.await;
        let asking = Count::of(self, |askers| &mut askers.asking);
        drop(waiting);
        (seat, asking)
    }

    /// Returns when somebody wishes for a seat; who is told so gives up its own. Cancel-safe.
    pub(super) async fn wanted(&self) {
        self.wishes.acquire().await.expect("it is never closed").forget();
    }

    /// As many wishes as there are who cannot accept, while nobody else accepts; otherwise no new ones. One that is being granted may be
    /// made again: then a seat too many is given up, and soon taken.
    fn balance(&self, askers: &Askers) {
        let wishes = self.wishes.available_permits();
        if askers.asking == 0 && wishes < askers.waiting {
            self.wishes.add_permits(askers.waiting - wishes);
        } else if wishes > askers.waiting {
            self.wishes.forget_permits(wishes - askers.waiting);
        }
    }

    fn askers(&self) -> MutexGuard<'_, Askers> {
        self.askers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One more in a count, while it lives.
pub(super) struct Count<'a> {
    seats: &'a Seats,
    which: fn(&mut Askers) -> &mut usize,
}

impl<'a> Count<'a> {
    fn of(seats: &'a Seats, which: fn(&mut Askers) -> &mut usize) -> Self {
        let mut askers = seats.askers();
        *which(&mut askers) += 1;
        seats.balance(&askers);
        Self { seats, which }
    }
}

impl Drop for Count<'_> {
    fn drop(&mut self) {
        let mut askers = self.seats.askers();
        *(self.which)(&mut askers) -= 1;
        self.seats.balance(&askers);
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use super::*;

    fn is_wanted(seats: &Seats) -> bool {
        seats.wanted().now_or_never().is_some()
    }

    #[test]
    fn nobody_wishes_for_a_seat_while_an_accept_is_under_way() {
        let seats = Seats::new(2);
        let (_held, asking) = seats.take(ready(())).now_or_never().expect("one is free");
        drop(asking);
        let (_other, asking) = seats.take(ready(())).now_or_never().expect("one is free");
        let mut late = Box::pin(seats.take(ready(())));
        assert!(late.as_mut().now_or_never().is_none());
        assert!(!is_wanted(&seats));
        drop(asking);
        assert!(is_wanted(&seats), "it was granted, and was the last");
        assert!(!is_wanted(&seats), "one wish is granted once");
    }

    #[tokio::test]
    async fn each_who_waits_has_a_wish_until_it_has_a_seat() {
        let seats = Seats::new(1);
        let (held, asking) = seats.take(ready(())).await;
        drop(asking);
        let mut first = Box::pin(seats.take(ready(())));
        let mut second = Box::pin(seats.take(ready(())));
        assert!(first.as_mut().now_or_never().is_none() && second.as_mut().now_or_never().is_none());
        assert_eq!(seats.wishes.available_permits(), 2);
        drop(held);
        let _first = first.await;
        assert_eq!(seats.wishes.available_permits(), 1);
        drop(second);
        assert!(!is_wanted(&seats), "it waits no more");
    }

    #[test]
    fn without_room_for_messages_a_seat_is_of_no_use() {
        let seats = Seats::new(2);
        let mut late = Box::pin(seats.take(pending()));
        assert!(late.as_mut().now_or_never().is_none());
        assert!(is_wanted(&seats), "whoever goes makes room");
    }
}
