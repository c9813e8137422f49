//! One change stream on the leases, for all candidates of a process.
//!
//! Tells each candidate of the changes to its own lease. The server sends only changes of leases that this process is a candidate for:
//! pods of other deployments may renew theirs in the same collection. If the stream fails, every candidate gets the error, and the stream is
//! opened again when a candidate asks for it.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::sync::{Mutex, MutexGuard, PoisonError};

use futures_util::StreamExt;
use mongodb::Collection;
use mongodb::bson::{Document, RawDocumentBuf, doc};
use tokio::sync::{Notify, mpsc};

use crate::error::Error;

#[derive(Debug)]
pub(crate) struct SharedWatch {
    /// The leases of this process.
    keys: BTreeSet<String>,
    state: Mutex<WatchState>,
    /// A candidate has subscribed.
    wanted: Notify,
}

#[derive(Debug, Default)]
struct WatchState {
    is_open: bool,
    next_id: u64,
    subscribers: BTreeMap<u64, Subscriber>,
}

#[derive(Debug)]
struct Subscriber {
    key: String,
    sender: mpsc::UnboundedSender<WatchNotice>,
}

#[derive(Clone, Debug)]
enum WatchNotice {
    Changed,
    Failed(mongodb::error::Error),
    Ended,
}

/// Unsubscribes when it is dropped.
struct Subscription<'a> {
    watch: &'a SharedWatch,
    id: u64,
}

impl SharedWatch {
    pub(crate) fn new(keys: BTreeSet<String>) -> Self {
        Self { keys, state: Mutex::default(), wanted: Notify::new() }
    }

    /// Wakes `changed` when the stream is open, and then at every change of this lease, until the stream fails.
    pub(crate) async fn follow(&self, key: &str, changed: &Notify) -> Error {
        let (sender, mut notices) = mpsc::unbounded_channel();
        let _subscription = self.subscribe(key, sender);
        loop {
            match notices.recv().await {
                Some(WatchNotice::Changed) => changed.notify_one(),
                Some(WatchNotice::Failed(source)) => {
                    return Error::Store { operation: "watch", key: key.to_owned(), source: source.into() };
                }
                Some(WatchNotice::Ended) | None => return Error::WatchEnded { key: key.to_owned() },
            }
        }
    }

    /// Keeps the stream open while a candidate wants it.
    pub(crate) async fn run(&self, leases: &Collection<Document>) -> Infallible {
        loop {
            while self.lock().subscribers.is_empty() {
                self.wanted.notified().await;
            }
            let end = self.run_stream(leases).await;
            let mut state = self.lock();
            state.is_open = false;
            // Each subscribes again, after its own backoff.
            for subscriber in std::mem::take(&mut state.subscribers).into_values() {
                drop(subscriber.sender.send(end.clone()));
            }
        }
    }

    async fn run_stream(&self, leases: &Collection<Document>) -> WatchNotice {
        let own_leases = doc! { "$match": { "documentKey._id": { "$in": Vec::from_iter(&self.keys) } } };
        let only_keys = doc! { "$project": { "documentKey": 1 } };
        let mut changes = match leases.watch().pipeline([own_leases, only_keys]).await {
            Ok(changes) => changes.with_type::<RawDocumentBuf>(),
            Err(error) => return WatchNotice::Failed(error),
        };
        // Changes from before the stream was open are found by the read that this causes.
        self.set_open();
        while let Some(change) = changes.next().await {
            match change {
                Ok(change) => self.notify(key_of(&change)),
                Err(error) => return WatchNotice::Failed(error),
            }
        }
        WatchNotice::Ended
    }

    fn set_open(&self) {
        let mut state = self.lock();
        state.is_open = true;
        state.subscribers.values().for_each(|subscriber| drop(subscriber.sender.send(WatchNotice::Changed)));
    }

    /// A change without a key concerns all.
    fn notify(&self, key: Option<&str>) {
        let state = self.lock();
        let concerned = state.subscribers.values().filter(|one| key.is_none_or(|key| one.key == key));
        concerned.for_each(|subscriber| drop(subscriber.sender.send(WatchNotice::Changed)));
    }

    fn subscribe(&self, key: &str, sender: mpsc::UnboundedSender<WatchNotice>) -> Subscription<'_> {
        let mut state = self.lock();
        if state.is_open {
            drop(sender.send(WatchNotice::Changed));
        }
        let id = state.next_id;
        state.next_id += 1;
        state.subscribers.insert(id, Subscriber { key: key.to_owned(), sender });
        drop(state);
        self.wanted.notify_one();
        Subscription { watch: self, id }
    }

    fn lock(&self) -> MutexGuard<'_, WatchState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Subscription<'_> {
    fn drop(&mut self) {
        self.watch.lock().subscribers.remove(&self.id);
    }
}

fn key_of(change: &RawDocumentBuf) -> Option<&str> {
    change.get_document("documentKey").ok()?.get_str("_id").ok()
}
